//! The rules of Job and of the training kinds.

use serde_json::{Value, json};

use super::{change, create, kind, object};

#[test]
fn a_job_must_let_its_pods_end() {
    let jobs = kind("batch", "v1", "jobs");
    let job = |spec: Value| {
        create(
            jobs,
            object("j", json!({"spec": {"template": {"spec": spec}}})),
        )
    };
    let (_, errors) = job(json!({"containers": [{"name": "c", "image": "x"}]}));
    assert_eq!(
        errors,
        [
            "spec.template.spec.restartPolicy: Required value: valid values: \"OnFailure\", \"Never\""
        ]
    );
    let (made, errors) =
        job(json!({"restartPolicy": "Never", "containers": [{"name": "c", "image": "x"}]}));
    assert!(errors.is_empty(), "{errors:?}");
    assert_eq!(
        (&made["spec"]["completions"], &made["spec"]["parallelism"]),
        (&json!(1), &json!(1))
    );
    assert_eq!(made["metadata"]["labels"]["job-name"], "j");
    assert_eq!(
        change(jobs, &made, |j| j["spec"]["completions"] = json!(2)),
        ["spec.completions: Invalid value: 2: field is immutable"]
    );
    assert!(change(jobs, &made, |j| j["spec"]["parallelism"] = json!(5)).is_empty());
    assert!(change(jobs, &made, |j| j["spec"]["suspend"] = json!(true)).is_empty());
    let errors = change(jobs, &made, |j| {
        j["spec"]["template"]["spec"]["restartPolicy"] = json!("OnFailure")
    });
    assert!(
        errors[0].starts_with("spec.template: Invalid value: {")
            && errors[0].ends_with(": field is immutable"),
        "{errors:?}"
    );
}

