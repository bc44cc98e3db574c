//! A cluster's life: creation, scaling, loss, suspension, refusal.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::json;

use super::world::{World, at, template, with_group};
use crate::pod_room::{PodQuota, PodRoom};

#[test]
fn a_cluster_is_ready_once_its_head_and_workers_are() {
    let mut world = World::new(with_group(json!({"replicas": 2, "maxReplicas": 5})));
    assert!(world.settle(0).is_empty());
    assert_eq!(
        world.names(),
        ["demo-head", "demo-small-worker-0", "demo-small-worker-1"]
    );
    assert_eq!(world.services.keys().collect::<Vec<_>>(), ["demo-head-svc"]);
    assert_eq!(
        world.condition("HeadPodReady"),
        Some(("False", "ContainersNotReady"))
    );
    assert_eq!(
        world.condition("RayClusterProvisioned"),
        Some(("False", "RayClusterPodsProvisioning"))
    );
    assert_eq!(world.status().state, None);
    world.run_all();
    assert_eq!(world.settle(1), ["Ready"]);
    let status = world.status();
    assert_eq!(status.state.as_deref(), Some("ready"));
    assert_eq!(
        (
            status.desired_worker_replicas,
            status.available_worker_replicas,
            status.ready_worker_replicas,
            status.min_worker_replicas,
            status.max_worker_replicas,
            status.observed_generation,
        ),
        (Some(2), Some(2), Some(2), Some(0), Some(5), Some(1))
    );
    let head = status.head.clone().unwrap();
    assert_eq!(head.pod_name.as_deref(), Some("demo-head"));
    assert_eq!(head.pod_ip.as_deref(), Some("10.0.0.1"));
    assert_eq!(head.service_name.as_deref(), Some("demo-head-svc"));
    assert_eq!(status.endpoints.as_ref().unwrap()["gcs-server"], "14000");
    assert_eq!(
        world.condition("HeadPodReady"),
        Some(("True", "HeadPodRunningAndReady"))
    );
    assert!(world.settle(2).is_empty(), "nothing is told twice");
}

#[test]
fn the_gang_is_the_head_and_each_groups_least_workers() {
    let table = [
        (json!({"replicas": 3}), 4),
        (json!({"replicas": 3, "minReplicas": 1}), 2),
        (json!({"replicas": 1, "minReplicas": 2}), 3),
        (json!({"replicas": 2, "numOfHosts": 4}), 9),
        (json!({"minReplicas": 2, "numOfHosts": 2}), 5),
        (json!({"replicas": 3, "suspend": true}), 1),
        (json!({"replicas": 9, "maxReplicas": 2}), 3),
        (json!({}), 1),
    ];
    for (group, members) in table {
        let mut world = World::new(with_group(group.clone()));
        world.settle(0);
        let gang = world.group.as_ref().unwrap();
        assert_eq!(gang.metadata.name.as_deref(), Some("demo"));
        assert_eq!(gang.spec.min_member, Some(members), "{group}");
        assert_eq!(gang.spec.queue.as_deref(), Some("default"));
    }
    let mut autoscaled = with_group(json!({"replicas": 3}));
    autoscaled["enableInTreeAutoscaling"] = true.into();
    let mut world = World::new(autoscaled);
    assert!(world.settle(0).is_empty());
    assert_eq!(world.group.unwrap().spec.min_member, Some(1));
}

#[test]
fn a_queue_comes_from_the_clusters_label() {
    let mut world = World::new(with_group(json!({"replicas": 1})));
    let label = (
        resources::names::QUEUE_NAME.to_owned(),
        "research".to_owned(),
    );
    world.cluster.metadata.labels = Some([label].into());
    world.settle(0);
    assert_eq!(world.group.unwrap().spec.queue.as_deref(), Some("research"));
}

#[test]
fn replicas_follow_the_spec_and_workers_to_delete_go_first() {
    let mut world = World::new(with_group(json!({"replicas": 3})));
    world.settle(0);
    world.run_all();
    world.settle(1);
    let group = |world: &mut World| {
        world
            .cluster
            .spec
            .worker_group_specs
            .as_mut()
            .unwrap()
            .remove(0)
    };
    let mut spec = group(&mut world);
    spec.replicas = Some(2);
    let strategy = json!({"workersToDelete": ["demo-small-worker-1"]});
    spec.scale_strategy = serde_json::from_value(strategy).unwrap();
    world.cluster.spec.worker_group_specs = Some(vec![spec]);
    world.settle(2);
    assert_eq!(
        world.names(),
        ["demo-head", "demo-small-worker-0", "demo-small-worker-2"]
    );
    // A name that is still in the list is not used again.
    let mut spec = group(&mut world);
    spec.replicas = Some(3);
    world.cluster.spec.worker_group_specs = Some(vec![spec]);
    world.settle(3);
    assert_eq!(
        world.names()[1..],
        [
            "demo-small-worker-0",
            "demo-small-worker-2",
            "demo-small-worker-3"
        ]
    );
    let mut spec = group(&mut world);
    spec.replicas = Some(1);
    world.cluster.spec.worker_group_specs = Some(vec![spec]);
    world.settle(4);
    assert_eq!(world.names(), ["demo-head", "demo-small-worker-0"]);
    world.cluster.spec.worker_group_specs = None;
    world.settle(5);
    assert_eq!(world.names(), ["demo-head"]);
}

