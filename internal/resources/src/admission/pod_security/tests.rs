//! Results for pods and templates by labels, exemptions and the allow-list, and properties of the checks.

use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::fixtures::{baseline, host_pod, restricted, with};
use super::*;
use crate::registry;

fn request(labels: &BTreeMap<String, String>) -> NamespaceRequest<'_> {
    NamespaceRequest {
        namespace: "team",
        labels,
        user: "ann",
        own_pod_networks: false,
    }
}

fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    let full = |(key, value): &(&str, &str)| (format!("{PREFIX}{key}"), (*value).to_owned());
    pairs.iter().map(full).collect()
}

#[test]
fn a_namespace_without_labels_has_the_baseline() {
    let none = BTreeMap::new();
    let security = PodSecurity::default();
    let mut pod = host_pod();
    let verdict = security.pod(&request(&none), &pod);
    // The default allow-list allows hostNetwork.
    let fault = "privileged (container \"a\" must not set securityContext.privileged=true)";
    assert_eq!(
        verdict.refused.as_deref(),
        Some(format!("violates PodSecurity \"baseline:latest\": {fault}").as_str())
    );
    assert!(verdict.warnings.is_empty(), "a refusal is no warning, too");
    assert_eq!(
        verdict.audit[&format!("{PREFIX}audit-violations")],
        format!("would violate PodSecurity \"baseline:latest\": {fault}")
    );
    pod["spec"]["containers"][0]["securityContext"] = Value::Null;
    let verdict = security.pod(&request(&none), &pod);
    assert_eq!(verdict.refused, None);
    assert_eq!(verdict.level, PodSecurityLevel::Baseline);
    assert_eq!(
        verdict.audit,
        BTreeMap::from([(
            format!("{PREFIX}enforce-policy"),
            "baseline:latest".to_owned()
        )])
    );
}

#[test]
fn labels_say_what_is_refused_warned_of_and_noted() {
    let security = PodSecurity::default();
    let pod = host_pod();
    let modes = labels(&[
        ("enforce", "privileged"),
        ("warn", "baseline"),
        ("audit", "restricted"),
        ("audit-version", "v1.7"),
    ]);
    let verdict = security.pod(&request(&modes), &pod);
    assert_eq!(verdict.level, PodSecurityLevel::Privileged);
    assert_eq!(verdict.refused, None);
    assert_eq!(
        verdict.warnings,
        [
            "would violate PodSecurity \"baseline:latest\": privileged (container \"a\" must not set securityContext.privileged=true)"
        ]
    );
    let noted = &verdict.audit[&format!("{PREFIX}audit-violations")];
    assert!(
        noted.starts_with("would violate PodSecurity \"restricted:v1.7\": privileged ("),
        "{noted}"
    );
    let free = labels(&[
        ("enforce", "privileged"),
        ("warn", "privileged"),
        ("audit", "privileged"),
    ]);
    let verdict = security.pod(&request(&free), &pod);
    assert_eq!(
        verdict,
        SecurityVerdict::admitted(PodSecurityLevel::Privileged)
    );
}

#[test]
fn what_is_exempt_is_privileged_and_says_why() {
    let none = BTreeMap::new();
    let mut pod = host_pod();
    pod["spec"]["runtimeClassName"] = json!("vm");
    let names = |name: &str| vec![name.to_owned()];
    let table = [
        (
            Exemptions {
                namespaces: names("team"),
                ..Exemptions::default()
            },
            "namespace",
        ),
        (
            Exemptions {
                usernames: names("ann"),
                ..Exemptions::default()
            },
            "user",
        ),
        (
            Exemptions {
                runtime_classes: names("vm"),
                ..Exemptions::default()
            },
            "runtimeClass",
        ),
    ];
    for (exemptions, by) in table {
        let security = PodSecurity {
            exemptions,
            ..PodSecurity::default()
        };
        let verdict = security.pod(&request(&none), &pod);
        assert_eq!(verdict, SecurityVerdict::exempt(by));
        assert_eq!(verdict.audit[&format!("{PREFIX}exempt")], by);
        let job = registry::by_kind("batch", "v1", "Job").unwrap();
        let object = json!({"spec": {"template": pod.clone()}});
        let verdict = security.templates(&request(&none), job, &object);
        assert!(
            verdict.warnings.is_empty() && verdict.audit.is_empty(),
            "{by}"
        );
    }
    let security = PodSecurity {
        exemptions: Exemptions {
            namespaces: names("tea"),
            usernames: names("bob"),
            runtime_classes: names(""),
        },
        ..PodSecurity::default()
    };
    assert!(security.pod(&request(&none), &host_pod()).refused.is_some());
}

