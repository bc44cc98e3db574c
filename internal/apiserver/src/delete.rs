//! Owns the deletion of one object: preconditions, finalizers, the grace of running pods. The
//! garbage collector deletes an owner's objects and the agent confirms that a pod has ended; both
//! call this module for that.

use axum::body::Body;
use http::{Response, StatusCode};
use jiff::Timestamp;
use resources::numbers::{later, pod_grace as bounded_grace};
use resources::registry::Kind;
use resources::times;
use serde_json::Value;

use crate::call::Call;
use crate::delete_options::{DeleteOptions, Propagation};
use crate::object::{self, meta_mut, meta_text};
use crate::respond::{self, WriteResult};
use crate::rewrite::{RewriteDecision, Rewritten, rewrite_key};
use crate::status::{self, Failure};
use crate::{namespace, request};

const FOREGROUND: &str = "foregroundDeletion";
const ORPHAN: &str = "orphan";
/// The grace of a pod that sets none, in seconds.
const DEFAULT_GRACE: i64 = 30;

/// Kubernetes' own Jobs, whose pods are orphaned by default.
fn is_job(kind: &Kind) -> bool {
    (kind.group, kind.kind) == ("batch", "Job")
}

pub(crate) async fn delete(call: &Call, body: Body) -> Result<Response<Body>, Failure> {
    let body = request::read(body).await?;
    let options = DeleteOptions::of(call, &body)?;
    let (rewritten, last) = delete_one(call, call.object_name(), call.key(), &options).await?;
    let mut warnings = Vec::new();
    if is_job(call.kind) && options.propagation.is_none() {
        warnings.push(
            "child pods are preserved by default when jobs are deleted; set propagationPolicy=Background to remove them or set propagationPolicy=Orphan to suppress this warning"
                .to_string(),
        );
    }
    if !rewritten.removed || schema::ANSWERED_WITH_OBJECT.contains(&call.kind.schema) {
        let bytes = rewritten.bytes;
        return respond::written(
            call,
            WriteResult {
                code: StatusCode::OK,
                bytes,
                warnings,
            },
        );
    }
    let mut response = respond::json(&status::deleted(
        call.kind,
        call.object_name(),
        meta_text(&last, "uid"),
    ));
    respond::warn(&mut response, &warnings);
    Ok(response)
}

/// Deletes the object under a key, or begins to. Also returns its last state before.
pub(crate) async fn delete_one(
    call: &Call,
    name: &str,
    key: String,
    options: &DeleteOptions,
) -> Result<(Rewritten, Value), Failure> {
    namespace::may_be_deleted(call.kind, name)?;
    let mut last = Value::Null;
    let now = call.server.now();
    let dry = call.dry(options.dry_run);
    let rewritten = rewrite_key(&dry, name, key, |live| {
        require(call.kind, live, options)?;
        last = live.clone();
        Ok(next(call.kind, live, options, now))
    })
    .await?;
    Ok((rewritten, last))
}

fn require(kind: &Kind, live: &Value, options: &DeleteOptions) -> Result<(), Failure> {
    let conditions = [
        ("UID", "uid", &options.uid),
        (
            "ResourceVersion",
            "resourceVersion",
            &options.resource_version,
        ),
    ];
    for (word, field, wanted) in conditions {
        let has = meta_text(live, field);
        if let Some(wanted) = wanted
            && wanted != has
        {
            let why = format!(
                "Precondition failed: {word} in precondition: {wanted}, {word} in object meta: {has}"
            );
            return Err(Failure::conflict(kind, object::name(live), &why));
        }
    }
    Ok(())
}

/// The result of a deletion on the current object.
fn next(kind: &Kind, live: &Value, options: &DeleteOptions, now: Timestamp) -> RewriteDecision {
    let finalizers = finalizers_for(kind, live, options.propagation);
    let grace = if kind.graceful {
        pod_grace(live, options.grace)
    } else {
        0
    };
    let held = !finalizers.is_empty() || namespace::holds(kind, live);
    if grace == 0 && !held {
        return RewriteDecision::Remove(Box::new(live.clone()));
    }
    let mut marked = live.clone();
    object::set_finalizers(&mut marked, &finalizers);
    namespace::mark(kind, &mut marked);
    let begun: Option<Timestamp> = meta_text(live, "deletionTimestamp").parse().ok();
    let earlier = live["metadata"]["deletionGracePeriodSeconds"]
        .as_i64()
        .map_or(0, bounded_grace);
    let generation = live["metadata"]["generation"].as_i64();
    let meta = meta_mut(&mut marked);
    let due = match begun {
        // The grace can only be shortened.
        Some(_) if grace >= earlier => None,
        Some(begun) => Some(later(later(begun, -earlier), grace)),
        None => Some(later(now, grace)),
    };
    if let Some(due) = due {
        meta.insert(
            "deletionTimestamp".into(),
            times::seconds(due.max(now)).into(),
        );
        meta.insert("deletionGracePeriodSeconds".into(), grace.into());
    }
    if let (None, Some(generation)) = (begun, generation) {
        meta.insert("generation".into(), generation.saturating_add(1).into());
    }
    if marked == *live {
        RewriteDecision::Keep
    } else {
        RewriteDecision::Put(Box::new(marked))
    }
}