#[test]
fn a_lost_head_is_replaced_and_the_cluster_is_not_ready_meanwhile() {
    let mut world = World::new(with_group(json!({"replicas": 1})));
    world.settle(0);
    world.run_all();
    world.settle(1);
    let uid = world.pods["demo-head"].metadata.uid.clone();
    world.phase("demo-head", "Failed");
    // The failed head stays for a while, so that a program that ends at once does not keep the cluster busy.
    let waits = world.decide(2);
    assert!(waits.actions.is_empty());
    assert_eq!(waits.requeue_at, Some(at(10)));
    assert_eq!(world.settle(10), ["HeadPodReplaced"]);
    assert_ne!(world.pods["demo-head"].metadata.uid, uid);
    assert_eq!(world.status().state, None);
    world.run_all();
    world.settle(11);
    assert_eq!(world.status().state.as_deref(), Some("ready"));
    // A head that its node lost is replaced at once.
    world.phase("demo-head", "Failed");
    let head = world.pods.get_mut("demo-head").unwrap();
    head.status.as_mut().unwrap().reason = Some("NodeLost".to_owned());
    assert_eq!(world.settle(2), ["HeadPodReplaced"]);
}

#[test]
fn a_replica_of_several_hosts_goes_as_a_whole() {
    let mut world = World::new(with_group(json!({"replicas": 2, "numOfHosts": 2})));
    world.settle(0);
    world.run_all();
    world.settle(1);
    assert_eq!(
        world.names()[1..],
        [
            "demo-small-worker-0-0",
            "demo-small-worker-0-1",
            "demo-small-worker-1-0",
            "demo-small-worker-1-1"
        ]
    );
    world.phase("demo-small-worker-0-1", "Failed");
    let outcome = world.decide(60);
    let deleted = |action: &crate::Action| match action {
        crate::Action::DeletePod { name, .. } => Some(name.clone()),
        _ => None,
    };
    let deleted: Vec<String> = outcome.actions.iter().filter_map(deleted).collect();
    assert_eq!(deleted, ["demo-small-worker-0-0", "demo-small-worker-0-1"]);
}

#[test]
fn a_suspended_cluster_has_no_pods_and_a_begun_suspension_is_completed() {
    let mut world = World::new(with_group(json!({"replicas": 1})));
    world.settle(0);
    world.run_all();
    world.settle(1);
    world.cluster.spec.suspend = Some(true);
    let begun = world.decide(2);
    world.cluster.status = Some(begun.status);
    assert_eq!(
        world.condition("RayClusterSuspending"),
        Some(("True", "RayClusterSuspending"))
    );
    // Its pods take their time to end.
    for pod in world.pods.values_mut() {
        pod.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
    }
    world.cluster.spec.suspend = Some(false);
    let still = world.decide(3).actions;
    assert!(
        still
            .iter()
            .all(|action| !matches!(action, crate::Action::CreatePod(_))),
        "{still:?}"
    );
    world.pods.clear();
    world.cluster.spec.suspend = Some(true);
    assert_eq!(world.settle(4), ["Suspended"]);
    assert_eq!(world.status().state.as_deref(), Some("suspended"));
    assert_eq!(
        world.condition("RayClusterSuspended"),
        Some(("True", "RayClusterSuspended"))
    );
    assert!(world.group.is_none());
    world.cluster.spec.suspend = None;
    assert_eq!(world.settle(5), ["Resumed"]);
    assert_eq!(world.names().len(), 2);
    assert_eq!(world.condition("RayClusterSuspended").unwrap().0, "False");
}

#[test]
fn heads_that_share_an_address_get_ports_of_their_own() {
    let mut world = World::new(with_group(json!({})));
    world.taken = (14_000..=14_007).collect();
    world.settle(0);
    let endpoints = world.status().endpoints.clone().unwrap();
    assert_eq!(endpoints["gcs-server"], "14012");
    assert_eq!(endpoints["serve"], "8000");
    // The user's port stands.
    let mut spec = with_group(json!({}));
    spec["headGroupSpec"]["rayStartParams"] = json!({"port": 7000, "dashboard-port": "7001"});
    let mut world = World::new(spec);
    world.settle(0);
    let endpoints = world.status().endpoints.clone().unwrap();
    assert_eq!(
        (
            endpoints["gcs-server"].as_str(),
            endpoints["dashboard"].as_str()
        ),
        ("7000", "7001")
    );
    assert_eq!(endpoints["client"], "14002");
    let mut world = World::new(with_group(json!({})));
    world.taken = (14_000..=14_999).collect();
    let outcome = world.decide(0);
    assert_eq!(outcome.events[0].reason, "NoRendezvousPort");
    assert_eq!(outcome.requeue_at, Some(at(30)));
}

