//! The pods, Services and the PodGroup of a job.

use serde_json::json;

use resources::kinds::JobConditionType;

use super::world::{World, at, master_and_workers, replica};
use crate::pod_room::{GANG_FLOOR, LOOK_AGAIN, PodQuota};

#[test]
fn a_job_gets_its_pods_services_and_gang() {
    let mut world = World::new(master_and_workers(2, "OnFailure"));
    world.settle(at(0));
    let names = ["demo-master-0", "demo-worker-0", "demo-worker-1"];
    assert_eq!(world.pod_names(), names);
    assert_eq!(world.services.keys().collect::<Vec<_>>(), names);

    let pod = serde_json::to_value(&world.pods["demo-worker-1"]).unwrap();
    assert_eq!(
        pod["metadata"]["labels"],
        json!({
            "training.kubeflow.org/job-name": "demo",
            "training.kubeflow.org/operator-name": "pytorchjob-controller",
            "training.kubeflow.org/replica-type": "worker",
            "training.kubeflow.org/replica-index": "1",
        })
    );
    assert_eq!(
        pod["metadata"]["annotations"],
        json!({
            "scheduling.k8s.io/group-name": "demo",
            "volcano.sh/task-spec": "worker",
        })
    );
    assert_eq!(
        pod["metadata"]["ownerReferences"],
        json!([{
            "apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "name": "demo", "uid": "job-uid",
            "controller": true, "blockOwnerDeletion": true,
        }])
    );
    assert_eq!(pod["spec"]["hostname"], "demo-worker-1");
    assert_eq!(pod["spec"]["restartPolicy"], "OnFailure");
    assert_eq!(pod["spec"]["schedulerName"], "muster");
    let master = &world.pods["demo-master-0"]
        .metadata
        .labels
        .as_ref()
        .unwrap();
    assert_eq!(master["training.kubeflow.org/job-role"], "master");

    let service = serde_json::to_value(&world.services["demo-worker-1"].spec).unwrap();
    assert_eq!(service["clusterIP"], "None");
    assert_eq!(
        service["selector"]["training.kubeflow.org/replica-index"],
        "1"
    );
    assert_eq!(
        service["ports"],
        json!([{"name": "pytorchjob-port", "port": 23456, "targetPort": 23456}])
    );

    let group = serde_json::to_value(&world.group.as_ref().unwrap().spec).unwrap();
    assert_eq!(
        group,
        json!({
            "minMember": 3,
            "minTaskMember": {"master": 1, "worker": 2},
            "minResources": {"cpu": "1500m", "nvidia.com/gpu": "3"},
            "queue": "default",
        })
    );
}

#[test]
fn the_scheduling_policy_shapes_the_gang() {
    let mut spec = master_and_workers(4, "OnFailure");
    spec["runPolicy"] = json!({"schedulingPolicy": {
        "minAvailable": 3, "queue": "research", "priorityClass": "high", "minResources": {"cpu": "7"},
    }});
    let mut world = World::new(spec);
    world.settle(at(0));
    let group = serde_json::to_value(&world.group.as_ref().unwrap().spec).unwrap();
    assert_eq!(
        group,
        json!({
            "minMember": 3,
            "minTaskMember": {"master": 1, "worker": 2},
            "minResources": {"cpu": "7"},
            "queue": "research",
            "priorityClassName": "high",
        })
    );
}

#[test]
fn the_queue_may_be_named_by_label_or_annotation() {
    for place in ["labels", "annotations"] {
        let mut world = World::new(master_and_workers(1, "OnFailure"));
        let map = [(
            "scheduling.volcano.sh/queue-name".to_owned(),
            "night".to_owned(),
        )]
        .into();
        match place {
            "labels" => world.job.metadata.labels = Some(map),
            _ => world.job.metadata.annotations = Some(map),
        }
        world.settle(at(0));
        assert_eq!(
            world.group.as_ref().unwrap().spec.queue.as_deref(),
            Some("night"),
            "{place}"
        );
    }
}

