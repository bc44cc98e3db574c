//! Tables of what a JobSet's defaults and checks do.

use super::*;

fn job(name: &str, more: &Value) -> Value {
    let pod = json!({"spec": {"containers": [{"name": "c", "image": "x"}]}});
    let mut job = json!({"name": name, "template": {"spec": {"parallelism": 2, "completions": 2, "template": pod}}});
    for (key, value) in more.as_object().unwrap() {
        job[key] = value.clone();
    }
    job
}

fn job_set(more: Value) -> Value {
    let mut spec = json!({"replicatedJobs": [job("leader", &json!({})), job("worker", &json!({"replicas": 2}))]});
    for (key, value) in more.as_object().unwrap() {
        spec[key] = value.clone();
    }
    let mut object =
        json!({"metadata": {"name": "js", "namespace": "team", "uid": "u"}, "spec": spec});
    (KIND.default)(&mut object);
    object
}

fn errors_of(object: &Value, old: Option<&Value>) -> Vec<String> {
    let errors = (KIND.validate)(object, old);
    errors.iter().map(ToString::to_string).collect()
}

#[test]
fn the_defaults_are_those_of_jobsets_webhook_and_stand_when_set_again() {
    let mut object = job_set(json!({"failurePolicy": {"rules": [{"action": "FailJobSet"}]}}));
    let spec = &object["spec"];
    assert_eq!(spec["successPolicy"], json!({"operator": "All"}));
    assert_eq!(
        spec["startupPolicy"],
        json!({"startupPolicyOrder": "AnyOrder"})
    );
    assert_eq!(
        spec["network"],
        json!({"enableDNSHostnames": true, "publishNotReadyAddresses": true})
    );
    assert_eq!(spec["failurePolicy"]["restartStrategy"], "Recreate");
    assert_eq!(
        spec["failurePolicy"]["rules"][0]["name"],
        "failurePolicyRule0"
    );
    let leader = &spec["replicatedJobs"][0];
    assert_eq!(
        (&leader["replicas"], &leader["groupName"]),
        (&json!(1), &json!("default"))
    );
    assert_eq!(leader["template"]["spec"]["completionMode"], "Indexed");
    assert_eq!(
        leader["template"]["spec"]["template"]["spec"]["restartPolicy"],
        "OnFailure"
    );
    let once = object.clone();
    (KIND.default)(&mut object);
    assert_eq!(object, once);
    assert_eq!(errors_of(&object, None), [""; 0]);
}

