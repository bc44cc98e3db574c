//! HTTPMode and SidecarMode: the submission, the end, and what is lost.

use super::*;

/// Ray on the job's cluster, as the server asks it.
#[derive(Default)]
struct Ray {
    /// The program's state, once it was submitted.
    state: Option<&'static str>,
    exit_code: Option<i64>,
    /// Why there is no answer.
    silent: Option<&'static str>,
    /// Why it takes no program.
    refuses: Option<&'static str>,
    /// What was submitted.
    posts: Vec<Value>,
    stops: u32,
}

impl Ray {
    fn answer(&mut self, request: ProgramRequest) -> ProgramObservation {
        let observation = |answer: ProgramAnswer, submitted: bool| ProgramObservation {
            head_run: request.head_run.clone(),
            id: request.id.clone(),
            answer,
            submitted,
        };
        if let Some(why) = self.silent {
            return observation(ProgramAnswer::Silent(why.to_owned()), false);
        }
        match (&request.errand, self.refuses) {
            (ProgramErrand::Submit(_), Some(why)) => {
                return observation(ProgramAnswer::Refused(why.to_owned()), false);
            }
            (ProgramErrand::Submit(body), None) if self.state.is_none() => {
                self.posts.push(body.clone());
                self.state = Some("PENDING");
            }
            (ProgramErrand::Stop, _) if self.state == Some("RUNNING") => {
                self.stops += 1;
                self.state = Some("STOPPED");
            }
            _ => {}
        }
        let Some(state) = self.state else {
            return observation(ProgramAnswer::Unknown, false);
        };
        let message = "It failed, last available logs: x";
        let answer =
            json!({"status": state, "driver_exit_code": self.exit_code, "message": message});
        let program = RayProgram::of(&answer).expect("a state of a program");
        observation(ProgramAnswer::Known(program), true)
    }
}

/// Decides, acts and asks until nothing is left to do; returns the events' reasons.
fn settle_with(world: &mut World, ray: &mut Ray, second: i64) -> Vec<String> {
    let mut reasons = Vec::new();
    for _ in 0..10 {
        reasons.extend(world.settle(second));
        let Some(request) = world.decide_with_request(second).request else {
            return reasons;
        };
        let answer = Some(ray.answer(request));
        if world.program == answer {
            return reasons;
        }
        world.program = answer;
    }
    panic!("the answers do not come to rest: {:?}", world.program);
}

/// A job in HTTPMode whose program was submitted.
fn by_http(more: Value) -> (World, Ray) {
    let mut spec = json!({"submissionMode": "HTTPMode"});
    for (key, value) in more.as_object().unwrap() {
        spec[key] = value.clone();
    }
    let (mut world, mut ray) = (World::new(spec), Ray::default());
    world.settle(0);
    place_head(&mut world, "head-1");
    settle_with(&mut world, &mut ray, 0);
    (world, ray)
}

/// The cluster is ready, and its head has a pod.
fn place_head(world: &mut World, run: &str) {
    world.ready(run);
    let cluster = world.cluster.as_mut().expect("the cluster exists");
    let pod = format!("{}-head", cluster.metadata.name.as_deref().unwrap());
    let head = cluster.status.as_mut().unwrap().head.as_mut().unwrap();
    (head.pod_name, head.pod_ip) = (Some(pod), Some("10.0.0.1".to_owned()));
}

#[test]
fn the_server_submits_the_program_once_and_follows_it_to_its_end() {
    let (mut world, mut ray) = by_http(json!({
        "runtimeEnvYAML": "env_vars: {A: b}", "metadata": {"k": "v"},
        "entrypointNumCpus": 0.5, "entrypointResources": "{\"accelerator\": 1}",
    }));
    let id = world.status().job_id.clone().unwrap();
    let body = json!({
        "entrypoint": "python x.py", "submission_id": id, "runtime_env": {"env_vars": {"A": "b"}},
        "metadata": {"k": "v"}, "entrypoint_num_cpus": 0.5, "entrypoint_resources": {"accelerator": 1.0},
    });
    assert_eq!(ray.posts, [body]);
    assert_eq!(world.created, (0, 1), "no Job submits");
    assert_eq!(world.phase(), "Running");
    assert_eq!(world.status().job_status.as_deref(), Some("PENDING"));
    assert_eq!(world.decide(1).requeue_at, Some(at(3)), "it asks again");
    ray.state = Some("RUNNING");
    settle_with(&mut world, &mut ray, 2);
    assert_eq!(world.status().job_status.as_deref(), Some("RUNNING"));
    // The server was killed: it knows what the status says.
    world.program = None;
    let request = world.decide_with_request(3).request.expect("a request");
    assert_eq!(request.errand, ProgramErrand::Follow);
    assert!(!request.outlives, "the cluster is deleted with the job");
    (ray.state, ray.exit_code) = (Some("SUCCEEDED"), Some(0));
    assert_eq!(settle_with(&mut world, &mut ray, 9), ["RayJobSucceeded"]);
    let status = world.status();
    assert_eq!(status.job_status.as_deref(), Some("SUCCEEDED"));
    assert_eq!((world.phase(), status.succeeded), ("Complete", Some(1)));
    assert_eq!(ray.posts.len(), 1);
    assert_eq!(world.decide_with_request(10).request, None);
}

