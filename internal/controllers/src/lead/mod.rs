//! Leader election: of several servers, the one that holds a `coordination.k8s.io/v1` Lease acts.
//! This module takes, renews and releases the lease. It compares no two clocks: a holder counts
//! from when it sent its last renewal, a candidate from when it saw that renewal, which is later.
//! The holder's count is the shorter, and after it the [`Fence`] lets no write out.

mod fence;
mod lease;

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use kube::api::PostParams;
use kube::{Api, Client};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

pub use fence::{Fence, Fenced};

/// The durations of leader election.
#[derive(Clone, Copy, Debug)]
pub struct LeaseDurations {
    /// How long other candidates leave the lease alone after they saw a renewal; in whole seconds.
    pub lease: Duration,
    /// How long the holder acts after it sent a renewal. Shorter than `lease` by more than the time
    /// that a sent request takes to arrive.
    pub renew: Duration,
    /// The interval of renewals, of a candidate's checks, and of retries.
    pub retry: Duration,
}

impl Default for LeaseDurations {
    /// A candidate takes over from a dead holder 10 to 12 seconds after the last renewal. With
    /// client-go's 15, 10 and 2 seconds that would be up to 19, and the new leader's start comes on
    /// top.
    fn default() -> LeaseDurations {
        LeaseDurations {
            lease: Duration::from_secs(10),
            renew: Duration::from_secs(7),
            retry: Duration::from_secs(1),
        }
    }
}

/// A candidate for leadership.
pub struct LeaderCandidate {
    leases: Api<Lease>,
    client: Client,
    namespace: String,
    name: String,
    identity: String,
    times: LeaseDurations,
    /// The lease's spec as last seen, and since when it is unchanged. The resource version does not
    /// count: a write of a label or an annotation is no renewal.
    seen: Option<(LeaseSpec, Instant)>,
    leader: watch::Sender<String>,
}

/// A term of leadership; it ends when the lease is lost or released.
pub struct LeadershipTerm {
    fence: Fence,
    client: Client,
    leases: Api<Lease>,
    identity: String,
    times: LeaseDurations,
    lease: Lease,
    /// The time until which writes may go out.
    until: Instant,
}

impl LeaderCandidate {
    /// A candidate for the lease of this name. `identity` must be unique to this server and this
    /// start of it.
    #[must_use]
    pub fn new(
        client: Client,
        namespace: &str,
        name: &str,
        identity: &str,
        times: LeaseDurations,
    ) -> LeaderCandidate {
        LeaderCandidate {
            leases: Api::namespaced(client.clone(), namespace),
            client,
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            identity: identity.to_owned(),
            times,
            seen: None,
            leader: watch::Sender::new(String::new()),
        }
    }

    /// The leader as last seen; empty if none is known.
    #[must_use]
    pub fn leader(&self) -> watch::Receiver<String> {
        self.leader.subscribe()
    }

    /// Waits until this candidate leads. Errors are logged and retried.
    pub async fn lead(&mut self) -> LeadershipTerm {
        loop {
            let asked = Instant::now();
            let next = match timeout(self.times.renew, self.take(asked)).await {
                Ok(Ok(LeaseStep::Taken(lease))) => {
                    self.leader.send_replace(self.identity.clone());
                    let until = asked + self.times.renew;
                    return LeadershipTerm {
                        fence: Fence::open_until(until),
                        client: self.client.clone(),
                        leases: self.leases.clone(),
                        identity: self.identity.clone(),
                        times: self.times,
                        lease: *lease,
                        until,
                    };
                }
                Ok(Ok(LeaseStep::Held(free))) => free.min(Instant::now() + self.times.retry),
                Ok(Err(error)) => {
                    let mend = remedy(&error, &self.namespace);
                    tracing::warn!(%error, lease = self.name, "the server could not acquire the leader lease; it tries again{mend}");
                    Instant::now() + self.times.retry
                }
                Err(_) => {
                    tracing::warn!(
                        lease = self.name,
                        "the request for the leader lease timed out; the server tries again"
                    );
                    Instant::now() + self.times.retry
                }
            };
            sleep_until(next).await;
        }
    }

    async fn take(&mut self, asked: Instant) -> kube::Result<LeaseStep> {
        let now = Timestamp::now();
        let length = self.times.lease;
        let Some(lease) = self.leases.get_opt(&self.name).await? else {
            let lease = lease::fresh(&self.name, &self.identity, length, now);
            let made = self.leases.create(&PostParams::default(), &lease).await;
            return self.answered(made);
        };
        let spec = lease.spec.clone().unwrap_or_default();
        if self
            .seen
            .as_ref()
            .is_none_or(|(last_spec, _)| *last_spec != spec)
        {
            // Counts from when the answer came, not from when it was requested: never earlier than
            // the renewal.
            self.seen = Some((spec, Instant::now()));
        }
        if let Some(holder) = lease::holder(&lease) {
            if *self.leader.borrow() != holder {
                tracing::info!(leader = holder, "another server is the leader");
                self.leader.send_replace(holder.to_owned());
            }
            let since = self.seen.as_ref().map_or(asked, |(_, since)| *since);
            let free = since + lease::duration(&lease).unwrap_or(length);
            if holder != self.identity && Instant::now() < free {
                return Ok(LeaseStep::Held(free));
            }
        }
        let mine = lease::taken(&lease, &self.identity, length, now);
        let put = self
            .leases
            .replace(&self.name, &PostParams::default(), &mine)
            .await;
        self.answered(put)
    }

