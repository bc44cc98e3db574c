//! NetworkPolicy: which traffic reaches pods, and which traffic they may send
//! ([`crate::network_policies`] says what follows from it).

use serde_json::{Value, json};

use super::columns::{AGE, NAME, column, or_none};
use super::meta::{self, NameRule};
use super::{Kind, TableColumn};
use crate::field::{FieldError, Path};
use crate::json;
use crate::network_policies::Cidr;
use crate::selector::LabelSelector;
use crate::syntax;

/// The directions of traffic, with the rules of each and the peers of a rule.
const DIRECTIONS: [(&str, &str, &str); 2] =
    [("Ingress", "ingress", "from"), ("Egress", "egress", "to")];
const PROTOCOLS: [&str; 3] = ["TCP", "UDP", "SCTP"];

const COLUMNS: &[TableColumn] = &[
    NAME,
    column(
        "Pod-Selector",
        "string",
        "The pods that it is for.",
        |policy, _| {
            let selector = json::at(policy, &["spec", "podSelector"]);
            let read = serde_json::from_value(selector.clone()).ok();
            let read = read.and_then(|selector| LabelSelector::from_k8s(&selector).ok());
            or_none(&read.unwrap_or_default().to_string())
        },
    ),
    AGE,
];

pub(super) const KIND: Kind = Kind {
    group: "networking.k8s.io",
    kind: "NetworkPolicy",
    plural: "networkpolicies",
    singular: "networkpolicy",
    list_kind: "NetworkPolicyList",
    short_names: &["netpol"],
    schema: "io.k8s.api.networking.v1.NetworkPolicy",
    generation: true,
    default,
    validate,
    columns: COLUMNS,
    ..Kind::BASE
};

fn default(policy: &mut Value) {
    let Some(spec) = json::object(policy, "spec") else {
        return;
    };
    // Kubernetes' field is no pointer: an absent selector is an empty one, which selects every pod of the namespace.
    json::fill(spec, "podSelector", json!({}));
    for (_, rules, _) in DIRECTIONS {
        for rule in json::list(spec, rules) {
            for port in json::list(rule, "ports") {
                json::fill(port, "protocol", "TCP");
            }
        }
    }
    if json::items(spec, &["policyTypes"]).is_empty()
        && let Some(map) = spec.as_object_mut()
    {
        let egress = map.get("egress").and_then(Value::as_array);
        let types = match egress.is_some_and(|rules| !rules.is_empty()) {
            true => json!(["Ingress", "Egress"]),
            false => json!(["Ingress"]),
        };
        map.insert("policyTypes".to_owned(), types);
    }
}

fn validate(new: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    meta::check(new, old, true, NameRule::Subdomain, &mut errors);
    let (path, spec) = (Path::new("spec"), json::at(new, &["spec"]));
    let selector = path.child("podSelector");
    meta::selector(json::at(spec, &["podSelector"]), &selector, &mut errors);
    let kept = old.map(ranges).unwrap_or_default();
    for (_, rules, peers) in DIRECTIONS {
        let list = path.child(rules);
        for (i, rule) in json::items(spec, &[rules]).iter().enumerate() {
            let (path, list) = (list.index(i), rule);
            let ports = path.child("ports");
            for (j, port) in json::items(list, &["ports"]).iter().enumerate() {
                check_port(port, &ports.index(j), &mut errors);
            }
            let sides = path.child(peers);
            for (j, peer) in json::items(list, &[peers]).iter().enumerate() {
                check_peer(peer, &kept, &sides.index(j), &mut errors);
            }
        }
    }
    check_types(spec, &path.child("policyTypes"), &mut errors);
    errors
}

fn check_types(spec: &Value, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let types = json::items(spec, &["policyTypes"]);
    let supported = DIRECTIONS.map(|(name, _, _)| name);
    if types.len() > supported.len() {
        let detail = "may not specify more than two policyTypes";
        errors.push(FieldError::invalid(path, json!(types), detail));
        return;
    }
    for (i, one) in types.iter().enumerate() {
        let one = one.as_str().unwrap_or_default();
        if !supported.contains(&one) {
            errors.push(FieldError::not_supported(&path.index(i), one, &supported));
        }
    }
}

fn check_port(port: &Value, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let protocol = json::at(port, &["protocol"]);
    if let Some(protocol) = protocol.as_str()
        && !PROTOCOLS.contains(&protocol)
    {
        let at = path.child("protocol");
        errors.push(FieldError::not_supported(&at, protocol, &PROTOCOLS));
    }
    let (at, end_at) = (path.child("port"), path.child("endPort"));
    let end = json::int(port, &["endPort"]);
    let mut refuse_end = |number: Value, detail: &str| {
        errors.push(FieldError::invalid(&end_at, number, detail));
    };
    match (json::at(port, &["port"]), end) {
        (Value::Null, Some(end)) => {
            refuse_end(
                end.into(),
                "may not be specified when `port` is not specified",
            );
        }
        (Value::String(_), Some(end)) => {
            refuse_end(
                end.into(),
                "may not be specified when `port` is non-numeric",
            );
        }
        (Value::Number(first), Some(end)) => {
            let first = first.as_i64().unwrap_or(0);
            if end < first {
                refuse_end(first.into(), "must be greater than or equal to `port`");
            }
            for fault in syntax::port_number(end) {
                refuse_end(end.into(), &fault);
            }
        }
        _ => {}
    }
    match json::at(port, &["port"]) {
        Value::String(name) => {
            for fault in syntax::port_name(name) {
                errors.push(FieldError::invalid(&at, name.as_str(), fault));
            }
        }
        Value::Number(number) => {
            let number = number.as_i64().unwrap_or(0);
            for fault in syntax::port_number(number) {
                errors.push(FieldError::invalid(&at, number, fault));
            }
        }
        _ => {}
    }
}