#[test]
fn the_gang_has_the_walltime_of_its_job_or_its_deadline() {
    let walltime = |said: Option<&str>, template: Option<&str>, deadlines: [Option<i64>; 2]| {
        let mut spec = master_and_workers(1, "OnFailure");
        let worker = &mut spec["pytorchReplicaSpecs"]["Worker"]["template"];
        if let Some(template) = template {
            worker["metadata"]["annotations"] = json!({"muster.io/walltime": template});
        }
        if let [_, Some(deadline)] = deadlines {
            worker["spec"]["activeDeadlineSeconds"] = json!(deadline);
        }
        spec["runPolicy"] = json!({"activeDeadlineSeconds": deadlines[0]});
        let mut world = World::new(spec);
        let said = said.map(|said| [("muster.io/walltime".to_owned(), said.to_owned())].into());
        world.job.metadata.annotations = said;
        world.settle(at(0));
        let annotations = world.group.unwrap().metadata.annotations?;
        annotations.get("muster.io/walltime").cloned()
    };
    let seconds = |text: &str| Some(text.to_owned());
    assert_eq!(walltime(None, None, [None; 2]), None);
    assert_eq!(walltime(None, None, [Some(600), None]), seconds("600"));
    assert_eq!(walltime(None, None, [None, Some(70)]), seconds("70"));
    assert_eq!(walltime(None, None, [Some(600), Some(70)]), seconds("70"));
    assert_eq!(walltime(Some("1h"), None, [Some(6), None]), seconds("1h"));
    assert_eq!(
        walltime(None, Some("5m"), [Some(600), None]),
        None,
        "its pods say so themselves"
    );
}

#[test]
fn a_changed_deadline_changes_the_gangs_walltime() {
    let mut world = World::new(master_and_workers(1, "OnFailure"));
    world.settle(at(0));
    world.job.spec.run_policy.active_deadline_seconds = Some(900);
    world.settle(at(1));
    let annotations = |world: &World| world.group.as_ref().unwrap().metadata.annotations.clone();
    assert_eq!(annotations(&world).unwrap()["muster.io/walltime"], "900");
    world.job.spec.run_policy.active_deadline_seconds = Some(800);
    world.settle(at(2));
    assert_eq!(annotations(&world).unwrap()["muster.io/walltime"], "800");
    assert!(world.ask(at(3)).actions.is_empty());
}

#[test]
fn exit_code_leaves_judging_to_the_controller_and_the_rest_passes_through() {
    for (policy, pods) in [
        ("Always", "Always"),
        ("OnFailure", "OnFailure"),
        ("Never", "Never"),
        ("ExitCode", "Never"),
    ] {
        let mut world = World::new(master_and_workers(0, policy));
        world.settle(at(0));
        let spec = world.pods["demo-master-0"].spec.as_ref().unwrap();
        assert_eq!(spec.restart_policy.as_deref(), Some(pods));
    }
}

#[test]
fn a_group_of_another_owner_is_left_alone() {
    let mut world = World::new(master_and_workers(1, "OnFailure"));
    world.group = Some(
        serde_json::from_value(json!({
            "apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "PodGroup",
            "metadata": {"name": "demo", "uid": "other"}, "spec": {"minMember": 9},
        }))
        .unwrap(),
    );
    let before = world.group.clone();
    world.settle(at(0));
    world.job.spec.run_policy.suspend = Some(true);
    world.settle(at(1));
    assert_eq!(world.group, before);
}

#[test]
fn pods_of_another_owner_are_left_alone() {
    let mut world = World::new(master_and_workers(1, "OnFailure"));
    world.settle(at(0));
    let mut stranger = world.pods["demo-worker-0"].clone();
    stranger.metadata.name = Some("demo-worker-7".to_owned());
    stranger.metadata.owner_references = None;
    world.pods.insert("demo-worker-7".to_owned(), stranger);
    assert!(world.ask(at(1)).actions.is_empty());
}

#[test]
fn a_job_that_makes_no_sense_fails_with_the_field() {
    let cases = [
        (
            json!({"pytorchReplicaSpecs": {}}),
            "spec.pytorchReplicaSpecs: give at least one of Master, Worker",
        ),
        (
            json!({"pytorchReplicaSpecs": {"Chief": replica(1, "Never")}}),
            "\"Chief\" is not a replica type",
        ),
        (
            json!({"pytorchReplicaSpecs": {"Master": replica(2, "Never")}}),
            "spec.pytorchReplicaSpecs.Master.replicas",
        ),
        (
            json!({"pytorchReplicaSpecs": {"Worker": {"replicas": 1}}}),
            "Worker.template.spec.containers",
        ),
        (
            json!({"elasticPolicy": {"minReplicas": 4, "maxReplicas": 2}, "pytorchReplicaSpecs": {"Worker": replica(2, "Never")}}),
            "spec.elasticPolicy.minReplicas: 4 must not exceed maxReplicas",
        ),
    ];
    for (spec, expected) in cases {
        let mut world = World::new(spec);
        world.settle(at(0));
        assert_eq!(
            world.conditions(),
            ["Failed=True(PyTorchJobFailedValidation)"]
        );
        let message = world
            .message(resources::kinds::JobConditionType::Failed)
            .to_owned();
        assert!(message.contains(expected), "{message}");
        assert!(world.pods.is_empty());
    }
}