#[test]
fn what_jobset_refuses_is_refused_with_its_field_and_what_would_be_right() {
    let jobs = |second: Value| {
        job_set(json!({"replicatedJobs": [job("a", &json!({})), job("b", &second)]}))
    };
    let rule = |rule: Value| job_set(json!({"failurePolicy": {"rules": [rule]}}));
    let table = [
        (
            job_set(json!({"replicatedJobs": []})),
            "spec.replicatedJobs: Required value: a JobSet has at least one job",
        ),
        (
            jobs(json!({"name": "a"})),
            "spec.replicatedJobs[1].name: Duplicate value: \"a\"",
        ),
        (
            jobs(json!({"replicas": -1})),
            "spec.replicatedJobs[1].replicas: Invalid value: -1",
        ),
        (
            jobs(json!({"dependsOn": [{"name": "c", "status": "Ready"}]})),
            "spec.replicatedJobs[1].dependsOn[0].name: Invalid value: \"c\": name a job that stands before this one",
        ),
        (
            jobs(json!({"dependsOn": [{"name": "a", "status": "Done"}]})),
            "spec.replicatedJobs[1].dependsOn[0].status: Unsupported value: \"Done\": supported values: \"Ready\", \"Complete\"",
        ),
        (
            jobs(json!({"name": "b".repeat(60)})),
            "spec.replicatedJobs[1].name: Invalid value",
        ),
        (
            jobs(json!({"replicas": 5_000})),
            "spec.replicatedJobs: Invalid value: 5001",
        ),
        (
            jobs(json!({"template": {"spec": {}}})),
            "spec.replicatedJobs[1].template.spec.template.spec.containers: Required value",
        ),
        (
            job_set(json!({"successPolicy": {"operator": "Any", "targetReplicatedJobs": ["x"]}})),
            "spec.successPolicy.targetReplicatedJobs[0]: Invalid value: \"x\": there is no job of this name",
        ),
        (
            job_set(json!({"network": {"subdomain": "A"}})),
            "spec.network.subdomain: Invalid value: \"A\"",
        ),
        (
            job_set(json!({"managedBy": "me"})),
            "spec.managedBy: Invalid value: \"me\": must be a domain and a path",
        ),
        (
            job_set(json!({"coordinator": {"replicatedJob": "x"}})),
            "spec.coordinator.replicatedJob: Invalid value: \"x\"",
        ),
        (
            job_set(json!({"coordinator": {"replicatedJob": "worker", "jobIndex": 2}})),
            "spec.coordinator.jobIndex: Invalid value: 2: must be from 0 to 1",
        ),
        (
            job_set(json!({"volumeClaimPolicies": [{}]})),
            "spec.volumeClaimPolicies: Forbidden",
        ),
        (
            job_set(json!({"failurePolicy": {"restartStrategy": "InPlaceRestart"}})),
            "spec.failurePolicy.restartStrategy: Unsupported value: \"InPlaceRestart\"",
        ),
        (
            rule(json!({"action": "Restart"})),
            "spec.failurePolicy.rules[0].action: Unsupported value: \"Restart\"",
        ),
        (
            rule(json!({"action": "FailJobSet", "name": "1"})),
            "spec.failurePolicy.rules[0].name: Invalid value: \"1\"",
        ),
        (
            rule(json!({"action": "FailJobSet", "onJobFailureReasons": ["Bad"]})),
            "spec.failurePolicy.rules[0].onJobFailureReasons[0]: Unsupported value: \"Bad\"",
        ),
        (
            rule(json!({"action": "FailJobSet", "onJobFailureMessagePatterns": ["("]})),
            "spec.failurePolicy.rules[0].onJobFailureMessagePatterns[0]: Invalid value: \"(\": must be a regular expression",
        ),
        (
            rule(json!({"action": "FailJobSet", "targetReplicatedJobs": ["x"]})),
            "spec.failurePolicy.rules[0].targetReplicatedJobs[0]: Invalid value: \"x\"",
        ),
    ];
    for (object, begin) in table {
        let errors = errors_of(&object, None);
        assert!(
            errors.len() == 1 && errors[0].starts_with(begin),
            "{begin}: {errors:?}"
        );
    }
    let both = job_set(
        json!({"startupPolicy": {"startupPolicyOrder": "InOrder"}, "replicatedJobs": [
        job("a", &json!({})), job("b", &json!({"dependsOn": [{"name": "a", "status": "Ready"}]}))]}),
    );
    assert_eq!(errors_of(&both, None).len(), 1);
    let mut exclusive = job_set(json!({}));
    exclusive["metadata"]["annotations"] = json!({EXCLUSIVE_TOPOLOGY: "rack"});
    assert_eq!(errors_of(&exclusive, None).len(), 1);
}

#[test]
fn only_suspension_lifetime_and_the_placement_of_suspended_pods_change() {
    let held = |suspend: bool| job_set(json!({"suspend": suspend}));
    assert_eq!(errors_of(&held(true), Some(&held(false))), [""; 0]);
    let mut later = held(false);
    later["spec"]["ttlSecondsAfterFinished"] = json!(5);
    assert_eq!(errors_of(&later, Some(&held(false))), [""; 0]);
    let mut placed = held(false);
    placed["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["nodeSelector"] =
        json!({"zone": "a"});
    assert_eq!(errors_of(&placed, Some(&held(true))), [""; 0]);
    assert_eq!(errors_of(&placed, Some(&held(false))).len(), 1);
    let mut more = held(true);
    more["spec"]["replicatedJobs"][1]["replicas"] = json!(3);
    assert_eq!(errors_of(&more, Some(&held(true))).len(), 1);
    let mut other = held(true);
    other["spec"]["network"]["subdomain"] = json!("net");
    assert_eq!(errors_of(&other, Some(&held(true))).len(), 1);
}