fn check_peer(peer: &Value, kept: &[String], path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let mut selectors = 0;
    for name in ["podSelector", "namespaceSelector"] {
        let selector = json::at(peer, &[name]);
        if !selector.is_null() {
            selectors += 1;
            meta::selector(selector, &path.child(name), errors);
        }
    }
    let block = json::at(peer, &["ipBlock"]);
    if !block.is_null() {
        check_block(block, kept, &path.child("ipBlock"), errors);
        if selectors > 0 {
            let detail = "may not specify both ipBlock and another peer";
            errors.push(FieldError::forbidden(path, detail));
        }
    } else if selectors == 0 {
        errors.push(FieldError::required(path, "must specify a peer"));
    }
}

/// `kept`: ranges of the policy before the change, which are taken as they are.
fn check_block(block: &Value, kept: &[String], path: &Path<'_>, errors: &mut Vec<FieldError>) {
    const MALFORMED: &str = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)";
    let (text, at) = (json::text(block, &["cidr"]), path.child("cidr"));
    if text.is_empty() {
        errors.push(FieldError::required(&at, ""));
        return;
    }
    let known = |text: &str| kept.iter().any(|one| one == text);
    let cidr = Cidr::parse(text);
    if cidr.is_none() && !known(text) {
        errors.push(FieldError::invalid(&at, text, MALFORMED));
    }
    let Some(cidr) = cidr else { return };
    let list = path.child("except");
    for (i, except) in json::items(block, &["except"]).iter().enumerate() {
        let (text, at) = (except.as_str().unwrap_or_default(), list.index(i));
        match Cidr::parse(text) {
            Some(except) if cidr.strictly_contains(except) => {}
            Some(_) => {
                let detail = "must be a strict subset of `cidr`";
                errors.push(FieldError::invalid(&at, text, detail));
            }
            None if known(text) => {}
            None => errors.push(FieldError::invalid(&at, text, MALFORMED)),
        }
    }
}

/// All `ipBlock`s of a policy, with the paths of their fields.
fn blocks(policy: &Value) -> impl Iterator<Item = (String, &Value)> {
    DIRECTIONS.into_iter().flat_map(move |(_, rules, peers)| {
        let of_rule = move |(i, rule)| {
            let all = json::items(rule, &[peers]).iter().enumerate();
            all.map(move |(j, peer)| {
                let path = format!("spec.{rules}[{i}].{peers}[{j}].ipBlock");
                (path, json::at(peer, &["ipBlock"]))
            })
        };
        let all = json::items(policy, &["spec", rules]).iter().enumerate();
        all.flat_map(of_rule)
    })
}

/// The ranges that a policy names, as they are written.
fn ranges(policy: &Value) -> Vec<String> {
    let of_block = |(_, block): (String, &Value)| {
        let except = json::items(block, &["except"]).iter();
        let texts = except.filter_map(Value::as_str);
        let all = std::iter::once(json::text(block, &["cidr"])).chain(texts);
        all.map(str::to_owned).collect::<Vec<_>>()
    };
    blocks(policy).flat_map(of_block).collect()
}

/// What is accepted in a valid policy and likely not meant, as kube-apiserver warns of it, and IPv6 ranges, which no
/// pod has addresses of.
#[must_use]
pub fn warnings(policy: &Value) -> Vec<String> {
    let mut all = Vec::new();
    for (path, block) in blocks(policy) {
        let except = json::items(block, &["except"]).iter().enumerate();
        let except = except.filter_map(|(i, text)| Some((format!("except[{i}]"), text.as_str()?)));
        let cidr = ("cidr".to_owned(), json::text(block, &["cidr"]));
        for (field, text) in std::iter::once(cidr).chain(except) {
            let Some(range) = Cidr::parse(text) else {
                continue;
            };
            if range.has_host_bits() {
                all.push(format!(
                    "{path}.{field}: CIDR value \"{text}\" is ambiguous in this context (should be \"{}\" or \"{}\"?)",
                    range.network(),
                    range.single()
                ));
            }
            if field == "cidr" && range.ipv4().is_none() {
                all.push(format!(
                    "{path}.cidr: pods have IPv4 addresses only, so \"{text}\" matches nothing"
                ));
            }
        }
    }
    all
}
