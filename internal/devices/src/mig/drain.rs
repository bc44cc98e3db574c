//! The holders of the node's GPUs, and how long they may take to end. Pure.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use resources::devices::chosen;
use resources::names::CHECKPOINT_GRACE;
use resources::span;

use super::next::{BlockingHolder, GpuHolders};
use crate::dra::Prepared;
use crate::holders::DeviceHolder;

/// The longest grace period that a pod gets, in seconds; the scheduler has the same.
const GRACE_MAX: i64 = 3600;
/// The grace period of a pod that specifies none, in seconds.
const GRACE: i64 = 30;

/// A pod of this node that has not ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Live {
    /// The pod's uid.
    pub uid: String,
    /// Whether it is terminating.
    pub going: bool,
    /// How long it needs to end, in seconds, if that is longer than its own grace period.
    pub grace: Option<i64>,
}

/// The node's pods that have not ended, by namespace and name.
pub fn live(pods: &[Pod]) -> BTreeMap<BlockingHolder, Live> {
    let one = |pod: &Pod| {
        let phase = pod
            .status
            .as_ref()
            .and_then(|status| status.phase.as_deref());
        if matches!(phase, Some("Succeeded" | "Failed")) {
            return None;
        }
        let live = Live {
            uid: pod.metadata.uid.clone()?,
            going: pod.metadata.deletion_timestamp.is_some(),
            grace: grace(pod),
        };
        Some((held(pod), live))
    };
    pods.iter().filter_map(one).collect()
}

fn held(pod: &Pod) -> BlockingHolder {
    BlockingHolder::Pod {
        namespace: pod.metadata.namespace.clone().unwrap_or_default(),
        name: pod.metadata.name.clone().unwrap_or_default(),
    }
}

fn grace(pod: &Pod) -> Option<i64> {
    let text = pod.metadata.annotations.as_ref()?.get(CHECKPOINT_GRACE)?;
    let asked = span::seconds(text)?.min(GRACE_MAX);
    let spec = pod.spec.as_ref();
    let own = spec.and_then(|spec| spec.termination_grace_period_seconds);
    Some(asked).filter(|asked| *asked > own.unwrap_or(GRACE))
}

