//! The Unix accounts that pods run as: an administrator's mapping of user names, namespaces and a
//! label of namespaces, and the node's data of the accounts named there. Assigns no ids:
//! [`crate::tenants`] does.
//!
//! The server sends the user, the namespace and the label's value with each pod. Only this node's
//! file maps them to an account, so no server can choose an account that the file does not name.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::io;
use std::path::PathBuf;

use nix::unistd::{User, getgrouplist};
use resources::invalid_value::InvalidValue;
use resources::names::UNIX_ACCOUNT;
use serde::Deserialize;
use serde_json::Value;

/// The home directory of a user without one on this node: private to each container.
pub const HOME_OF_NONE: &str = "/tmp";

/// The mapping in the file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Accounts {
    /// Accounts by the name of the user that a pod runs for (`muster.io/user`).
    users: BTreeMap<String, String>,
    /// Accounts by namespace, for pods of users that the file does not name.
    namespaces: BTreeMap<String, String>,
    /// Accounts by the value of their namespace's label `muster.io/unix-account`, for pods whose
    /// namespace the file does not name either.
    labels: BTreeMap<String, String>,
}

/// The form of the file.
const FORM: &str =
    "write users: {NAME: ACCOUNT}, namespaces: {NAME: ACCOUNT} and labels: {VALUE: ACCOUNT}";

/// Why the file can't be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AccountsError {
    /// It has another form.
    #[error("{0}; {form}", form = FORM)]
    Form(String),
    /// A rule names an account that can't run pods.
    #[error(transparent)]
    Account(#[from] InvalidValue),
}

/// Why a pod gets no account.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AccountError {
    /// The namespace's label requests an account that the file does not allow.
    #[error(
        "namespace {namespace:?} has the label {name}={label:?}, and this node allows no account for that value; add it under labels to the file of its agent's --accounts, or remove the label from the namespace",
        name = UNIX_ACCOUNT
    )]
    Label {
        /// The namespace.
        namespace: String,
        /// The label's value.
        label: String,
    },
    /// The node's databases don't answer.
    #[error("Unix account {account:?} cannot be looked up on this node: {error}")]
    Lookup {
        /// The account.
        account: String,
        /// The operating system's error.
        error: String,
    },
    /// The node has no such account.
    #[error(
        "Unix account {0:?}, which --accounts names, does not exist on this node; make it, or map to another"
    )]
    Missing(String),
    /// The account has rights of root.
    #[error(
        "Unix account {0:?} has root's user number or is in root's group, and pods do not run as root; map to another account"
    )]
    Root(String),
}

impl Accounts {
    /// Parses the file's document. Names are checked here, accounts on the node at each pod's
    /// start, because directory services may be temporarily unavailable.
    ///
    /// # Errors
    ///
    /// For a document of another form, and for accounts that can't run pods.
    pub fn read(document: &Value) -> Result<Accounts, AccountsError> {
        // A derived deserializer would accept a list as the fields in their order.
        if !document.is_object() {
            return Err(AccountsError::Form("the file is not a mapping".to_owned()));
        }
        let accounts: Accounts = serde_json::from_value(document.clone())
            .map_err(|e| AccountsError::Form(e.to_string()))?;
        let sections = [
            ("users", &accounts.users),
            ("namespaces", &accounts.namespaces),
            ("labels", &accounts.labels),
        ];
        for (section, entries) in sections {
            for (name, account) in entries {
                if account.is_empty() || account == "root" || account.contains('\0') {
                    let field = format!("{section}.{name}");
                    let valid = "a Unix account other than root";
                    return Err(InvalidValue::new(field, account, valid).into());
                }
            }
        }
        Ok(accounts)
    }

