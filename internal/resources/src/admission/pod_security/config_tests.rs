//! Valid configuration files, and the errors of invalid ones.

use serde_json::json;

use super::super::{LevelVersion, NamespaceRequest};
use super::*;

fn yaml(text: &str) -> Value {
    serde_norway::from_str(text).unwrap()
}

fn texts(errors: &[FieldError]) -> Vec<String> {
    errors.iter().map(ToString::to_string).collect()
}

const CONFIGURATION: &str = "
apiVersion: pod-security.admission.config.k8s.io/v1
kind: PodSecurityConfiguration
defaults:
  enforce: restricted
  enforce-version: v1.30
  audit: privileged
exemptions:
  usernames: [root]
  runtimeClasses: [vm]
  namespaces: [infra, kube-system]
";

#[test]
fn kubernetes_configuration_is_read_alone_and_as_a_plugin() {
    let plugin = json!({
        "apiVersion": "apiserver.config.k8s.io/v1", "kind": "AdmissionConfiguration",
        "plugins": [{"name": "PodSecurity", "configuration": yaml(CONFIGURATION)}],
    });
    for document in [yaml(CONFIGURATION), plugin] {
        let read = PodSecurity::default().configured(&document).unwrap();
        assert_eq!(
            read.defaults,
            NamespaceLevels {
                enforce: LevelVersion {
                    level: PodSecurityLevel::Restricted,
                    version: StandardsVersion::Minor(30),
                },
                audit: LevelVersion::latest(PodSecurityLevel::Privileged),
                // Absent settings keep their defaults.
                warn: LevelVersion::latest(PodSecurityLevel::Baseline),
            }
        );
        assert_eq!(read.exemptions.usernames, ["root"]);
        assert_eq!(read.exemptions.runtime_classes, ["vm"]);
        assert_eq!(read.exemptions.namespaces, ["infra", "kube-system"]);
        assert_eq!(read.allow, AllowList::default());
    }
    let least = yaml(
        "{apiVersion: pod-security.admission.config.k8s.io/v1, kind: PodSecurityConfiguration, defaults: {enforce: ''}}",
    );
    assert_eq!(
        PodSecurity::default().configured(&least).unwrap(),
        PodSecurity::default()
    );
}

#[test]
fn what_is_wrong_in_a_configuration_is_named_with_its_field() {
    let head =
        "{apiVersion: pod-security.admission.config.k8s.io/v1, kind: PodSecurityConfiguration,";
    let plugins = "{apiVersion: apiserver.config.k8s.io/v1, kind: AdmissionConfiguration, plugins:";
    let inner = format!("{head} defaults: {{enforce: none}}}}");
    let table = [
        (
            "{kind: SchedulerConfig}".to_owned(),
            "kind: Unsupported value: \"SchedulerConfig\": supported values: \"PodSecurityConfiguration\", \"AdmissionConfiguration\"",
        ),
        (
            "[]".to_owned(),
            "kind: Unsupported value: \"\": supported values: \"PodSecurityConfiguration\", \"AdmissionConfiguration\"",
        ),
        (
            "{apiVersion: v1, kind: PodSecurityConfiguration}".to_owned(),
            "apiVersion: Unsupported value: \"v1\": supported values: \"pod-security.admission.config.k8s.io/v1\", \
             \"pod-security.admission.config.k8s.io/v1beta1\", \"pod-security.admission.config.k8s.io/v1alpha1\"",
        ),
        (
            format!("{head} default: {{}}}}"),
            "default: Forbidden: the field is unknown; write one of apiVersion, kind, defaults, exemptions",
        ),
        (
            format!("{head} defaults: {{enforce: basline}}}}"),
            "defaults.enforce: Invalid value: \"basline\": must be one of privileged, baseline, restricted",
        ),
        (
            format!("{head} defaults: {{warn-version: 1.34}}}}"),
            "defaults.warn-version: Invalid value: 1.34: must be a text",
        ),
        (
            format!("{head} defaults: {{warn-version: '1.34'}}}}"),
            "defaults.warn-version: Invalid value: \"1.34\": must be \"latest\" or \"v1.x\"",
        ),
        (
            format!("{head} defaults: {{enforced: baseline}}}}"),
            "defaults.enforced: Forbidden: the field is unknown; write one of enforce, audit, warn, enforce-version, audit-version, warn-version",
        ),
        (
            format!("{head} exemptions: {{usernames: ann}}}}"),
            "exemptions.usernames: Invalid value: \"ann\": must be a list",
        ),
        (
            format!("{head} exemptions: {{usernames: [ann, '']}}}}"),
            "exemptions.usernames[1]: Required value: a name",
        ),
        (
            format!("{head} exemptions: {{namespaces: [a, a]}}}}"),
            "exemptions.namespaces[1]: Duplicate value: \"a\"",
        ),
        (
            format!("{plugins} []}}"),
            "plugins: Required value: the plugin PodSecurity",
        ),
        (
            format!("{plugins} [{{name: Other}}]}}"),
            "plugins[0].name: Unsupported value: \"Other\": supported values: \"PodSecurity\"",
        ),
        (
            format!("{plugins} [{{name: PodSecurity}}]}}"),
            "plugins[0].configuration: Required value: the PodSecurityConfiguration itself; a path to it is not followed",
        ),
        (
            format!("{plugins} [{{name: PodSecurity, configuration: {inner}}}]}}"),
            "plugins[0].configuration.defaults.enforce: Invalid value: \"none\": must be one of privileged, baseline, restricted",
        ),
    ];
    for (text, wanted) in table {
        let errors = PodSecurity::default().configured(&yaml(&text)).unwrap_err();
        assert_eq!(texts(&errors), [wanted], "{text}");
    }
    let bad = yaml(&format!(
        "{head} exemptions: {{namespaces: [A], runtimeClasses: ['a b']}}}}"
    ));
    let errors = PodSecurity::default().configured(&bad).unwrap_err();
    let errors = texts(&errors);
    assert_eq!(errors.len(), 2, "{errors:?}");
    assert!(errors[0].starts_with("exemptions.runtimeClasses[0]: Invalid value: \"a b\""));
    assert!(errors[1].starts_with("exemptions.namespaces[0]: Invalid value: \"A\""));
}

