//! Tables of pods for the checks, each with the expected violation, or none.

use serde_json::{Value, json};

use super::super::fixtures::{LISTS, baseline, host_pod, restricted, with};
use super::super::pod::describe;
use super::*;

/// The violations of a level of a version, with an empty allow-list.
fn found(level: PodSecurityLevel, version: &str, pod: &Value) -> String {
    let version = StandardsVersion::parse(version).unwrap();
    let none = Allowed::default();
    describe(&violations(LevelVersion { level, version }, pod, &none))
}

fn at_baseline(pod: &Value) -> String {
    found(PodSecurityLevel::Baseline, "latest", pod)
}

fn at_restricted(pod: &Value) -> String {
    found(PodSecurityLevel::Restricted, "latest", pod)
}

#[test]
fn pods_that_ask_for_nothing_pass() {
    assert_eq!(at_baseline(&json!({})), "");
    assert_eq!(at_baseline(&baseline()), "");
    assert_eq!(at_baseline(&restricted()), "");
    assert_eq!(at_restricted(&restricted()), "");
    assert_eq!(
        found(PodSecurityLevel::Privileged, "latest", &host_pod()),
        ""
    );
}

#[test]
fn several_violations_are_worded_as_kube_apiserver_words_them() {
    assert_eq!(
        at_baseline(&host_pod()),
        "host namespaces (hostNetwork=true), privileged (container \"a\" must not set securityContext.privileged=true)"
    );
    assert_eq!(
        at_restricted(&json!({"spec": {"containers": [{"name": "a"}]}})),
        "allowPrivilegeEscalation != false (container \"a\" must set securityContext.allowPrivilegeEscalation=false), \
         unrestricted capabilities (container \"a\" must set securityContext.capabilities.drop=[\"ALL\"]), \
         runAsNonRoot != true (pod or container \"a\" must set securityContext.runAsNonRoot=true), \
         seccompProfile (pod or container \"a\" must set securityContext.seccompProfile.type to \"RuntimeDefault\" or \"Localhost\")"
    );
}

/// Pod fields at the baseline level; an empty text is no violation.
#[test]
fn the_baseline_of_pods() {
    let context = "/spec/securityContext";
    let volume = |source: Value| {
        let mut volume = source;
        volume["name"] = json!("v");
        json!([volume])
    };
    let table = [
        ("/spec/hostNetwork", json!(false), ""),
        (
            "/spec/hostNetwork",
            json!(true),
            "host namespaces (hostNetwork=true)",
        ),
        (
            "/spec/hostPID",
            json!(true),
            "host namespaces (hostPID=true)",
        ),
        (
            "/spec/hostIPC",
            json!(true),
            "host namespaces (hostIPC=true)",
        ),
        ("/spec/shareProcessNamespace", json!(true), ""),
        ("/spec/volumes", volume(json!({"emptyDir": {}})), ""),
        (
            "/spec/volumes",
            volume(json!({"nfs": {"server": "s", "path": "/"}})),
            "",
        ),
        (
            "/spec/volumes",
            volume(json!({"hostPath": {"path": "/etc"}})),
            "hostPath volumes (volume \"v\")",
        ),
        (
            "/spec/volumes",
            json!([{"name": "v", "hostPath": {"path": "/a"}}, {"name": "w", "hostPath": {}}]),
            "hostPath volumes (volumes \"v\", \"w\")",
        ),
        (context, json!({"runAsUser": 0}), ""),
        (
            context,
            json!({"appArmorProfile": {"type": "RuntimeDefault"}}),
            "",
        ),
        (
            context,
            json!({"appArmorProfile": {"type": "Localhost"}}),
            "",
        ),
        (
            context,
            json!({"appArmorProfile": {"type": "Unconfined"}}),
            "forbidden AppArmor profile (pod must not set AppArmor profile type to \"Unconfined\")",
        ),
        (
            "/metadata/annotations",
            json!({"container.apparmor.security.beta.kubernetes.io/a": "runtime/default",
                "container.apparmor.security.beta.kubernetes.io/b": "localhost/mine",
                "container.apparmor.security.beta.kubernetes.io/i": ""}),
            "",
        ),
        (
            "/metadata/annotations",
            json!({"container.apparmor.security.beta.kubernetes.io/a": "unconfined"}),
            "forbidden AppArmor profile (annotation must not set AppArmor profile type to \
             \"container.apparmor.security.beta.kubernetes.io/a=\"unconfined\"\")",
        ),
        (
            context,
            json!({"seLinuxOptions": {"type": "container_t", "level": "s0"}}),
            "",
        ),
        (
            context,
            json!({"seLinuxOptions": {"type": "container_engine_t"}}),
            "",
        ),
        (
            context,
            json!({"seLinuxOptions": {"type": "spc_t", "user": "u", "role": "r"}}),
            "seLinuxOptions (pod set forbidden securityContext.seLinuxOptions: type \"spc_t\"; user may not be set; \
             role may not be set)",
        ),
        (
            context,
            json!({"seccompProfile": {"type": "RuntimeDefault"}}),
            "",
        ),
        (
            context,
            json!({"seccompProfile": {"type": "Localhost"}}),
            "",
        ),
        (
            context,
            json!({"seccompProfile": {"type": "Unconfined"}}),
            "seccompProfile (pod must not set securityContext.seccompProfile.type to \"Unconfined\")",
        ),
        (
            context,
            json!({"sysctls": [{"name": "kernel.shm_rmid_forced", "value": "1"},
                {"name": "net.ipv4.tcp_rmem", "value": "1"}]}),
            "",
        ),
        (
            context,
            json!({"sysctls": [{"name": "kernel.msgmax", "value": "1"}, {"name": "net.core.somaxconn"}]}),
            "forbidden sysctls (kernel.msgmax, net.core.somaxconn)",
        ),
        (
            context,
            json!({"windowsOptions": {"hostProcess": false}}),
            "",
        ),
        (
            context,
            json!({"windowsOptions": {"hostProcess": true}}),
            "hostProcess (pod must not set securityContext.windowsOptions.hostProcess=true)",
        ),
    ];
    for (pointer, value, wanted) in table {
        let pod = with(baseline(), &[(pointer, value.clone())]);
        assert_eq!(at_baseline(&pod), wanted, "{pointer} {value}");
        // The restricted level forbids everything that the baseline forbids, with any wording.
        let pod = with(restricted(), &[(pointer, value.clone())]);
        if !wanted.is_empty() {
            assert_ne!(at_restricted(&pod), "", "{pointer} {value}");
        }
    }
}

