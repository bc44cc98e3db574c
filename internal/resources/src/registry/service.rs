//! Service: a name for pods, and an address if the server gives Services addresses
//! ([`crate::services::addresses`]).

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::columns::{AGE, NAME, column, or_none, wide};
use super::meta::{self, NameRule};
use super::{Kind, TableColumn};
use crate::field::{FieldError, Path};
use crate::json;
use crate::syntax;

const TYPES: [&str; 4] = ["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"];

/// Kubernetes' default of the time for which a client stays with an endpoint, and its greatest value, in seconds.
const AFFINITY_SECONDS: i64 = 10_800;
const AFFINITY_SECONDS_MAX: i64 = 86_400;

const COLUMNS: &[TableColumn] = &[
    NAME,
    column("Type", "string", "How the service is exposed.", |s, _| {
        Value::from(json::text(s, &["spec", "type"]))
    }),
    column(
        "Cluster-IP",
        "string",
        "The virtual address of the service; None for a headless service.",
        |s, _| {
            let first = json::items(s, &["spec", "clusterIPs"])
                .first()
                .and_then(Value::as_str)
                .unwrap_or_default();
            or_none(if first.is_empty() {
                json::text(s, &["spec", "clusterIP"])
            } else {
                first
            })
        },
    ),
    column("External-IP", "string", "Addresses outside.", |s, _| {
        external(s)
    }),
    column("Port(s)", "string", "Its ports.", |s, _| ports_text(s)),
    AGE,
    wide(
        "Selector",
        "string",
        "The selector of the service's pods.",
        |s, _| {
            let pairs: Vec<String> = json::texts(s, &["spec", "selector"])
                .into_iter()
                .map(|(k, v)| format!("{k}={v}"))
                .collect();
            or_none(&pairs.join(","))
        },
    ),
];

pub(super) const KIND: Kind = Kind {
    kind: "Service",
    plural: "services",
    singular: "service",
    list_kind: "ServiceList",
    short_names: &["svc"],
    categories: &["all"],
    schema: "io.k8s.api.core.v1.Service",
    status: true,
    extra_subresources: &["proxy"],
    default,
    validate,
    validate_status: |new, _| meta::conditions(new),
    prepare,
    columns: COLUMNS,
    fields: &[
        ("spec.clusterIP", |s| {
            json::text(s, &["spec", "clusterIP"]).to_owned()
        }),
        ("spec.type", |s| json::text(s, &["spec", "type"]).to_owned()),
    ],
    ..Kind::BASE
};

fn default(service: &mut Value) {
    let Some(spec) = json::object(service, "spec") else {
        return;
    };
    json::fill_text(spec, "sessionAffinity", "None");
    json::fill_text(spec, "type", "ClusterIP");
    for port in json::list(spec, "ports") {
        json::fill_text(port, "protocol", "TCP");
        let number = json::at(port, &["port"]).clone();
        let target = json::at(port, &["targetPort"]);
        let absent = target.is_null() || target.as_i64() == Some(0) || target.as_str() == Some("");
        if absent && let Some(map) = port.as_object_mut() {
            map.insert("targetPort".to_owned(), number);
        }
    }
    if json::text(spec, &["type"]) == "ExternalName" {
        return;
    }
    if json::text(spec, &["sessionAffinity"]) == "ClientIP" {
        if let Some(config) = json::object(spec, "sessionAffinityConfig")
            && let Some(client) = json::object(config, "clientIP")
        {
            json::fill_number(client, "timeoutSeconds", AFFINITY_SECONDS);
        }
    } else if let Some(spec) = spec.as_object_mut() {
        spec.remove("sessionAffinityConfig");
    }
    if matches!(json::text(spec, &["type"]), "NodePort" | "LoadBalancer") {
        json::fill_text(spec, "externalTrafficPolicy", "Cluster");
    }
    let address = json::text(spec, &["clusterIP"]).to_owned();
    if !address.is_empty() {
        json::fill(spec, "clusterIPs", json!([address]));
    }
    json::fill(spec, "ipFamilies", json!(["IPv4"]));
    json::fill_text(spec, "ipFamilyPolicy", "SingleStack");
    json::fill_text(spec, "internalTrafficPolicy", "Cluster");
}

