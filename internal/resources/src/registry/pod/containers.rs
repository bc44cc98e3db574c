//! Validation of a pod's containers.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{resources, volumes};
use crate::field::{FieldError, Path};
use crate::json;
use crate::registry::meta;
use crate::syntax;

const PROBES: [&str; 3] = ["livenessProbe", "readinessProbe", "startupProbe"];
const PULL_POLICIES: [&str; 3] = ["Always", "IfNotPresent", "Never"];
const PROTOCOLS: [&str; 3] = ["SCTP", "TCP", "UDP"];
/// Muster's requirement for a container without an image: its command runs on the host.
const NEEDS_COMMAND: &str = "a container without an image needs a command";
const ENV_SOURCES: [&str; 5] = [
    "fieldRef",
    "resourceFieldRef",
    "configMapKeyRef",
    "secretKeyRef",
    "fileKeyRef",
];

/// Checks containers and init containers; `volumes` are the names that mounts may use.
pub(super) fn check(
    spec: &Value,
    volumes: &BTreeSet<&str>,
    path: &Path<'_>,
    errors: &mut Vec<FieldError>,
) {
    let list_path = path.child("containers");
    let containers = json::items(spec, &["containers"]);
    if containers.is_empty() {
        errors.push(FieldError::required(&list_path, ""));
    }
    let mut names = BTreeSet::new();
    let mut host_ports = BTreeSet::new();
    for (i, container) in containers.iter().enumerate() {
        let path = list_path.index(i);
        common(container, volumes, &path, errors);
        let name = json::text(container, &["name"]);
        if !names.insert(name) && !name.is_empty() {
            errors.push(FieldError::duplicate(&path.child("name"), name));
        }
        probes(container, &path, errors);
        if json::has(container, &["restartPolicy"]) {
            errors.push(FieldError::forbidden(
                &path.child("restartPolicy"),
                "may not be set for non-init containers",
            ));
        }
        unique_host_ports(container, &mut host_ports, &path, errors);
    }
    let list_path = path.child("initContainers");
    for (i, container) in json::items(spec, &["initContainers"]).iter().enumerate() {
        let path = list_path.index(i);
        common(container, volumes, &path, errors);
        let name = json::text(container, &["name"]);
        if !names.insert(name) && !name.is_empty() {
            errors.push(FieldError::duplicate(&path.child("name"), name));
        }
        unique_host_ports(container, &mut BTreeSet::new(), &path, errors);
        meta::one_of(container, "restartPolicy", &["Always"], &path, errors);
        if json::text(container, &["restartPolicy"]) == "Always" {
            probes(container, &path, errors);
        } else {
            for key in PROBES.into_iter().chain(["lifecycle"]) {
                if json::has(container, &[key]) {
                    errors.push(FieldError::forbidden(
                        &path.child(key),
                        "may not be set for init containers without restartPolicy=Always",
                    ));
                }
            }
        }
    }
}

fn common(
    container: &Value,
    volumes: &BTreeSet<&str>,
    path: &Path<'_>,
    errors: &mut Vec<FieldError>,
) {
    let name = json::text(container, &["name"]);
    if name.is_empty() {
        errors.push(FieldError::required(&path.child("name"), ""));
    } else {
        for fault in syntax::dns1123_label(name) {
            errors.push(FieldError::invalid(&path.child("name"), name, fault));
        }
    }
    let image = json::text(container, &["image"]);
    if image.is_empty() && json::items(container, &["command"]).is_empty() {
        errors.push(FieldError::required(&path.child("command"), NEEDS_COMMAND));
    } else if image.trim() != image {
        let path = path.child("image");
        errors.push(FieldError::invalid(
            &path,
            image,
            "must not have leading or trailing whitespace",
        ));
    }
    meta::one_of(container, "imagePullPolicy", &PULL_POLICIES, path, errors);
    meta::one_of(
        container,
        "terminationMessagePolicy",
        &["File", "FallbackToLogsOnError"],
        path,
        errors,
    );
    ports(
        json::items(container, &["ports"]),
        &path.child("ports"),
        errors,
    );
    env(json::items(container, &["env"]), &path.child("env"), errors);
    env_from(
        json::items(container, &["envFrom"]),
        &path.child("envFrom"),
        errors,
    );
    volumes::mounts(
        json::items(container, &["volumeMounts"]),
        volumes,
        &path.child("volumeMounts"),
        errors,
    );
    let wanted = json::at(container, &["resources"]);
    resources::check(wanted, &path.child("resources"), errors);
}

