//! Which nodes may connect: the current admission of each joined node.
//!
//! Every join generates an admission, a random name that goes into the node's certificates (as
//! their organisational unit) and into a Secret of the system namespace. A certificate is valid
//! while that Secret contains its admission. Removing a node, or joining it again, therefore
//! revokes all its earlier certificates, renewed ones too, without a growing revocation list. Owns
//! the Secrets and their mirror; does not end sessions.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Weak;

use futures::StreamExt;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, DeleteParams, ObjectMeta, PostParams};
use kube::runtime::{WatchStreamExt, watcher};
use parking_lot::RwLock;
use rpc::PeerIdentity;
use sha2::{Digest, Sha256};
use supervisor::{LoopEnd, SetAside, contained};
use tokio::sync::watch;

use crate::error::{FleetError, api, status_code};
use crate::panics;
use crate::tokens::random_text;

/// The type of the Secrets that contain admissions.
pub const SECRET_TYPE: &str = "muster.io/node-admission";

const NAME_PREFIX: &str = "node-admission-";
const NODE_KEY: &str = "node";
const ADMISSION_KEY: &str = "admission";

/// The longest name of an object.
const LONGEST_NAME: usize = 253;

/// Characters of an admission; 100 random bits, so that no value repeats.
const ADMISSION_LENGTH: usize = 20;

/// The state of a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Worth {
    /// The certificate is valid for the node.
    Good,
    /// The node was removed, or has joined again since.
    Revoked,
    /// The certificate has expired.
    Expired,
    /// The server has not read the admissions yet.
    Unknown,
}

/// The recorded state of one node.
#[derive(Clone, Debug)]
struct NodeEntry {
    /// None after the node was removed.
    admission: Option<String>,
    /// The revision of the Secret with this state: older revisions, which a watch may still
    /// deliver, are ignored.
    revision: u64,
}

/// The entries as last written here or shown by the watch, whichever is newer. Differs from the
/// controllers' mirrors, which only follow a watch: an own write counts at once, and a node that was
/// removed here keeps an entry without an admission until the watch has shown the removal.
#[derive(Default)]
struct AdmissionMirror {
    nodes: BTreeMap<String, NodeEntry>,
    synced: bool,
}

/// The admissions.
pub struct Admissions {
    client: kube::Client,
    secrets: Api<Secret>,
    mirror: RwLock<AdmissionMirror>,
    changed: watch::Sender<u64>,
}

impl Admissions {
    /// The admissions stored in `namespace`; none are known until [`follow`] runs.
    pub fn new(client: kube::Client, namespace: &str) -> Self {
        Admissions {
            secrets: Api::namespaced(client.clone(), namespace),
            client,
            mirror: RwLock::default(),
            changed: watch::Sender::new(0),
        }
    }

    /// Counts changes: the owner of a node's connection checks its certificate again at each.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// A name for a new admission.
    pub fn draw() -> Result<String, FleetError> {
        random_text(ADMISSION_LENGTH)
    }

    /// True if a node of this name has joined and was not removed since. Reads the API, because the
    /// mirror may be behind.
    pub async fn has(&self, node: &str) -> Result<bool, FleetError> {
        let found = self.secrets.get_opt(&secret_name(node)).await;
        let found = found.map_err(api(format!("looking up the admission of node {node:?}")))?;
        Ok(found.is_some())
    }

    /// Makes this the node's admission, replacing an earlier one.
    pub async fn admit(&self, node: &str, admission: &str) -> Result<(), FleetError> {
        let name = secret_name(node);
        let secret = secret_of(node, admission);
        let parameters = PostParams::default();
        let written = match self.secrets.create(&parameters, &secret).await {
            Err(error) if status_code(&error) == Some(409) => {
                self.secrets.replace(&name, &parameters, &secret).await
            }
            written => written,
        };
        let written = written.map_err(api(format!("admitting node {node:?}")))?;
        let entry = NodeEntry {
            admission: Some(admission.to_owned()),
            revision: revision_of(&written),
        };
        self.mirror.write().nodes.insert(node.to_owned(), entry);
        self.notify();
        Ok(())
    }

    /// Revokes every certificate of a node; true if the node had a valid one.
    pub async fn remove(&self, node: &str) -> Result<bool, FleetError> {
        let deleted = self
            .secrets
            .delete(&secret_name(node), &DeleteParams::default())
            .await;
        let there = match deleted {
            Ok(_) => true,
            Err(error) if status_code(&error) == Some(404) => false,
            Err(error) => {
                return Err(api(format!("revoking the certificates of node {node:?}"))(
                    error,
                ));
            }
        };
        if there {
            // No event from before the deletion restores the admission: only a join does.
            let entry = NodeEntry {
                admission: None,
                revision: u64::MAX,
            };
            self.mirror.write().nodes.insert(node.to_owned(), entry);
            self.notify();
        }
        Ok(there)
    }

