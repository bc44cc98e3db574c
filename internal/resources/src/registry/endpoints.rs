//! Endpoints: the addresses behind a service, in the form that name resolution needs.

use serde_json::Value;

use super::columns::{AGE, NAME, column, or_none};
use super::meta::{self, NameRule};
use super::{Kind, TableColumn};
use crate::field::{FieldError, Path};
use crate::json;

/// The number of addresses in a table.
const SHOWN: usize = 3;

const COLUMNS: &[TableColumn] = &[
    NAME,
    column("Endpoints", "string", "The addresses.", |object, _| {
        addresses(object)
    }),
    AGE,
];

pub(super) const KIND: Kind = Kind {
    kind: "Endpoints",
    plural: "endpoints",
    singular: "endpoints",
    list_kind: "EndpointsList",
    short_names: &["ep"],
    schema: "io.k8s.api.core.v1.Endpoints",
    default: |object| {
        for subset in json::list(object, "subsets") {
            for port in json::list(subset, "ports") {
                json::fill_text(port, "protocol", "TCP");
            }
        }
    },
    validate,
    columns: COLUMNS,
    ..Kind::BASE
};

fn validate(new: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    meta::check(new, old, true, NameRule::Subdomain, &mut errors);
    let root = Path::new("subsets");
    for (i, subset) in json::items(new, &["subsets"]).iter().enumerate() {
        let path = root.index(i);
        let list = path.child("addresses");
        let addresses = json::items(subset, &["addresses"]);
        if addresses.is_empty() && json::items(subset, &["notReadyAddresses"]).is_empty() {
            errors.push(FieldError::required(
                &path,
                "must specify `addresses` or `notReadyAddresses`",
            ));
        }
        for (j, address) in addresses.iter().enumerate() {
            let ip = json::text(address, &["ip"]);
            if ip.parse::<std::net::IpAddr>().is_err() {
                let detail = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)";
                errors.push(FieldError::invalid(&list.index(j).child("ip"), ip, detail));
            }
        }
    }
    errors
}

fn addresses(object: &Value) -> Value {
    let mut all = Vec::new();
    for subset in json::items(object, &["subsets"]) {
        let ips = json::items(subset, &["addresses"])
            .iter()
            .map(|a| json::text(a, &["ip"]));
        let ports = json::items(subset, &["ports"]);
        if ports.is_empty() {
            all.extend(ips.map(str::to_owned));
            continue;
        }
        for port in ports {
            let number = json::int(port, &["port"]).unwrap_or(0);
            for ip in ips.clone() {
                all.push(if ip.contains(':') {
                    format!("[{ip}]:{number}")
                } else {
                    format!("{ip}:{number}")
                });
            }
        }
    }
    or_none(&shortened(&all))
}

/// The first entries of a list, and the number of the others.
pub(super) fn shortened(all: &[String]) -> String {
    let shown = all
        .iter()
        .take(SHOWN)
        .map(String::as_str)
        .collect::<Vec<_>>()
        .join(",");
    if all.len() > SHOWN {
        format!("{shown} + {} more...", all.len() - SHOWN)
    } else {
        shown
    }
}