const LIST: &str = "
apiVersion: muster.io/v1alpha1
kind: PodSecurityAllowList
spec:
  hostPaths:
    - {path: /srv//sets/, readOnly: true, namespaceSelector: {}}
    - {path: /home, readOnly: false, namespaces: [team]}
  hostNetwork: []
  capabilities:
    - {add: [IPC_LOCK], namespaceSelector: {matchLabels: {rdma: 'yes'}}}
";

#[test]
fn an_allow_list_is_read() {
    let read = AllowList::read(&yaml(LIST)).unwrap();
    let rdma = LabelSelector::parse("rdma=yes").unwrap();
    assert_eq!(
        read,
        AllowList {
            host_paths: vec![
                HostDirectory {
                    path: "/srv/sets".to_owned(),
                    read_only: true,
                    namespaces: Namespaces::all(),
                },
                HostDirectory {
                    path: "/home".to_owned(),
                    read_only: false,
                    namespaces: Namespaces::Named(vec!["team".to_owned()]),
                },
            ],
            host_network: Some(Vec::new()),
            capabilities: vec![AllowedCapabilities {
                add: vec!["IPC_LOCK".to_owned()],
                namespaces: Namespaces::Labelled(rdma),
            }],
        }
    );
    // Absent settings keep their values.
    let least = yaml("{apiVersion: muster.io/v1alpha1, kind: PodSecurityAllowList}");
    assert_eq!(AllowList::read(&least).unwrap(), AllowList::default());
}

#[test]
fn what_is_wrong_in_an_allow_list_is_named_with_its_field() {
    let list = |spec: &str| {
        format!("{{apiVersion: muster.io/v1alpha1, kind: PodSecurityAllowList, spec: {spec}}}")
    };
    let path = |entry: &str| list(&format!("{{hostPaths: [{entry}]}}"));
    let capability = |entry: &str| list(&format!("{{capabilities: [{entry}]}}"));
    let whole = "must be an absolute path below / without '..'; for all of the host label the namespace \
                 pod-security.kubernetes.io/enforce=privileged";
    let without = "must be a capability's name without CAP_, like IPC_LOCK";
    let table = [
        (
            "{kind: PodSecurityAllowList}".to_owned(),
            "apiVersion: Unsupported value: \"\": supported values: \"muster.io/v1alpha1\"".to_owned(),
        ),
        (
            list("{hostPath: []}"),
            "spec.hostPath: Forbidden: the field is unknown; write one of hostPaths, hostNetwork, capabilities".to_owned(),
        ),
        (
            list("{hostPaths: /data}"),
            "spec.hostPaths: Invalid value: \"/data\": must be a list".to_owned(),
        ),
        (
            path("{path: /data, namespaces: [a]}"),
            "spec.hostPaths[0].readOnly: Required value: true or false".to_owned(),
        ),
        (
            path("{path: /data, readOnly: 'yes', namespaces: [a]}"),
            "spec.hostPaths[0].readOnly: Invalid value: \"yes\": must be true or false".to_owned(),
        ),
        (
            path("{readOnly: true, namespaces: [a]}"),
            "spec.hostPaths[0].path: Required value: an absolute path".to_owned(),
        ),
        (
            path("{path: data, readOnly: true, namespaces: [a]}"),
            format!("spec.hostPaths[0].path: Invalid value: \"data\": {whole}"),
        ),
        (
            path("{path: /, readOnly: true, namespaces: [a]}"),
            format!("spec.hostPaths[0].path: Invalid value: \"/\": {whole}"),
        ),
        (
            path("{path: /data/.., readOnly: true, namespaces: [a]}"),
            format!("spec.hostPaths[0].path: Invalid value: \"/data/..\": {whole}"),
        ),
        (
            path("{path: /data, readOnly: true}"),
            "spec.hostPaths[0].namespaces: Required value: a list of namespaces, or namespaceSelector in its place ({} for all)"
                .to_owned(),
        ),
        (
            path("{path: /data, readOnly: true, namespaces: [a], namespaceSelector: {}}"),
            "spec.hostPaths[0].namespaceSelector: Forbidden: may not be given beside namespaces".to_owned(),
        ),
        (
            path("{path: /data, readOnly: true, namespaceSelector: {labels: {}}}"),
            "spec.hostPaths[0].namespaceSelector.labels: Forbidden: the field is unknown; write one of matchLabels, matchExpressions"
                .to_owned(),
        ),
        (
            list("{hostNetwork: [{}]}"),
            "spec.hostNetwork[0].namespaces: Required value: a list of namespaces, or namespaceSelector in its place ({} for all)"
                .to_owned(),
        ),
        (
            capability("{add: [CAP_IPC_LOCK], namespaces: [a]}"),
            format!("spec.capabilities[0].add[0]: Invalid value: \"CAP_IPC_LOCK\": {without}"),
        ),
        (
            capability("{add: [ipc_lock], namespaces: [a]}"),
            format!("spec.capabilities[0].add[0]: Invalid value: \"ipc_lock\": {without}"),
        ),
        (
            capability("{add: [ALL], namespaces: [a]}"),
            "spec.capabilities[0].add[0]: Invalid value: \"ALL\": must be one capability; for all of them label the \
             namespace pod-security.kubernetes.io/enforce=privileged"
                .to_owned(),
        ),
        (
            capability("{namespaces: [a]}"),
            "spec.capabilities[0].add: Required value: names of capabilities".to_owned(),
        ),
    ];
    for (text, wanted) in table {
        let errors = AllowList::read(&yaml(&text)).unwrap_err();
        assert_eq!(texts(&errors), [wanted], "{text}");
    }
    let operator = path(
        "{path: /d, readOnly: true, namespaceSelector: {matchExpressions: [{key: k, operator: Like}]}}",
    );
    let errors = texts(&AllowList::read(&yaml(&operator)).unwrap_err());
    assert_eq!(errors.len(), 1);
    assert!(
        errors[0].starts_with("spec.hostPaths[0].namespaceSelector: Invalid value:")
            && errors[0].contains("\"Like\" is not a valid label selector operator"),
        "{errors:?}"
    );
}

#[test]
fn a_list_that_is_read_allows_by_label() {
    let security = PodSecurity {
        allow: AllowList::read(&yaml(LIST)).unwrap(),
        ..PodSecurity::default()
    };
    let pod = json!({"metadata": {"name": "x"}, "spec": {"containers": [
        {"name": "a", "securityContext": {"capabilities": {"add": ["IPC_LOCK"]}}},
    ]}});
    let labels =
        |value: &str| std::collections::BTreeMap::from([("rdma".to_owned(), value.to_owned())]);
    for (value, refused) in [("yes", false), ("no", true)] {
        let labels = labels(value);
        let request = NamespaceRequest {
            namespace: "n",
            labels: &labels,
            user: "ann",
            own_pod_networks: false,
        };
        assert_eq!(security.pod(&request, &pod).refused.is_some(), refused);
    }
}
