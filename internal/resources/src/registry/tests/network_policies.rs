//! The rules of NetworkPolicy, with kube-apiserver's messages.

use serde_json::json;

use super::*;

fn policy(spec: Value) -> (Value, Vec<String>) {
    let kind = kind("networking.k8s.io", "v1", "networkpolicies");
    create(kind, object("p", json!({"spec": spec})))
}

#[test]
fn defaults_are_kubernetes() {
    for (spec, expected) in [
        (
            json!({}),
            json!({"podSelector": {}, "policyTypes": ["Ingress"]}),
        ),
        (
            json!({"egress": [], "policyTypes": []}),
            json!({"podSelector": {}, "egress": [], "policyTypes": ["Ingress"]}),
        ),
        (
            json!({"egress": [{"ports": [{"port": 53, "protocol": "UDP"}, {"port": "dns"}]}]}),
            json!({
                "podSelector": {}, "policyTypes": ["Ingress", "Egress"],
                "egress": [{"ports": [
                    {"port": 53, "protocol": "UDP"}, {"port": "dns", "protocol": "TCP"},
                ]}],
            }),
        ),
        (
            json!({"podSelector": {"matchLabels": {"a": "b"}}, "policyTypes": ["Egress"]}),
            json!({"podSelector": {"matchLabels": {"a": "b"}}, "policyTypes": ["Egress"]}),
        ),
    ] {
        let (object, errors) = policy(spec);
        assert_eq!(object["spec"], expected);
        assert_eq!(errors, [""; 0]);
        // A second run changes nothing.
        assert_eq!(policy(expected.clone()).0["spec"], expected);
    }
}

#[test]
fn wrong_fields_are_refused_as_kube_apiserver_refuses_them() {
    let ingress = |rule: Value| json!({"ingress": [rule]});
    let port = |port: Value| ingress(json!({"ports": [port]}));
    let peer = |peer: Value| ingress(json!({"from": [peer]}));
    let cidr = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)";
    for (spec, expected) in [
        (
            json!({"policyTypes": ["Ingress", "Egress", "Both"]}),
            "spec.policyTypes: Invalid value: [\"Ingress\",\"Egress\",\"Both\"]: may not specify more than two policyTypes".to_owned(),
        ),
        (
            json!({"policyTypes": ["Both"]}),
            "spec.policyTypes[0]: Unsupported value: \"Both\": supported values: \"Ingress\", \"Egress\"".to_owned(),
        ),
        (
            port(json!({"protocol": "ICMP"})),
            "spec.ingress[0].ports[0].protocol: Unsupported value: \"ICMP\": supported values: \"TCP\", \"UDP\", \"SCTP\"".to_owned(),
        ),
        (
            port(json!({"port": 0})),
            "spec.ingress[0].ports[0].port: Invalid value: 0: must be between 1 and 65535, inclusive".to_owned(),
        ),
        (
            port(json!({"port": "Web"})),
            "spec.ingress[0].ports[0].port: Invalid value: \"Web\": must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)".to_owned(),
        ),
        (
            port(json!({"port": 80, "endPort": 79})),
            "spec.ingress[0].ports[0].endPort: Invalid value: 80: must be greater than or equal to `port`".to_owned(),
        ),
        (
            port(json!({"port": 80, "endPort": 65_536})),
            "spec.ingress[0].ports[0].endPort: Invalid value: 65536: must be between 1 and 65535, inclusive".to_owned(),
        ),
        (
            port(json!({"port": "web", "endPort": 80})),
            "spec.ingress[0].ports[0].endPort: Invalid value: 80: may not be specified when `port` is non-numeric".to_owned(),
        ),
        (
            port(json!({"endPort": 80})),
            "spec.ingress[0].ports[0].endPort: Invalid value: 80: may not be specified when `port` is not specified".to_owned(),
        ),
        (
            peer(json!({})),
            "spec.ingress[0].from[0]: Required value: must specify a peer".to_owned(),
        ),
        (
            peer(json!({"podSelector": {}, "ipBlock": {"cidr": "10.0.0.0/8"}})),
            "spec.ingress[0].from[0]: Forbidden: may not specify both ipBlock and another peer".to_owned(),
        ),
        (
            peer(json!({"ipBlock": {"cidr": ""}})),
            "spec.ingress[0].from[0].ipBlock.cidr: Required value".to_owned(),
        ),
        (
            peer(json!({"ipBlock": {"cidr": "10.0.0.1"}})),
            format!("spec.ingress[0].from[0].ipBlock.cidr: Invalid value: \"10.0.0.1\": {cidr}"),
        ),
        (
            peer(json!({"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1/16"]}})),
            format!("spec.ingress[0].from[0].ipBlock.except[0]: Invalid value: \"10.1/16\": {cidr}"),
        ),
        (
            peer(json!({"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.0.0.0/8"]}})),
            "spec.ingress[0].from[0].ipBlock.except[0]: Invalid value: \"10.0.0.0/8\": must be a strict subset of `cidr`".to_owned(),
        ),
        (
            json!({"policyTypes": ["Egress"], "egress": [{"to": [{"namespaceSelector": {"matchExpressions": [
                {"key": "a", "operator": "In"},
            ]}}]}]}),
            "spec.egress[0].to[0].namespaceSelector.matchExpressions[0].values: Required value: must be specified when `operator` is 'In' or 'NotIn'".to_owned(),
        ),
        (
            json!({"podSelector": {"matchExpressions": [{"key": "a", "operator": "Gt"}]}}),
            "spec.podSelector.matchExpressions[0].operator: Invalid value: \"Gt\": not a valid selector operator".to_owned(),
        ),
    ] {
        assert_eq!(policy(spec.clone()).1, [expected], "{spec}");
    }
}

#[test]
fn whole_policies_are_accepted_and_what_is_likely_not_meant_is_named() {
    let (object, errors) = policy(json!({
        "podSelector": {"matchExpressions": [{"key": "a", "operator": "Exists"}]},
        "ingress": [{}, {"from": [
            {"podSelector": {}, "namespaceSelector": {"matchLabels": {"team": "one"}}},
            {"ipBlock": {"cidr": "10.1.2.3/8", "except": ["10.1.2.3/16"]}},
        ], "ports": [{"port": 1, "endPort": 65_535, "protocol": "SCTP"}, {"protocol": "UDP"}]}],
        "egress": [{"to": [{"ipBlock": {"cidr": "2001:db8::/64"}}]}],
    }));
    assert_eq!(errors, [""; 0]);
    let warned = network_policy_warnings(&object);
    let expected = [
        "spec.ingress[1].from[1].ipBlock.cidr: CIDR value \"10.1.2.3/8\" is ambiguous in this context (should be \"10.0.0.0/8\" or \"10.1.2.3/32\"?)",
        "spec.ingress[1].from[1].ipBlock.except[0]: CIDR value \"10.1.2.3/16\" is ambiguous in this context (should be \"10.1.0.0/16\" or \"10.1.2.3/32\"?)",
        "spec.egress[0].to[0].ipBlock.cidr: pods have IPv4 addresses only, so \"2001:db8::/64\" matches nothing",
    ];
    assert_eq!(warned, expected);
    let kind = kind("networking.k8s.io", "v1", "networkpolicies");
    let shown = kind.columns[1].cell(&object, Timestamp::UNIX_EPOCH);
    assert_eq!(shown, json!("a"));
}