/// Keeps what the server gave the Service, where the change does not name it, and drops what belongs to its former type.
fn prepare(new: &mut Value, old: Option<&Value>) {
    meta::with_status(new, old, json!({ "loadBalancer": {} }));
    let Some(old) = old else { return };
    let is = |service: &Value, kind: &str| json::text(service, &["spec", "type"]) == kind;
    let with_ports = |service: &Value| is(service, "NodePort") || is(service, "LoadBalancer");
    let (had_ports, has_ports) = (with_ports(old), with_ports(new));
    let by_name = is(new, "ExternalName");
    let old_ports = json::items(old, &["spec", "ports"]);
    let Some(spec) = new.get_mut("spec").filter(|spec| spec.is_object()) else {
        return;
    };
    let (had, has) = (
        json::text(old, &["spec", "clusterIP"]),
        json::text(spec, &["clusterIP"]).to_owned(),
    );
    if let Some(spec) = spec.as_object_mut() {
        if by_name && has == had {
            spec.remove("clusterIP");
            spec.remove("clusterIPs");
        } else if !by_name && has.is_empty() && !had.is_empty() {
            spec.insert("clusterIP".to_owned(), had.into());
            spec.insert("clusterIPs".to_owned(), json!([had]));
        }
    }
    let key = |port: &Value| {
        let number = json::int(port, &["port"]);
        (number, json::text(port, &["protocol"]).to_owned())
    };
    for port in json::list(spec, "ports") {
        let number = json::int(port, &["nodePort"]).unwrap_or(0);
        let before = old_ports.iter().find(|one| key(one) == key(port));
        let before = before.and_then(|one| json::int(one, &["nodePort"]));
        let Some(port) = port.as_object_mut() else {
            continue;
        };
        match before {
            Some(before) if had_ports && has_ports && number == 0 => {
                port.insert("nodePort".to_owned(), before.into());
            }
            Some(before) if had_ports && !has_ports && number == before => {
                port.remove("nodePort");
            }
            _ => {}
        }
    }
}

fn validate(new: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    meta::check(new, old, true, NameRule::Dns1035, &mut errors);
    let path = Path::new("spec");
    let spec = json::at(new, &["spec"]);
    meta::one_of(spec, "type", &TYPES, &path, &mut errors);
    meta::one_of(
        spec,
        "sessionAffinity",
        &["ClientIP", "None"],
        &path,
        &mut errors,
    );
    meta::labels(
        json::at(spec, &["selector"]),
        &path.child("selector"),
        &mut errors,
    );
    if json::text(spec, &["type"]) == "ExternalName"
        && json::text(spec, &["externalName"]).is_empty()
    {
        errors.push(FieldError::required(&path.child("externalName"), ""));
    }
    let address = json::text(spec, &["clusterIP"]);
    if !matches!(address, "" | "None") && address.parse::<std::net::IpAddr>().is_err() {
        let detail = "must be empty, 'None', or a valid IP address";
        errors.push(FieldError::invalid(
            &path.child("clusterIP"),
            address,
            detail,
        ));
    }
    address_kept(new, old, &path, &mut errors);
    affinity(spec, &path, &mut errors);
    ports(
        json::items(spec, &["ports"]),
        &path.child("ports"),
        &mut errors,
    );
    node_ports(spec, &path.child("ports"), &mut errors);
    errors
}

/// A Service keeps its address, unless it gets or loses the type ExternalName.
fn address_kept(new: &Value, old: Option<&Value>, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let by_name = |service: &Value| json::text(service, &["spec", "type"]) == "ExternalName";
    let address = json::text(new, &["spec", "clusterIP"]);
    let list = json::items(new, &["spec", "clusterIPs"]);
    let at = path.child("clusterIPs");
    if by_name(new) {
        if !address.is_empty() {
            let detail = "may not be set for ExternalName services";
            errors.push(FieldError::forbidden(&path.child("clusterIP"), detail));
        }
        return;
    }
    if let Some(first) = list.first().and_then(Value::as_str)
        && first != address
    {
        let detail = "first value must match `clusterIP`";
        errors.push(FieldError::invalid(&at.index(0), json!(list), detail));
    }
    if list.len() > 1 {
        let detail = "may only hold one address: the server has one range of addresses";
        errors.push(FieldError::invalid(&at, json!(list), detail));
    }
    let Some(old) = old.filter(|old| !by_name(old)) else {
        return;
    };
    let had = json::text(old, &["spec", "clusterIP"]);
    if !had.is_empty() && address != had {
        let detail = "may not change once set";
        errors.push(FieldError::invalid(&at.index(0), json!([address]), detail));
    }
}

