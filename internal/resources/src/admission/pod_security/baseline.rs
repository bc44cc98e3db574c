//! Owns the checks of the baseline level: fields that are known to give access to the host. Each check looks at one
//! field and words its finding like kube-apiserver; [`super::checks`] decides which checks apply.

use std::collections::BTreeSet;

use serde_json::Value;

use super::allow::HostNetwork;
use super::checks::CheckInput;
use super::pod::{
    CheckViolation, WrongValues, containers, context, name, plural, quoted, setters, texts, volumes,
};
use crate::json;

const APP_ARMOR_ANNOTATION: &str = "container.apparmor.security.beta.kubernetes.io/";
const SECCOMP_POD_ANNOTATION: &str = "seccomp.security.alpha.kubernetes.io/pod";
const SECCOMP_CONTAINER_ANNOTATION: &str = "container.seccomp.security.alpha.kubernetes.io/";

/// The capabilities that the standard lets a container add: the default set of container runtimes without `NET_RAW`.
/// The set that a container gets by default is the agent's (`agent::confinement`) and includes `NET_RAW`.
const CAPABILITIES: [&str; 13] = [
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "MKNOD",
    "NET_BIND_SERVICE",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
];

/// The sysctls that are local to a pod, each with the Kubernetes version that first allows it.
const SYSCTLS: [(&str, u32); 12] = [
    ("kernel.shm_rmid_forced", 0),
    ("net.ipv4.ip_local_port_range", 0),
    ("net.ipv4.tcp_syncookies", 0),
    ("net.ipv4.ping_group_range", 0),
    ("net.ipv4.ip_unprivileged_port_start", 0),
    ("net.ipv4.ip_local_reserved_ports", 27),
    ("net.ipv4.tcp_keepalive_time", 29),
    ("net.ipv4.tcp_fin_timeout", 29),
    ("net.ipv4.tcp_keepalive_intvl", 29),
    ("net.ipv4.tcp_keepalive_probes", 29),
    ("net.ipv4.tcp_rmem", 32),
    ("net.ipv4.tcp_wmem", 32),
];

/// The allowed types of an SELinux context, each with the version that first allows it.
const SELINUX_TYPES: [(&str, u32); 5] = [
    ("", 0),
    ("container_t", 0),
    ("container_init_t", 0),
    ("container_kvm_t", 0),
    ("container_engine_t", 31),
];

pub(super) fn app_armor(look: &CheckInput<'_>) -> Option<CheckViolation> {
    let fields = WrongValues::find(look.pod, app_armor_type, |kind| {
        matches!(kind, "RuntimeDefault" | "Localhost")
    });
    let allowed = |value: &str| {
        value.is_empty() || value == "runtime/default" || value.starts_with("localhost/")
    };
    let annotations: BTreeSet<String> = look
        .pod
        .annotations()
        .filter(|(key, value)| key.starts_with(APP_ARMOR_ANNOTATION) && !allowed(value))
        .map(|(key, value)| format!("{key}=\"{value}\""))
        .collect();
    let word = plural("annotation", "annotations", annotations.len());
    let of_annotations = (!annotations.is_empty()).then(|| word.to_owned());
    let all: Vec<String> = fields.setters().into_iter().chain(of_annotations).collect();
    if all.is_empty() {
        return None;
    }
    let values = fields.values.iter().copied();
    let values: Vec<&str> = values
        .chain(annotations.iter().map(String::as_str))
        .collect();
    Some(CheckViolation {
        reason: plural(
            "forbidden AppArmor profile",
            "forbidden AppArmor profiles",
            values.len(),
        ),
        detail: format!(
            "{} must not set AppArmor profile type to {}",
            all.join(" and "),
            quoted(values.iter().copied())
        ),
    })
}

fn app_armor_type(context: &Value) -> Option<&str> {
    let profile = json::at(context, &["appArmorProfile"]);
    (!profile.is_null()).then(|| json::text(profile, &["type"]))
}

pub(super) fn capabilities(look: &CheckInput<'_>) -> Option<CheckViolation> {
    let mut added = BTreeSet::new();
    let mut bad = Vec::new();
    for container in look.pod.containers() {
        let wrong: Vec<&str> = texts(context(container), &["capabilities", "add"])
            .filter(|one| !CAPABILITIES.contains(one) && !look.allowed.capability(one))
            .collect();
        if !wrong.is_empty() {
            bad.push(name(container));
            added.extend(wrong);
        }
    }
    (!bad.is_empty()).then(|| CheckViolation {
        reason: "non-default capabilities",
        detail: format!(
            "{} must not include {} in securityContext.capabilities.add",
            containers(&bad),
            quoted(added.iter().copied())
        ),
    })
}

