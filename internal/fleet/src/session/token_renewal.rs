//! Renews the tokens of pods that run.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;

use super::desired_pods::{Sent, assign};
use super::{Session, SessionServer};
use crate::pod_fields::ended;
use crate::resolve::resolve;

/// The delay before the renewal of a running pod's tokens is retried.
const RENEW_TOKENS_AGAIN: Duration = Duration::from_secs(30);

/// The longest wait for the next renewal of tokens, because the clock may be set and the machine may be suspended.
const RENEWAL_LOOK: Duration = Duration::from_secs(60);

/// How long to wait for a moment, at most [`RENEWAL_LOOK`].
pub(super) fn until(at: Timestamp, now: Timestamp) -> Duration {
    let left = Duration::try_from(at.duration_since(now)).unwrap_or_default();
    left.min(RENEWAL_LOOK)
}

/// Sends the pods whose tokens are due new ones. A pod that lacks something then keeps its old data, so that its
/// containers can start again meanwhile, and is tried again later.
pub(super) async fn renew_tokens(
    server: &Arc<SessionServer>,
    session: &Arc<Session>,
    sent: &mut BTreeMap<String, Sent>,
    pods: &[Arc<Pod>],
) -> bool {
    let now = Timestamp::now();
    let mut due = Vec::new();
    for (uid, entry) in sent.iter_mut() {
        // Taken from pods that have ended, too: they need no token.
        if entry.renew_at.take_if(|at| *at <= now).is_some() && session.instructions.lock().has(uid)
        {
            due.push(uid.clone());
        }
    }
    for uid in due {
        let of_uid = |pod: &&Arc<Pod>| pod.metadata.uid.as_ref() == Some(&uid);
        let Some(pod) = pods.iter().find(of_uid).filter(|pod| !ended(pod)) else {
            continue;
        };
        let resolved = resolve(&server.client, pod, now).await;
        if !resolved.has_problem() {
            if !assign(server, session, sent, pod, resolved).await {
                return false;
            }
        } else if let Some(entry) = sent.get_mut(&uid) {
            tracing::warn!(
                node = session.node,
                uid,
                "the server could not renew the tokens of a pod; it tries again"
            );
            entry.renew_at = now.checked_add(RENEW_TOKENS_AGAIN).ok();
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_for_a_renewal_is_short_and_never_negative() {
        let at = |second| Timestamp::from_second(second).unwrap();
        for (due, now, wait) in [(100, 90, 10), (90, 100, 0), (10_000, 0, 60)] {
            assert_eq!(
                until(at(due), at(now)),
                Duration::from_secs(wait),
                "{due} {now}"
            );
        }
    }
}
