//! Service: a name for pods. In the embedded engine, names resolve through the pods' hosts files, so there is no
//! virtual address to allocate: `clusterIP` is `None` unless the manifest sets it.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::columns::{AGE, NAME, column, or_none, wide};
use super::meta::{self, NameRule};
use super::{Kind, TableColumn};
use crate::field::{FieldError, Path};
use crate::json;
use crate::syntax;

const TYPES: [&str; 4] = ["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"];

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
    default,
    validate,
    validate_status: |new, _| meta::conditions(new),
    prepare: |new, old| meta::with_status(new, old, json!({ "loadBalancer": {} })),
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
    json::fill_text(spec, "clusterIP", "None");
    let address = json::at(spec, &["clusterIP"]).clone();
    json::fill(spec, "clusterIPs", json!([address]));
    json::fill(spec, "ipFamilies", json!(["IPv4"]));
    json::fill_text(spec, "ipFamilyPolicy", "SingleStack");
    json::fill_text(spec, "internalTrafficPolicy", "Cluster");
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
    ports(
        json::items(spec, &["ports"]),
        &path.child("ports"),
        &mut errors,
    );
    errors
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
