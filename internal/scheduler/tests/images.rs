//! Which nodes can run a pod's image, as the reports of waiting gangs state it.

mod support;

use serde_json::{Value, json};
use support::*;

/// A node whose runtimes are the ones named.
fn node_of(name: &str, runtimes: &[&str], change: impl FnOnce(&mut Value)) -> scheduler::Event {
    node_with(name, 0, |node| {
        for runtime in runtimes {
            node["metadata"]["labels"][format!("muster.io/runtime.{runtime}")] = json!("true");
        }
        change(node);
    })
}

fn cordon(node: &mut Value) {
    node["spec"]["unschedulable"] = json!(true);
}

fn taint(node: &mut Value) {
    node["spec"]["taints"] = json!([{"key": "k", "effect": "NoSchedule"}]);
}

fn unready(node: &mut Value) {
    node["status"]["conditions"][0]["status"] = json!("Unknown");
}

/// A pod with an image that asks for so many CPUs.
fn pod_of_image(name: &str, cpu: &str) -> scheduler::Event {
    pod_with(name, None, 0, |pod| {
        let resources = json!({"requests": {"cpu": cpu}});
        pod["spec"]["containers"] =
            json!([{"name": "main", "image": "busybox", "resources": resources}]);
    })
}

/// What binds such a pod.
fn binding(nodes: Vec<scheduler::Event>) -> String {
    let mut s = scheduler();
    for node in nodes {
        s.apply(node);
    }
    s.apply(pod_of_image("p", "1"));
    report(&s.plan(now()), "p").binding.clone()
}

#[test]
fn where_an_image_could_run_is_told_with_why_it_does_not() {
    let plain = |name| node_of(name, &["process"], |_| {});
    let nothing = "no node could hold one member, even when empty";
    let table = [
        (
            vec![plain("n1")],
            format!("{nothing}; the only node has no container runtime"),
        ),
        (
            vec![plain("n1"), node_of("n2", &["process"], cordon)],
            format!("{nothing}; none of the 2 nodes has a container runtime"),
        ),
        (
            vec![plain("n1"), node_of("n2", &["process", "cri"], cordon)],
            format!("{nothing}; 1 of 2 nodes can run images: n2 (cordoned)"),
        ),
        (
            vec![
                node_of("n4", &["cri"], taint),
                node_of("n3", &["host-images"], unready),
                plain("n2"),
                node_of("n1", &["cri"], cordon),
            ],
            format!(
                "{nothing}; 3 of 4 nodes can run images: n1 (cordoned), n3 (not ready), n4 (tainted)"
            ),
        ),
        // A node that is out for another reason and has no runtime either is not one of them.
        (
            vec![
                node_of("n1", &["process"], cordon),
                node_of("n2", &["cri"], taint),
            ],
            format!("{nothing}; 1 of 2 nodes can run images: n2 (tainted)"),
        ),
        // Where all could, the reasons say enough.
        (vec![node_of("n1", &["cri"], cordon)], nothing.to_owned()),
    ];
    for (nodes, wanted) in table {
        assert_eq!(binding(nodes), wanted);
    }
}

#[test]
fn of_many_nodes_that_could_run_an_image_the_first_are_named() {
    let mut nodes: Vec<_> = (1..=7)
        .map(|i| node_of(&format!("n{i}"), &["cri"], cordon))
        .collect();
    nodes.push(node_of("n8", &["process"], |_| {}));
    let told = binding(nodes);
    assert!(
        told.ends_with(
            "7 of 8 nodes can run images: n1 (cordoned), n2 (cordoned), n3 (cordoned), \
             n4 (cordoned), n5 (cordoned), 2 more"
        ),
        "{told}"
    );
}

#[test]
fn a_full_node_that_could_run_an_image_is_named_as_full() {
    let mut s = scheduler();
    s.apply(node_of("n1", &["process"], |_| {}));
    s.apply(node_of("n2", &["cri"], |_| {}));
    s.apply(pod_with("held", None, 0, |pod| {
        pod["spec"]["nodeName"] = json!("n2");
        pod["spec"]["containers"][0]["resources"]["requests"]["cpu"] = json!("60");
    }));
    s.apply(pod_of_image("p", "10"));
    let plan = s.plan(now());
    let told = &report(&plan, "p").binding;
    assert!(
        told.ends_with("; 1 of 2 nodes can run images: n2 (full)"),
        "{told}"
    );
    assert!(told.contains("cpu are free"), "{told}");
}
