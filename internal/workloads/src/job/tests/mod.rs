//! Job's reconciliation, by scenario and by property, against a simulated namespace that carries
//! out the actions. Here: which pods a Job has.

mod bounds;
mod clock;
mod failures;
mod properties;
mod room;
mod world;

use serde_json::json;

use self::world::{World, at};

#[test]
fn a_job_runs_its_pods_in_parallel_until_enough_have_succeeded() {
    let mut world = World::new(json!({"parallelism": 2, "completions": 3}));
    world.settle(at(0));
    assert_eq!(world.live().len(), 2);
    assert_eq!(world.status().active, Some(2));
    assert_eq!(world.status().start_time.as_ref().unwrap().0, at(0));
    let first = world.live()[0].clone();
    world.exit(&first, 0, at(5));
    world.settle(at(5));
    assert_eq!((world.live().len(), world.status().succeeded), (2, Some(1)));
    for name in world.live() {
        world.exit(&name, 0, at(9));
    }
    world.settle(at(9));
    assert_eq!(
        world.conditions(),
        [
            "SuccessCriteriaMet=True(CompletionsReached)",
            "Complete=True(CompletionsReached)"
        ]
    );
    assert_eq!(world.status().completion_time.as_ref().unwrap().0, at(9));
    assert_eq!(
        (
            world.status().active,
            world.status().succeeded,
            world.created
        ),
        (None, Some(3), 3)
    );
    assert_eq!(world.pods.len(), 3, "finished pods keep their logs");
}

#[test]
fn pods_look_like_kubernetes_ones() {
    let mut world = World::new(json!({}));
    world.job.metadata.labels = Some(
        [(
            "scheduling.volcano.sh/queue-name".to_owned(),
            "night".to_owned(),
        )]
        .into(),
    );
    world.job.metadata.annotations =
        Some([("muster.io/walltime".to_owned(), "2h".to_owned())].into());
    world.settle(at(0));
    let name = &world.live()[0];
    assert!(
        name.starts_with("crunch-") && name.len() == "crunch-".len() + 5,
        "{name}"
    );
    let pod = serde_json::to_value(&world.pods[name]).unwrap();
    assert_eq!(
        pod["metadata"]["labels"],
        json!({
            "batch.kubernetes.io/job-name": "crunch", "job-name": "crunch",
            "batch.kubernetes.io/controller-uid": "job-uid", "controller-uid": "job-uid",
        })
    );
    assert_eq!(
        pod["metadata"]["annotations"]["scheduling.volcano.sh/queue-name"],
        "night"
    );
    assert_eq!(pod["metadata"]["annotations"]["muster.io/walltime"], "2h");
    assert_eq!(pod["metadata"]["ownerReferences"][0]["kind"], "Job");
    assert!(
        pod["metadata"]["annotations"]
            .get("scheduling.k8s.io/group-name")
            .is_none()
    );
}

#[test]
fn an_indexed_job_gives_each_pod_its_index() {
    let mut world =
        World::new(json!({"completionMode": "Indexed", "parallelism": 3, "completions": 5}));
    world.settle(at(0));
    let name = world.with_index(2);
    assert!(name.starts_with("crunch-2-"), "{name}");
    let pod = serde_json::to_value(&world.pods[&name]).unwrap();
    assert_eq!(pod["spec"]["hostname"], "crunch-2");
    assert_eq!(
        pod["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"],
        "2"
    );
    assert_eq!(
        pod["metadata"]["annotations"]["batch.kubernetes.io/job-completion-index"],
        "2"
    );
    assert_eq!(
        pod["spec"]["containers"][0]["env"],
        json!([{"name": "JOB_COMPLETION_INDEX", "value": "2"}])
    );
    for index in [0, 2] {
        let name = world.with_index(index);
        world.exit(&name, 0, at(3));
    }
    world.settle(at(3));
    assert_eq!(world.status().completed_indexes.as_deref(), Some("0,2"));
    assert!(
        world
            .live()
            .iter()
            .all(|name| [1, 3, 4].contains(&super::index_of(&world.pods[name]).unwrap()))
    );
    // A failed index is retried after a wait, by another pod.
    let failed = world.with_index(1);
    world.exit(&failed, 1, at(4));
    world.settle(at(4));
    assert_eq!(world.live().len(), 2);
    assert_eq!(world.ask(at(5)).requeue_at, Some(at(14)));
    world.settle(at(14));
    assert_ne!(world.with_index(1), failed);
    for index in [1, 3, 4] {
        let name = world.with_index(index);
        world.exit(&name, 0, at(20));
    }
    world.settle(at(20));
    assert_eq!(world.status().completed_indexes.as_deref(), Some("0-4"));
    assert!(world.holds("Complete"));
    assert_eq!(world.status().failed, Some(1));
}

#[test]
fn a_work_queue_is_done_when_one_pod_has_succeeded_and_the_rest_have_ended() {
    let mut world = World::new(json!({"parallelism": 3}));
    world.settle(at(0));
    let names = world.live();
    world.exit(&names[0], 0, at(1));
    world.settle(at(1));
    assert_eq!(
        world.live().len(),
        2,
        "nothing new starts, nothing is stopped"
    );
    assert!(!world.holds("Complete"));
    world.exit(&names[1], 0, at(2));
    world.exit(&names[2], 0, at(2));
    world.settle(at(2));
    assert!(world.holds("Complete"));
}

#[test]
fn less_parallelism_stops_the_least_advanced_pods() {
    let mut world = World::new(json!({"parallelism": 3, "completions": 9}));
    world.settle(at(0));
    let runs = world.live()[1].clone();
    world.run(&runs);
    world.job.spec.as_mut().unwrap().parallelism = Some(1);
    world.settle(at(1));
    assert_eq!(world.live(), [runs]);
    assert_eq!(world.status().failed, None);
}

#[test]
fn a_job_managed_by_another_controller_is_left_alone() {
    let mut world = World::new(json!({"managedBy": "example.com/custom"}));
    assert!(world.step(at(0)).actions.is_empty());
}