fn ports(ports: &[Value], path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let mut names = BTreeSet::new();
    for (i, port) in ports.iter().enumerate() {
        let path = path.index(i);
        let name = json::text(port, &["name"]);
        if !name.is_empty() {
            let faults = syntax::port_name(name);
            if !faults.is_empty() {
                errors.extend(
                    faults
                        .into_iter()
                        .map(|f| FieldError::invalid(&path.child("name"), name, f)),
                );
            } else if !names.insert(name) {
                errors.push(FieldError::duplicate(&path.child("name"), name));
            }
        }
        match json::int(port, &["containerPort"]).unwrap_or(0) {
            0 => errors.push(FieldError::required(&path.child("containerPort"), "")),
            number => number_in_range(number, &path.child("containerPort"), errors),
        }
        match json::int(port, &["hostPort"]).unwrap_or(0) {
            0 => {}
            number => number_in_range(number, &path.child("hostPort"), errors),
        }
        if json::text(port, &["protocol"]).is_empty() {
            errors.push(FieldError::required(&path.child("protocol"), ""));
        }
        meta::one_of(port, "protocol", &PROTOCOLS, &path, errors);
    }
}

fn number_in_range(number: i64, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    errors.extend(
        syntax::port_number(number)
            .into_iter()
            .map(|fault| FieldError::invalid(path, number, fault)),
    );
}

fn unique_host_ports(
    container: &Value,
    seen: &mut BTreeSet<String>,
    path: &Path<'_>,
    errors: &mut Vec<FieldError>,
) {
    for (i, port) in json::items(container, &["ports"]).iter().enumerate() {
        let number = json::int(port, &["hostPort"]).unwrap_or(0);
        if number != 0 {
            let text = format!(
                "{}/{}/{number}",
                json::text(port, &["protocol"]),
                json::text(port, &["hostIP"])
            );
            if seen.contains(&text) {
                let ports = path.child("ports");
                errors.push(FieldError::duplicate(
                    &ports.index(i).child("hostPort"),
                    text,
                ));
            } else {
                seen.insert(text);
            }
        }
    }
}

fn env(env: &[Value], path: &Path<'_>, errors: &mut Vec<FieldError>) {
    for (i, one) in env.iter().enumerate() {
        let path = path.index(i);
        let name = json::text(one, &["name"]);
        if name.is_empty() {
            errors.push(FieldError::required(&path.child("name"), ""));
        } else {
            let faults = syntax::env_name(name);
            errors.extend(
                faults
                    .into_iter()
                    .map(|f| FieldError::invalid(&path.child("name"), name, f)),
            );
        }
        let from = json::at(one, &["valueFrom"]);
        if !from.is_null() {
            value_from(
                from,
                json::text(one, &["value"]),
                &path.child("valueFrom"),
                errors,
            );
        }
    }
}

fn value_from(from: &Value, value: &str, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let sources = ENV_SOURCES
        .iter()
        .filter(|key| json::has(from, &[key]))
        .count();
    if json::has(from, &["fieldRef"]) && json::text(from, &["fieldRef", "fieldPath"]).is_empty() {
        errors.push(FieldError::required(
            &path.child("fieldRef").child("fieldPath"),
            "",
        ));
    }
    if json::has(from, &["resourceFieldRef"])
        && json::text(from, &["resourceFieldRef", "resource"]).is_empty()
    {
        errors.push(FieldError::required(
            &path.child("resourceFieldRef").child("resource"),
            "",
        ));
    }
    for key in ["configMapKeyRef", "secretKeyRef"] {
        let source = json::at(from, &[key]);
        if source.is_null() {
            continue;
        }
        let path = path.child(key);
        if json::text(source, &["name"]).is_empty() {
            errors.push(FieldError::required(&path.child("name"), ""));
        }
        let name = json::text(source, &["key"]);
        if name.is_empty() {
            errors.push(FieldError::required(&path.child("key"), ""));
        } else {
            let faults = syntax::config_key(name);
            errors.extend(
                faults
                    .into_iter()
                    .map(|f| FieldError::invalid(&path.child("key"), name, f)),
            );
        }
    }
    if sources == 0 {
        errors.push(FieldError::invalid(
            path,
            "",
            "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef` or `secretKeyRef`",
        ));
    } else if !value.is_empty() {
        errors.push(FieldError::invalid(
            path,
            "",
            "may not be specified when `value` is not empty",
        ));
    } else if sources > 1 {
        errors.push(FieldError::invalid(
            path,
            "",
            "may not have more than one field specified at a time",
        ));
    }
}

