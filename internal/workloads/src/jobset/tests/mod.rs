//! JobSets over time: tables of policies, and a property that decisions come to rest whatever happens to the Jobs.
//! Here: what a JobSet creates, and when it starts and ends.

mod failures;
mod properties;
mod world;

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use resources::jobset as labels;
use resources::names;
use serde_json::json;

use self::world::{World, at, holds_in, job};
use crate::pod_room::PodRoom;

#[test]
fn the_jobs_have_jobsets_names_labels_and_host_names_and_are_one_gang() {
    let mut world = World::two(json!({"coordinator": {"replicatedJob": "leader", "podIndex": 1}}));
    world.settle();
    assert_eq!(world.names(), ["js-leader-0", "js-worker-0", "js-worker-1"]);
    let job = &world.jobs["js-worker-1"];
    let own = job.metadata.labels.as_ref().unwrap();
    let spec = job.spec.as_ref().unwrap();
    let template = spec.template.metadata.as_ref().unwrap();
    let (pod_labels, pod_notes) = (
        template.labels.as_ref().unwrap(),
        template.annotations.as_ref().unwrap(),
    );
    for (label, value) in [
        (labels::NAME, "js"),
        (labels::UID, "set-uid"),
        (labels::REPLICATED_JOB, "worker"),
        (labels::REPLICAS, "2"),
        (labels::GLOBAL_REPLICAS, "3"),
        (labels::JOB_INDEX, "1"),
        (labels::GLOBAL_INDEX, "2"),
        // The SHA-1 of `team/js-worker-1`.
        (labels::JOB_KEY, "6bf8c7a0a4c5c2bd9e8d4ad5c53e4c0ff5ee4d3c"),
        (labels::RESTART_ATTEMPT, "0"),
        (labels::JOB_RESTART_ATTEMPT, "0"),
        (labels::GROUP_NAME, "default"),
        (labels::GROUP_REPLICAS, "3"),
        (labels::GROUP_INDEX, "2"),
        (labels::COORDINATOR, "js-leader-0-1.js"),
    ] {
        if label == labels::JOB_KEY {
            assert_eq!(own[label].len(), 40);
        } else {
            assert_eq!(own[label], value, "{label}");
        }
        for map in [
            job.metadata.annotations.as_ref().unwrap(),
            pod_labels,
            pod_notes,
        ] {
            assert_eq!(map[label], own[label], "{label}");
        }
    }
    assert_eq!(pod_notes[names::GROUP_NAME], "js");
    assert_eq!(pod_notes[names::TASK_SPEC], "worker");
    assert_eq!(
        job.metadata.annotations.as_ref().unwrap()[names::USER],
        "ann"
    );
    let pod = spec.template.spec.as_ref().unwrap();
    assert_eq!(pod.subdomain.as_deref(), Some("js"));
    assert_eq!((spec.suspend, spec.completions), (Some(false), Some(2)));
    let group = &world.group.as_ref().unwrap().spec;
    assert_eq!(
        (group.min_member, group.queue.as_deref()),
        (Some(6), Some("gold"))
    );
    let tasks = BTreeMap::from([("leader".to_owned(), 2), ("worker".to_owned(), 4)]);
    assert_eq!(group.min_task_member.as_ref(), Some(&tasks));
    let service = world.services[0].spec.as_ref().unwrap();
    assert_eq!(service.cluster_ip.as_deref(), Some("None"));
    assert_eq!(service.publish_not_ready_addresses, Some(true));
    assert_eq!(service.selector.as_ref().unwrap()[labels::NAME], "js");
}

#[test]
fn a_job_set_is_complete_as_its_success_policy_says_and_is_deleted_when_its_time_is_over() {
    for (policy, complete) in [
        (
            json!({"operator": "All"}),
            vec!["js-leader-0", "js-worker-0", "js-worker-1"],
        ),
        (json!({"operator": "Any"}), vec!["js-worker-1"]),
        (
            json!({"operator": "All", "targetReplicatedJobs": ["leader"]}),
            vec!["js-leader-0"],
        ),
    ] {
        let mut world = World::two(json!({"successPolicy": policy, "ttlSecondsAfterFinished": 30}));
        world.settle();
        world.all_ready();
        world.settle();
        assert_eq!(world.status().replicated_jobs_status[1].ready, 2);
        assert!(world.status().start_time.is_some());
        for (done, name) in complete.iter().enumerate() {
            assert!(world.status().terminal_state.is_none(), "{policy} {done}");
            world.complete(name);
            world.settle();
        }
        assert_eq!(world.status().terminal_state.as_deref(), Some("Completed"));
        let (status, reason, _) = world.condition("Completed").unwrap();
        assert_eq!(
            (status.as_str(), reason.as_str()),
            ("True", "AllJobsCompleted")
        );
        assert!(world.group.is_none());
        // The Jobs that still ran are deleted.
        assert_eq!(world.names().len(), complete.len());
        assert!(!world.deleted);
        world.second += 30;
        world.step();
        assert!(world.deleted);
    }
}

