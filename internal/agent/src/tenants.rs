//! The user of each pod on this node: a mapped Unix account, else an id that this node assigned to
//! the pod's namespace. Owns the assigned ids and their file; decides nothing of a container's
//! rights ([`crate::confinement`]).
//!
//! An id is assigned once and never reused: files of its namespace may remain in claims, homes and
//! data directories for as long as the node exists, and would become the next namespace's.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::Pod;
use parking_lot::Mutex;
use resources::names::USER;
use serde::{Deserialize, Serialize};

use crate::accounts::{self, AccountError, Accounts, ProcessOwner, UserDatabase};
use crate::disk::replace;
use crate::error::{AgentError, file};

/// The default range of ids for namespaces: far above those of accounts, and below 2^31, which some
/// programs take for a negative number.
pub const POD_IDS: RangeInclusive<u32> = 2_000_000_000..=2_000_065_535;

/// The assigned ids, as saved to disk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct AssignedIds {
    namespaces: BTreeMap<String, u32>,
}

/// Why a pod has no user yet.
#[derive(Debug, thiserror::Error)]
pub enum OwnerError {
    /// Its account can't be used.
    #[error(transparent)]
    Account(#[from] AccountError),
    /// All ids are assigned.
    #[error(
        "no id is left for pods of namespace {namespace:?}: {namespaces} namespaces have all of {first}-{last} on this node; give its agent a wider --pod-ids, or map the namespace to an account (--accounts)"
    )]
    Exhausted {
        /// The namespace.
        namespace: String,
        /// How many namespaces have ids.
        namespaces: usize,
        /// The first id of the range.
        first: u32,
        /// The last id of the range.
        last: u32,
    },
    /// The assigned id can't be saved.
    #[error(transparent)]
    Keep(#[from] AgentError),
}

/// Determines the users of pods.
pub struct Tenants {
    accounts: Accounts,
    directory: Box<dyn UserDatabase>,
    range: RangeInclusive<u32>,
    path: PathBuf,
    /// `None` if the agent is not root: its pods run as its own user.
    given: Option<Mutex<AssignedIds>>,
}

impl Tenants {
    /// Reads the assigned ids; `changes_users` says whether this agent can run processes as other
    /// users.
    pub fn open(
        path: PathBuf,
        accounts: Accounts,
        range: RangeInclusive<u32>,
        directory: Box<dyn UserDatabase>,
        changes_users: bool,
    ) -> Result<Tenants, AgentError> {
        let given = match changes_users {
            true => Some(Mutex::new(load(&path)?)),
            false => None,
        };
        Ok(Tenants {
            accounts,
            directory,
            range,
            path,
            given,
        })
    }

    /// The user of a pod whose namespace's label [`UNIX_ACCOUNT`] has this value; `None` if only
    /// the agent's own user is possible.
    ///
    /// # Errors
    ///
    /// When the pod must wait: its account can't be used, or no id can be assigned.
    ///
    /// [`UNIX_ACCOUNT`]: resources::names::UNIX_ACCOUNT
    pub fn owner(&self, pod: &Pod, label: &str) -> Result<Option<ProcessOwner>, OwnerError> {
        let Some(given) = &self.given else {
            return Ok(None);
        };
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        if let Some(account) = self.accounts.account(user(pod), namespace, label)? {
            return Ok(Some(accounts::usable(self.directory.as_ref(), account)?));
        }
        let mut given = given.lock();
        if let Some(id) = given.namespaces.get(namespace) {
            return Ok(Some(ProcessOwner::of_id(*id)));
        }
        let id = free(&given, &self.range, |id| self.directory.has_id(id));
        let id = id.ok_or_else(|| OwnerError::Exhausted {
            namespace: namespace.to_owned(),
            namespaces: given.namespaces.len(),
            first: *self.range.start(),
            last: *self.range.end(),
        })?;
        let mut next = given.clone();
        next.namespaces.insert(namespace.to_owned(), id);
        // Saved first: an id that is used and forgotten would be assigned to another namespace.
        keep(&self.path, &next)?;
        *given = next;
        Ok(Some(ProcessOwner::of_id(id)))
    }
}

/// The user for whom the pod runs, as checked by admission.
fn user(pod: &Pod) -> Option<&str> {
    let maps = [&pod.metadata.annotations, &pod.metadata.labels];
    let mut users = maps.into_iter().flatten().filter_map(|map| map.get(USER));
    users.next().map(String::as_str)
}

/// The lowest id that neither a namespace nor an account of the node has.
fn free(
    given: &AssignedIds,
    range: &RangeInclusive<u32>,
    taken: impl Fn(u32) -> bool,
) -> Option<u32> {
    let used: BTreeSet<u32> = given.namespaces.values().copied().collect();
    range
        .clone()
        .find(|id| *id != 0 && !used.contains(id) && !taken(*id))
}

fn load(path: &Path) -> Result<AssignedIds, AgentError> {
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(AssignedIds::default()),
        Err(error) => return Err(file("read", path)(error)),
    };
    // With an empty file other namespaces would get the ids of existing files.
    serde_json::from_slice(&bytes).map_err(|error| {
        file("understand", path)(io::Error::new(io::ErrorKind::InvalidData, error))
    })
}

