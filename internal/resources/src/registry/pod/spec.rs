//! Validation of a pod spec as a whole; containers, volumes and placement have their own files.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{containers, placement, resources, volumes};
use crate::field::{FieldError, Path};
use crate::json;
use crate::registry::meta;
use crate::syntax;

const RESTART_POLICIES: [&str; 3] = ["Always", "OnFailure", "Never"];
const DNS_POLICIES: [&str; 4] = ["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"];

/// Validates a pod spec after defaulting.
pub(super) fn check(spec: &Value, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let known = volumes::check(
        json::items(spec, &["volumes"]),
        &path.child("volumes"),
        errors,
    );
    containers::check(spec, &known, path, errors);
    let policy = json::text(spec, &["restartPolicy"]);
    if policy.is_empty() {
        errors.push(FieldError::required(&path.child("restartPolicy"), ""));
    }
    meta::one_of(spec, "restartPolicy", &RESTART_POLICIES, path, errors);
    meta::one_of(spec, "dnsPolicy", &DNS_POLICIES, path, errors);
    meta::one_of(
        spec,
        "preemptionPolicy",
        &["PreemptLowerPriority", "Never"],
        path,
        errors,
    );
    meta::labels(
        json::at(spec, &["nodeSelector"]),
        &path.child("nodeSelector"),
        errors,
    );
    placement::affinity(
        json::at(spec, &["affinity"]),
        &path.child("affinity"),
        errors,
    );
    placement::tolerations(
        json::items(spec, &["tolerations"]),
        &path.child("tolerations"),
        errors,
    );
    placement::spread(
        json::items(spec, &["topologySpreadConstraints"]),
        &path.child("topologySpreadConstraints"),
        errors,
    );
    placement::gates(
        json::items(spec, &["schedulingGates"]),
        &path.child("schedulingGates"),
        errors,
    );
    names(spec, path, errors);
    if let Some(seconds) = json::int(spec, &["activeDeadlineSeconds"])
        && !(1..=i64::from(i32::MAX)).contains(&seconds)
    {
        let range = syntax::in_range(1, i64::from(i32::MAX));
        errors.push(FieldError::invalid(
            &path.child("activeDeadlineSeconds"),
            seconds,
            range,
        ));
    }
    meta::not_negative(spec, "terminationGracePeriodSeconds", path, errors);
    resources::quantities(
        json::at(spec, &["overhead"]),
        &path.child("overhead"),
        errors,
    );
    let level = json::at(spec, &["resources"]);
    if !level.is_null() {
        resources::check(level, &path.child("resources"), errors);
    }
    let mut seen = BTreeSet::new();
    for (i, alias) in json::items(spec, &["hostAliases"]).iter().enumerate() {
        let list = path.child("hostAliases");
        let path = list.index(i);
        let ip = json::text(alias, &["ip"]);
        if ip.parse::<std::net::IpAddr>().is_err() {
            errors.push(FieldError::invalid(
                &path.child("ip"),
                ip,
                "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)",
            ));
        } else if !seen.insert(ip) {
            errors.push(FieldError::duplicate(&path.child("ip"), ip));
        }
        for hostname in json::items(alias, &["hostnames"])
            .iter()
            .filter_map(Value::as_str)
        {
            for fault in syntax::dns1123_subdomain(hostname) {
                errors.push(FieldError::invalid(
                    &path.child("hostnames"),
                    hostname,
                    fault,
                ));
            }
        }
    }
}

fn names(spec: &Value, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    type Rule = fn(&str) -> Vec<String>;
    const NAMES: [(&str, Rule); 6] = [
        ("serviceAccountName", syntax::dns1123_subdomain),
        ("nodeName", syntax::dns1123_subdomain),
        ("hostname", syntax::dns1123_label),
        ("subdomain", syntax::dns1123_label),
        ("priorityClassName", syntax::dns1123_subdomain),
        ("runtimeClassName", syntax::dns1123_subdomain),
    ];
    for (key, rule) in NAMES {
        let name = json::text(spec, &[key]);
        if !name.is_empty() {
            for fault in rule(name) {
                errors.push(FieldError::invalid(&path.child(key), name, fault));
            }
        }
    }
}