#[test]
fn an_indexed_job_needs_its_completions() {
    let jobs = kind("batch", "v1", "jobs");
    let template =
        json!({"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "x"}]}});
    let spec = json!({"completionMode": "Indexed", "parallelism": 2, "template": template});
    let (_, errors) = create(jobs, object("j", json!({"spec": spec})));
    assert_eq!(
        errors,
        ["spec.completions: Required value: when completion mode is Indexed"]
    );
}

#[test]
fn a_suspended_jobs_placement_may_change() {
    let jobs = kind("batch", "v1", "jobs");
    let template =
        json!({"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "x"}]}});
    let (made, errors) = create(
        jobs,
        object(
            "j",
            json!({"spec": {"suspend": true, "template": template}}),
        ),
    );
    assert!(errors.is_empty());
    let edit = |j: &mut Value| j["spec"]["template"]["spec"]["nodeSelector"] = json!({"a": "b"});
    assert!(change(jobs, &made, edit).is_empty());
}

fn pytorch(spec: Value) -> (Value, Vec<String>) {
    create(
        kind("kubeflow.org", "v1", "pytorchjobs"),
        object("train", json!({"spec": spec})),
    )
}

fn replica(count: Option<i64>) -> Value {
    let mut replica =
        json!({"template": {"spec": {"containers": [{"name": "pytorch", "image": "x"}]}}});
    if let Some(count) = count {
        replica["replicas"] = json!(count);
    }
    replica
}

#[test]
fn a_training_job_is_completed_as_the_operator_completes_it() {
    let (job, errors) = pytorch(
        json!({"pytorchReplicaSpecs": {"master": replica(None), "WORKER": replica(Some(2))}}),
    );
    assert!(errors.is_empty(), "{errors:?}");
    let specs = &job["spec"]["pytorchReplicaSpecs"];
    assert_eq!(
        (&specs["Master"]["replicas"], &specs["Worker"]["replicas"]),
        (&json!(1), &json!(2))
    );
    assert_eq!(specs["Master"]["restartPolicy"], "OnFailure");
    assert_eq!(
        job["spec"]["runPolicy"],
        json!({"cleanPodPolicy": "None", "suspend": false})
    );
    assert_eq!(job["spec"]["nprocPerNode"], "auto");
    // The template stays as written: defaulting applies to its pods at their creation.
    assert!(
        specs["Master"]["template"]["spec"]
            .get("restartPolicy")
            .is_none()
    );
}

#[test]
fn an_elastic_job_defaults_to_the_workers_it_has() {
    let (job, errors) =
        pytorch(json!({"elasticPolicy": {}, "pytorchReplicaSpecs": {"Worker": replica(Some(3))}}));
    assert!(errors.is_empty(), "{errors:?}");
    assert_eq!(
        job["spec"]["elasticPolicy"],
        json!({"minReplicas": 3, "maxReplicas": 3, "rdzvBackend": "c10d"})
    );
}

#[test]
fn a_training_job_that_cannot_be_is_refused() {
    let table = [
        (
            json!({}),
            "spec.pytorchReplicaSpecs: Required value: must be specified",
        ),
        (
            json!({"pytorchReplicaSpecs": {"Master": replica(Some(2))}}),
            "spec.pytorchReplicaSpecs[Master].replicas: Forbidden: must be 1",
        ),
        (
            json!({"pytorchReplicaSpecs": {"Chief": replica(None)}}),
            "spec.pytorchReplicaSpecs[Chief]: Unsupported value: \"Chief\": supported values: \"Master\", \"Worker\"",
        ),
        (
            json!({"pytorchReplicaSpecs": {"Worker": {}}}),
            "spec.pytorchReplicaSpecs[Worker].template.spec.containers: Required value: must be specified",
        ),
        (
            json!({"elasticPolicy": {"minReplicas": 3, "maxReplicas": 2}, "pytorchReplicaSpecs": {"Worker": replica(Some(2))}}),
            "spec.elasticPolicy.minReplicas: Invalid value: 3: must be less than or equal to maxReplicas 2",
        ),
        (
            json!({"nprocPerNode": "many", "pytorchReplicaSpecs": {"Worker": replica(None)}}),
            "spec.nprocPerNode: Invalid value: \"many\": must be auto, cpu, gpu or a number greater than 0",
        ),
        (
            json!({"runPolicy": {"cleanPodPolicy": "Some"}, "pytorchReplicaSpecs": {"Worker": replica(None)}}),
            "spec.runPolicy.cleanPodPolicy: Unsupported value: \"Some\": supported values: \"All\", \"Running\", \"None\"",
        ),
    ];
    for (spec, message) in table {
        assert_eq!(pytorch(spec).1, [message]);
    }
    let mut bad = replica(None);
    bad["template"]["spec"]["containers"][0]["resources"] =
        json!({"requests": {"nvidia.com/gpu": 1}});
    assert_eq!(
        pytorch(json!({"pytorchReplicaSpecs": {"Worker": bad}})).1,
        [
            "spec.pytorchReplicaSpecs[Worker].template.spec.containers[0].resources.limits: Required value: Limit must be set for non overcommitable resources"
        ]
    );
}

#[test]
fn a_training_job_has_no_more_pods_than_a_gang_may() {
    let errors = |spec: Value| pytorch(spec).1;
    let whole = |workers: i64| json!({"pytorchReplicaSpecs": {"Master": replica(None), "Worker": replica(Some(workers))}});
    assert!(errors(whole(19_999)).is_empty());
    let too_many = |field: &str, count: i64, most: i64| {
        format!(
            "spec.{field}: Invalid value: {count}: must be at most {most}, because a job has at most 20000 pods"
        )
    };
    for count in [20_000, i64::from(i32::MAX), i64::MAX] {
        assert_eq!(
            errors(whole(count)),
            [too_many(
                "pytorchReplicaSpecs[Worker].replicas",
                count,
                19_999
            )]
        );
    }
    let workers = |workers: i64| json!({"Worker": replica(Some(workers))});
    assert!(errors(json!({"pytorchReplicaSpecs": workers(20_000)})).is_empty());
    let elastic = json!({
        "elasticPolicy": {"minReplicas": 1, "maxReplicas": i32::MAX},
        "pytorchReplicaSpecs": workers(2),
    });
    assert_eq!(
        errors(elastic),
        [too_many(
            "elasticPolicy.maxReplicas",
            i64::from(i32::MAX),
            20_000
        )]
    );
}

#[test]
fn a_job_that_was_stored_with_more_pods_can_still_be_let_go() {
    let spec = json!({"pytorchReplicaSpecs": {"Worker": replica(Some(i64::from(i32::MAX)))}});
    let jobs = kind("kubeflow.org", "v1", "pytorchjobs");
    let stored = object("train", json!({"spec": spec}));
    let let_go = |job: &mut Value| job["metadata"]["finalizers"] = json!([]);
    assert!(change(jobs, &stored, let_go).is_empty());
    let other = |job: &mut Value| {
        job["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"] = json!(20_001);
    };
    assert_eq!(change(jobs, &stored, other).len(), 1);
}
