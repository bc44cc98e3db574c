//! How a container is isolated: its user, its capabilities, and the files that it sees. Determined
//! by the Pod Security Standard that admission wrote on its pod and, within that, by the
//! container's security context. Pure.
//!
//! Under `baseline` and `restricted` the user is always the pod's owner on this node: a process
//! sees the node's own files, and so do the directories that are mounted into an image's container,
//! so another id would be another owner's files. Under `privileged` the security context may set
//! the user; the default is the owner, too. Only a container with `privileged: true` is not
//! isolated.

use std::collections::BTreeSet;
use std::path::PathBuf;

use k8s_openapi::api::core::v1::{Capabilities, Container, Pod, SeccompProfile};
use resources::names::POD_SECURITY_LEVEL;
use runtime::{Isolation, ProcessUser};

use crate::accounts::ProcessOwner;

/// Memory that a container without GPUs and RDMA cards may lock: systemd's default.
pub const LOCKED_MEMORY: u64 = 8 << 20;

/// The capabilities that an isolated process may keep: all others give access to files, processes
/// or devices of the node, because a process is in the node's own user namespace. Admission accepts
/// `IPC_LOCK` only if it is on an administrator's allow-list; locked memory counts as the
/// container's.
const HARMLESS: [&str; 2] = ["IPC_LOCK", "NET_BIND_SERVICE"];

/// The default capabilities of root in a container, as in container runtimes. Differs from the list
/// that the `baseline` standard lets a container add (`resources`'
/// `admission::pod_security::baseline`): runtimes grant `NET_RAW` by default, and the standard lets
/// no container add it.
const DEFAULT: [&str; 14] = [
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "MKNOD",
    "NET_BIND_SERVICE",
    "NET_RAW",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
];

/// How a container is isolated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Confinement {
    /// Its user.
    pub user: ProcessUser,
    /// Its isolation; `None` for a privileged container.
    pub isolation: Option<Isolation>,
}

/// The node's settings that matter for isolation.
#[derive(Clone, Debug, Default)]
pub struct NodeIsolation<'a> {
    /// The user of the pod; `None` if the agent can't run processes as another user.
    pub owner: Option<&'a ProcessOwner>,
    /// Directories of the node that are hidden from pods.
    pub hidden: &'a [PathBuf],
    /// Whether the host's own files are read-only for pods that run as an id assigned by the node.
    pub read_only_host: bool,
    /// Whether the container has devices for which it registers (locks) memory.
    pub registers_memory: bool,
}

/// A container's security context that requests more than its pod's standard allows.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("container {container:?}: securityContext: {refusal}")]
pub struct ConfinementError {
    /// The container.
    pub container: String,
    /// What is refused.
    pub refusal: Refusal,
}

/// A refused setting of a security context.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// A number that is no user or group id.
    #[error("{field}: {value} is out of range; write a number from 0 to 4294967295")]
    Range {
        /// The field.
        field: &'static str,
        /// The value as written.
        value: i64,
    },
    /// A setting that needs the privileged standard.
    #[error(
        "{field}: {value} is for namespaces of the privileged standard (label pod-security.kubernetes.io/enforce); leave it out"
    )]
    Privileged {
        /// The field.
        field: &'static str,
        /// The value as written.
        value: String,
    },
    /// A user or group other than the pod's own.
    #[error(
        "{field}: {id}: this pod runs as {owner} (user {uid}, groups {groups:?}) on this node; leave it out, or have an administrator map its user or namespace to a Unix account (--accounts)"
    )]
    Id {
        /// The field.
        field: &'static str,
        /// The value as written.
        id: u32,
        /// The name of the pod's user on this node.
        owner: String,
        /// That user's id.
        uid: u32,
        /// That user's groups.
        groups: Vec<u32>,
    },
    /// A capability that reaches beyond the pod.
    #[error(
        "capabilities.add: {0} reaches beyond the pod on this node; leave it out, only {allowed} may be added",
        allowed = HARMLESS.join(" and ")
    )]
    Capability(String),
    /// A container that must not run as root, without another user.
    #[error("runAsNonRoot is set, but no runAsUser other than 0")]
    Root,
}