    /// The account for pods of this user in this namespace, whose label [`UNIX_ACCOUNT`] has this
    /// value; empty without a label. The user takes precedence over the namespace, and the
    /// namespace's name over its label.
    ///
    /// # Errors
    /// When only the label could apply and the file has no rule for its value: the namespace's
    /// administrator requests an account that this node's administrator does not allow.
    pub fn account(
        &self,
        user: Option<&str>,
        namespace: &str,
        label: &str,
    ) -> Result<Option<&str>, AccountError> {
        let of_user = user.and_then(|user| self.users.get(user));
        let named = of_user.or_else(|| self.namespaces.get(namespace));
        if label.is_empty() {
            return Ok(named.map(String::as_str));
        }
        let found = named.or_else(|| self.labels.get(label));
        if found.is_none() {
            return Err(AccountError::Label {
                namespace: namespace.to_owned(),
                label: label.to_owned(),
            });
        }
        Ok(found.map(String::as_str))
    }
}

/// The user of a pod's processes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessOwner {
    /// The account's name, or a generated name for an id without an account.
    pub name: String,
    /// The user id; never 0.
    pub uid: u32,
    /// The primary group id.
    pub gid: u32,
    /// All its groups.
    pub groups: Vec<u32>,
    /// The home directory.
    pub home: PathBuf,
    /// Whether the node assigned the id to the pod's namespace: it belongs to no account, and no
    /// file of the host is meant for it.
    pub given: bool,
}

impl ProcessOwner {
    /// An id without an account, and a group with the same id.
    pub fn of_id(id: u32) -> ProcessOwner {
        ProcessOwner {
            name: format!("pod-{id}"),
            uid: id,
            gid: id,
            groups: vec![id],
            home: HOME_OF_NONE.into(),
            given: true,
        }
    }
}

/// The node's databases of users. A table in tests.
pub trait UserDatabase: Send + Sync {
    /// An account by its name.
    ///
    /// # Errors
    ///
    /// When a database does not answer.
    fn account(&self, name: &str) -> io::Result<Option<ProcessOwner>>;
    /// Whether an account has this id.
    fn has_id(&self, id: u32) -> bool;
}

/// The node's own databases (`/etc/passwd`, LDAP and the like, through the C library).
pub struct NodeDirectory;

impl UserDatabase for NodeDirectory {
    fn account(&self, name: &str) -> io::Result<Option<ProcessOwner>> {
        let found = User::from_name(name)?;
        let Some(user) = found else { return Ok(None) };
        let listed = CString::new(name)
            .ok()
            .and_then(|name| getgrouplist(&name, user.gid).ok());
        let groups = listed.unwrap_or_else(|| vec![user.gid]);
        let home = if user.dir.is_dir() {
            user.dir
        } else {
            PathBuf::from(HOME_OF_NONE)
        };
        Ok(Some(ProcessOwner {
            name: user.name,
            uid: user.uid.as_raw(),
            gid: user.gid.as_raw(),
            groups: groups.into_iter().map(|group| group.as_raw()).collect(),
            home,
            given: false,
        }))
    }

    fn has_id(&self, id: u32) -> bool {
        let found = User::from_uid(nix::unistd::Uid::from_raw(id));
        found.is_ok_and(|user| user.is_some())
    }
}

