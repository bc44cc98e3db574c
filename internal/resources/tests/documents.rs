//! Documents, annotations and texts of users or other programs never make the parsers of this crate panic.
#![allow(clippy::unwrap_used, reason = "what a test cannot unwrap fails it")]

use std::collections::BTreeMap;

use proptest::prelude::*;
use resources::admission::pod_security::{AllowList, PodSecurity};
use resources::audit::AuditPolicy;
use resources::quantity::Quantity;
use resources::{devices, mig, names, registry, span};
use serde_json::{Value, json};

#[path = "../testing/documents.rs"]
mod broken;

use broken::{broken, changed};

fn yaml(text: &str) -> Value {
    serde_norway::from_str(text).unwrap()
}

fn audit_policy() -> Value {
    json!({
        "apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"],
        "rules": [
            {"level": "None", "users": ["u"], "userGroups": ["g"], "verbs": ["get"]},
            {"level": "RequestResponse", "resources": [{"group": "", "resources": ["pods/*"], "resourceNames": ["a"]}],
             "namespaces": ["ns"], "omitManagedFields": true},
            {"level": "Metadata", "nonResourceURLs": ["/api*"]},
        ],
    })
}

proptest! {
    #[test]
    fn no_audit_policy_panics(document in changed(vec![audit_policy()])) {
        let _ = AuditPolicy::read(&document);
    }

    #[test]
    fn no_pod_security_configuration_panics(
        document in changed(vec![yaml(include_str!("../../../packaging/examples/pod-security.yaml"))]),
    ) {
        let _ = PodSecurity::default().configured(&document);
    }

    #[test]
    fn no_allow_list_panics(
        document in changed(vec![yaml(include_str!("../../../packaging/examples/pod-security-allow.yaml"))]),
    ) {
        let _ = AllowList::read(&document);
    }

    #[test]
    fn no_annotation_panics(document in changed(vec![
        json!({"gpus": [{"id": "GPU-1", "index": 0, "numa": 0, "memoryBytes": 1, "healthy": true}]}),
        json!({"configuration": "all-1g", "at": "2026-01-01T00:00:00Z", "why": "w"}),
        json!(["GPU-1", "GPU-2"]),
    ])) {
        let all = [names::DEVICES, names::INVENTORY, names::MIG_CONFIGURATIONS, names::MIG_CHOICE];
        let annotations: BTreeMap<String, String> =
            all.into_iter().map(|name| (name.to_owned(), document.to_string())).collect();
        let _ = devices::chosen(Some(&annotations));
        if let Some(inventory) = devices::inventory(Some(&annotations)) {
            let _ = (inventory.resources(), inventory.unhealthy_devices(), inventory.offered(), inventory.not_uniform());
        }
        let _ = (mig::possible(Some(&annotations)), mig::choice(Some(&annotations)));
    }

    #[test]
    fn no_quantity_or_span_panics(likely in "[-+0-9.eEinumkKMGTP]{0,24}", text in "\\PC{0,20}", unit in "[0-9]{0,20}[smhdw]{0,2}") {
        for text in [likely, text, unit] {
            if let Ok(quantity) = text.parse::<Quantity>() {
                let _ = quantity.to_string();
            }
            let _ = (span::seconds(&text), span::number(&text));
        }
    }

    #[test]
    fn no_time_of_a_schedule_panics(
        schedule in prop_oneof![
            2 => broken(vec!["*/5 0-3,7 1 1-12/2 mon-fri", "0 2 30 2 *", "@every 1h2m3s", "TZ=Europe/Berlin 0 2 * * *", "@monthly"]),
            1 => "[-*/,0-9a-zA-Z@ ?#L=]{0,40}".prop_map(|text| text),
            2 => "([0-9*]{1,2}(-[0-9]{1,2})?(/[0-9]{1,2})? ){4}[0-7*]",
        ],
        zone in prop_oneof![
            1 => "[A-Za-z/_+0-9]{0,20}".prop_map(|text| text),
            2 => prop::sample::select(vec!["UTC", "Europe/Berlin", "America/St_Johns", "Pacific/Apia", "Africa/Casablanca"])
                .prop_map(str::to_owned),
        ],
        after in any::<i64>(),
    ) {
        let zone = jiff::tz::TimeZone::get(&zone).unwrap_or(jiff::tz::TimeZone::UTC);
        let (least, most) = (jiff::Timestamp::MIN.as_second(), jiff::Timestamp::MAX.as_second());
        // Times near now, and any other.
        for after in [after.rem_euclid(4_000_000_000), after.clamp(least, most)] {
            let after = jiff::Timestamp::from_second(after).unwrap();
            if let Ok(schedule) = resources::schedule::Schedule::parse(&schedule)
                && let Some(next) = schedule.next(after, &zone)
            {
                prop_assert!(next > after, "{next} does not follow {after}");
            }
        }
    }

    #[test]
    fn no_image_panics(image in prop_oneof![
        broken(vec!["registry.example:5000/team/image:1.0@sha256:0123", "busybox", "localhost/a:latest", "[::1]:5000/a"]),
        "[a-z0-9:/@._-]{0,40}".prop_map(|text| text),
        "\\PC{0,40}".prop_map(|text| text),
    ]) {
        let kind = registry::by_kind("", "v1", "Pod").unwrap();
        let mut pod = json!({
            "metadata": {"name": "p", "namespace": "ns"},
            "spec": {"containers": [{"name": "c", "image": image}]},
        });
        (kind.default)(&mut pod);
        let policy = &pod["spec"]["containers"][0]["imagePullPolicy"];
        prop_assert!(image.is_empty() || policy == "Always" || policy == "IfNotPresent", "{policy}");
        prop_assert!(!image.ends_with(":latest") || policy == "Always");
        let once = pod.clone();
        (kind.default)(&mut pod);
        prop_assert_eq!(&once, &pod, "a default of a default");
        let _ = (kind.validate)(&pod, None);
    }

    #[test]
    fn no_schedule_panics(schedule in "[-*/,0-9a-zA-Z@ ?#L]{0,40}", zone in "[A-Za-z/_+0-9]{0,20}") {
        let kind = registry::by_kind("batch", "v1", "CronJob").unwrap();
        let mut job = json!({
            "metadata": {"name": "c", "namespace": "ns"},
            "spec": {"schedule": schedule, "timeZone": zone, "jobTemplate": {}},
        });
        (kind.default)(&mut job);
        let _ = (kind.validate)(&job, None);
        for column in kind.columns {
            let _ = column.cell(&job, "2026-01-01T00:00:00Z".parse().unwrap());
        }
    }
}