/// The holders of devices: from the kubelet's list, from the scheduler's choice for pods that the
/// kubelet may not know yet, and from prepared claims. A pod that the kubelet lists and the API
/// doesn't know was deleted by force, and may still run.
pub fn holders(
    listed: &[(DeviceHolder, String)],
    pods: &[Pod],
    prepared: &[Prepared],
) -> GpuHolders {
    let live = live(pods);
    let ended = |held: &BlockingHolder| {
        pods.iter().any(|pod| self::held(pod) == *held) && !live.contains_key(held)
    };
    let mut holders = GpuHolders::default();
    for (holder, device) in listed {
        let held = BlockingHolder::Pod {
            namespace: holder.namespace.clone(),
            name: holder.pod.clone(),
        };
        if !ended(&held) {
            holders.note(device, held);
        }
    }
    for pod in pods.iter().filter(|pod| live.contains_key(&held(pod))) {
        let chosen = chosen(pod.metadata.annotations.as_ref()).into_values();
        for device in chosen.flat_map(BTreeMap::into_values).flatten() {
            holders.note(&device, held(pod));
        }
    }
    for claim in prepared {
        for given in &claim.devices {
            if !holders.has(&given.device) {
                let held = BlockingHolder::Claim {
                    namespace: claim.namespace.clone(),
                    name: claim.name.clone(),
                };
                holders.note(&given.device, held);
            }
            if let Some(cut) = claim.cuts.get(&given.device) {
                holders.has_too(&given.device, &cut.slice);
            }
        }
    }
    holders
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use hardware::partition::place::InstancePosition;

    use crate::dra::{CreatedPartition, PreparedDevice};

    fn pod(name: &str, phase: &str, more: Value) -> Pod {
        let mut pod = json!({"metadata": {"namespace": "team", "name": name, "uid": format!("u-{name}")},
            "status": {"phase": phase}});
        for (key, value) in more.as_object().expect("fields") {
            pod["metadata"][key] = value.clone();
        }
        serde_json::from_value(pod).expect("a pod")
    }

    fn name(held: &BlockingHolder) -> String {
        held.to_string()
    }

    #[test]
    fn pods_hold_the_devices_of_the_kubelet_or_the_scheduler_until_they_end() {
        let listed = |pod: &str, device: &str| {
            let holder = DeviceHolder {
                namespace: "team".to_owned(),
                pod: pod.to_owned(),
                container: "c".to_owned(),
            };
            (holder, device.to_owned())
        };
        let chosen = json!({"annotations": {"muster.io/devices":
            r#"{"c": {"nvidia.com/gpu": ["GPU-4"]}}"#}});
        let claim = |name: &str, device: &str| Prepared {
            uid: name.to_owned(),
            namespace: "team".to_owned(),
            name: name.to_owned(),
            devices: vec![PreparedDevice {
                request: "r".to_owned(),
                device: device.to_owned(),
                admin: false,
            }],
            ..Prepared::default()
        };
        let mut cut = claim("cut", "gpu-7-1g-10gb-4");
        let slice = CreatedPartition {
            gpu: "GPU-7".to_owned(),
            place: InstancePosition {
                profile: "1g.10gb".to_owned(),
                start: 4,
            },
            slice: "MIG-7".to_owned(),
        };
        cut.cuts.insert("gpu-7-1g-10gb-4".to_owned(), slice);
        let holders = holders(
            &[
                listed("runs", "GPU-1::2"),
                listed("ended", "GPU-2"),
                listed("forced", "GPU-3"),
                listed("claims", "gpu-5"),
                listed("claims", "gpu-7-1g-10gb-4"),
            ],
            &[
                pod("runs", "Running", json!({})),
                pod("ended", "Succeeded", json!({})),
                pod("bound", "Pending", chosen.clone()),
                pod("failed", "Failed", chosen),
                pod("claims", "Running", json!({})),
            ],
            &[claim("used", "gpu-5"), claim("unused", "gpu-6"), cut],
        );
        let mut expected = GpuHolders::default();
        let of = |name: &str| BlockingHolder::Pod {
            namespace: "team".to_owned(),
            name: name.to_owned(),
        };
        expected.note("GPU-1", of("runs"));
        expected.note("GPU-3", of("forced"));
        expected.note("GPU-4", of("bound"));
        expected.note("gpu-5", of("claims"));
        expected.note("gpu-7-1g-10gb-4", of("claims"));
        expected.note("MIG-7", of("claims"));
        expected.note(
            "gpu-6",
            BlockingHolder::Claim {
                namespace: "team".to_owned(),
                name: "unused".to_owned(),
            },
        );
        assert_eq!(holders, expected);
    }

    #[test]
    fn the_very_pod_is_evicted_with_the_time_that_it_needs() {
        let with = |grace: &str| json!({"annotations": {"muster.io/checkpoint-grace": grace}});
        let pods = [
            pod("plain", "Running", json!({})),
            pod("short", "Running", with("20s")),
            pod("long", "Running", with("10m")),
            pod("longest", "Running", with("5h")),
            pod(
                "going",
                "Running",
                json!({"deletionTimestamp": "2026-01-01T00:00:00Z"}),
            ),
        ];
        let live = live(&pods);
        let going: Vec<String> = (live.iter())
            .filter(|(_, it)| it.going)
            .map(|(it, _)| name(it))
            .collect();
        assert_eq!(going, ["pod team/going"]);
        for (held, grace) in [
            ("plain", None),
            ("short", None),
            ("long", Some(600)),
            ("longest", Some(3600)),
        ] {
            let (_, one) = (live.iter())
                .find(|(it, _)| name(it) == format!("pod team/{held}"))
                .expect("it lives");
            assert_eq!((&*one.uid, one.grace), (&*format!("u-{held}"), grace));
        }
    }
}