    /// Another candidate may have been faster.
    fn answered(&self, answer: kube::Result<Lease>) -> kube::Result<LeaseStep> {
        match answer {
            Ok(lease) => Ok(LeaseStep::Taken(Box::new(lease))),
            Err(kube::Error::Api(status)) if status.code == 409 => {
                Ok(LeaseStep::Held(Instant::now() + self.times.retry))
            }
            Err(error) => Err(error),
        }
    }
}

/// What an administrator does about an error, as the end of a sentence; empty if the error may pass by itself.
fn remedy(error: &kube::Error, namespace: &str) -> String {
    let kube::Error::Api(status) = error else {
        return String::new();
    };
    match status.code {
        404 => format!(
            "; if the namespace does not exist, make it by `kubectl create namespace {namespace}`, or name another with --lease-namespace"
        ),
        403 => format!(
            "; give the server's account the rights on leases in namespace {namespace} by `kubectl apply -f packaging/kubernetes/rbac.yaml`"
        ),
        _ => String::new(),
    }
}

/// The result of trying to take the lease.
enum LeaseStep {
    Taken(Box<Lease>),
    /// Another candidate holds it, at least until this moment.
    Held(Instant),
}

impl LeadershipTerm {
    /// A client that can write while the term lasts, and read at any time.
    #[must_use]
    pub fn client(&self) -> Client {
        self.fence.around(self.client.clone())
    }

    /// Renews the lease for as long as that works. When this returns, the lease is lost and the
    /// fence refuses every write.
    pub async fn hold(&mut self) {
        let mut wait = self.times.retry;
        let why = loop {
            let next = Instant::now() + wait;
            if next >= self.until {
                break "the renewal timed out".to_owned();
            }
            sleep_until(next).await;
            wait = self.times.retry;
            let asked = Instant::now();
            let mine = lease::taken(
                &self.lease,
                &self.identity,
                self.times.lease,
                Timestamp::now(),
            );
            let name = mine.metadata.name.clone().unwrap_or_default();
            let params = PostParams::default();
            let renewing = self.leases.replace(&name, &params, &mine);
            match timeout_at(self.until, renewing).await {
                Ok(Ok(lease)) => {
                    self.lease = lease;
                    self.until = asked + self.times.renew;
                    self.fence.extend(self.until);
                }
                Ok(Err(kube::Error::Api(status))) if matches!(status.code, 404 | 409) => {
                    match timeout_at(self.until, self.leases.get_opt(&name)).await {
                        // A renewal's answer was lost, or another client changed the object: the
                        // lease is still ours, and is renewed before it changes again.
                        Ok(Ok(Some(lease))) if lease::holder(&lease) == Some(&self.identity) => {
                            self.lease = lease;
                            wait = Duration::ZERO;
                        }
                        Ok(Ok(Some(_))) => break "another server took it".to_owned(),
                        Ok(Ok(None)) => break "the lease was deleted".to_owned(),
                        Ok(Err(error)) => tracing::warn!(%error, "the lease cannot be read"),
                        Err(_) => {}
                    }
                }
                Ok(Err(error)) => {
                    tracing::warn!(%error, "the server could not renew the leader lease; it tries again");
                }
                Err(_) => {}
            }
        };
        self.fence.shut();
        tracing::error!(why, "the server lost the leader lease and stops writing");
    }

    /// Releases the lease, so that another server need not wait. The fence refuses every later
    /// write.
    pub async fn release(self) {
        self.fence.shut();
        match timeout(self.times.renew, self.let_go()).await {
            Ok(Ok(())) => tracing::info!("the server released the leader lease"),
            Ok(Err(error)) => {
                tracing::warn!(%error, "the server could not release the leader lease; the lease expires by itself")
            }
            Err(_) => tracing::warn!(
                "the API did not answer the release of the leader lease; the lease expires by itself"
            ),
        }
    }

    async fn let_go(&self) -> kube::Result<()> {
        let name = self.lease.metadata.name.clone().unwrap_or_default();
        // A renewal may have been interrupted, so the stored lease is the one to release.
        let Some(lease) = self.leases.get_opt(&name).await? else {
            return Ok(());
        };
        if lease::holder(&lease) == Some(&self.identity) {
            let free = lease::released(&lease, Timestamp::now());
            self.leases
                .replace(&name, &PostParams::default(), &free)
                .await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(code: u16) -> kube::Error {
        let status =
            serde_json::json!({"status": "Failure", "message": "no", "reason": "x", "code": code});
        let status = serde_json::from_value(status).expect("a Status");
        kube::Error::Api(Box::new(status))
    }

    #[test]
    fn a_missing_namespace_or_right_comes_with_the_command_that_makes_it() {
        let cases = [
            (404, "kubectl create namespace muster-system"),
            (403, "kubectl apply -f packaging/kubernetes/rbac.yaml"),
        ];
        for (code, command) in cases {
            let text = remedy(&answer(code), "muster-system");
            assert!(text.contains(command), "{code}: {text}");
        }
        assert_eq!(remedy(&answer(500), "muster-system"), "");
    }
}
