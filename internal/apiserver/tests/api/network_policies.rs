//! NetworkPolicies: written as JSON and protobuf, counted by quotas, and warned of where nothing enforces them.

use serde_json::{Value, json};

use crate::harness::Api;

const POLICIES: &str = "/apis/networking.k8s.io/v1/namespaces/default/networkpolicies";

fn policy(name: &str, spec: Value) -> Value {
    json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": name}, "spec": spec})
}

#[tokio::test]
async fn a_policy_names_the_nodes_on_which_nothing_enforces_it() {
    let api = Api::new();
    let node = |name: &str, network: &str| json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {"muster.io/pod-network": network}}});
    let warned = |answer: crate::harness::Answer| answer.warnings().join(" ");
    let none = "nothing enforces this NetworkPolicy: no node gives pods networks of their own";
    let answer = api.post(POLICIES, &policy("a", json!({}))).await;
    let shown = warned(answer);
    assert!(shown.contains(none), "{shown}");
    api.post("/api/v1/nodes", &node("host", "host"))
        .await
        .is(201);
    let shown = warned(api.post(POLICIES, &policy("b", json!({}))).await);
    assert!(shown.contains(none), "{shown}");
    api.post("/api/v1/nodes", &node("own", "own")).await.is(201);
    let changed = json!({"spec": {"policyTypes": ["Egress"]}});
    let shown = warned(api.merge(&format!("{POLICIES}/b"), &changed).await);
    assert!(
        shown.contains("nothing enforces this NetworkPolicy on 1 of 2 nodes"),
        "{shown}"
    );
    api.delete("/api/v1/nodes/host", None).await.is(200);
    let made = api.post(POLICIES, &policy("c", json!({}))).await;
    assert_eq!(made.warnings(), [""; 0]);
    let made = made.is(201);
    assert_eq!(made["metadata"]["generation"], 1);
    let spec = json!({"podSelector": {}, "policyTypes": ["Ingress"]});
    assert_eq!(made["spec"], spec);
    // What a bound leaves out, and what is likely not meant.
    let peers = (0..65).map(|n| json!({"podSelector": {"matchLabels": {"n": n.to_string()}}}));
    let peers: Vec<Value> = peers
        .chain([json!({"ipBlock": {"cidr": "10.1.2.3/8"}})])
        .collect();
    let wide = policy("d", json!({"ingress": [{"from": peers}]}));
    let warnings = api.post(POLICIES, &wide).await.warnings();
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    assert!(
        warnings[0].contains("is ambiguous in this context"),
        "{warnings:?}"
    );
    assert!(
        warnings[1].contains("1 peers of its ingress rules"),
        "{warnings:?}"
    );
}

#[tokio::test]
async fn a_policy_is_taken_as_protobuf_and_counted_by_a_quota() {
    let api = Api::new();
    let quota = json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q"},
        "spec": {"hard": {"count/networkpolicies.networking.k8s.io": "1"}}});
    let quotas = "/api/v1/namespaces/default/resourcequotas";
    api.post(quotas, &quota).await.is(201);
    // runtime.Unknown with the name "p" and a rule of ingress: port 80 (an IntOrString) of TCP, from a pod selector.
    let field = |number: u8, inner: &[u8]| {
        let mut bytes = vec![number << 3 | 2, u8::try_from(inner.len()).unwrap()];
        bytes.extend_from_slice(inner);
        bytes
    };
    let number = field(2, &[0x08, 0x00, 0x10, 80]);
    let port = field(1, &[field(1, b"TCP"), number].concat());
    let peer = field(2, &field(1, &[]));
    let rule = field(2, &[port, peer].concat());
    let spec = field(2, &[field(1, &[]), rule].concat());
    let object = [field(1, &field(1, b"p")), spec].concat();
    let type_meta = [
        field(1, b"networking.k8s.io/v1"),
        field(2, b"NetworkPolicy"),
    ]
    .concat();
    let sent = [b"k8s\0".to_vec(), field(1, &type_meta), field(2, &object)].concat();
    let media = "application/vnd.kubernetes.protobuf";
    let made = api.call("POST", POLICIES, media, sent).await.is(201);
    let expected = json!({
        "podSelector": {}, "policyTypes": ["Ingress"],
        "ingress": [{"ports": [{"protocol": "TCP", "port": 80}], "from": [{"podSelector": {}}]}],
    });
    assert_eq!(made["spec"], expected);
    let message = api.post(POLICIES, &policy("q", json!({}))).await;
    let message = message.refused(403, "Forbidden");
    assert!(
        message.contains("count/networkpolicies.networking.k8s.io=1"),
        "{message}"
    );
}