    /// The state of a node's certificate at `now` (seconds since 1970).
    pub fn worth(&self, node: &str, peer: &PeerIdentity, now: i64) -> Worth {
        if peer.not_after < now {
            return Worth::Expired;
        }
        let mirror = self.mirror.read();
        let known = mirror.nodes.get(node);
        let admission = known.and_then(|entry| entry.admission.as_ref());
        if admission.is_some() && admission == peer.admission.as_ref() {
            Worth::Good
        } else if mirror.synced || known.is_some() {
            Worth::Revoked
        } else {
            Worth::Unknown
        }
    }

    /// Applies a Secret's content; returns the name of its node.
    fn put(&self, secret: &Secret) -> Option<String> {
        let (node, admission) = stored(secret)?;
        let entry = NodeEntry {
            admission: Some(admission),
            revision: revision_of(secret),
        };
        let mut mirror = self.mirror.write();
        let older = |known: &NodeEntry| known.revision >= entry.revision;
        if !mirror.nodes.get(&node).is_some_and(older) {
            mirror.nodes.insert(node.clone(), entry);
            drop(mirror);
            self.notify();
        }
        Some(node)
    }

    /// Applies a Secret's content. A Secret over which that panics is reported and set aside: its
    /// node's certificates stay what they were.
    async fn put_contained(
        &self,
        secret: Secret,
        aside: &mut SetAside<String, Secret>,
    ) -> Option<String> {
        let name = secret.metadata.name.clone().unwrap_or_default();
        match contained(async { self.put(&secret) }).await {
            Ok(node) => {
                aside.remove(&name);
                node
            }
            Err(panic) => {
                let what = "the fleet's watch of admissions";
                panics::report(&self.client, &secret, what, panic.message()).await;
                aside.put(name, secret);
                None
            }
        }
    }

    fn deleted(&self, secret: &Secret) {
        let Some((node, _)) = stored(secret) else {
            return;
        };
        let mut mirror = self.mirror.write();
        let of_now = |known: &NodeEntry| known.revision <= revision_of(secret);
        if mirror.nodes.get(&node).is_some_and(of_now) {
            mirror.nodes.remove(&node);
            drop(mirror);
            self.notify();
        }
    }

    /// After a list: a node that was known before the list began and is not in it was removed. A
    /// node that joined while the list was read is not in it either, and stays.
    fn retain(&self, known: &BTreeSet<String>, listed: &BTreeSet<String>) {
        let mut mirror = self.mirror.write();
        (mirror.nodes).retain(|node, _| listed.contains(node) || !known.contains(node));
        mirror.synced = true;
        drop(mirror);
        self.notify();
    }

    fn notify(&self) {
        self.changed.send_modify(|count| *count += 1);
    }
}

/// Keeps the mirror current while another owner holds it.
pub async fn follow(admissions: Weak<Admissions>) -> LoopEnd {
    let Some(secrets) = admissions.upgrade().map(|all| all.secrets.clone()) else {
        return LoopEnd::Finished;
    };
    // The watcher lists again after errors, with exponential backoff.
    let mut events = std::pin::pin!(watcher(secrets, watcher::Config::default()).default_backoff());
    let (mut known, mut listed) = (BTreeSet::new(), BTreeSet::new());
    let mut aside = SetAside::default();
    loop {
        let event = tokio::select! {
            event = events.next() => event,
            (_, secret) = aside.due() => Some(Ok(watcher::Event::Apply(secret))),
        };
        let Some(event) = event else {
            return LoopEnd::Unexpected;
        };
        let Some(admissions) = admissions.upgrade() else {
            return LoopEnd::Finished;
        };
        match event {
            Ok(watcher::Event::Init) => {
                known = admissions.mirror.read().nodes.keys().cloned().collect();
                listed.clear();
            }
            Ok(watcher::Event::InitApply(secret)) => {
                listed.extend(admissions.put_contained(secret, &mut aside).await);
            }
            Ok(watcher::Event::InitDone) => {
                admissions.retain(&std::mem::take(&mut known), &std::mem::take(&mut listed));
            }
            Ok(watcher::Event::Apply(secret)) => {
                admissions.put_contained(secret, &mut aside).await;
            }
            Ok(watcher::Event::Delete(secret)) => {
                aside.remove(&secret.metadata.name.clone().unwrap_or_default());
                admissions.deleted(&secret);
            }
            Err(error) => {
                tracing::warn!(%error, "the watch of the nodes' admissions failed; the server opens it again");
            }
        }
    }
}