/// An account that pods may run as.
///
/// # Errors
///
/// When the account can't be looked up, does not exist, or has rights of root.
pub fn usable(directory: &dyn UserDatabase, name: &str) -> Result<ProcessOwner, AccountError> {
    let found = directory.account(name);
    let found = found.map_err(|error| AccountError::Lookup {
        account: name.to_owned(),
        error: error.to_string(),
    })?;
    match found {
        None => Err(AccountError::Missing(name.to_owned())),
        Some(owner) if owner.uid == 0 || owner.gid == 0 || owner.groups.contains(&0) => {
            Err(AccountError::Root(name.to_owned()))
        }
        Some(owner) => Ok(owner),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use serde_json::json;

    use super::*;

    /// Two accounts, and root under another name.
    pub(crate) struct Table;

    impl UserDatabase for Table {
        fn account(&self, name: &str) -> io::Result<Option<ProcessOwner>> {
            let owner = |uid, gid| ProcessOwner {
                name: name.to_owned(),
                uid,
                gid,
                groups: vec![gid, 500],
                home: format!("/home/{name}").into(),
                given: false,
            };
            match name {
                "alice" => Ok(Some(owner(1000, 100))),
                "svc-team-a" => Ok(Some(owner(1001, 101))),
                "toor" => Ok(Some(owner(0, 100))),
                "wheel" => Ok(Some(owner(7, 0))),
                "helper" => Ok(Some(ProcessOwner {
                    groups: vec![101, 0],
                    ..owner(8, 101)
                })),
                "broken" => Err(io::Error::other("the directory does not answer")),
                _ => Ok(None),
            }
        }

        fn has_id(&self, id: u32) -> bool {
            matches!(id, 1000 | 1001)
        }
    }

    #[test]
    fn a_user_takes_precedence_over_its_namespace_and_the_namespace_over_its_label() {
        let file = json!({"users": {"alice": "alice"}, "namespaces": {"team-a": "svc-team-a"},
            "labels": {"research": "svc-research"}});
        let accounts = Accounts::read(&file).unwrap();
        for (user, namespace, label, expected) in [
            (Some("alice"), "team-a", "", Some("alice")),
            (Some("alice"), "team-b", "research", Some("alice")),
            (Some("bob"), "team-a", "", Some("svc-team-a")),
            (None, "team-a", "research", Some("svc-team-a")),
            (Some("bob"), "team-b", "research", Some("svc-research")),
            (None, "team-b", "research", Some("svc-research")),
            (Some("bob"), "team-b", "", None),
            (None, "", "", None),
            // Another rule allows the account: the label's value is not used.
            (Some("alice"), "team-b", "other", Some("alice")),
            (None, "team-a", "other", Some("svc-team-a")),
        ] {
            let found = accounts.account(user, namespace, label);
            assert_eq!(found, Ok(expected), "{user:?} {namespace} {label}");
        }
        assert_eq!(Accounts::read(&json!({})), Ok(Accounts::default()));
    }

    #[test]
    fn a_label_gives_no_account_that_the_file_does_not_allow() {
        let file = json!({"labels": {"research": "svc-research"}});
        for accounts in [Accounts::read(&file).unwrap(), Accounts::default()] {
            // The name of an account is no rule for it, and neither is root's.
            for label in ["svc-research", "root", "alice"] {
                let why = accounts.account(Some("bob"), "team-b", label);
                let why = why.unwrap_err().to_string();
                assert!(
                    why.contains("\"team-b\"") && why.contains(&format!("{label:?}")),
                    "{why}"
                );
                assert!(why.contains("--accounts"), "{why}");
            }
        }
    }

    #[test]
    fn a_file_that_cannot_be_meant_is_refused_with_the_field() {
        for (file, words) in [
            (json!({"users": {"a": "root"}}), "users.a"),
            (json!({"namespaces": {"n": ""}}), "namespaces.n"),
            (json!({"labels": {"l": "root"}}), "labels.l"),
            (json!({"groups": {}}), "groups"),
            (json!({"users": ["a"]}), "users: {NAME: ACCOUNT}"),
            (json!([]), "namespaces: {NAME: ACCOUNT}"),
        ] {
            let why = Accounts::read(&file).unwrap_err().to_string();
            assert!(why.contains(words), "{why}");
        }
    }

    #[test]
    fn an_account_must_exist_and_must_not_be_root_under_any_name() {
        assert_eq!(usable(&Table, "alice").unwrap().uid, 1000);
        for (name, words) in [
            ("nobody-here", "does not exist"),
            ("toor", "root"),
            ("wheel", "root"),
            ("helper", "root"),
            ("broken", "does not answer"),
        ] {
            let why = usable(&Table, name).unwrap_err().to_string();
            assert!(why.contains(words) && why.contains(name), "{why}");
        }
    }
}
