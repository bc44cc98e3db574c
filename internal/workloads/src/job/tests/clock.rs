//! What time does to a Job: deadlines, suspension, and the time to live after its end.

use serde_json::json;

use super::{World, at};

#[test]
fn a_job_out_of_time_fails() {
    let mut world = World::new(json!({"activeDeadlineSeconds": 30}));
    world.settle(at(0));
    assert_eq!(world.ask(at(1)).requeue_at, Some(at(30)));
    world.settle(at(30));
    assert_eq!(
        world.conditions(),
        [
            "FailureTarget=True(DeadlineExceeded)",
            "Failed=True(DeadlineExceeded)"
        ]
    );
    assert!(world.pods.is_empty());
}

#[test]
fn pods_say_how_long_they_may_run_as_their_job_does_or_by_its_deadline() {
    let walltime = |said: Option<&str>, spec: serde_json::Value| {
        let mut world = World::new(spec);
        world.job.metadata.annotations =
            said.map(|said| [("muster.io/walltime".to_owned(), said.to_owned())].into());
        world.settle(at(0));
        let (_, pod) = world.pods.first_key_value().unwrap();
        let annotations = pod.metadata.annotations.clone().unwrap();
        annotations.get("muster.io/walltime").cloned()
    };
    let seconds = |text: &str| Some(text.to_owned());
    assert_eq!(walltime(None, json!({})), None);
    let deadline = json!({"activeDeadlineSeconds": 30});
    assert_eq!(walltime(None, deadline.clone()), seconds("30"));
    assert_eq!(walltime(Some("5m"), deadline), seconds("5m"));
}

#[test]
fn a_held_job_stops_and_resumes_with_a_new_clock() {
    let mut world =
        World::new(json!({"parallelism": 2, "completions": 2, "activeDeadlineSeconds": 30}));
    world.settle(at(0));
    world.job.spec.as_mut().unwrap().suspend = Some(true);
    world.settle(at(10));
    assert!(world.pods.is_empty());
    assert_eq!(world.conditions(), ["Suspended=True(JobSuspended)"]);
    world.settle(at(100));
    world.job.spec.as_mut().unwrap().suspend = Some(false);
    world.settle(at(200));
    assert_eq!(world.conditions(), ["Suspended=False(JobResumed)"]);
    assert_eq!(world.status().start_time.as_ref().unwrap().0, at(200));
    assert_eq!(world.live().len(), 2);
}

#[test]
fn a_job_created_held_has_no_start() {
    let mut world = World::new(json!({"suspend": true}));
    world.settle(at(0));
    assert!(world.status().start_time.is_none() && world.pods.is_empty());
}

#[test]
fn a_finished_job_goes_after_its_time_to_live() {
    let mut world = World::new(json!({"ttlSecondsAfterFinished": 60}));
    world.settle(at(0));
    let name = world.live()[0].clone();
    world.exit(&name, 0, at(5));
    let outcome = world.step(at(5));
    assert_eq!(outcome.requeue_at, Some(at(65)));
    world.step(at(64));
    assert!(!world.job_deleted);
    world.step(at(65));
    assert!(world.job_deleted);
}