#[test]
fn a_program_that_ray_has_is_not_submitted_again_by_a_server_that_died() {
    let mut world = World::new(json!({"submissionMode": "HTTPMode"}));
    world.settle(0);
    place_head(&mut world, "head-1");
    world.settle(0);
    assert_eq!(
        (world.phase(), world.status().job_status.clone()),
        ("Running", None)
    );
    // The submission arrived, and the server died before it wrote so.
    let mut ray = Ray {
        state: Some("RUNNING"),
        ..Ray::default()
    };
    settle_with(&mut world, &mut ray, 1);
    assert_eq!(ray.posts.len(), 0);
    assert_eq!(world.status().job_status.as_deref(), Some("RUNNING"));
    // Ray that forgot it has lost it.
    ray.state = None;
    settle_with(&mut world, &mut ray, 2);
    assert_eq!(world.status().reason.as_deref(), Some("HeadLost"));
    assert_eq!(ray.posts.len(), 0);
}

#[test]
fn the_ends_of_a_program_in_ray_are_those_of_the_job() {
    let table = [
        ("FAILED", Some(3), "The program failed with exit code 3."),
        ("FAILED", None, "The program failed: It failed."),
        ("STOPPED", None, "The program was stopped in Ray."),
    ];
    for (state, exit_code, sentence) in table {
        let (mut world, mut ray) = by_http(json!({}));
        (ray.state, ray.exit_code) = (Some(state), exit_code);
        assert_eq!(settle_with(&mut world, &mut ray, 5), ["RayJobFailed"]);
        let status = world.status();
        assert_eq!(status.reason.as_deref(), Some("AppFailed"));
        assert_eq!(status.message.as_deref(), Some(sentence));
        assert_eq!(world.phase(), "Failed");
    }
    // Another attempt has a cluster and a program of its own.
    let (mut world, mut ray) = by_http(json!({"backoffLimit": 1}));
    let first = world.status().job_id.clone();
    (ray.state, ray.exit_code) = (Some("FAILED"), Some(1));
    assert_eq!(settle_with(&mut world, &mut ray, 5), ["RayJobRetries"]);
    (ray.state, ray.exit_code) = (None, None);
    place_head(&mut world, "head-2");
    settle_with(&mut world, &mut ray, 6);
    assert_eq!((world.phase(), ray.posts.len()), ("Running", 2));
    assert_ne!(world.status().job_id, first);
}

#[test]
fn a_lost_head_ends_the_attempt_of_the_server() {
    let (mut world, mut ray) = by_http(json!({}));
    place_head(&mut world, "head-2");
    settle_with(&mut world, &mut ray, 1);
    assert_eq!(world.status().reason.as_deref(), Some("HeadLost"));
    let (mut world, mut ray) = by_http(json!({}));
    world.cluster = None;
    settle_with(&mut world, &mut ray, 1);
    assert_eq!(world.status().reason.as_deref(), Some("ClusterLost"));
    assert_eq!(ray.posts.len(), 1);
}

#[test]
fn ray_that_refuses_or_is_silent_for_too_long_ends_the_attempt() {
    let mut world = World::new(json!({"submissionMode": "HTTPMode"}));
    let mut ray = Ray {
        refuses: Some("Traceback\nTypeError: metadata values must be strings\n"),
        ..Ray::default()
    };
    world.settle(0);
    place_head(&mut world, "head-1");
    settle_with(&mut world, &mut ray, 0);
    let status = world.status();
    assert_eq!(status.reason.as_deref(), Some("SubmissionFailed"));
    let sentence = "Ray refused the program: TypeError: metadata values must be strings.";
    assert_eq!(status.message.as_deref(), Some(sentence));

    let (mut world, mut ray) = by_http(json!({}));
    ray.silent = Some("it took more than 30 s");
    settle_with(&mut world, &mut ray, 10);
    assert_eq!(world.phase(), "Running");
    let message = world.status().message.clone().unwrap();
    assert!(message.ends_with("does not answer about the program: it took more than 30 s."));
    // An answer ends the count.
    ray.silent = None;
    settle_with(&mut world, &mut ray, 200);
    assert_eq!(world.status().job_status_check_failure_start_time, None);
    ray.silent = Some("no process listens");
    settle_with(&mut world, &mut ray, 310);
    settle_with(&mut world, &mut ray, 609);
    assert_eq!(world.phase(), "Running");
    settle_with(&mut world, &mut ray, 610);
    assert_eq!(world.phase(), "Failed");
    let reason = world.status().reason.as_deref();
    assert_eq!(reason, Some("JobStatusCheckTimeoutExceeded"));
}

