//! A cluster that Ray's autoscaler scales: the container beside the head, its rights, and which workers come and go.

use serde_json::{Value, json};

use super::world::{World, template, with_group};
use crate::action::Dependent;

/// A cluster that has `replicas` of at least `least` and at most 4 workers.
fn scaled(replicas: u32, least: u32) -> World {
    let group = json!({"replicas": replicas, "minReplicas": least, "maxReplicas": 4});
    let mut spec = with_group(group);
    spec["enableInTreeAutoscaling"] = true.into();
    World::new(spec)
}

fn ask(world: &mut World, replicas: i32, to_delete: &[&str]) {
    let group = &mut world.cluster.spec.worker_group_specs.as_mut().unwrap()[0];
    group.replicas = Some(replicas);
    let strategy = json!({"workersToDelete": to_delete});
    group.scale_strategy = serde_json::from_value(strategy).unwrap();
}

fn workers(world: &World) -> Vec<&str> {
    let names = world.names().into_iter();
    names
        .filter_map(|name| name.strip_prefix("demo-small-worker-"))
        .collect()
}

fn settle_bound(world: &mut World, second: i64) {
    world.settle(second);
    let names: Vec<String> = world.names().into_iter().map(str::to_owned).collect();
    for name in names {
        world.bind(&name);
    }
    world.run_all();
    world.settle(second);
}

#[test]
fn the_autoscaler_runs_beside_the_head_with_rights_on_its_cluster_alone() {
    let mut world = scaled(1, 1);
    world.cluster.spec.autoscaler_options = Some(json!({"image": "a:2", "version": "v2",
        "env": [{"name": "A", "value": "b"}], "resources": {"limits": {"cpu": "500m"}}}));
    world.settle(0);
    let pod = world.pods["demo-head"].spec.clone().unwrap();
    assert_eq!(pod.service_account_name.as_deref(), Some("demo"));
    let [ray, scaler] = &pod.containers[..] else {
        panic!("{:#?}", pod.containers);
    };
    let start = ray.args.as_ref().unwrap().join(" ");
    assert!(start.contains("--no-monitor"), "{start}");
    assert_eq!(
        (scaler.name.as_str(), scaler.image.as_deref()),
        ("autoscaler", Some("a:2"))
    );
    let script = &scaler.args.as_ref().unwrap()[0];
    let program = "ray kuberay-autoscaler --cluster-name demo --cluster-namespace team --gcs-address 127.0.0.1:14000";
    assert!(script.contains(program), "{script}");
    let value = |list: &[k8s_openapi::api::core::v1::EnvVar], name: &str| {
        let found = list.iter().find(|one| one.name == name)?;
        found.value.clone()
    };
    let env = scaler.env.as_ref().unwrap();
    assert_eq!(
        value(env, "RAY_HEAD_POD_NAME").as_deref(),
        Some("demo-head")
    );
    assert_eq!(value(env, "A").as_deref(), Some("b"));
    let second = value(ray.env.as_ref().unwrap(), "RAY_enable_autoscaler_v2");
    assert_eq!(second.as_deref(), Some("1"));
    let worker = world.pods["demo-small-worker-0"].spec.clone().unwrap();
    assert_eq!(worker.restart_policy.as_deref(), Some("Never"));
    let role = world.created.iter().find_map(|one| match one {
        Dependent::Role(role) => Some(serde_json::to_value(&role.rules).unwrap()),
        _ => None,
    });
    let want = json!([
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]},
        {"apiGroups": ["ray.io"], "resources": ["rayclusters"], "resourceNames": ["demo"], "verbs": ["get", "patch"]},
    ]);
    assert_eq!(role, Some(want));
    assert_eq!(world.created.len(), 3);
    let named = world.created.iter().find_map(|one| match one {
        Dependent::RoleBinding(binding) => Some(binding.role_ref.name.clone()),
        _ => None,
    });
    let named = named.unwrap();
    assert!(
        named.starts_with("demo-autoscaler-"),
        "a role that another user made has no such name: {named}"
    );
}

#[test]
fn the_gang_is_the_head_and_the_minimum_and_the_replicas_stay_within_their_bounds() {
    for (replicas, least, count, members) in [(0, 1, 1, 2), (3, 1, 3, 2), (9, 0, 4, 1)] {
        let mut world = scaled(replicas, least);
        world.settle(0);
        assert_eq!(workers(&world).len(), count);
        assert_eq!(world.group.as_ref().unwrap().spec.min_member, Some(members));
    }
}

