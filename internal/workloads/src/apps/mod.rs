//! The kinds of `apps/v1` that keep pods running. Owns what they share: the pod of a template, availability, and
//! numbers that may be percentages.

mod claims;
pub mod daemonset;
pub mod deployment;
pub mod replicaset;
mod revisions;
pub mod statefulset;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodTemplateSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use resources::numbers::later;

pub use claims::FindClaim;
pub(crate) use claims::{PodClaims, add_volumes};

use crate::pod_facts::{self, PodPhase};
use crate::pod_room::PodRoom;
use crate::terms;

/// The most pods that one pass creates; the next ones follow when these have been observed.
const CREATED_AT_ONCE: usize = 500;
/// The pods that a first pass creates. A later pass creates up to as many as exist, so that a template whose pods are
/// refused costs this many requests a pass and not [`CREATED_AT_ONCE`].
const SLOW_START: usize = 16;
/// The most pods of one object that wait for a node at a time, as for a Job; fewer where the nodes hold fewer
/// ([`PodRoom`]). So an object costs as much as its pods that can run, however large its `replicas` is.
pub const WAITING_MAX: usize = crate::job::WAITING_MAX as usize;
/// The constants of the 32-bit FNV-1a hash.
const FNV_BASIS: u32 = 0x811c_9dc5;
const FNV_PRIME: u32 = 0x0100_0193;

/// How many of the missing pods a pass creates.
fn batch(missing: usize, active: usize, waiting: usize, room: &PodRoom) -> usize {
    let waiting_max = room.waiting_max(crate::job::WAITING_MAX);
    let waiting_max = usize::try_from(waiting_max).unwrap_or(WAITING_MAX);
    missing
        .min(waiting_max.saturating_sub(waiting))
        .min(active.max(SLOW_START))
        .min(CREATED_AT_ONCE)
}

/// True if a pod waits or runs, without a deletion request.
fn is_active(pod: &Pod) -> bool {
    !PodPhase::of(pod).is_finished() && !pod_facts::is_leaving(pod)
}

/// True if a pod has a deletion request and has not ended.
fn is_terminating(pod: &Pod) -> bool {
    !PodPhase::of(pod).is_finished() && pod_facts::is_leaving(pod)
}

/// From when on a pod counts as available: it has been ready for so many seconds. `None` if it is not ready.
fn available_from(pod: &Pod, seconds: i64) -> Option<Timestamp> {
    let since = pod_facts::ready_since(pod)?;
    Some(if seconds <= 0 {
        Timestamp::MIN
    } else {
        later(since, seconds)
    })
}

/// The pod of a template, without a name.
fn pod_of(template: &PodTemplateSpec, owner: &ObjectMeta, reference: OwnerReference) -> Pod {
    let meta = template.metadata.clone().unwrap_or_default();
    let mut labels = meta.labels.unwrap_or_default();
    let mut annotations = meta.annotations.unwrap_or_default();
    terms::inherit(owner, &mut labels, &mut annotations);
    Pod {
        metadata: ObjectMeta {
            namespace: owner.namespace.clone(),
            labels: Some(labels),
            annotations: Some(annotations),
            finalizers: meta.finalizers,
            owner_references: Some(vec![reference]),
            ..ObjectMeta::default()
        },
        spec: template.spec.clone(),
        status: None,
    }
}

/// A number of a total, which may be given as a percentage; what is unreadable counts as zero.
pub(crate) fn amount(of: Option<&IntOrString>, total: i64, round_up: bool) -> i64 {
    match of {
        None => 0,
        Some(IntOrString::Int(number)) => i64::from(*number).max(0),
        Some(IntOrString::String(text)) => {
            let percent = text.strip_suffix('%').and_then(|n| n.parse::<u32>().ok());
            let product = i64::from(percent.unwrap_or_default()).saturating_mul(total.max(0));
            if round_up {
                product.saturating_add(99) / 100
            } else {
                product / 100
            }
        }
    }
}

/// A template's hash as the label of its pods: FNV-1a over its JSON, in the letters of Kubernetes' names.
fn template_hash(template: &PodTemplateSpec, collisions: i32) -> String {
    let json = serde_json::to_value(template).unwrap_or_default();
    // Maps of `serde_json::Value` are ordered, so equal templates have equal texts.
    let text = json.to_string();
    let salt = if collisions > 0 {
        collisions.to_string()
    } else {
        String::new()
    };
    let hash = text
        .bytes()
        .chain(salt.bytes())
        .fold(FNV_BASIS, |hash, byte| {
            (hash ^ u32::from(byte)).wrapping_mul(FNV_PRIME)
        });
    crate::pod_names::encode(&hash.to_string())
}

/// A count of a status.
fn count(number: usize) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

/// A count of a status that is left out if it is zero.
fn positive(number: i64) -> Option<i32> {
    (number > 0).then(|| i32::try_from(number).unwrap_or(i32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentages_are_of_the_total_and_rounded_as_asked() {
        let number = |n| IntOrString::Int(n);
        let text = |t: &str| IntOrString::String(t.to_owned());
        let table = [
            (number(3), 10, true, 3),
            (number(-3), 10, true, 0),
            (text("25%"), 10, true, 3),
            (text("25%"), 10, false, 2),
            (text("25%"), 0, true, 0),
            (text("x"), 10, true, 0),
            (text("100%"), i64::from(i32::MAX), true, i64::from(i32::MAX)),
        ];
        for (of, total, up, want) in table {
            assert_eq!(amount(Some(&of), total, up), want, "{of:?} of {total}");
        }
        assert_eq!(amount(None, 10, true), 0);
    }

    #[test]
    fn a_batch_doubles_up_to_its_bounds() {
        let table = [
            (3, 0, 0, 3),
            (1000, 0, 0, SLOW_START),
            (1000, 100, 0, 100),
            (100_000, 5_000, 0, CREATED_AT_ONCE),
            (100_000, 5_000, WAITING_MAX - 1, 1),
            (100_000, 5_000, WAITING_MAX, 0),
            (0, 5, 0, 0),
        ];
        let room = PodRoom::default();
        for (missing, active, waiting, want) in table {
            assert_eq!(batch(missing, active, waiting, &room), want);
        }
        // Where the nodes hold fewer pods, fewer wait for them.
        let small = PodRoom {
            nodes: Some(1_000),
            quota: None,
        };
        assert_eq!(batch(100_000, 5_000, 990, &small), 10);
        assert_eq!(batch(100_000, 5_000, 1_000, &small), 0);
    }

    #[test]
    fn the_hash_depends_on_template_and_collisions() {
        let template = |image: &str| -> PodTemplateSpec {
            let pod = serde_json::json!({"spec": {"containers": [{"name": "c", "image": image}]}});
            serde_json::from_value(pod).unwrap()
        };
        let hash = template_hash(&template("a"), 0);
        assert_eq!(hash, template_hash(&template("a"), 0));
        assert_ne!(hash, template_hash(&template("b"), 0));
        assert_ne!(hash, template_hash(&template("a"), 1));
        assert!(!hash.is_empty() && hash.len() <= 10, "{hash}");
    }
}