#[test]
fn on_a_cluster_that_stays_a_program_past_its_deadline_is_stopped() {
    let mut world = World::new(json!({"rayClusterSpec": null, "submissionMode": "HTTPMode",
        "activeDeadlineSeconds": 30, "clusterSelector": {"ray.io/cluster": "shared"}}));
    let cluster = json!({"metadata": {"name": "shared", "namespace": "team", "uid": "other",
        "annotations": {"muster.io/user": "ann"}},
        "spec": {"headGroupSpec": {"template": {"spec": {"containers": [{"name": "ray"}]}}}}});
    world.settle(0);
    world.cluster = Some(serde_json::from_value(cluster).unwrap());
    place_head(&mut world, "head-1");
    let mut ray = Ray::default();
    settle_with(&mut world, &mut ray, 1);
    ray.state = Some("RUNNING");
    settle_with(&mut world, &mut ray, 2);
    let request = world.decide_with_request(3).request.expect("a request");
    assert!(request.outlives);
    settle_with(&mut world, &mut ray, 30);
    assert_eq!((world.phase(), ray.stops), ("Failed", 1));
    let status = world.status();
    assert_eq!(status.reason.as_deref(), Some("DeadlineExceeded"));
    assert_eq!(status.job_status.as_deref(), Some("STOPPED"));
    assert_eq!(world.decide_with_request(31).request, None);
    assert!(world.cluster.is_some());
}

#[test]
fn what_cannot_be_submitted_by_http_or_by_the_head_is_refused() {
    let table = [
        (
            json!({"submissionMode": "HTTPMode", "jobId": "a/b"}),
            "spec.jobId: \"a/b\": in HTTPMode use letters, digits, '-', '_' and '.' only",
        ),
        (
            json!({"submissionMode": "HTTPMode", "runtimeEnvYAML": "- a"}),
            "spec.runtimeEnvYAML: must be YAML of an object, such as `env_vars: {NAME: value}`",
        ),
        (
            json!({"submissionMode": "SidecarMode", "clusterSelector": {"ray.io/cluster": "c"}}),
            "spec.clusterSelector: SidecarMode needs a cluster of the job's own: give rayClusterSpec, or use HTTPMode",
        ),
        (
            json!({"submissionMode": "SidecarMode", "rayClusterSpec": {"headGroupSpec": {}}}),
            "spec.rayClusterSpec.headGroupSpec.template: in SidecarMode give the head's pod",
        ),
    ];
    for (spec, text) in table {
        let mut world = World::new(spec);
        world.settle(0);
        assert_eq!(world.phase(), "ValidationFailed");
        assert_eq!(world.status().message.as_deref(), Some(text));
        assert_eq!(world.created, (0, 0));
    }
}

/// A job in SidecarMode whose head has started.
fn by_the_head(more: Value) -> World {
    let mut spec = json!({"submissionMode": "SidecarMode"});
    for (key, value) in more.as_object().unwrap() {
        spec[key] = value.clone();
    }
    let mut world = World::new(spec);
    world.settle(0);
    start_head(&mut world, "pod-1");
    world.settle(0);
    world
}

/// The head has a pod that runs, and the workers are not there yet.
fn start_head(world: &mut World, uid: &str) {
    place_head(world, &format!("{uid}/0"));
    let cluster = world.cluster.as_mut().unwrap();
    cluster.status.as_mut().unwrap().state = None;
    let template = cluster.spec.head_group_spec.template.clone().unwrap();
    let pod = json!({"metadata": {"name": "head", "uid": uid}, "spec": template.spec});
    world.head = Some(serde_json::from_value(pod).unwrap());
}