pub(super) fn host_namespaces(look: &CheckInput<'_>) -> Option<CheckViolation> {
    let network = match look.allowed.host_network() {
        HostNetwork::Allowed => None,
        HostNetwork::Refused => Some("hostNetwork=true"),
        HostNetwork::RefusedByOwnNetworks => Some(
            "hostNetwork=true where pods have networks of their own; an administrator names the namespaces that may in the \
             server's --pod-security-allow",
        ),
    };
    let spec = look.pod.spec();
    let found = [
        ("hostNetwork", network),
        ("hostPID", Some("hostPID=true")),
        ("hostIPC", Some("hostIPC=true")),
    ];
    let found: Vec<&str> = found
        .into_iter()
        .filter(|(key, _)| json::truth(spec, &[key]))
        .filter_map(|(_, refused)| refused)
        .collect();
    (!found.is_empty()).then(|| CheckViolation {
        reason: "host namespaces",
        detail: found.join(", "),
    })
}

pub(super) fn host_paths(look: &CheckInput<'_>) -> Option<CheckViolation> {
    let mut bad = Vec::new();
    let mut wrong = Vec::new();
    for volume in look.pod.volumes() {
        let source = json::at(volume, &["hostPath"]);
        if source.is_null() {
            continue;
        }
        match look.allowed.host_path(look.pod, volume) {
            Ok(()) => {}
            Err(None) => bad.push(name(volume)),
            Err(Some(why)) => wrong.push(format!("{} {why}", volumes(&[name(volume)]))),
        }
    }
    let bad = (!bad.is_empty()).then(|| volumes(&bad));
    let all: Vec<String> = bad.into_iter().chain(wrong).collect();
    (!all.is_empty()).then(|| CheckViolation {
        reason: "hostPath volumes",
        detail: all.join("; "),
    })
}

pub(super) fn host_ports(look: &CheckInput<'_>) -> Option<CheckViolation> {
    // A pod in the node's network has each of its ports there; defaulting writes them as host ports.
    let allowed = look.allowed.host_network() == HostNetwork::Allowed;
    if allowed && json::truth(look.pod.spec(), &["hostNetwork"]) {
        return None;
    }
    let mut ports = BTreeSet::new();
    let mut bad = Vec::new();
    for container in look.pod.containers() {
        let before = bad.len();
        for port in json::items(container, &["ports"]) {
            let port = json::at(port, &["hostPort"]);
            if !port.is_null() && port.as_i64() != Some(0) {
                ports.insert(port.to_string());
                if bad.len() == before {
                    bad.push(name(container));
                }
            }
        }
    }
    (!bad.is_empty()).then(|| CheckViolation {
        reason: "hostPort",
        detail: format!(
            "{} {} {} {}",
            containers(&bad),
            plural("uses", "use", bad.len()),
            plural("hostPort", "hostPorts", ports.len()),
            ports.into_iter().collect::<Vec<_>>().join(", ")
        ),
    })
}

/// The handlers of a container that can connect to another host if they name one.
const HANDLERS: [&[&str]; 5] = [
    &["livenessProbe"],
    &["readinessProbe"],
    &["startupProbe"],
    &["lifecycle", "postStart"],
    &["lifecycle", "preStop"],
];

pub(super) fn handler_hosts(look: &CheckInput<'_>) -> Option<CheckViolation> {
    let mut hosts = BTreeSet::new();
    let mut bad = BTreeSet::new();
    for container in look.pod.containers() {
        for path in HANDLERS {
            let handler = json::at(container, path);
            for action in ["httpGet", "tcpSocket"] {
                let host = json::text(handler, &[action, "host"]);
                if !host.is_empty() {
                    hosts.insert(host);
                    bad.insert(name(container));
                }
            }
        }
    }
    let bad: Vec<&str> = bad.into_iter().collect();
    (!bad.is_empty()).then(|| CheckViolation {
        reason: "probe or lifecycle host",
        detail: format!(
            "{} {} {} {}",
            containers(&bad),
            plural("uses", "use", bad.len()),
            plural(
                "probe or lifecycle host",
                "probe or lifecycle hosts",
                hosts.len()
            ),
            quoted(hosts.iter().copied())
        ),
    })
}

pub(super) fn privileged(look: &CheckInput<'_>) -> Option<CheckViolation> {
    let bad = look
        .pod
        .named(|container| json::truth(context(container), &["privileged"]));
    (!bad.is_empty()).then(|| CheckViolation {
        reason: "privileged",
        detail: format!(
            "{} must not set securityContext.privileged=true",
            containers(&bad)
        ),
    })
}

pub(super) fn proc_mount(look: &CheckInput<'_>) -> Option<CheckViolation> {
    let mut types = BTreeSet::new();
    let mut bad = Vec::new();
    for container in look.pod.containers() {
        let mount = json::at(context(container), &["procMount"]);
        if !mount.is_null() && mount.as_str() != Some("Default") {
            types.insert(mount.as_str().unwrap_or_default());
            bad.push(name(container));
        }
    }
    (!bad.is_empty()).then(|| CheckViolation {
        reason: "procMount",
        detail: format!(
            "{} must not set securityContext.procMount to {}",
            containers(&bad),
            quoted(types.iter().copied())
        ),
    })
}