fn keep(path: &Path, given: &AssignedIds) -> Result<(), AgentError> {
    let json = serde_json::to_vec(given).expect("names and numbers are always JSON");
    replace(path, &json)?;
    let dir = path.parent().unwrap_or(Path::new("/"));
    let synced = fs::File::open(dir).and_then(|dir| dir.sync_all());
    synced.map_err(file("write", dir))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::accounts::tests::Table;

    fn pod(namespace: &str, user: Option<&str>) -> Pod {
        let annotations = user.map(|user| json!({ USER: user }));
        serde_json::from_value(json!({"metadata":
            {"namespace": namespace, "name": "p", "annotations": annotations}}))
        .unwrap()
    }

    fn open(path: &Path, range: RangeInclusive<u32>) -> Tenants {
        let file = json!({"users": {"alice": "alice", "eve": "toor"},
            "labels": {"research": "svc-team-a", "system": "toor"}});
        let accounts = Accounts::read(&file).unwrap();
        Tenants::open(path.to_owned(), accounts, range, Box::new(Table), true).unwrap()
    }

    #[test]
    fn a_namespace_keeps_its_id_over_restarts_and_no_other_gets_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pod-ids.json");
        let uid = |tenants: &Tenants, namespace: &str| {
            tenants
                .owner(&pod(namespace, None), "")
                .unwrap()
                .unwrap()
                .uid
        };
        let first = open(&path, POD_IDS);
        let (a, b) = (uid(&first, "a"), uid(&first, "b"));
        assert_eq!((a, b), (*POD_IDS.start(), *POD_IDS.start() + 1));
        assert_eq!(uid(&first, "a"), a);
        let second = open(&path, POD_IDS);
        assert_eq!((uid(&second, "b"), uid(&second, "a")), (b, a));
        // A new range keeps existing assignments and does not reuse them.
        let third = open(&path, b..=b + 1);
        assert_eq!((uid(&third, "a"), uid(&third, "c")), (a, b + 1));
    }

    #[test]
    fn the_range_has_an_end_and_ids_of_accounts_are_left_out() {
        let dir = tempfile::tempdir().unwrap();
        // The node has accounts of the numbers 1000 and 1001.
        let tenants = open(&dir.path().join("ids"), 999..=1002);
        let owner = |namespace: &str| tenants.owner(&pod(namespace, None), "");
        assert_eq!(owner("a").unwrap().unwrap().uid, 999);
        assert_eq!(owner("b").unwrap().unwrap().uid, 1002);
        let why = owner("c").unwrap_err().to_string();
        assert!(why.contains("\"c\"") && why.contains("--pod-ids"), "{why}");
        assert_eq!(owner("a").unwrap().unwrap().uid, 999);
    }

    #[test]
    fn a_mapped_user_runs_as_its_account_in_every_namespace_and_never_as_root() {
        let dir = tempfile::tempdir().unwrap();
        let tenants = open(&dir.path().join("ids"), POD_IDS);
        for namespace in ["a", "b"] {
            let owner = tenants.owner(&pod(namespace, Some("alice")), "").unwrap();
            assert_eq!(owner.unwrap().uid, 1000);
        }
        let why = tenants.owner(&pod("a", Some("eve")), "");
        let why = why.unwrap_err().to_string();
        assert!(why.contains("root"), "{why}");
    }

    #[test]
    fn a_namespaces_label_gives_an_account_that_the_node_allows_and_never_root() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ids");
        let tenants = open(&path, POD_IDS);
        let uid = |user, label: &str| {
            let owner = tenants.owner(&pod("a", user), label);
            let owner = owner.map_err(|error| error.to_string())?;
            Ok::<_, String>(owner.unwrap().uid)
        };
        assert_eq!(uid(None, "research"), Ok(1001));
        assert_eq!(uid(Some("alice"), "research"), Ok(1000));
        for (label, words) in [("system", "root"), ("other", "allows no account")] {
            let why = uid(None, label).unwrap_err();
            assert!(why.contains(words), "{why}");
        }
        // A namespace that waits for an account gets no id meanwhile.
        assert!(!path.exists());
    }

    #[test]
    fn an_agent_that_is_not_root_gives_out_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ids");
        let accounts = Accounts::default();
        let directory = Box::new(Table);
        let tenants = Tenants::open(path.clone(), accounts, POD_IDS, directory, false).unwrap();
        assert_eq!(tenants.owner(&pod("a", None), "any").unwrap(), None);
        assert!(!path.exists());
    }

    #[test]
    fn a_damaged_file_stops_the_agent_rather_than_giving_ids_twice() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ids");
        fs::write(&path, "{").unwrap();
        let directory = Box::new(Table);
        let opened = Tenants::open(path, Accounts::default(), POD_IDS, directory, true);
        assert!(opened.is_err_and(|error| error.to_string().contains("understand")));
    }
}