fn secret_name(node: &str) -> String {
    let name = format!("{NAME_PREFIX}{node}");
    if name.len() <= LONGEST_NAME {
        return name;
    }
    let digest = Sha256::digest(node.as_bytes());
    let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{NAME_PREFIX}{digest}")
}

fn secret_of(node: &str, admission: &str) -> Secret {
    let text = |value: &str| ByteString(value.as_bytes().to_vec());
    Secret {
        metadata: ObjectMeta {
            name: Some(secret_name(node)),
            ..ObjectMeta::default()
        },
        type_: Some(SECRET_TYPE.to_owned()),
        data: Some(BTreeMap::from([
            (NODE_KEY.to_owned(), text(node)),
            (ADMISSION_KEY.to_owned(), text(admission)),
        ])),
        ..Secret::default()
    }
}

/// The node and the admission in a Secret of this server's type.
fn stored(secret: &Secret) -> Option<(String, String)> {
    if secret.type_.as_deref() != Some(SECRET_TYPE) {
        return None;
    }
    let data = secret.data.as_ref()?;
    let text = |key: &str| String::from_utf8(data.get(key)?.0.clone()).ok();
    Some((text(NODE_KEY)?, text(ADMISSION_KEY)?))
}

/// Muster's own API numbers revisions; 0 if a revision is not a number, so that any other one is
/// newer.
fn revision_of(secret: &Secret) -> u64 {
    let version = secret.metadata.resource_version.as_deref();
    version
        .and_then(|version| version.parse().ok())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admissions() -> Admissions {
        let nowhere = tower::service_fn(|_: http::Request<kube::client::Body>| async {
            Err::<http::Response<kube::client::Body>, _>(std::io::Error::other("nowhere"))
        });
        Admissions::new(kube::Client::new(nowhere, "default"), "muster-system")
    }

    fn secret(admission: &str, revision: u64) -> Secret {
        let mut secret = secret_of("n1", admission);
        secret.metadata.resource_version = Some(revision.to_string());
        secret
    }

    fn peer(admission: Option<&str>) -> PeerIdentity {
        PeerIdentity {
            common_name: PeerIdentity::node_common_name("n1"),
            admission: admission.map(str::to_owned),
            not_after: 1000,
        }
    }

    #[tokio::test]
    async fn a_certificate_is_good_while_its_admission_stands_and_its_time_lasts() {
        let admissions = admissions();
        let worth = |admission, now| admissions.worth("n1", &peer(admission), now);
        assert_eq!(worth(Some("a"), 0), Worth::Unknown);
        assert_eq!(worth(Some("a"), 1001), Worth::Expired);
        admissions.put(&secret("a", 5));
        assert_eq!(worth(Some("a"), 1000), Worth::Good);
        assert_eq!(worth(Some("a"), 1001), Worth::Expired);
        // Joined again.
        admissions.put(&secret("b", 6));
        assert_eq!(worth(Some("a"), 0), Worth::Revoked);
        assert_eq!(worth(Some("b"), 0), Worth::Good);
        // Late events of a watch are ignored.
        admissions.put(&secret("a", 5));
        assert_eq!(worth(Some("b"), 0), Worth::Good);
        admissions.deleted(&secret("a", 5));
        assert_eq!(worth(Some("b"), 0), Worth::Good);
        // A certificate from a version without admissions.
        assert_eq!(worth(None, 0), Worth::Revoked);
        admissions.deleted(&secret("b", 7));
        admissions.retain(&BTreeSet::new(), &BTreeSet::new());
        assert_eq!(worth(Some("b"), 0), Worth::Revoked);
        assert_eq!(worth(None, 0), Worth::Revoked);
    }

    #[tokio::test]
    async fn every_change_is_reported_and_a_list_removes_missing_nodes() {
        let admissions = admissions();
        let mut changes = admissions.changes();
        admissions.put(&secret("a", 5));
        assert!(changes.has_changed().unwrap());
        changes.mark_unchanged();
        admissions.put(&secret("a", 5));
        assert!(!changes.has_changed().unwrap());
        let none = BTreeSet::new();
        admissions.retain(&none, &none);
        assert_eq!(admissions.worth("n1", &peer(Some("a")), 0), Worth::Good);
        changes.mark_unchanged();
        admissions.retain(&BTreeSet::from(["n1".to_owned()]), &none);
        assert!(changes.has_changed().unwrap());
        assert_eq!(admissions.worth("n1", &peer(Some("a")), 0), Worth::Revoked);
    }

    #[test]
    fn the_longest_node_name_still_has_a_secret() {
        assert_eq!(secret_name("n1"), "node-admission-n1");
        assert!(secret_name(&"n".repeat(253)).len() <= LONGEST_NAME);
        assert_ne!(secret_name(&"n".repeat(253)), secret_name(&"m".repeat(253)));
    }
}