fn env_from(sources: &[Value], path: &Path<'_>, errors: &mut Vec<FieldError>) {
    for (i, source) in sources.iter().enumerate() {
        let path = path.index(i);
        let mut count = 0;
        for key in ["configMapRef", "secretRef"] {
            if json::has(source, &[key]) {
                count += 1;
                if json::text(source, &[key, "name"]).is_empty() {
                    errors.push(FieldError::required(&path.child(key).child("name"), ""));
                }
            }
        }
        if count == 0 {
            errors.push(FieldError::invalid(
                &path,
                "",
                "must specify one of: `configMapRef` or `secretRef`",
            ));
        } else if count > 1 {
            errors.push(FieldError::invalid(
                &path,
                "",
                "may not have more than one field specified at a time",
            ));
        }
    }
}

fn probes(container: &Value, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    for key in PROBES {
        let probe = json::at(container, &[key]);
        if probe.is_null() {
            continue;
        }
        let path = path.child(key);
        handler(probe, &path, errors);
        for number in [
            "initialDelaySeconds",
            "timeoutSeconds",
            "periodSeconds",
            "successThreshold",
            "failureThreshold",
        ] {
            meta::not_negative(probe, number, &path, errors);
        }
        if key != "readinessProbe"
            && json::int(probe, &["successThreshold"]).is_some_and(|n| n != 1)
        {
            let number = json::at(probe, &["successThreshold"]).clone();
            errors.push(FieldError::invalid(
                &path.child("successThreshold"),
                number,
                "must be 1",
            ));
        }
        if let Some(seconds) =
            json::int(probe, &["terminationGracePeriodSeconds"]).filter(|n| *n <= 0)
        {
            let path = path.child("terminationGracePeriodSeconds");
            errors.push(FieldError::invalid(
                &path,
                seconds,
                "must be greater than 0",
            ));
        }
    }
    for key in ["postStart", "preStop"] {
        let hook = json::at(container, &["lifecycle", key]);
        if !hook.is_null() {
            handler(hook, &path.child("lifecycle").child(key), errors);
        }
    }
}

fn handler(probe: &Value, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let mut count = 0;
    for key in ["exec", "httpGet", "tcpSocket", "grpc", "sleep"] {
        let action = json::at(probe, &[key]);
        if action.is_null() {
            continue;
        }
        count += 1;
        let path = path.child(key);
        if count > 1 {
            errors.push(FieldError::forbidden(
                &path,
                "may not specify more than 1 handler type",
            ));
            continue;
        }
        match key {
            "exec" if json::items(action, &["command"]).is_empty() => {
                errors.push(FieldError::required(&path.child("command"), ""));
            }
            "httpGet" | "tcpSocket" | "grpc" => port_reference(action, &path.child("port"), errors),
            _ => {}
        }
        if key == "httpGet" {
            meta::one_of(action, "scheme", &["HTTP", "HTTPS"], &path, errors);
        }
    }
    if count == 0 {
        errors.push(FieldError::required(path, "must specify a handler type"));
    }
}

fn port_reference(action: &Value, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    match json::at(action, &["port"]) {
        Value::String(name) => {
            let faults = syntax::port_name(name);
            errors.extend(
                faults
                    .into_iter()
                    .map(|f| FieldError::invalid(path, name.as_str(), f)),
            );
        }
        number => number_in_range(number.as_i64().unwrap_or(0), path, errors),
    }
}
