//! Cases of the claims of a LeaderWorkerSet's pods.

use super::*;

#[test]
fn pods_have_claims_that_outlive_them_by_the_policy() {
    let mut world = World::new(json!({"leaderWorkerTemplate": {"size": 2,
        "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"]}}],
        "persistentVolumeClaimRetentionPolicy": {"whenScaled": "Delete"}}}));
    world.settle();
    let names: Vec<&str> = world.claims.keys().map(String::as_str).collect();
    assert_eq!(
        names,
        [
            "data-vllm-0",
            "data-vllm-0-1",
            "data-vllm-1",
            "data-vllm-1-1"
        ]
    );
    let labels = |name: &str| world.claims[name].metadata.labels.clone().unwrap();
    assert_eq!(labels("data-vllm-1")[WORKER_INDEX], "0");
    assert_eq!(labels("data-vllm-1-1")[GROUP_INDEX], "1");
    let pod = serde_json::to_value(&world.pods["vllm-1-1"]).unwrap();
    let volume = &pod["spec"]["volumes"][0];
    assert_eq!(volume["name"], "data");
    assert_eq!(
        volume["persistentVolumeClaim"]["claimName"],
        "data-vllm-1-1"
    );
    let owners = |world: &World, claim: &str| {
        let owners = world.claims[claim].metadata.owner_references.clone();
        let kinds = owners
            .unwrap_or_default()
            .into_iter()
            .map(|owner| owner.kind);
        kinds.collect::<Vec<String>>()
    };
    assert!(owners(&world, "data-vllm-1").is_empty());

    // A group that is created again finds its claims.
    world.now += 100;
    world.fail("vllm-1-1");
    world.settle();
    assert_eq!(world.claims.len(), 4);
    assert!(owners(&world, "data-vllm-1-1").is_empty());

    // Those of a group that is not wanted any more go with its pods.
    world.set.spec.replicas = Some(1);
    world.step();
    assert_eq!(owners(&world, "data-vllm-1"), ["Pod"]);
    assert_eq!(owners(&world, "data-vllm-1-1"), ["Pod"]);
    assert!(owners(&world, "data-vllm-0").is_empty());
    let template = &mut world.set.spec.leader_worker_template;
    let policy = template.persistent_volume_claim_retention_policy.as_mut();
    policy.unwrap().when_deleted = Some("Delete".to_owned());
    world.now += 100;
    world.settle();
    assert_eq!(owners(&world, "data-vllm-0-1"), ["LeaderWorkerSet"]);

    // A claim that could not be created is tried again while its pod waits.
    let mut world = World::new(json!({"replicas": 1, "leaderWorkerTemplate": {"size": 1,
        "volumeClaimTemplates": [{"metadata": {"name": "data"}}]}}));
    world.step();
    world.claims.clear();
    world.step();
    assert_eq!(world.claims.len(), 1);
}
