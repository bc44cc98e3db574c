//! EndpointSlice: the addresses behind a service in the newer form.

use serde_json::{Value, json};

use super::columns::{AGE, NAME, column};
use super::endpoints::shortened;
use super::meta::{self, NameRule};
use super::{Kind, TableColumn};
use crate::field::{FieldError, Path};
use crate::json;

const ADDRESS_TYPES: [&str; 3] = ["IPv4", "IPv6", "FQDN"];
const ADDRESSES_MAX: usize = 100;
const ENDPOINTS_MAX: usize = 1000;

const COLUMNS: &[TableColumn] = &[
    NAME,
    column(
        "AddressType",
        "string",
        "What its addresses are.",
        |object, _| json::at(object, &["addressType"]).clone(),
    ),
    column("Ports", "string", "Its ports.", |object, _| {
        let ports =
            json::items(object, &["ports"])
                .iter()
                .map(|port| match json::int(port, &["port"]) {
                    Some(number) => number.to_string(),
                    None => json::at(port, &["name"]).as_str().unwrap_or("*").to_owned(),
                });
        unset(&ports.collect::<Vec<_>>())
    }),
    column("Endpoints", "string", "The addresses.", |object, _| {
        let all = json::items(object, &["endpoints"])
            .iter()
            .flat_map(|e| json::items(e, &["addresses"]));
        unset(
            &all.filter_map(Value::as_str)
                .map(str::to_owned)
                .collect::<Vec<_>>(),
        )
    }),
    AGE,
];

pub(super) const KIND: Kind = Kind {
    group: "discovery.k8s.io",
    kind: "EndpointSlice",
    plural: "endpointslices",
    singular: "endpointslice",
    list_kind: "EndpointSliceList",
    schema: "io.k8s.api.discovery.v1.EndpointSlice",
    default: |object| {
        json::fill(object, "endpoints", json!([]));
        for port in json::list(object, "ports") {
            json::fill(port, "name", "");
            json::fill_text(port, "protocol", "TCP");
        }
    },
    validate,
    columns: COLUMNS,
    ..Kind::BASE
};

fn unset(all: &[String]) -> Value {
    Value::from(if all.is_empty() {
        "<unset>".to_owned()
    } else {
        shortened(all)
    })
}

fn validate(new: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    meta::check(new, old, true, NameRule::Subdomain, &mut errors);
    let kind = json::text(new, &["addressType"]);
    if kind.is_empty() {
        errors.push(FieldError::required("addressType", ""));
    } else if !ADDRESS_TYPES.contains(&kind) {
        errors.push(FieldError::not_supported(
            "addressType",
            kind,
            &ADDRESS_TYPES,
        ));
    }
    if let Some(old) = old
        && json::text(old, &["addressType"]) != kind
    {
        errors.push(FieldError::invalid("addressType", kind, meta::IMMUTABLE));
    }
    let list = Path::new("endpoints");
    let endpoints = json::items(new, &["endpoints"]);
    if endpoints.len() > ENDPOINTS_MAX {
        errors.push(FieldError::too_many(&list, endpoints.len(), ENDPOINTS_MAX));
    }
    for (i, endpoint) in endpoints.iter().enumerate() {
        let path = list.index(i);
        let addresses = json::items(endpoint, &["addresses"]);
        if addresses.is_empty() {
            errors.push(FieldError::required(
                &path.child("addresses"),
                "must contain at least 1 address",
            ));
        } else if addresses.len() > ADDRESSES_MAX {
            errors.push(FieldError::too_many(
                &path.child("addresses"),
                addresses.len(),
                ADDRESSES_MAX,
            ));
        }
    }
    errors
}