fn affinity(spec: &Value, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let at = path.child("sessionAffinityConfig");
    let config = json::at(spec, &["sessionAffinityConfig"]);
    if config.is_null() {
        return;
    }
    if json::text(spec, &["sessionAffinity"]) != "ClientIP" {
        let detail = "must not be set when session affinity is None";
        errors.push(FieldError::forbidden(&at, detail));
        return;
    }
    let seconds = json::int(config, &["clientIP", "timeoutSeconds"]).unwrap_or(AFFINITY_SECONDS);
    if !(1..=AFFINITY_SECONDS_MAX).contains(&seconds) {
        let detail = format!("must be greater than 0 and less than {AFFINITY_SECONDS_MAX}");
        let at = at.child("clientIP");
        errors.push(FieldError::invalid(
            &at.child("timeoutSeconds"),
            seconds,
            detail,
        ));
    }
}

fn node_ports(spec: &Value, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let kind = json::text(spec, &["type"]);
    let mut used = BTreeSet::new();
    for (i, port) in json::items(spec, &["ports"]).iter().enumerate() {
        let number = json::int(port, &["nodePort"]).unwrap_or(0);
        if number == 0 {
            continue;
        }
        let path = path.index(i);
        let at = path.child("nodePort");
        if !matches!(kind, "NodePort" | "LoadBalancer") {
            let detail = format!("may not be used when `type` is '{kind}'");
            errors.push(FieldError::forbidden(&at, detail));
        } else if !used.insert((number, json::text(port, &["protocol"]))) {
            errors.push(FieldError::duplicate(&at, number));
        }
    }
}

fn ports(ports: &[Value], path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let mut names = BTreeSet::new();
    let mut numbers = BTreeSet::new();
    for (i, port) in ports.iter().enumerate() {
        let path = path.index(i);
        let name = json::text(port, &["name"]);
        if name.is_empty() {
            if ports.len() > 1 {
                errors.push(FieldError::required(&path.child("name"), ""));
            }
        } else {
            let faults = syntax::dns1123_label(name);
            errors.extend(
                faults
                    .into_iter()
                    .map(|f| FieldError::invalid(&path.child("name"), name, f)),
            );
            if !names.insert(name) {
                errors.push(FieldError::duplicate(&path.child("name"), name));
            }
        }
        let number = json::int(port, &["port"]).unwrap_or(0);
        for fault in syntax::port_number(number) {
            errors.push(FieldError::invalid(&path.child("port"), number, fault));
        }
        meta::one_of(port, "protocol", &["SCTP", "TCP", "UDP"], &path, errors);
        match json::at(port, &["targetPort"]) {
            Value::Number(target) => {
                let target = target.as_i64().unwrap_or(0);
                for fault in syntax::port_number(target) {
                    errors.push(FieldError::invalid(
                        &path.child("targetPort"),
                        target,
                        fault,
                    ));
                }
            }
            Value::String(target) => {
                for fault in syntax::port_name(target) {
                    errors.push(FieldError::invalid(
                        &path.child("targetPort"),
                        target.as_str(),
                        fault,
                    ));
                }
            }
            _ => {}
        }
        if !numbers.insert((number, json::text(port, &["protocol"]))) {
            let value = json!({ "port": number, "protocol": json::text(port, &["protocol"]) });
            errors.push(FieldError::duplicate(&path, value));
        }
    }
}

fn external(service: &Value) -> Value {
    let addresses: Vec<&str> = json::items(service, &["spec", "externalIPs"])
        .iter()
        .filter_map(Value::as_str)
        .collect();
    match json::text(service, &["spec", "type"]) {
        "ExternalName" => Value::from(json::text(service, &["spec", "externalName"])),
        "LoadBalancer" if addresses.is_empty() => Value::from("<pending>"),
        _ => or_none(&addresses.join(",")),
    }
}

fn ports_text(service: &Value) -> Value {
    let texts: Vec<String> = json::items(service, &["spec", "ports"])
        .iter()
        .map(|port| {
            let (number, protocol) = (
                json::int(port, &["port"]).unwrap_or(0),
                json::text(port, &["protocol"]),
            );
            match json::int(port, &["nodePort"]).unwrap_or(0) {
                0 => format!("{number}/{protocol}"),
                node => format!("{number}:{node}/{protocol}"),
            }
        })
        .collect();
    or_none(&texts.join(","))
}