#[test]
fn templates_are_warned_of_once_and_never_refused() {
    let none = BTreeMap::new();
    let security = PodSecurity::default();
    let kind = registry::by_kind("batch.volcano.sh", "v1alpha1", "Job").unwrap();
    let task = |spec: Value| json!({"template": {"spec": spec}});
    let pid = || task(json!({"hostPID": true}));
    let object =
        json!({"spec": {"tasks": [pid(), pid(), task(json!({"hostIPC": true})), task(json!({}))]}});
    let verdict = security.templates(&request(&none), kind, &object);
    assert_eq!(verdict.refused, None);
    let would = |what: &str| {
        format!("would violate PodSecurity \"baseline:latest\": host namespaces ({what}=true)")
    };
    let both = [would("hostPID"), would("hostIPC")];
    assert_eq!(verdict.warnings, both);
    assert_eq!(
        verdict.audit,
        BTreeMap::from([(format!("{PREFIX}audit-violations"), both.join("; "))])
    );
    let quiet = labels(&[("warn", "privileged"), ("audit", "privileged")]);
    let verdict = security.templates(&request(&quiet), kind, &object);
    assert!(verdict.warnings.is_empty() && verdict.audit.is_empty());
}

#[test]
fn the_allow_list_lets_through_what_it_names_where_it_says_so() {
    let none = BTreeMap::new();
    let team = || Namespaces::Named(vec!["team".to_owned()]);
    let mut security = PodSecurity {
        allow: AllowList {
            host_paths: vec![HostDirectory {
                path: "/data".to_owned(),
                read_only: true,
                namespaces: team(),
            }],
            host_network: Some(Vec::new()),
            capabilities: vec![AllowedCapabilities {
                add: vec!["IPC_LOCK".to_owned()],
                namespaces: team(),
            }],
        },
        ..PodSecurity::default()
    };
    let mount = json!([{"name": "v", "mountPath": "/d", "readOnly": true}]);
    let pod = with(
        restricted(),
        &[
            (
                "/spec/volumes",
                json!([{"name": "v", "hostPath": {"path": "/data/x"}}]),
            ),
            ("/spec/containers/0/volumeMounts", mount),
            (
                "/spec/containers/0/securityContext/capabilities",
                json!({"drop": ["ALL"], "add": ["IPC_LOCK"]}),
            ),
        ],
    );
    for level in ["baseline", "restricted"] {
        let labels = labels(&[("enforce", level)]);
        let verdict = security.pod(&request(&labels), &pod);
        assert_eq!(verdict.refused, None, "{level}");
        assert!(verdict.warnings.is_empty());
        assert_eq!(verdict.level.as_str(), level);
        let other = NamespaceRequest {
            namespace: "other",
            ..request(&labels)
        };
        let refused = security.pod(&other, &pod).refused.unwrap();
        assert!(
            refused.contains("IPC_LOCK") && refused.contains("\"v\""),
            "{refused}"
        );
    }
    let writes = with(
        pod.clone(),
        &[("/spec/containers/0/volumeMounts/0/readOnly", json!(false))],
    );
    assert_eq!(
        security.pod(&request(&none), &writes).refused.unwrap(),
        "violates PodSecurity \"baseline:latest\": hostPath volumes (volume \"v\" must be mounted with readOnly=true)"
    );

    // Allowing the node's network allows the ports that defaulting writes, and no ports of other pods.
    let port = json!([{"containerPort": 80, "hostPort": 80}]);
    let networked = with(
        baseline(),
        &[
            ("/spec/hostNetwork", json!(true)),
            ("/spec/containers/0/ports", port.clone()),
        ],
    );
    let refused = security.pod(&request(&none), &networked).refused.unwrap();
    assert!(
        refused.contains("hostNetwork=true") && refused.contains("hostPort 80"),
        "{refused}"
    );
    security.allow.host_network = Some(vec![team()]);
    assert_eq!(security.pod(&request(&none), &networked).refused, None);
    let alone = with(baseline(), &[("/spec/containers/0/ports", port)]);
    let refused = security.pod(&request(&none), &alone).refused.unwrap();
    assert!(refused.contains("hostPort 80"), "{refused}");
}