#[test]
fn jobs_wait_for_those_that_they_depend_on_and_then_are_the_gang() {
    for (status, in_order) in [("Complete", false), ("Ready", false), ("Ready", true)] {
        let mut spec =
            json!({"replicatedJobs": [job("init", &json!({})), job("train", &json!({}))]});
        if in_order {
            spec["startupPolicy"] = json!({"startupPolicyOrder": "InOrder"});
        } else {
            spec["replicatedJobs"][1]["dependsOn"] = json!([{"name": "init", "status": status}]);
        }
        let mut world = World::new(spec);
        world.settle();
        assert_eq!(world.names(), ["js-init-0"]);
        assert_eq!(world.group.as_ref().unwrap().spec.min_member, Some(2));
        assert_eq!(holds_in(&world, "StartupPolicyInProgress"), in_order);
        world.ready("js-init-0");
        world.settle();
        assert_eq!(world.names().len(), if status == "Ready" { 2 } else { 1 });
        world.complete("js-init-0");
        world.settle();
        assert_eq!(world.names().len(), 2);
        // The complete job is not a part of the gang any more.
        let tasks = world
            .group
            .as_ref()
            .unwrap()
            .spec
            .min_task_member
            .clone()
            .unwrap();
        assert_eq!(tasks, BTreeMap::from([("train".to_owned(), 2)]));
        world.ready("js-train-0");
        world.settle();
        assert_eq!(holds_in(&world, "StartupPolicyCompleted"), in_order);
        assert!(!holds_in(&world, "StartupPolicyInProgress"));
    }
}

#[test]
fn suspension_stops_the_jobs_and_gives_the_gang_up_and_a_changed_template_makes_them_anew() {
    let mut world = World::two(json!({}));
    world.settle();
    world.all_ready();
    world.settle();
    world.job_set.spec.suspend = Some(true);
    world.settle();
    assert!(
        world
            .jobs
            .values()
            .all(|job| job.spec.as_ref().unwrap().suspend == Some(true))
    );
    assert!(world.group.is_none() && holds_in(&world, "Suspended"));
    assert_eq!(world.status().replicated_jobs_status[1].suspended, 2);
    let before = world.jobs["js-leader-0"].metadata.uid.clone();
    let changed = &mut world.job_set.spec.replicated_jobs[0].template;
    let pod = changed
        .spec
        .as_mut()
        .unwrap()
        .template
        .spec
        .as_mut()
        .unwrap();
    pod.node_selector = Some(BTreeMap::from([("zone".to_owned(), "a".to_owned())]));
    world.job_set.spec.suspend = Some(false);
    world.pods.clear();
    world.settle();
    assert!(world.group.is_some() && !holds_in(&world, "Suspended"));
    assert!(
        world
            .jobs
            .values()
            .all(|job| job.spec.as_ref().unwrap().suspend == Some(false))
    );
    assert_ne!(world.jobs["js-leader-0"].metadata.uid, before);
    // One that is suspended from its creation on has suspended Jobs.
    let mut held = World::two(json!({"suspend": true}));
    held.settle();
    assert_eq!(held.names().len(), 3);
    assert!(held.group.is_none());
}

#[test]
fn a_job_set_that_could_never_run_creates_no_job_and_says_why() {
    let mut world = World::two(json!({}));
    world.room = PodRoom {
        nodes: None,
        quota: Some(crate::PodQuota { hard: 5, used: 0 }),
    };
    world.settle();
    assert!(world.names().is_empty() && world.group.is_none());
    let message = world.status().message.clone().unwrap();
    assert!(
        message.starts_with("6 pods must start together"),
        "{message}"
    );
    world.room = PodRoom::default();
    world.settle();
    assert_eq!((world.names().len(), &world.status().message), (3, &None));
}

#[test]
fn another_controllers_job_set_is_left_alone() {
    let mut world = World::two(json!({"managedBy": "kueue.x-k8s.io/multikueue"}));
    assert!(!world.step() && world.names().is_empty());
    let mut leaving = World::two(json!({}));
    leaving.job_set.metadata.deletion_timestamp = Some(Time(at(0)));
    assert!(!leaving.step());
}
