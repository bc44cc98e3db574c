//! Pods that depend on the pods around them: inter-pod affinity and anti-affinity, topology spread, host
//! ports, as kube-scheduler decides them.

mod support;

use std::collections::BTreeMap;

use scheduler::{Event, Plan, Scheduler};
use serde_json::{Value, json};
use support::*;

const HOST: &str = "kubernetes.io/hostname";

fn zoned(name: &str, zone: &str) -> Event {
    node_with(name, 8, |node| {
        node["metadata"]["labels"]["zone"] = json!(zone)
    })
}

fn three_nodes() -> Scheduler {
    let mut s = scheduler();
    for (name, zone) in [("n1", "a"), ("n2", "a"), ("n3", "b")] {
        s.apply(zoned(name, zone));
    }
    s
}

fn app(name: &str, app: &str, group: Option<&str>, spec: Value) -> Event {
    pod_with(name, group, 1, |pod| {
        pod["metadata"]["labels"] = json!({"app": app});
        for (field, value) in spec.as_object().expect("a pod spec is an object") {
            pod["spec"][field] = value.clone();
        }
    })
}

fn term(app: &str, key: &str) -> Value {
    json!([{"labelSelector": {"matchLabels": {"app": app}}, "topologyKey": key}])
}

fn with(other: &str, key: &str) -> Value {
    let required = term(other, key);
    json!({"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}})
}

fn without(other: &str, key: &str) -> Value {
    let required = term(other, key);
    json!({"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}})
}

fn spread(app: &str, key: &str, skew: i32, when: &str) -> Value {
    json!({"topologySpreadConstraints": [{
        "maxSkew": skew, "topologyKey": key, "whenUnsatisfiable": when,
        "labelSelector": {"matchLabels": {"app": app}},
    }]})
}

fn per_node(plan: &Plan) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for node in bound(plan).into_values() {
        *counts.entry(node).or_default() += 1;
    }
    counts
}

#[test]
fn a_pod_goes_where_those_are_that_it_must_be_with() {
    let mut s = three_nodes();
    s.apply(pod_with("db", None, 1, |pod| {
        pod["metadata"]["labels"] = json!({"app": "db"});
        pod["spec"]["nodeName"] = json!("n3");
    }));
    s.apply(app("web", "web", None, with("db", "zone")));
    assert_eq!(bound(&s.plan(now()))["web"], "n3");
}

#[test]
fn a_pod_waits_for_those_that_it_must_be_with_and_starts_when_they_come() {
    let mut s = three_nodes();
    s.apply(app("web", "web", None, with("db", "zone")));
    let plan = s.plan(now());
    assert!(plan.binds.is_empty());
    assert_eq!(
        report(&plan, "web").sentence(),
        "0/3 nodes are available: 3 node(s) didn't match pod affinity rules."
    );
    s.apply(app("db", "db", None, json!({"nodeSelector": {HOST: "n2"}})));
    let started = bound(&s.plan(now()));
    assert_eq!(started["db"], "n2");
    let node = started
        .get("web")
        .cloned()
        .or_else(|| bound(&s.plan(now())).remove("web"));
    assert!(
        ["n1", "n2"].contains(&node.unwrap().as_str()),
        "in the same zone"
    );
}

#[test]
fn the_first_of_pods_that_want_to_be_together_goes_anywhere() {
    let mut s = three_nodes();
    s.apply(group("g", 4));
    for i in 0..4 {
        s.apply(app(&format!("g-{i}"), "g", Some("g"), with("g", "zone")));
    }
    let plan = s.plan(now());
    assert_eq!(plan.binds.len(), 4);
    let nodes = nodes_used(&plan, "g");
    assert!(
        !(nodes.contains(&"n3".to_owned()) && nodes.len() > 1),
        "{nodes:?}"
    );
}

#[test]
fn pods_that_avoid_each_other_get_a_node_each_or_the_gang_waits_whole() {
    for (members, placed) in [(3, 3), (4, 0)] {
        let mut s = three_nodes();
        s.apply(group("g", members));
        for i in 0..members {
            s.apply(app(&format!("g-{i}"), "g", Some("g"), without("g", HOST)));
        }
        let before = s.view().nodes;
        let plan = s.plan(now());
        assert_eq!(plan.binds.len(), placed);
        assert!(per_node(&plan).values().all(|n| *n == 1));
        if placed == 0 {
            assert_eq!(s.view().nodes, before, "what was tried is given back");
            let sentence = report(&plan, "g").sentence();
            assert!(
                sentence.contains("3 node(s) didn't match pod anti-affinity rules"),
                "{sentence}"
            );
        }
    }
}

#[test]
fn a_running_pod_keeps_away_whom_it_avoids() {
    let mut s = three_nodes();
    s.apply(app("loner", "loner", None, without("web", "zone")));
    let loner = bound(&s.plan(now())).remove("loner").unwrap();
    s.apply(app("web", "web", None, json!({})));
    let web = bound(&s.plan(now())).remove("web").unwrap();
    let zone = |node: &str| if node == "n3" { "b" } else { "a" };
    assert_ne!(zone(&web), zone(&loner));
    s.apply(pod_gone("loner"));
    s.apply(app(
        "web2",
        "web",
        None,
        json!({"nodeSelector": {HOST: loner}}),
    ));
    assert_eq!(
        s.plan(now()).binds.len(),
        1,
        "nobody keeps it away any more"
    );
}

#[test]
fn a_hard_spread_keeps_domains_within_the_skew() {
    let mut s = three_nodes();
    s.apply(group("g", 4));
    for i in 0..4 {
        s.apply(app(
            &format!("g-{i}"),
            "g",
            Some("g"),
            spread("g", "zone", 1, "DoNotSchedule"),
        ));
    }
    let plan = s.plan(now());
    let counts = per_node(&plan);
    assert_eq!(counts.get("n3"), Some(&2));
    assert_eq!(plan.binds.len(), 4);
}

#[test]
fn a_soft_spread_prefers_the_emptier_domain_and_never_refuses() {
    let mut s = three_nodes();
    for i in 0..20 {
        s.apply(app(
            &format!("p-{i:02}"),
            "p",
            None,
            spread("p", HOST, 1, "ScheduleAnyway"),
        ));
    }
    let counts = per_node(&s.plan(now()));
    assert_eq!(counts.values().sum::<usize>(), 20);
    assert!(counts.values().all(|n| (6..=8).contains(n)), "{counts:?}");
}

#[test]
fn two_pods_with_one_host_port_do_not_share_a_node() {
    let mut s = three_nodes();
    for i in 0..4 {
        s.apply(pod_with(&format!("p-{i}"), None, 1, |pod| {
            pod["spec"]["containers"][0]["ports"] =
                json!([{"containerPort": 80, "hostPort": 8080}]);
        }));
    }
    let plan = s.plan(now());
    assert_eq!(per_node(&plan).len(), 3);
    assert_eq!(
        report(&plan, "p-3").sentence(),
        "0/3 nodes are available: 3 node(s) didn't have free ports for the requested pod ports."
    );
    s.apply(pod_gone("p-0"));
    assert_eq!(bound(&s.plan(now())).len(), 1);
}

#[test]
fn a_preference_for_company_chooses_among_nodes_that_fit() {
    let mut s = three_nodes();
    s.apply(pod_with("db", None, 1, |pod| {
        pod["metadata"]["labels"] = json!({"app": "db"});
        pod["spec"]["nodeName"] = json!("n2");
    }));
    let prefer = |weight: i32, kind: &str| {
        let terms = json!([{"weight": weight, "podAffinityTerm": term("db", HOST)[0]}]);
        json!({"affinity": {kind: {"preferredDuringSchedulingIgnoredDuringExecution": terms}}})
    };
    s.apply(app("near", "near", None, prefer(10, "podAffinity")));
    s.apply(app("far", "far", None, prefer(10, "podAntiAffinity")));
    let nodes = bound(&s.plan(now()));
    assert_eq!(nodes["near"], "n2");
    assert_ne!(nodes["far"], "n2");
}

#[test]
fn terms_reach_into_the_namespaces_that_they_name() {
    for (namespaces, fits) in [(json!(["ns"]), true), (json!(["other"]), false)] {
        let mut s = three_nodes();
        s.apply(pod_with("db", None, 1, |pod| {
            pod["metadata"]["labels"] = json!({"app": "db"});
            pod["spec"]["nodeName"] = json!("n3");
        }));
        let mut spec = with("db", HOST);
        spec["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][0]["namespaces"] =
            namespaces;
        s.apply(app("web", "web", None, spec));
        assert_eq!(s.plan(now()).binds.len() == 1, fits);
    }
}

/// A pod of an app that is on a node already.
fn there(name: &str, label: &str, node: &str) -> Event {
    app(name, label, None, json!({"nodeName": node}))
}

/// A spread over hosts that differs from the usual in some fields.
fn spread_with(change: impl FnOnce(&mut Value)) -> Value {
    let mut spec = spread("web", HOST, 1, "DoNotSchedule");
    change(&mut spec["topologySpreadConstraints"][0]);
    spec
}

/// Where a pod with such a spread goes that only n2 would take otherwise; n2 has one of its app.
fn on_the_second(spec: &Value) -> Option<String> {
    let mut s = three_nodes();
    s.apply(node_with("n1", 8, |node| {
        node["spec"]["taints"] = json!([{"key": "k", "effect": "NoSchedule"}]);
        node["metadata"]["labels"]["only"] = json!("out");
    }));
    s.apply(node_with("n3", 0, |_| {}));
    s.apply(there("old-2", "web", "n2"));
    s.apply(there("old-3", "web", "n3"));
    s.apply(app("new", "web", None, spec.clone()));
    bound(&s.plan(now())).remove("new")
}

#[test]
fn a_spread_counts_just_the_nodes_and_pods_that_kube_scheduler_counts() {
    let waits = None;
    let goes = Some("n2".to_owned());
    // n1 is empty, so one more on n2 would be two more than there.
    assert_eq!(on_the_second(&spread_with(|_| {})), waits);
    let honoured = spread_with(|c| c["nodeTaintsPolicy"] = json!("Honor"));
    assert_eq!(on_the_second(&honoured), goes, "its taint is not tolerated");
    let mut two = spread_with(|_| {});
    let mut other =
        spread("web", "zone", 5, "DoNotSchedule")["topologySpreadConstraints"][0].clone();
    two["topologySpreadConstraints"]
        .as_array_mut()
        .unwrap()
        .push(other.clone());
    assert_eq!(on_the_second(&two), goes, "n1 lacks the other label");
    other["whenUnsatisfiable"] = json!("ScheduleAnyway");
    two["topologySpreadConstraints"][1] = other;
    assert_eq!(on_the_second(&two), waits, "that is but a wish");
    let empty = spread_with(|c| c["labelSelector"] = json!({}));
    assert_eq!(
        on_the_second(&empty),
        goes,
        "an empty selector counts nobody"
    );
    let none = spread_with(|c| {
        c.as_object_mut().unwrap().remove("labelSelector");
    });
    assert_eq!(on_the_second(&none), goes, "no selector selects nobody");
    let mut selected = spread_with(|_| {});
    selected["nodeSelector"] = json!({"zone": "a"});
    assert_eq!(on_the_second(&selected), goes, "n1 is not selected");
    selected["topologySpreadConstraints"][0]["nodeAffinityPolicy"] = json!("Ignore");
    assert_eq!(on_the_second(&selected), waits, "and counts all the same");
}

#[test]
fn whom_a_pod_must_be_with_is_of_all_the_kinds_that_it_names() {
    let mut s = three_nodes();
    s.apply(there("db", "db", "n3"));
    s.apply(there("web", "web", "n3"));
    let both = |name: &str, label: &str, kinds: [&str; 2]| {
        let terms: Vec<Value> = kinds.map(|kind| term(kind, "zone")[0].clone()).into();
        let required = json!({"requiredDuringSchedulingIgnoredDuringExecution": terms});
        app(
            name,
            label,
            None,
            json!({"affinity": {"podAffinity": required}}),
        )
    };
    // One of each is there, and no pod is both.
    s.apply(both("new", "web", ["db", "web"]));
    assert!(s.plan(now()).binds.is_empty());
    s.apply(both("like", "web", ["web", "web"]));
    assert_eq!(bound(&s.plan(now()))["like"], "n3");
}