/// Container fields at the baseline level, in each container list. `{}` stands for the container's name.
#[test]
fn the_baseline_of_containers() {
    let context = "securityContext";
    let table = [
        (context, json!({"privileged": false}), ""),
        (
            context,
            json!({"privileged": true}),
            "privileged (container \"{}\" must not set securityContext.privileged=true)",
        ),
        (context, json!({"allowPrivilegeEscalation": true}), ""),
        (context, json!({"runAsUser": 0, "runAsNonRoot": false}), ""),
        (
            context,
            json!({"capabilities": {"add": ["CHOWN", "SYS_CHROOT"]}}),
            "",
        ),
        (
            context,
            json!({"capabilities": {"add": ["SYS_ADMIN", "CHOWN", "NET_RAW"]}}),
            "non-default capabilities (container \"{}\" must not include \"NET_RAW\", \"SYS_ADMIN\" in \
             securityContext.capabilities.add)",
        ),
        (
            context,
            json!({"capabilities": {"add": ["ALL"]}}),
            "non-default capabilities (container \"{}\" must not include \"ALL\" in securityContext.capabilities.add)",
        ),
        (
            context,
            json!({"capabilities": {"add": ["IPC_LOCK"]}}),
            "non-default capabilities (container \"{}\" must not include \"IPC_LOCK\" in \
             securityContext.capabilities.add)",
        ),
        (
            "ports",
            json!([{"containerPort": 80}, {"containerPort": 81, "hostPort": 0}]),
            "",
        ),
        (
            "ports",
            json!([{"containerPort": 80, "hostPort": 80}]),
            "hostPort (container \"{}\" uses hostPort 80)",
        ),
        (
            "ports",
            json!([{"containerPort": 80, "hostPort": 9000}, {"containerPort": 81, "hostPort": 10000}]),
            "hostPort (container \"{}\" uses hostPorts 10000, 9000)",
        ),
        ("livenessProbe", json!({"httpGet": {"port": 80}}), ""),
        (
            "livenessProbe",
            json!({"httpGet": {"port": 80, "host": "h"}}),
            "probe or lifecycle host (container \"{}\" uses probe or lifecycle host \"h\")",
        ),
        (
            "readinessProbe",
            json!({"tcpSocket": {"port": 80, "host": "127.0.0.1"}}),
            "probe or lifecycle host (container \"{}\" uses probe or lifecycle host \"127.0.0.1\")",
        ),
        (
            "startupProbe",
            json!({"httpGet": {"port": 80, "host": "h"}}),
            "probe or lifecycle host (container \"{}\" uses probe or lifecycle host \"h\")",
        ),
        (
            "lifecycle",
            json!({"postStart": {"httpGet": {"port": 80, "host": "p"}},
                "preStop": {"tcpSocket": {"port": 80, "host": "h"}}}),
            "probe or lifecycle host (container \"{}\" uses probe or lifecycle hosts \"h\", \"p\")",
        ),
        (context, json!({"procMount": "Default"}), ""),
        (
            context,
            json!({"procMount": "Unmasked"}),
            "procMount (container \"{}\" must not set securityContext.procMount to \"Unmasked\")",
        ),
        (
            context,
            json!({"appArmorProfile": {"type": "Unconfined"}}),
            "forbidden AppArmor profile (container \"{}\" must not set AppArmor profile type to \"Unconfined\")",
        ),
        (
            context,
            json!({"seLinuxOptions": {"user": "u"}}),
            "seLinuxOptions (container \"{}\" set forbidden securityContext.seLinuxOptions: user may not be set)",
        ),
        (
            context,
            json!({"seccompProfile": {"type": "Localhost"}}),
            "",
        ),
        (
            context,
            json!({"seccompProfile": {"type": "Unconfined"}}),
            "seccompProfile (container \"{}\" must not set securityContext.seccompProfile.type to \"Unconfined\")",
        ),
        (
            context,
            json!({"windowsOptions": {"hostProcess": true}}),
            "hostProcess (container \"{}\" must not set securityContext.windowsOptions.hostProcess=true)",
        ),
    ];
    for (key, value, wanted) in table {
        for (list, name) in LISTS {
            let pointer = format!("/spec/{list}/0/{key}");
            let pod = with(baseline(), &[(pointer.as_str(), value.clone())]);
            assert_eq!(
                at_baseline(&pod),
                wanted.replace("{}", name),
                "{list} {value}"
            );
            let pod = with(restricted(), &[(pointer.as_str(), value.clone())]);
            if !wanted.is_empty() {
                assert_ne!(at_restricted(&pod), "", "{list} {value}");
            }
        }
    }
    let both = json!({"privileged": true});
    let pod = with(
        baseline(),
        &[
            ("/spec/containers/0/securityContext", both.clone()),
            ("/spec/initContainers/0/securityContext", both),
        ],
    );
    assert_eq!(
        at_baseline(&pod),
        "privileged (containers \"i\", \"a\" must not set securityContext.privileged=true)"
    );
}

