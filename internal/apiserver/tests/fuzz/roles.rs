//! Random requests of a member and of a node: the same invariants hold as for an administrator's, and no request reads
//! or changes an object that its caller has no right to.

use proptest::prelude::{Just, Strategy, prop_oneof};
use proptest::sample::select;
use resources::registry;
use serde_json::{Value, json};

use crate::ground::{Asked, BASE, Ground, NAMESPACE, Role, check, try_all};
use crate::{bodies, requests};

/// A number of cases that every run has time for.
const CASES: u32 = 512;
/// A text that only objects contain which neither role may read.
const TREASURE: &str = "dHJlYXN1cmUtNDcxMQ";
/// Another team's namespace.
const OTHER: &str = "other";

/// Objects that neither role may change.
fn foreign() -> Vec<String> {
    vec![
        format!("/api/v1/namespaces/{OTHER}/secrets/treasure"),
        format!("/api/v1/namespaces/{OTHER}/configmaps/treasure"),
        "/apis/rbac.authorization.k8s.io/v1/clusterroles/cluster-admin".to_owned(),
        "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/cluster-admin".to_owned(),
        format!("/api/v1/namespaces/{OTHER}"),
    ]
}

/// A request, some of them moved to the other namespace.
fn asked() -> impl Strategy<Value = Asked> {
    let any_asked = prop_oneof![
        bodies::asked().prop_map(|(_, asked)| asked),
        requests::asked()
    ];
    let to = prop_oneof![2 => Just(None), 1 => select(foreign()).prop_map(Some)];
    (any_asked, select(vec![false, false, true]), to).prop_map(|(mut asked, moved, to)| {
        if moved {
            let (own, other) = (
                format!("/namespaces/{NAMESPACE}"),
                format!("/namespaces/{OTHER}"),
            );
            asked.path = asked.path.replace(&own, &other).replace(BASE, "treasure");
        }
        if let Some(path) = to {
            let query = asked
                .path
                .split_once('?')
                .map(|(_, query)| query.to_owned());
            asked.path = query.map_or(path.clone(), |query| format!("{path}?{query}"));
        }
        asked
    })
}

/// The objects as they are, but for what the server notes on its own.
fn state(ground: &Ground) -> Vec<Value> {
    let read = |path: &String| ground.get(path).value();
    foreign().iter().map(read).collect()
}

#[test]
fn neither_a_member_nor_a_node_crosses_its_bounds_or_breaks_the_server() {
    let ground = Ground::new();
    let namespace = json!({"metadata": {"name": OTHER}});
    ground.must("POST", "/api/v1/namespaces", &namespace);
    let own = format!("/api/v1/namespaces/{OTHER}");
    let secret =
        json!({"metadata": {"name": "treasure"}, "data": {"a": TREASURE.to_owned() + "=="}});
    ground.must("POST", &format!("{own}/secrets"), &secret);
    let map = json!({"metadata": {"name": "treasure"}, "data": {"a": TREASURE}});
    ground.must("POST", &format!("{own}/configmaps"), &map);
    let before = state(&ground);
    for value in &before {
        assert!(value["metadata"]["uid"].is_string(), "{value}");
    }
    // An administrator sees the treasure: the check of what the others see can fail.
    let seen = ground.get(&format!("{own}/secrets"));
    assert!(String::from_utf8_lossy(&seen.bytes).contains(TREASURE));
    let roles = select(vec![Role::Member, Role::Node]);
    try_all("roles", CASES, &(roles, asked()), |(role, asked)| {
        let answer = ground.try_out_as(role, &asked)?;
        let text = answer.map(|answer| String::from_utf8_lossy(&answer.bytes).into_owned());
        let leaks = text.is_some_and(|text| text.contains(TREASURE));
        check(!leaks, || {
            format!("{role:?} reads the other namespace's data by {asked:?}")
        })?;
        check(state(&ground) == before, || {
            format!(
                "{role:?} changed an object by {asked:?}: {:?}",
                state(&ground)
            )
        })?;
        if asked.method == "DELETE" {
            registry::all().iter().for_each(|kind| ground.restore(kind));
        }
        ground.stands("/api/v1/namespaces/default")
    });
}