#[test]
fn a_job_managed_by_another_controller_is_left_alone() {
    let mut spec = master_and_workers(1, "Never");
    spec["runPolicy"] = json!({"managedBy": "kueue.x-k8s.io/multikueue"});
    let mut world = World::new(spec);
    let outcome = world.step(at(0));
    assert!(outcome.actions.is_empty() && outcome.status.conditions.is_empty());
}

#[test]
fn the_jobs_scheduler_annotations_are_copied_to_its_gang_also_when_set_later() {
    let mut world = World::new(master_and_workers(1, "OnFailure"));
    let says = |world: &mut World, name: &str, value: &str| {
        let annotations = world.job.metadata.annotations.get_or_insert_default();
        annotations.insert(name.to_owned(), value.to_owned());
    };
    says(&mut world, "muster.io/walltime", "2h");
    says(&mut world, "example.com/other", "x");
    world.settle(at(0));
    let annotations = |world: &World| {
        let group = world.group.as_ref().unwrap();
        group.metadata.annotations.clone().unwrap_or_default()
    };
    let first = annotations(&world);
    assert_eq!(first["muster.io/walltime"], "2h");
    assert!(!first.contains_key("example.com/other"));
    // Annotations that a user set on the PodGroup are kept.
    let group = world.group.as_mut().unwrap();
    let own = group.metadata.annotations.get_or_insert_default();
    own.insert("muster.io/checkpoint".to_owned(), "10m".to_owned());
    says(&mut world, "muster.io/walltime", "3h");
    world.settle(at(1));
    let second = annotations(&world);
    assert_eq!(second["muster.io/walltime"], "3h");
    assert_eq!(second["muster.io/checkpoint"], "10m");
}

#[test]
fn pods_whose_template_names_no_scheduler_go_to_the_one_that_is_configured() {
    let mut world = World::new(master_and_workers(1, "Never"));
    world.scheduler_name = "gangs".to_owned();
    world.step(at(0));
    let scheduler = |pod: &str| {
        world.pods[pod]
            .spec
            .as_ref()
            .unwrap()
            .scheduler_name
            .clone()
    };
    assert_eq!(scheduler("demo-worker-0").as_deref(), Some("gangs"));
}

#[test]
fn a_gang_that_can_not_exist_gets_no_pod_and_its_condition_names_the_numbers() {
    let created = |world: &World| {
        let conditions = &world.job.status.as_ref().unwrap().conditions;
        let mut found = conditions.iter();
        let found = found.find(|known| known.type_ == JobConditionType::Created);
        let found = found.unwrap().clone();
        (found.reason.unwrap(), found.message.unwrap())
    };
    // With the master one more than the floor.
    let mut world = World::new(master_and_workers(GANG_FLOOR, "Never"));
    world.room.nodes = Some(110);
    let outcome = world.step(at(0));
    assert_eq!(outcome.requeue_at, Some(at(LOOK_AGAIN)));
    world.settle(at(0));
    assert_eq!((world.pods.len(), world.services.len()), (0, 0));
    let (reason, message) = created(&world);
    assert_eq!(reason, "PyTorchJobClusterTooSmall");
    assert!(
        message.contains("2001 pods") && message.contains("hold 110 pods"),
        "{message}"
    );
    world.room.nodes = Some(u64::from(GANG_FLOOR) + 1);
    world.settle(at(60));
    assert_eq!(world.pods.len(), 2_001);
    assert_eq!(created(&world).0, "PyTorchJobCreated");

    let mut world = World::new(master_and_workers(3, "Never"));
    world.room.quota = Some(PodQuota { hard: 10, used: 7 });
    world.settle(at(0));
    assert_eq!(world.pods.len(), 0, "a part of the gang");
    assert_eq!(created(&world).0, "PyTorchJobQuotaExhausted");
    world.room.quota = Some(PodQuota { hard: 10, used: 6 });
    world.settle(at(60));
    assert_eq!(world.pods.len(), 4);
    // What exists stays, whatever the quota says now.
    world.room.quota = Some(PodQuota { hard: 1, used: 4 });
    world.settle(at(120));
    assert_eq!(
        (world.pods.len(), created(&world).0),
        (4, "PyTorchJobCreated".to_owned())
    );
}