#[test]
fn without_a_list_the_nodes_network_is_allowed_where_all_pods_share_it() {
    let none = BTreeMap::new();
    let pod = with(baseline(), &[("/spec/hostNetwork", json!(true))]);
    let own = NamespaceRequest {
        own_pod_networks: true,
        ..request(&none)
    };
    let mut security = PodSecurity::default();
    assert_eq!(security.pod(&request(&none), &pod).refused, None);
    let refused = security.pod(&own, &pod).refused.unwrap();
    assert!(
        refused.contains("hostNetwork=true where pods have networks of their own")
            && refused.contains("--pod-security-allow"),
        "{refused}"
    );
    let privileged = labels(&[("enforce", "privileged")]);
    let root = NamespaceRequest {
        labels: &privileged,
        ..own
    };
    assert_eq!(security.pod(&root, &pod).refused, None);
    // A list decides alone.
    security.allow.host_network = Some(vec![Namespaces::Named(vec!["team".to_owned()])]);
    assert_eq!(security.pod(&own, &pod).refused, None);
    security.allow.host_network = Some(Vec::new());
    assert!(security.pod(&request(&none), &pod).refused.is_some());
}

#[test]
fn only_changes_of_images_and_containers_matter() {
    let pod = baseline();
    let table = [
        ("/spec/containers/0/image", json!("y"), true),
        ("/spec/initContainers/0/image", json!("y"), true),
        ("/spec/ephemeralContainers/0/image", json!("y"), true),
        ("/spec/ephemeralContainers", json!([]), true),
        ("/metadata/labels", json!({"a": "b"}), false),
        ("/spec/tolerations", json!([{"key": "k"}]), false),
    ];
    for (pointer, value, wanted) in table {
        let next = with(pod.clone(), &[(pointer, value)]);
        assert_eq!(PodSecurity::matters(&pod, &next), wanted, "{pointer}");
    }
}

/// Objects with members that the checks read, at every path and of every type.
fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (-1_i64..3).prop_map(Value::from),
        prop_oneof![
            Just("ALL"),
            Just("SYS_ADMIN"),
            Just("Unconfined"),
            Just("RuntimeDefault"),
            Just("/a/../b")
        ]
        .prop_map(Value::from),
    ];
    let keys = prop_oneof![
        Just("metadata"),
        Just("annotations"),
        Just("seccomp.security.alpha.kubernetes.io/pod"),
        Just("spec"),
        Just("containers"),
        Just("initContainers"),
        Just("securityContext"),
        Just("capabilities"),
        Just("add"),
        Just("drop"),
        Just("privileged"),
        Just("runAsUser"),
        Just("runAsNonRoot"),
        Just("seccompProfile"),
        Just("appArmorProfile"),
        Just("seLinuxOptions"),
        Just("type"),
        Just("volumes"),
        Just("hostPath"),
        Just("emptyDir"),
        Just("path"),
        Just("volumeMounts"),
        Just("ports"),
        Just("hostPort"),
        Just("hostNetwork"),
        Just("hostPID"),
        Just("livenessProbe"),
        Just("httpGet"),
        Just("host"),
        Just("sysctls"),
        Just("name"),
        Just("image"),
        Just("template"),
        Just("tasks"),
    ];
    leaf.prop_recursive(7, 64, 6, move |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            proptest::collection::btree_map(keys.clone().prop_map(str::to_owned), inner, 0..6)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

proptest! {
    /// The restricted level forbids everything that the baseline forbids, and no JSON makes a check panic.
    #[test]
    fn the_restricted_level_forbids_what_the_baseline_forbids_and_no_json_panics(
        metadata in any_json(), spec in any_json(), change in any_json(), minor in 22_u32..40,
    ) {
        let pod = json!({"metadata": metadata, "spec": spec});
        let security = PodSecurity::default();
        let none = BTreeMap::new();
        let allowed = security.allow.within("n", &none, false);
        for version in [StandardsVersion::Latest, StandardsVersion::Minor(minor)] {
            let at = |level| checks::violations(LevelVersion { level, version }, &pod, &allowed);
            prop_assert!(at(PodSecurityLevel::Baseline).is_empty() || !at(PodSecurityLevel::Restricted).is_empty());
            prop_assert!(at(PodSecurityLevel::Privileged).is_empty());
        }
        let _ = PodSecurity::matters(&pod, &change);
        for kind in registry::all() {
            let _ = security.templates(&request(&none), kind, &pod);
        }
    }

    /// A cleaned path is absolute, has no empty, `.` or `..` component, and is not changed by cleaning again.
    #[test]
    fn a_cleaned_path_has_no_steps_that_lead_elsewhere(path in "(/|a|\\.|b){0,12}") {
        if let Some(cleaned) = allow::clean(&path) {
            prop_assert!(path.starts_with('/'));
            prop_assert!(cleaned == "/" || cleaned.split('/').skip(1).all(|step| !matches!(step, "" | "." | "..")));
            prop_assert_eq!(allow::clean(&cleaned), Some(cleaned.clone()));
            prop_assert!(!path.split('/').any(|step| step == ".."));
        }
    }
}