/// A pod's grace: zero if it never ran or has ended, and at most
/// [`POD_GRACE_MAX`](resources::numbers::POD_GRACE_MAX).
fn pod_grace(pod: &Value, asked: Option<i64>) -> i64 {
    let unassigned = pod["spec"]["nodeName"]
        .as_str()
        .unwrap_or_default()
        .is_empty();
    let ended = matches!(
        pod["status"]["phase"].as_str(),
        Some("Succeeded" | "Failed")
    );
    if unassigned || ended {
        return 0;
    }
    let underway = object::deleting(pod)
        .then(|| pod["metadata"]["deletionGracePeriodSeconds"].as_i64())
        .flatten();
    let own = pod["spec"]["terminationGracePeriodSeconds"]
        .as_i64()
        .unwrap_or(DEFAULT_GRACE);
    let grace = bounded_grace(asked.or(underway).unwrap_or(own));
    underway.map_or(grace, |underway| grace.min(bounded_grace(underway)))
}

/// The finalizers that remain on the object after a deletion with this policy.
fn finalizers_for(kind: &Kind, live: &Value, propagation: Option<Propagation>) -> Vec<String> {
    let had = object::finalizers(live);
    let has = |name: &str| had.iter().any(|one| one == name);
    let policy = propagation.unwrap_or({
        if has(ORPHAN) {
            Propagation::Orphan
        } else if has(FOREGROUND) {
            Propagation::Foreground
        } else if is_job(kind) && !object::deleting(live) {
            // Kubernetes orphans a Job's pods by default.
            Propagation::Orphan
        } else {
            Propagation::Background
        }
    });
    let mut finalizers: Vec<String> = had
        .iter()
        .filter(|one| *one != ORPHAN && *one != FOREGROUND)
        .cloned()
        .collect();
    match policy {
        Propagation::Orphan => finalizers.push(ORPHAN.to_string()),
        Propagation::Foreground => finalizers.push(FOREGROUND.to_string()),
        Propagation::Background => {}
    }
    finalizers
}

#[cfg(test)]
mod tests {
    use resources::numbers::POD_GRACE_MAX;
    use resources::registry;
    use serde_json::json;

    use super::*;

    fn running(grace: Value) -> Value {
        json!({
            "metadata": {"name": "a", "namespace": "ns", "generation": i64::MAX},
            "spec": {"nodeName": "n1", "terminationGracePeriodSeconds": grace},
        })
    }

    fn deleted(pod: &Value, asked: Option<i64>, now: Timestamp) -> Value {
        let kind = registry::by_kind("", "v1", "Pod").unwrap();
        let options = DeleteOptions {
            grace: asked,
            ..DeleteOptions::default()
        };
        match next(kind, pod, &options, now) {
            RewriteDecision::Put(marked) => *marked,
            RewriteDecision::Remove(_) => json!("removed"),
            RewriteDecision::Keep => json!("kept"),
        }
    }

    #[test]
    fn a_grace_at_any_end_is_bounded_and_deletes() {
        let now = Timestamp::from_second(1_700_000_000).unwrap();
        let removed = [i64::MIN, -1, 0];
        for grace in removed {
            assert_eq!(
                deleted(&running(grace.into()), None, now),
                "removed",
                "{grace}"
            );
        }
        let bounded = [
            (1, 1),
            (POD_GRACE_MAX, POD_GRACE_MAX),
            (POD_GRACE_MAX + 1, POD_GRACE_MAX),
            (i64::from(i32::MAX), POD_GRACE_MAX),
            (i64::MAX, POD_GRACE_MAX),
        ];
        for (asked, counts) in bounded {
            let marks = [
                deleted(&running(asked.into()), None, now),
                deleted(&running(Value::Null), Some(asked), now),
            ];
            for marked in marks {
                let meta = &marked["metadata"];
                assert_eq!(meta["deletionGracePeriodSeconds"], counts, "{asked}");
                let due = times::seconds(later(now, counts));
                assert_eq!(meta["deletionTimestamp"], due, "{asked}");
                assert_eq!(meta["generation"], i64::MAX);
            }
        }
    }

    #[test]
    fn a_deletion_that_was_stored_with_any_grace_can_be_shortened() {
        let now = Timestamp::from_second(1_700_000_000).unwrap();
        for (stored, at) in [
            (i64::MAX, "9999-12-30T22:00:00Z"),
            (i64::MAX, "-009999-01-02T01:59:59Z"),
            (60, "2023-11-14T22:14:20Z"),
        ] {
            let mut pod = running(Value::Null);
            pod["metadata"]["deletionTimestamp"] = at.into();
            pod["metadata"]["deletionGracePeriodSeconds"] = stored.into();
            let marked = deleted(&pod, Some(5), now);
            assert_eq!(marked["metadata"]["deletionGracePeriodSeconds"], 5, "{at}");
            assert_eq!(deleted(&pod, Some(0), now), "removed", "{at}");
        }
    }
}