#[test]
fn named_workers_go_and_no_name_is_used_twice() {
    let mut world = scaled(3, 0);
    settle_bound(&mut world, 0);
    assert_eq!(workers(&world), ["0", "1", "2"]);
    ask(
        &mut world,
        1,
        &["demo-small-worker-2", "demo-small-worker-0"],
    );
    settle_bound(&mut world, 1);
    assert_eq!(workers(&world), ["1"]);
    ask(&mut world, 3, &[]);
    settle_bound(&mut world, 2);
    assert_eq!(workers(&world), ["1", "3", "4"]);
    ask(
        &mut world,
        0,
        &[
            "demo-small-worker-4",
            "demo-small-worker-3",
            "demo-small-worker-1",
        ],
    );
    settle_bound(&mut world, 3);
    assert_eq!(workers(&world), [""; 0]);
    ask(&mut world, 1, &[]);
    settle_bound(&mut world, 4);
    assert_eq!(workers(&world), ["5"]);
    // A worker that ended is replaced under another name.
    world.phase("demo-small-worker-5", "Failed");
    settle_bound(&mut world, 30);
    assert_eq!(workers(&world), ["6"]);
}

#[test]
fn a_decision_that_is_repeated_before_its_pods_are_seen_names_the_same_pods() {
    let mut world = scaled(1, 0);
    settle_bound(&mut world, 0);
    ask(&mut world, 3, &[]);
    let names = |outcome: &crate::ReconcileOutcome<_>| -> Vec<String> {
        let pods = outcome.actions.iter().filter_map(|action| match action {
            crate::Action::CreatePod(pod) => pod.metadata.name.clone(),
            _ => None,
        });
        pods.collect()
    };
    let first = world.decide(1);
    assert_eq!(
        names(&first),
        ["demo-small-worker-1", "demo-small-worker-2"]
    );
    for (key, value) in first.annotations {
        let annotations = world.cluster.metadata.annotations.get_or_insert_default();
        annotations.insert(key, value.unwrap());
    }
    // The second is seen before the first.
    for action in first.actions.into_iter().rev().take(1) {
        if let crate::Action::CreatePod(pod) = action {
            world.pods.insert("demo-small-worker-2".to_owned(), *pod);
        }
    }
    assert_eq!(names(&world.decide(1)), ["demo-small-worker-1"]);
}

#[test]
fn a_worker_that_runs_stays_until_it_is_named_and_one_that_waits_does_not() {
    let mut world = scaled(3, 0);
    settle_bound(&mut world, 0);
    ask(&mut world, 1, &[]);
    settle_bound(&mut world, 1);
    assert_eq!(workers(&world), ["0", "1", "2"], "any of them may be busy");
    ask(&mut world, 4, &[]);
    world.settle(2);
    assert_eq!(workers(&world), ["0", "1", "2", "3"]);
    ask(&mut world, 3, &[]);
    world.settle(3);
    assert_eq!(workers(&world), ["0", "1", "2"], "the fourth had no node");
    let group = &mut world.cluster.spec.worker_group_specs.as_mut().unwrap()[0];
    group.suspend = Some(true);
    world.settle(4);
    assert_eq!(workers(&world), [""; 0]);
}

#[test]
fn the_templates_own_account_gets_the_rights() {
    let mut world = scaled(0, 0);
    let mut pod: Value = template(json!({}));
    pod["spec"]["serviceAccountName"] = "mine".into();
    world.cluster.spec.head_group_spec.template = serde_json::from_value(pod).unwrap();
    world.settle(0);
    let subject = world.created.iter().find_map(|one| match one {
        Dependent::RoleBinding(binding) => Some(binding.subjects.clone()?.remove(0).name),
        _ => None,
    });
    assert_eq!(subject.as_deref(), Some("mine"));
    assert_eq!(world.created.len(), 2, "no account is created");
}

#[test]
fn beside_the_autoscaler_a_head_that_is_to_be_kept_does_not_start_again() {
    for (kept, policy) in [("true", None), ("false", Some("Always"))] {
        let mut world = scaled(1, 1);
        let notes = json!({"ray.io/disable-provisioned-head-restart": kept});
        world.cluster.metadata.annotations = serde_json::from_value(notes).unwrap();
        world.settle(0);
        let pod = world.pods["demo-head"].spec.clone().unwrap();
        assert_eq!(pod.restart_policy.as_deref(), policy, "{kept}");
    }
}