/// Determines how a container is isolated.
///
/// # Errors
///
/// When its security context requests more than its pod's standard allows.
pub fn of(
    pod: &Pod,
    container: &Container,
    node: &NodeIsolation,
) -> Result<Confinement, ConfinementError> {
    let says = |refusal: Refusal| ConfinementError {
        container: container.name.clone(),
        refusal,
    };
    let asked = RequestedResources::of(pod, container).map_err(says)?;
    let privileged = level(pod) == Some("privileged");
    let Some(owner) = node.owner else {
        return asked.by_the_agents_user(node).map_err(says);
    };
    if privileged {
        asked.by_administrators(owner, node).map_err(says)
    } else {
        asked.held(owner, node).map_err(says)
    }
}

/// The group of a pod's volumes: its `fsGroup`, if permitted. With another group its containers are
/// refused ([`of`]), and no file of the node is changed before.
pub fn fs_group(pod: &Pod, owner: Option<&ProcessOwner>) -> Option<u32> {
    let context = pod.spec.as_ref()?.security_context.as_ref()?;
    let group = u32::try_from(context.fs_group?).ok()?;
    let own = owner.is_none_or(|owner| group == owner.gid || owner.groups.contains(&group));
    (own || level(pod) == Some("privileged")).then_some(group)
}

/// The standard under which a pod was admitted.
fn level(pod: &Pod) -> Option<&str> {
    let annotations = pod.metadata.annotations.as_ref()?;
    annotations.get(POD_SECURITY_LEVEL).map(String::as_str)
}

/// The requests of a pod and its container.
struct RequestedResources<'a> {
    uid: Option<u32>,
    gid: Option<u32>,
    groups: Vec<u32>,
    not_root: bool,
    privileged: bool,
    host_processes: bool,
    capabilities: Option<&'a Capabilities>,
    seccomp: &'a str,
}