/// The checks that the restricted level adds: changes of a pod that passes it.
#[test]
fn the_restricted_level() {
    let own = "/spec/securityContext";
    let seccomp = "/spec/securityContext/seccompProfile";
    let non_root = "/spec/securityContext/runAsNonRoot";
    let a = |key: &str| format!("/spec/containers/0/securityContext/{key}");
    let volume = |source: &str| json!([{"name": "v", source: {}}]);
    let table: Vec<(Vec<(String, Value)>, &str)> = vec![
        (
            vec![(a("allowPrivilegeEscalation"), json!(true))],
            "allowPrivilegeEscalation != false (container \"a\" must set securityContext.allowPrivilegeEscalation=false)",
        ),
        (
            vec![(a("capabilities"), json!({"drop": ["NET_RAW"]}))],
            "unrestricted capabilities (container \"a\" must set securityContext.capabilities.drop=[\"ALL\"])",
        ),
        (
            vec![(
                a("capabilities"),
                json!({"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]}),
            )],
            "",
        ),
        (
            vec![(
                a("capabilities"),
                json!({"drop": ["ALL"], "add": ["CHOWN"]}),
            )],
            "unrestricted capabilities (container \"a\" must not include \"CHOWN\" in securityContext.capabilities.add)",
        ),
        (
            vec![(a("capabilities"), json!({"add": ["CHOWN"]}))],
            "unrestricted capabilities (container \"a\" must set securityContext.capabilities.drop=[\"ALL\"]; \
             container \"a\" must not include \"CHOWN\" in securityContext.capabilities.add)",
        ),
        (
            vec![("/spec/volumes".into(), volume("nfs"))],
            "restricted volume types (volume \"v\" uses restricted volume type \"nfs\")",
        ),
        (
            vec![("/spec/volumes".into(), volume("hostPath"))],
            "restricted volume types (volume \"v\" uses restricted volume type \"hostPath\")",
        ),
        (
            vec![("/spec/volumes".into(), volume("newKind"))],
            "restricted volume types (volume \"v\" uses restricted volume type \"unknown\")",
        ),
        // A second source must not hide the first.
        (
            vec![(
                "/spec/volumes".into(),
                json!([{"name": "v", "emptyDir": {}, "hostPath": {}}]),
            )],
            "restricted volume types (volume \"v\" uses restricted volume type \"hostPath\")",
        ),
        (
            vec![(non_root.into(), json!(false))],
            "runAsNonRoot != true (pod must not set securityContext.runAsNonRoot=false)",
        ),
        (
            vec![(a("runAsNonRoot"), json!(false))],
            "runAsNonRoot != true (container \"a\" must not set securityContext.runAsNonRoot=false)",
        ),
        (
            vec![
                (non_root.into(), Value::Null),
                (a("runAsNonRoot"), json!(true)),
            ],
            "runAsNonRoot != true (pod or containers \"i\", \"b\", \"e\" must set securityContext.runAsNonRoot=true)",
        ),
        (vec![(a("runAsUser"), json!(1000))], ""),
        (
            vec![(a("runAsUser"), json!(0))],
            "runAsUser=0 (container \"a\" must not set runAsUser=0)",
        ),
        (
            vec![
                (format!("{own}/runAsUser"), json!(0)),
                (a("runAsUser"), json!(0)),
            ],
            "runAsUser=0 (pod and container \"a\" must not set runAsUser=0)",
        ),
        (
            vec![(seccomp.into(), json!({"type": "Unconfined"}))],
            "seccompProfile (pod must not set securityContext.seccompProfile.type to \"Unconfined\")",
        ),
        (
            vec![
                (seccomp.into(), Value::Null),
                (a("seccompProfile"), json!({"type": "Localhost"})),
            ],
            "seccompProfile (pod or containers \"i\", \"b\", \"e\" must set securityContext.seccompProfile.type to \
             \"RuntimeDefault\" or \"Localhost\")",
        ),
        // Muster runs every pod on Linux: naming Windows lifts no check.
        (
            vec![
                ("/spec/os".into(), json!({"name": "windows"})),
                (a("allowPrivilegeEscalation"), Value::Null),
            ],
            "allowPrivilegeEscalation != false (container \"a\" must set securityContext.allowPrivilegeEscalation=false)",
        ),
    ];
    for (changes, wanted) in table {
        let changes: Vec<(&str, Value)> = changes
            .iter()
            .map(|(pointer, value)| (pointer.as_str(), value.clone()))
            .collect();
        let pod = with(restricted(), &changes);
        assert_eq!(at_restricted(&pod), wanted, "{changes:?}");
    }
    for source in [
        "configMap",
        "csi",
        "downwardAPI",
        "emptyDir",
        "ephemeral",
        "image",
        "persistentVolumeClaim",
        "projected",
        "secret",
    ] {
        let pod = with(restricted(), &[("/spec/volumes", volume(source))]);
        assert_eq!(at_restricted(&pod), "", "{source}");
    }
}

#[test]
fn an_older_edition_has_the_checks_of_its_version() {
    let host = json!({"httpGet": {"port": 80, "host": "h"}});
    let probe = ("/spec/containers/0/livenessProbe", host);
    let sysctl = |name: &str| ("/spec/securityContext/sysctls", json!([{"name": name}]));
    let engine = json!({"type": "container_engine_t"});
    let selinux = ("/spec/securityContext/seLinuxOptions", engine);
    let root = ("/spec/securityContext/runAsUser", json!(0));
    let keeps = ("/spec/containers/0/securityContext/capabilities", json!({}));
    let escalates = (
        "/spec/containers/0/securityContext/allowPrivilegeEscalation",
        json!(true),
    );
    let no_seccomp = ("/spec/securityContext/seccompProfile", Value::Null);
    let unconfined = (
        "/spec/securityContext/seccompProfile",
        json!({"type": "Unconfined"}),
    );
    let annotation = (
        "/metadata/annotations",
        json!({"seccomp.security.alpha.kubernetes.io/pod": "unconfined"}),
    );
    // A change of a restricted pod, with the level and the first or last version that refuses it.
    let begins = [
        (PodSecurityLevel::Baseline, probe, 34),
        (PodSecurityLevel::Baseline, unconfined, 19),
        (PodSecurityLevel::Restricted, root, 23),
        (PodSecurityLevel::Restricted, keeps, 22),
        (PodSecurityLevel::Restricted, escalates, 8),
        (PodSecurityLevel::Restricted, no_seccomp, 19),
    ];
    for (level, change, first) in begins {
        let pod = with(restricted(), std::slice::from_ref(&change));
        assert_eq!(
            found(level, &format!("v1.{}", first - 1), &pod),
            "",
            "{change:?}"
        );
        assert_ne!(found(level, &format!("v1.{first}"), &pod), "", "{change:?}");
        assert_ne!(found(level, "v1.99", &pod), "", "{change:?}");
    }
    let ends = [
        (sysctl("net.ipv4.ip_local_reserved_ports"), 27),
        (sysctl("net.ipv4.tcp_fin_timeout"), 29),
        (sysctl("net.ipv4.tcp_wmem"), 32),
        (selinux, 31),
        (annotation, 19),
    ];
    for (change, first) in ends {
        let pod = with(restricted(), std::slice::from_ref(&change));
        let before = format!("v1.{}", first - 1);
        assert_ne!(
            found(PodSecurityLevel::Baseline, &before, &pod),
            "",
            "{change:?}"
        );
        let from = format!("v1.{first}");
        assert_eq!(
            found(PodSecurityLevel::Baseline, &from, &pod),
            "",
            "{change:?}"
        );
    }
}