fn selinux_options(context: &Value) -> &Value {
    json::at(context, &["seLinuxOptions"])
}

pub(super) fn selinux(look: &CheckInput<'_>) -> Option<CheckViolation> {
    let known = |kind: &str| {
        SELINUX_TYPES
            .iter()
            .any(|(known, since)| *known == kind && look.version.since(*since))
    };
    let fine = |options: &Value| {
        known(json::text(options, &["type"]))
            && json::text(options, &["user"]).is_empty()
            && json::text(options, &["role"]).is_empty()
    };
    let own = selinux_options(look.pod.context());
    let bad = look
        .pod
        .named(|container| !fine(selinux_options(context(container))));
    let setters = setters(!fine(own), &bad)?;
    let of_containers = look
        .pod
        .containers()
        .map(|container| selinux_options(context(container)));
    let all: Vec<&Value> = std::iter::once(own).chain(of_containers).collect();
    let types: BTreeSet<&str> = all
        .iter()
        .map(|options| json::text(options, &["type"]))
        .filter(|kind| !known(kind))
        .collect();
    let set = |key: &str| {
        all.iter()
            .any(|options| !json::text(options, &[key]).is_empty())
    };
    let word = plural("type", "types", types.len());
    let of_types = (!types.is_empty()).then(|| format!("{word} {}", quoted(types.iter().copied())));
    let of_user = set("user").then(|| "user may not be set".to_owned());
    let of_role = set("role").then(|| "role may not be set".to_owned());
    let wrong: Vec<String> = [of_types, of_user, of_role].into_iter().flatten().collect();
    Some(CheckViolation {
        reason: "seLinuxOptions",
        detail: format!(
            "{setters} set forbidden securityContext.seLinuxOptions: {}",
            wrong.join("; ")
        ),
    })
}

/// The type of a security context's seccomp profile, if it has one.
pub(super) fn seccomp_type(context: &Value) -> Option<&str> {
    let profile = json::at(context, &["seccompProfile"]);
    (!profile.is_null()).then(|| json::text(profile, &["type"]))
}

/// True if a seccomp profile of this type filters system calls.
pub(super) fn seccomp_filters(kind: &str) -> bool {
    matches!(kind, "RuntimeDefault" | "Localhost")
}

/// The violation of both levels for seccomp profiles that filter nothing.
pub(super) fn seccomp_unconfined(wrong: &WrongValues<'_>) -> Option<CheckViolation> {
    let setters = wrong.setters()?;
    Some(CheckViolation {
        reason: "seccompProfile",
        detail: format!(
            "{setters} must not set securityContext.seccompProfile.type to {}",
            quoted(wrong.values.iter().copied())
        ),
    })
}

pub(super) fn seccomp(look: &CheckInput<'_>) -> Option<CheckViolation> {
    // Kubernetes 1.19 replaced the annotations by fields.
    if look.version.since(19) {
        return seccomp_unconfined(&WrongValues::find(look.pod, seccomp_type, seccomp_filters));
    }
    let filters = |value: &str| {
        matches!(value, "runtime/default" | "docker/default") || value.starts_with("localhost/")
    };
    let names = look.pod.named(|_| true);
    let counts = |key: &str| {
        key == SECCOMP_POD_ANNOTATION
            || key
                .strip_prefix(SECCOMP_CONTAINER_ANNOTATION)
                .is_some_and(|container| names.contains(&container))
    };
    let bad: BTreeSet<String> = look
        .pod
        .annotations()
        .filter(|(key, value)| counts(key) && !filters(value))
        .map(|(key, value)| format!("{key}=\"{value}\""))
        .collect();
    (!bad.is_empty()).then(|| CheckViolation {
        reason: "seccompProfile",
        detail: format!(
            "forbidden {} {}",
            plural("annotation", "annotations", bad.len()),
            bad.into_iter().collect::<Vec<_>>().join(", ")
        ),
    })
}

pub(super) fn sysctls(look: &CheckInput<'_>) -> Option<CheckViolation> {
    let allowed = |name: &str| {
        SYSCTLS
            .iter()
            .any(|(known, since)| *known == name && look.version.since(*since))
    };
    let bad: Vec<&str> = json::items(look.pod.context(), &["sysctls"])
        .iter()
        .map(name)
        .filter(|name| !allowed(name))
        .collect();
    (!bad.is_empty()).then(|| CheckViolation {
        reason: "forbidden sysctls",
        detail: bad.join(", "),
    })
}

pub(super) fn windows_host_process(look: &CheckInput<'_>) -> Option<CheckViolation> {
    let is = |context: &Value| json::truth(context, &["windowsOptions", "hostProcess"]);
    let bad = look.pod.named(|container| is(context(container)));
    let setters = setters(is(look.pod.context()), &bad)?;
    Some(CheckViolation {
        reason: "hostProcess",
        detail: format!("{setters} must not set securityContext.windowsOptions.hostProcess=true"),
    })
}
