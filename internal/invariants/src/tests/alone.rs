//! The predicate about exclusive devices.

use super::*;

/// A container with its GPUs and slices.
type Gets<'a> = (&'a str, &'a [&'a str], &'a [&'a str]);

#[test]
fn i7_fires_on_a_gpu_that_a_container_has_by_itself_beside_another_device() {
    let mut cluster = cluster();
    let gpu = |id: &str, alone: bool| json!({"id": id, "healthy": true, "alone": alone});
    let slice = json!({"id": "MIG-a", "profile": "1g.10gb", "healthy": true});
    let cut = json!({"id": "GPU-3", "healthy": true, "slices": [slice]});
    let gpus = json!([
        gpu("n1-0", false),
        gpu("n1-1", true),
        gpu("n1-2", false),
        cut
    ]);
    let mut has = node("n1", 4);
    let notes = has.metadata.annotations.get_or_insert_default();
    notes.insert(
        "muster.io/inventory".into(),
        json!({"gpus": gpus}).to_string(),
    );
    let mut status = serde_json::to_value(&has.status).unwrap();
    status["allocatable"]["nvidia.com/mig-1g.10gb"] = json!("1");
    has.status = serde_json::from_value(status).unwrap();
    cluster.put_node(&has);
    cluster.put_group(&group(1, json!({})));
    cluster.put_queue(&queue("4"));
    // The requests of each container: GPUs and slices.
    let mut try_out = |containers: &[Gets<'_>]| {
        let list = containers.iter().map(|(name, gpus, slices)| {
            let asks = json!({"nvidia.com/gpu": gpus.len().to_string(),
                "nvidia.com/mig-1g.10gb": slices.len().to_string()});
            json!({"name": name, "resources": {"requests": asks}})
        });
        let list: Vec<Value> = list.collect();
        cluster.put_pod(&pod("a", |pod| pod["spec"]["containers"] = json!(list)));
        let owned = |ids: &[&str]| ids.iter().map(ToString::to_string).collect::<Vec<_>>();
        let mut bind = bind("a", "n1", "");
        bind.devices = (containers.iter())
            .map(|(name, gpus, slices)| {
                let given = [("nvidia.com/gpu", gpus), ("nvidia.com/mig-1g.10gb", slices)];
                let given = given.iter().filter(|(_, ids)| !ids.is_empty());
                let given = given.map(|(resource, ids)| (resource.to_string(), owned(ids)));
                (name.to_string(), given.collect())
            })
            .collect();
        check(&cluster, &[bind])
    };
    let good: [&[Gets<'_>]; 4] = [
        &[("a", &["n1-1"], &[])],
        &[("a", &["n1-0", "n1-2"], &[])],
        &[("a", &["n1-1"], &[]), ("b", &["n1-0"], &["MIG-a"])],
        &[("a", &["n1-0", "n1-2"], &[]), ("b", &["n1-1"], &[])],
    ];
    for containers in good {
        assert_eq!(try_out(containers), [], "{containers:?}");
    }
    let bad: [&[Gets<'_>]; 2] = [
        &[("a", &["n1-0", "n1-1"], &[])],
        &[("b", &["n1-0"], &[]), ("a", &["n1-1"], &["MIG-a"])],
    ];
    for containers in bad {
        let found = try_out(containers);
        assert_eq!(
            found.iter().map(ToString::to_string).collect::<Vec<_>>(),
            [
                "I7: pod ns/a on node n1: container a gets 2 devices, of which it can have n1-1 by itself only"
            ],
            "{containers:?}"
        );
    }
}

#[test]
fn i7_fires_where_a_container_asks_for_several_of_which_it_gets_one() {
    const SHARED: &str = "nvidia.com/gpu.shared";
    let mut cluster = cluster();
    cluster.put_group(&group(1, json!({})));
    let shares = |resources: Value| {
        let mut has = node("n1", 4);
        let notes = has.metadata.annotations.get_or_insert_default();
        let inventory = json!({"oneAtMost": resources});
        notes.insert("muster.io/inventory".into(), inventory.to_string());
        let mut status = serde_json::to_value(&has.status).unwrap();
        status["allocatable"][SHARED] = json!("8");
        has.status = serde_json::from_value(status).unwrap();
        has
    };
    let asks = |counts: &[&str]| {
        let each = |count: &&str| json!({"name": "c", "resources": {"limits": {SHARED: count}}});
        let containers: Vec<Value> = counts.iter().map(each).collect();
        pod("a", |pod| pod["spec"]["containers"] = json!(containers))
    };
    let mut bind = bind("a", "n1", "");
    bind.devices.clear();
    for (resources, counts, wanted) in [
        (json!([SHARED]), &["1", "1"][..], &[][..]),
        (json!([SHARED]), &["1", "2"], &[Invariant::ByItself]),
        (json!(["nvidia.com/part"]), &["2"], &[]),
        (json!([]), &["2"], &[]),
    ] {
        cluster.put_node(&shares(resources.clone()));
        cluster.put_pod(&asks(counts));
        let found = broken(&cluster, std::slice::from_ref(&bind));
        assert_eq!(found, wanted, "{counts:?} where one of {resources}");
    }
}