/// A container of the head ended.
fn ends(world: &mut World, container: &str, code: i32) {
    let status = json!({"containerStatuses": [{"name": container, "image": "", "imageID": "",
        "ready": false, "restartCount": 0, "state": {"terminated": {"exitCode": code}}}]});
    let head = world.head.as_mut().expect("the head has a pod");
    head.status = serde_json::from_value(status).unwrap();
}

#[test]
fn a_container_of_the_head_submits_and_its_exit_code_is_the_programs() {
    let mut world = by_the_head(json!({"runtimeEnvYAML": "env_vars: {A: b}"}));
    let id = world.status().job_id.clone().unwrap();
    let cluster = world.cluster.clone().unwrap();
    let notes = cluster.metadata.annotations.as_ref().unwrap();
    assert_eq!(notes["ray.io/disable-provisioned-head-restart"], "true");
    let pod = cluster.spec.head_group_spec.template.unwrap().spec.unwrap();
    assert_eq!(pod.restart_policy.as_deref(), Some("Never"));
    let [ray, submitter] = pod.containers.as_slice() else {
        panic!("{:?}", pod.containers);
    };
    assert_eq!(
        (ray.name.as_str(), submitter.name.as_str()),
        ("ray", "ray-job-submitter")
    );
    assert_eq!(submitter.image.as_deref(), Some("r:1"));
    assert_eq!(submitter.resources, None);
    let env = submitter.env.as_ref().unwrap();
    let value = |key: &str| env.iter().find(|one| one.name == key)?.value.clone();
    assert_eq!(value("PATH").as_deref(), Some("/ray"));
    assert_eq!(value("RAY_JOB_SUBMISSION_ID"), Some(id));
    assert_eq!(
        value("RAY_DASHBOARD_ADDRESS"),
        None,
        "the cluster's controller chooses the port"
    );
    assert_eq!(world.status().head_run.as_deref(), Some("pod-1/0"));
    assert_eq!(world.phase(), "Initializing");
    world.ready("pod-1/0");
    world.settle(1);
    assert_eq!((world.phase(), world.holds()), ("Running", Some("Running")));
    assert_eq!(world.created, (0, 1), "no Job submits");
    ends(&mut world, "ray-job-submitter", 0);
    assert_eq!(world.settle(9), ["RayJobSucceeded"]);
    assert_eq!(world.status().job_status.as_deref(), Some("SUCCEEDED"));
    assert_eq!(
        (world.phase(), world.status().succeeded),
        ("Complete", Some(1))
    );
}

#[test]
fn the_program_may_end_before_the_workers_are_there() {
    let lost = "The head of RayCluster";
    let table = [
        (
            "ray-job-submitter",
            0,
            "Complete",
            None,
            "The program ended with exit code 0.",
        ),
        (
            "ray-job-submitter",
            3,
            "Failed",
            Some("AppFailed"),
            "The program failed with exit code 3.",
        ),
        (
            "ray-job-submitter",
            75,
            "Failed",
            Some("SubmissionFailed"),
            "The container ray-job-submitter of the head ended with exit code 75 before the program did.",
        ),
        ("ray", 0, "Failed", Some("HeadLost"), lost),
    ];
    for (container, code, phase, reason, sentence) in table {
        let mut world = by_the_head(json!({}));
        ends(&mut world, container, code);
        world.settle(1);
        assert_eq!(world.phase(), phase, "{container} {code}");
        assert_eq!(world.status().reason.as_deref(), reason);
        let message = world.status().message.as_deref().unwrap();
        assert!(message.starts_with(sentence), "{message}");
    }
}

#[test]
fn a_lost_head_ends_the_attempt_of_its_container() {
    let without_head = json!([{"type": "HeadPodReady", "status": "False",
        "reason": "HeadPodNotFound", "message": "", "lastTransitionTime": "2024-01-01T00:00:00Z"}]);
    for ready in [false, true] {
        let mut world = by_the_head(json!({"backoffLimit": 1}));
        if ready {
            world.ready("pod-1/0");
            world.settle(1);
        }
        world.head = None;
        let status = world.cluster.as_mut().unwrap().status.as_mut().unwrap();
        status.conditions = serde_json::from_value(without_head.clone()).unwrap();
        assert_eq!(world.settle(2), ["RayJobRetries"], "{ready}");
        assert_eq!(
            world.created,
            (0, 2),
            "each attempt has a cluster of its own"
        );
        assert_eq!(world.status().head_run, None);
    }
    let mut world = by_the_head(json!({}));
    world.cluster = None;
    world.settle(1);
    assert_eq!(world.status().reason.as_deref(), Some("ClusterLost"));
    assert_eq!(world.created, (0, 1));
}