impl<'a> RequestedResources<'a> {
    fn of(pod: &'a Pod, container: &'a Container) -> Result<RequestedResources<'a>, Refusal> {
        let spec = pod.spec.as_ref();
        let of_pod = spec.and_then(|spec| spec.security_context.as_ref());
        let own = container.security_context.as_ref();
        let id = |value: i64, field: &'static str| {
            u32::try_from(value).map_err(|_| Refusal::Range { field, value })
        };
        let number = |value: Option<i64>, field: &'static str| {
            value.map(|value| id(value, field)).transpose()
        };
        let groups = of_pod.into_iter().flat_map(|context| {
            let supplemental = context.supplemental_groups.iter().flatten().copied();
            context.fs_group.into_iter().chain(supplemental)
        });
        let profile = |profile: &'a SeccompProfile| profile.type_.as_str();
        Ok(RequestedResources {
            uid: number(
                own.and_then(|c| c.run_as_user)
                    .or(of_pod.and_then(|c| c.run_as_user)),
                "runAsUser",
            )?,
            gid: number(
                own.and_then(|c| c.run_as_group)
                    .or(of_pod.and_then(|c| c.run_as_group)),
                "runAsGroup",
            )?,
            groups: groups
                .map(|group| id(group, "fsGroup or supplementalGroups"))
                .collect::<Result<_, _>>()?,
            not_root: own
                .and_then(|c| c.run_as_non_root)
                .or(of_pod.and_then(|c| c.run_as_non_root))
                == Some(true),
            privileged: own.and_then(|c| c.privileged) == Some(true),
            host_processes: spec.and_then(|spec| spec.host_pid) == Some(true),
            capabilities: own.and_then(|c| c.capabilities.as_ref()),
            seccomp: own
                .and_then(|c| c.seccomp_profile.as_ref())
                .or(of_pod.and_then(|c| c.seccomp_profile.as_ref()))
                .map_or("RuntimeDefault", profile),
        })
    }

    /// For an agent that is not root: everything runs as its own user.
    fn by_the_agents_user(self, node: &NodeIsolation) -> Result<Confinement, Refusal> {
        self.check_root(self.uid)?;
        let isolation = self.isolation(node, Vec::new());
        Ok(Confinement {
            isolation: (!self.privileged).then_some(isolation),
            user: ProcessUser {
                uid: self.uid,
                gid: self.gid,
                groups: self.groups,
            },
        })
    }

    /// For a namespace in which an administrator allows everything.
    fn by_administrators(
        self,
        owner: &ProcessOwner,
        node: &NodeIsolation,
    ) -> Result<Confinement, Refusal> {
        if self.privileged {
            self.check_root(self.uid)?;
            let user = ProcessUser {
                uid: self.uid,
                gid: self.gid,
                groups: self.groups,
            };
            return Ok(Confinement {
                user,
                isolation: None,
            });
        }
        let uid = self.uid.unwrap_or(owner.uid);
        self.check_root(Some(uid))?;
        let own_group = || self.uid.is_none().then_some(owner.gid);
        let gid = self.gid.or_else(own_group);
        let start: &[&str] = if uid == 0 { &DEFAULT } else { &[] };
        let isolation = self.isolation(node, self.kept(start));
        Ok(Confinement {
            isolation: Some(isolation),
            user: ProcessUser {
                uid: Some(uid),
                gid,
                groups: self.groups,
            },
        })
    }

    /// For all other pods.
    fn held(self, owner: &ProcessOwner, node: &NodeIsolation) -> Result<Confinement, Refusal> {
        let refused = |field: &'static str, value: &str| {
            Err(Refusal::Privileged {
                field,
                value: value.to_owned(),
            })
        };
        if self.privileged {
            return refused("privileged", "true");
        }
        if self.host_processes {
            return refused("hostPID", "true");
        }
        if self.seccomp != "RuntimeDefault" {
            return refused("seccompProfile.type", self.seccomp);
        }
        let mine = |id: u32| id == owner.gid || owner.groups.contains(&id);
        let another = |field: &'static str, id: u32| Refusal::Id {
            field,
            id,
            owner: owner.name.clone(),
            uid: owner.uid,
            groups: owner.groups.clone(),
        };
        if let Some(uid) = self.uid.filter(|uid| *uid != owner.uid) {
            return Err(another("runAsUser", uid));
        }
        if let Some(gid) = self.gid.filter(|gid| !mine(*gid)) {
            return Err(another("runAsGroup", gid));
        }
        if let Some(group) = self.groups.iter().find(|group| !mine(**group)) {
            return Err(another("fsGroup or supplementalGroups", *group));
        }
        let kept = self.kept(&[]);
        if let Some(other) = kept.iter().find(|name| !HARMLESS.contains(&name.as_str())) {
            return Err(Refusal::Capability(other.clone()));
        }
        let mut isolation = self.isolation(node, kept);
        isolation.read_only_host = owner.given && node.read_only_host;
        Ok(Confinement {
            isolation: Some(isolation),
            user: ProcessUser {
                uid: Some(owner.uid),
                gid: Some(self.gid.unwrap_or(owner.gid)),
                groups: self.groups,
            },
        })
    }

    fn check_root(&self, uid: Option<u32>) -> Result<(), Refusal> {
        if self.not_root && uid.is_none_or(|uid| uid == 0) {
            return Err(Refusal::Root);
        }
        Ok(())
    }

    /// The capabilities that remain of these, with the added ones.
    fn kept(&self, start: &[&str]) -> Vec<String> {
        let plain = |name: &String| {
            let upper = name.to_ascii_uppercase();
            upper.strip_prefix("CAP_").unwrap_or(&upper).to_owned()
        };
        let lists = self.capabilities;
        let list = |of: Option<&'a Vec<String>>| -> BTreeSet<String> {
            of.into_iter().flatten().map(plain).collect()
        };
        let dropped = list(lists.and_then(|lists| lists.drop.as_ref()));
        let added = list(lists.and_then(|lists| lists.add.as_ref()));
        let mut kept: BTreeSet<String> = start
            .iter()
            .filter(|name| !dropped.contains(**name) && !dropped.contains("ALL"))
            .map(|name| (*name).to_owned())
            .collect();
        kept.extend(added);
        kept.into_iter().collect()
    }

    fn isolation(&self, node: &NodeIsolation, capabilities: Vec<String>) -> Isolation {
        let locks = node.registers_memory
            || capabilities
                .iter()
                .any(|name| name == "IPC_LOCK" || name == "ALL");
        Isolation {
            own_processes: !self.host_processes,
            capabilities,
            seccomp: self.seccomp != "Unconfined",
            hidden: node.hidden.to_vec(),
            read_only_host: false,
            locked_memory: (!locks).then_some(LOCKED_MEMORY),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn settle(
        level: Option<&str>,
        pod: Value,
        container: Value,
    ) -> Result<Confinement, ConfinementError> {
        let owner = ProcessOwner {
            groups: vec![100, 500],
            gid: 100,
            given: false,
            ..ProcessOwner::of_id(1000)
        };
        let hidden = [PathBuf::from("/var/lib/muster")];
        settle_on(Some(&owner), &hidden, level, pod, container)
    }

    fn settle_on(
        owner: Option<&ProcessOwner>,
        hidden: &[PathBuf],
        level: Option<&str>,
        pod: Value,
        container: Value,
    ) -> Result<Confinement, ConfinementError> {
        let mut spec = pod;
        spec["containers"] = json!([{"name": "main", "securityContext": container}]);
        let annotations = level.map(|level| json!({ POD_SECURITY_LEVEL: level }));
        let pod: Pod = serde_json::from_value(
            json!({"metadata": {"name": "p", "annotations": annotations}, "spec": spec}),
        )
        .unwrap();
        let node = NodeIsolation {
            owner,
            hidden,
            read_only_host: true,
            registers_memory: false,
        };
        of(&pod, &pod.spec.as_ref().unwrap().containers[0], &node)
    }

    #[test]
    fn everything_unprivileged_runs_as_the_pods_owner_without_roots_rights() {
        for level in [
            None,
            Some("baseline"),
            Some("restricted"),
            Some("unheard-of"),
        ] {
            let found = settle(level, json!({}), json!({"runAsNonRoot": true})).unwrap();
            let isolation = found.isolation.unwrap();
            assert_eq!((found.user.uid, found.user.gid), (Some(1000), Some(100)));
            assert!(isolation.own_processes && isolation.seccomp);
            assert!(isolation.capabilities.is_empty());
            assert_eq!(isolation.locked_memory, Some(LOCKED_MEMORY));
            assert_eq!(isolation.hidden, [PathBuf::from("/var/lib/muster")]);
        }
    }

    #[test]
    fn the_hosts_files_are_read_only_for_an_id_that_the_node_gave_out_and_for_no_account() {
        let account = ProcessOwner {
            given: false,
            ..ProcessOwner::of_id(1000)
        };
        for (owner, level, read_only) in [
            (ProcessOwner::of_id(2_000_000_000), "baseline", true),
            (ProcessOwner::of_id(2_000_000_000), "restricted", true),
            // In such a namespace an administrator allows writes to host files.
            (ProcessOwner::of_id(2_000_000_000), "privileged", false),
            (account, "baseline", false),
        ] {
            let found = settle_on(Some(&owner), &[], Some(level), json!({}), json!({}));
            let isolation = found.unwrap().isolation.unwrap();
            assert_eq!(isolation.read_only_host, read_only, "{owner:?} {level}");
        }
    }

    #[test]
    fn a_field_that_the_standard_does_not_permit_is_refused_by_name() {
        let none = || json!({});
        for (pod, container, words) in [
            (none(), json!({"runAsUser": 0}), "runAsUser: 0"),
            (none(), json!({"runAsUser": 1001}), "runAsUser: 1001"),
            (none(), json!({"runAsUser": -1}), "out of range"),
            (
                none(),
                json!({"runAsUser": 4_294_967_296_i64}),
                "out of range",
            ),
            (none(), json!({"runAsGroup": 0}), "runAsGroup: 0"),
            (
                json!({"securityContext": {"fsGroup": 0}}),
                none(),
                "fsGroup",
            ),
            (
                json!({"securityContext": {"supplementalGroups": [500, 6]}}),
                none(),
                "supplementalGroups: 6",
            ),
            (json!({"hostPID": true}), none(), "hostPID"),
            (none(), json!({"privileged": true}), "privileged"),
            (
                none(),
                json!({"seccompProfile": {"type": "Unconfined"}}),
                "seccompProfile",
            ),
            (
                none(),
                json!({"capabilities": {"add": ["SYS_ADMIN"]}}),
                "SYS_ADMIN",
            ),
            (
                none(),
                json!({"capabilities": {"add": ["cap_dac_override"]}}),
                "DAC_OVERRIDE",
            ),
            (none(), json!({"capabilities": {"add": ["ALL"]}}), "ALL"),
        ] {
            let why = settle(Some("baseline"), pod, container)
                .unwrap_err()
                .to_string();
            assert!(why.contains(words) && why.contains("main"), "{why}");
        }
    }

    #[test]
    fn volumes_are_given_to_no_group_that_the_pod_may_not_have() {
        let owner = ProcessOwner {
            groups: vec![100, 500],
            gid: 100,
            ..ProcessOwner::of_id(1000)
        };
        for (level, group, given) in [
            ("baseline", 100, Some(100)),
            ("baseline", 500, Some(500)),
            ("baseline", 6, None),
            ("baseline", 0, None),
            ("baseline", -1, None),
            ("privileged", 6, Some(6)),
        ] {
            let pod: Pod = serde_json::from_value(json!({
                "metadata": {"name": "p", "annotations": { POD_SECURITY_LEVEL: level }},
                "spec": {"containers": [], "securityContext": {"fsGroup": group}}}))
            .unwrap();
            assert_eq!(fs_group(&pod, Some(&owner)), given, "{level} {group}");
            let unheld = u32::try_from(group).ok();
            assert_eq!(fs_group(&pod, None), unheld, "{level} {group}");
        }
    }

    #[test]
    fn settings_equal_to_the_nodes_are_accepted() {
        let pod = json!({"securityContext": {"fsGroup": 500, "supplementalGroups": [100]}});
        let container = json!({"runAsUser": 1000, "runAsGroup": 500,
            "seccompProfile": {"type": "RuntimeDefault"},
            "capabilities": {"drop": ["ALL"], "add": ["NET_BIND_SERVICE", "IPC_LOCK"]}});
        let found = settle(Some("restricted"), pod, container).unwrap();
        assert_eq!(found.user.gid, Some(500));
        let isolation = found.isolation.unwrap();
        assert_eq!(isolation.capabilities, HARMLESS);
        assert_eq!(isolation.locked_memory, None);
    }

    #[test]
    fn a_privileged_namespace_sets_its_user_and_the_default_is_the_owner() {
        let level = Some("privileged");
        let quiet = settle(level, json!({}), json!({})).unwrap();
        assert_eq!(quiet.user.uid, Some(1000));
        assert!(quiet.isolation.unwrap().own_processes);
        let root = settle(
            level,
            json!({"hostPID": true}),
            json!({"runAsUser": 0,
            "seccompProfile": {"type": "Unconfined"},
            "capabilities": {"drop": ["MKNOD"], "add": ["SYS_PTRACE"]}}),
        );
        let root = root.unwrap();
        let isolation = root.isolation.unwrap();
        assert_eq!(root.user.uid, Some(0));
        assert!(!isolation.own_processes && !isolation.seccomp);
        assert_eq!(isolation.capabilities.len(), DEFAULT.len());
        assert!(isolation.capabilities.contains(&"SYS_PTRACE".to_owned()));
        assert!(!isolation.capabilities.contains(&"MKNOD".to_owned()));
        let all = settle(level, json!({}), json!({"privileged": true})).unwrap();
        assert_eq!((all.isolation, all.user), (None, ProcessUser::default()));
        let not = json!({"runAsUser": 0, "runAsNonRoot": true});
        let why = settle(level, json!({}), not).unwrap_err().to_string();
        assert!(why.contains("runAsNonRoot"), "{why}");
    }

    #[test]
    fn an_agent_that_is_not_root_leaves_its_own_user_and_filters_calls() {
        let settle = |container| settle_on(None, &[], None, json!({}), container);
        let found = settle(json!({})).unwrap();
        assert_eq!(found.user, ProcessUser::default());
        assert!(found.isolation.unwrap().seccomp);
        assert!(settle(json!({"runAsNonRoot": true})).is_err());
        let privileged = settle(json!({"privileged": true})).unwrap();
        assert_eq!(privileged.isolation, None);
    }
}