#[test]
fn a_cluster_that_cannot_run_says_so_once() {
    let table = [
        json!({"headGroupSpec": {}}),
        json!({"headGroupSpec": {"template": {"spec": {"containers": []}}}}),
        json!({"headGroupSpec": {"template": template(json!({}))}, "workerGroupSpecs": [
            {"groupName": "a", "template": template(json!({}))}, {"groupName": "a", "template": template(json!({}))}]}),
        with_group(json!({"replicas": 20_000})),
    ];
    for spec in table {
        let mut world = World::new(spec.clone());
        assert_eq!(world.settle(0), ["InvalidRayClusterSpec"], "{spec}");
        assert!(world.pods.is_empty());
        assert!(world.settle(1).is_empty());
    }
    let mut world = World::new(with_group(json!({"replicas": 3})));
    let quota = PodQuota { hard: 3, used: 0 };
    world.room = PodRoom {
        nodes: None,
        quota: Some(quota),
    };
    assert_eq!(world.settle(0), ["QuotaTooSmall"]);
    assert_eq!(
        world.condition("RayClusterProvisioned"),
        Some(("False", "QuotaTooSmall"))
    );
    assert!(world.pods.is_empty());
    let mut elsewhere = World::new(with_group(json!({})));
    elsewhere.cluster.spec.managed_by = Some("kueue.x-k8s.io/multikueue".to_owned());
    elsewhere.settle(0);
    assert!(elsewhere.pods.is_empty());
}

#[test]
fn a_services_cluster_gets_a_second_block_of_ports_for_ray_serve() {
    let mut world = World::new(with_group(json!({"replicas": 1})));
    let origin = json!({"ray.io/originated-from-crd": "RayService"});
    world.cluster.metadata.labels = serde_json::from_value(origin).unwrap();
    assert_eq!(crate::ray::ports_of(&world.cluster), 12);
    // 14000 to 14011, 14006 to 14017 and 14012 to 14023 are not free.
    world.taken = [14_005, 14_017].into();
    world.settle(0);
    let status = world.cluster.status.as_ref().unwrap();
    let endpoints = status.endpoints.as_ref().unwrap();
    assert_eq!(endpoints["gcs-server"], "14018");
    assert_eq!(endpoints["serve"], "14024");
    let service = world.services.values().next().unwrap();
    let ports = service.spec.as_ref().unwrap().ports.as_ref().unwrap();
    let serve = ports
        .iter()
        .find(|port| port.name.as_deref() == Some("serve"));
    assert_eq!(serve.unwrap().port, 14_024);
}

#[test]
fn a_head_that_is_to_be_kept_is_not_replaced_once_it_has_started() {
    let keeping = |replicas: u32| {
        let mut spec = with_group(json!({"replicas": replicas, "maxReplicas": 2}));
        let submitter = json!({"name": "ray-job-submitter", "env": [{"name": "A", "value": "b"}]});
        let containers = &mut spec["headGroupSpec"]["template"]["spec"]["containers"];
        containers.as_array_mut().unwrap().push(submitter);
        let mut world = World::new(spec);
        let notes = json!({"ray.io/disable-provisioned-head-restart": "true"});
        world.cluster.metadata.annotations = serde_json::from_value(notes).unwrap();
        world.settle(0);
        world
    };
    let mut world = keeping(1);
    let pod = world.pods["demo-head"].spec.clone().unwrap();
    let env = pod.containers[1].env.as_ref().unwrap();
    let dashboard = env.iter().find(|one| one.name == "RAY_DASHBOARD_ADDRESS");
    let dashboard = dashboard.unwrap().value.as_deref();
    assert_eq!(dashboard, Some("127.0.0.1:14001"));
    // A head that never started is replaced.
    world.pods.remove("demo-head");
    world.settle(1);
    assert!(world.pods.contains_key("demo-head"));
    world.run_all();
    world.settle(2);
    let run = world.status().head.clone().unwrap().run;
    // One that ended stays as it is, and one that is gone stays known.
    world.phase("demo-head", "Failed");
    world.settle(100);
    assert_eq!(
        world.condition("HeadPodReady"),
        Some(("False", "HeadPodEnded"))
    );
    assert!(world.pods.contains_key("demo-head"));
    world.pods.remove("demo-head");
    world.settle(200);
    assert_eq!(world.names(), ["demo-small-worker-0"]);
    assert_eq!(
        world.condition("HeadPodReady"),
        Some(("False", "HeadPodNotFound"))
    );
    assert_eq!(world.status().head.clone().unwrap().run, run);
    // After a suspension all begins anew.
    world.cluster.spec.suspend = Some(true);
    world.settle(300);
    assert!(world.pods.is_empty());
    world.cluster.spec.suspend = None;
    world.settle(301);
    assert!(world.pods.contains_key("demo-head"));
}
