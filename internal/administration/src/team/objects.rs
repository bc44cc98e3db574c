//! The objects that make a team: a queue with the team's name, and in each of its namespaces a quota and the bindings
//! of its members. Pure: members and amounts in, manifests out.

use std::collections::{BTreeMap, BTreeSet};

use resources::names::{QUEUE_NAME, SYSTEM_NAMESPACES, TEAM};
use serde_json::{Value, json};

/// The name of a team's ResourceQuota in each of its namespaces.
pub const QUOTA: &str = "muster-team";

/// The most namespaces of a team.
pub const NAMESPACES_MAX: usize = 20;

/// The most members of a team.
pub const MEMBERS_MAX: usize = 500;

/// The name of the NetworkPolicy in each namespace of a team whose network is isolated.
pub const ISOLATION: &str = "muster-team";

const RBAC: &str = "rbac.authorization.k8s.io";

/// A role in a team.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TeamRole {
    /// May do everything in the team's namespaces but change the team's quota.
    Lead,
    /// Runs work.
    Member,
    /// Reads.
    Viewer,
}

impl TeamRole {
    /// All roles.
    pub const ALL: [TeamRole; 3] = [TeamRole::Lead, TeamRole::Member, TeamRole::Viewer];

    /// The role's name.
    pub fn as_str(self) -> &'static str {
        match self {
            TeamRole::Lead => "lead",
            TeamRole::Member => "member",
            TeamRole::Viewer => "viewer",
        }
    }
}

/// Amounts by resource, as they were written.
pub type Amounts = BTreeMap<String, String>;

/// The members of a team by name.
pub type Members = BTreeMap<String, TeamRole>;

/// What a team's queue is to be.
#[derive(Clone, Debug, Default)]
pub struct TeamQueue {
    /// The queue that it is part of.
    pub parent: Option<String>,
    /// Its weight among its siblings.
    pub weight: Option<u32>,
    /// The resources that are reserved for it.
    pub guarantee: Amounts,
    /// The most that it may hold.
    pub limits: Amounts,
}

/// A team that is to be made.
#[derive(Clone, Debug, Default)]
pub struct NewTeam {
    /// The name of the team and of its queue.
    pub name: String,
    /// Its namespaces; one with the team's name if none are given.
    pub namespaces: Vec<String>,
    /// Its queue.
    pub queue: TeamQueue,
    /// The quota in each of its namespaces; none if empty.
    pub quota: Amounts,
    /// Its members.
    pub members: Members,
    /// Whether its pods are reached from its own namespaces only.
    pub isolate_network: bool,
}

impl NewTeam {
    /// The team's namespaces.
    pub fn own_namespaces(&self) -> Vec<String> {
        match self.namespaces.as_slice() {
            [] => vec![self.name.clone()],
            given => given.to_vec(),
        }
    }

    /// The objects that make the team, in the order in which they are to be created.
    pub fn manifests(&self) -> Vec<Value> {
        let team = self.name.as_str();
        let namespaces = self.own_namespaces();
        let mut all = vec![queue(team, &self.queue)];
        all.extend(namespaces.iter().map(|name| namespace(team, name)));
        if !self.quota.is_empty() {
            all.extend(namespaces.iter().map(|name| quota(team, name, &self.quota)));
        }
        if self.isolate_network {
            all.extend(namespaces.iter().map(|name| isolation(team, name)));
        }
        let bindings = namespaces
            .iter()
            .flat_map(|name| bindings(team, name, &self.members));
        all.extend(bindings);
        all
    }
}

/// Why a team cannot be made.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum TeamError {
    /// The name is taken by a queue that every server has.
    #[error("team name {0:?}: this is the name of a queue of all teams; choose another name")]
    Reserved(String),
    /// A namespace of the system.
    #[error("namespace {0:?} belongs to the system; choose another one")]
    SystemNamespace(String),
    /// Too many namespaces.
    #[error("{0} namespaces are too many: a team has at most {NAMESPACES_MAX}")]
    TooManyNamespaces(usize),
    /// Too many members.
    #[error("the team would have {0} members; a team has at most {MEMBERS_MAX}")]
    TooManyMembers(usize),
}

/// Refuses a team that no server should have.
pub fn check(team: &str, namespaces: &[String], members: &Members) -> Result<(), TeamError> {
    if ["default", "root"].contains(&team) {
        return Err(TeamError::Reserved(team.to_owned()));
    }
    let system = |name: &&String| SYSTEM_NAMESPACES.contains(&name.as_str());
    if let Some(name) = namespaces.iter().find(system) {
        return Err(TeamError::SystemNamespace(name.clone()));
    }
    if namespaces.len() > NAMESPACES_MAX {
        return Err(TeamError::TooManyNamespaces(namespaces.len()));
    }
    if members.len() > MEMBERS_MAX {
        return Err(TeamError::TooManyMembers(members.len()));
    }
    Ok(())
}

/// The team that an object's label names.
pub fn team_of(object: &Value) -> Option<&str> {
    object["metadata"]["labels"][TEAM].as_str()
}

/// A namespace of the team. Work in it that names no queue waits in the team's queue.
pub fn namespace(team: &str, name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Namespace",
        "metadata": {"name": name, "labels": {TEAM: team, QUEUE_NAME: team}},
    })
}

/// The team's queue, which only its namespaces may use.
pub fn queue(team: &str, asked: &TeamQueue) -> Value {
    let mut spec = json!({"namespaceSelector": {"matchLabels": {TEAM: team}}});
    if let Some(parent) = &asked.parent {
        spec["parent"] = json!(parent);
    }
    if let Some(weight) = asked.weight {
        spec["weight"] = json!(weight);
    }
    if !asked.guarantee.is_empty() {
        spec["guarantee"] = json!({"resource": asked.guarantee});
    }
    if !asked.limits.is_empty() {
        spec["capability"] = json!(asked.limits);
    }
    json!({
        "apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "Queue",
        "metadata": {"name": team, "labels": {TEAM: team}},
        "spec": spec,
    })
}

/// The team's quota in one namespace. A quota counts requests of devices under `requests.NAME`, and objects under
/// `count/RESOURCE.GROUP`.
pub fn quota(team: &str, namespace: &str, amounts: &Amounts) -> Value {
    let counted = |name: &String| {
        let as_it_is = ["requests.", "limits.", "count/"];
        let is_device = name.contains('/') && !as_it_is.iter().any(|start| name.starts_with(start));
        if is_device {
            format!("requests.{name}")
        } else {
            name.clone()
        }
    };
    let hard: Amounts = amounts
        .iter()
        .map(|(name, amount)| (counted(name), amount.clone()))
        .collect();
    json!({
        "apiVersion": "v1", "kind": "ResourceQuota",
        "metadata": {"name": QUOTA, "namespace": namespace, "labels": {TEAM: team}},
        "spec": {"hard": hard},
    })
}

/// The policy by which the pods of one namespace are reached from the team's namespaces only. Nodes reach their pods
/// whatever the policies, and with them the server's proxies, exec and probes.
pub fn isolation(team: &str, namespace: &str) -> Value {
    json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"name": ISOLATION, "namespace": namespace, "labels": {TEAM: team}},
        "spec": {
            "podSelector": {},
            "policyTypes": ["Ingress"],
            "ingress": [{"from": [{"namespaceSelector": {"matchLabels": {TEAM: team}}}]}],
        },
    })
}

/// The name of the binding of a role.
pub fn binding_name(role: TeamRole) -> String {
    format!("muster-team-{}", role.as_str())
}

/// The ClusterRole of a role. Both engines have these, and they include the rights to Muster's kinds.
fn cluster_role(role: TeamRole) -> &'static str {
    match role {
        TeamRole::Lead => "admin",
        TeamRole::Member => "edit",
        TeamRole::Viewer => "view",
    }
}

/// The bindings of the members in one namespace, one for each role.
pub fn bindings(team: &str, namespace: &str, members: &Members) -> Vec<Value> {
    let one = |role: TeamRole| {
        let of_role = members.iter().filter(|(_, held)| **held == role);
        let subjects: Vec<Value> = of_role
            .map(|(user, _)| json!({"kind": "User", "apiGroup": RBAC, "name": user}))
            .collect();
        json!({
            "apiVersion": format!("{RBAC}/v1"), "kind": "RoleBinding",
            "metadata": {
                "name": binding_name(role), "namespace": namespace, "labels": {TEAM: team},
            },
            "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": cluster_role(role)},
            "subjects": subjects,
        })
    };
    TeamRole::ALL.map(one).into()
}

/// The members that these bindings name.
pub fn members_of<'a>(bindings: impl IntoIterator<Item = &'a Value>) -> Members {
    let mut members = Members::new();
    for binding in bindings {
        let name = binding["metadata"]["name"].as_str().unwrap_or_default();
        let role = TeamRole::ALL
            .into_iter()
            .find(|role| binding_name(*role) == name);
        let Some(role) = role else { continue };
        for subject in binding["subjects"].as_array().into_iter().flatten() {
            if let (Some("User"), Some(user)) = (subject["kind"].as_str(), subject["name"].as_str())
            {
                members.insert(user.to_owned(), role);
            }
        }
    }
    members
}

/// The most pods that a refusal names.
const PODS_NAMED_MAX: usize = 8;

/// Why a team with these running pods (`namespace/name`) is not deleted.
pub fn running_refusal(team: &str, pods: &BTreeSet<String>) -> String {
    let mut named: Vec<&str> = pods
        .iter()
        .take(PODS_NAMED_MAX)
        .map(String::as_str)
        .collect();
    let more = format!("and {} more", pods.len().saturating_sub(PODS_NAMED_MAX));
    if pods.len() > PODS_NAMED_MAX {
        named.push(&more);
    }
    format!(
        "team {team:?} has {} pods that wait or run: {}\n  end its work first, or let `muster team delete {team} --drain` end it",
        pods.len(),
        named.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn amounts(text: &str) -> Amounts {
        let pairs = text.split(',').filter_map(|pair| pair.split_once('='));
        pairs
            .map(|(name, amount)| (name.to_owned(), amount.to_owned()))
            .collect()
    }

    #[test]
    fn a_teams_objects_bear_its_label_and_its_amounts() {
        let asked = TeamQueue {
            parent: Some("research".into()),
            weight: Some(3),
            guarantee: amounts("nvidia.com/gpu=2"),
            limits: amounts("nvidia.com/gpu=8"),
        };
        let queue = queue("vision", &asked);
        assert_eq!(queue["spec"]["parent"], "research");
        assert_eq!(queue["spec"]["capability"]["nvidia.com/gpu"], "8");
        assert_eq!(
            queue["spec"]["guarantee"]["resource"]["nvidia.com/gpu"],
            "2"
        );
        assert_eq!(
            queue["spec"]["namespaceSelector"]["matchLabels"][TEAM],
            "vision"
        );
        let quota = quota(
            "vision",
            "v1",
            &amounts("nvidia.com/gpu=4,cpu=16,requests.x/y=1"),
        );
        let hard = json!({"requests.nvidia.com/gpu": "4", "cpu": "16", "requests.x/y": "1"});
        assert_eq!(quota["spec"]["hard"], hard);
        let namespace = namespace("vision", "v1");
        assert_eq!(namespace["metadata"]["labels"][QUEUE_NAME], "vision");
        for object in [&queue, &quota, &namespace] {
            assert_eq!(team_of(object), Some("vision"));
        }
    }

    #[test]
    fn members_survive_their_bindings_and_others_are_not_members() {
        let members: Members = [
            ("ann".to_owned(), TeamRole::Lead),
            ("bob".to_owned(), TeamRole::Member),
            ("eve".to_owned(), TeamRole::Viewer),
        ]
        .into();
        let mut bindings = bindings("vision", "v1", &members);
        assert_eq!(bindings.len(), 3);
        assert_eq!(bindings[0]["roleRef"]["name"], "admin");
        assert_eq!(members_of(&bindings), members);
        bindings.push(
            json!({"metadata": {"name": "others"}, "subjects": [{"kind": "User", "name": "x"}]}),
        );
        bindings[1]["subjects"][0]["kind"] = json!("Group");
        let rest = members_of(&bindings);
        assert!(!rest.contains_key("x") && !rest.contains_key("bob") && rest.len() == 2);
    }

    #[test]
    fn a_new_team_is_made_queue_first_and_bindings_last() {
        let team = NewTeam {
            name: "vision".into(),
            quota: amounts("pods=3"),
            members: [("ann".to_owned(), TeamRole::Lead)].into(),
            ..NewTeam::default()
        };
        let kinds: Vec<String> = team
            .manifests()
            .iter()
            .map(|object| object["kind"].as_str().unwrap().to_owned())
            .collect();
        let want = ["Queue", "Namespace", "ResourceQuota"];
        assert_eq!(kinds[..3], want);
        assert_eq!(kinds[3..], ["RoleBinding"; 3]);
        assert_eq!(team.manifests()[1]["metadata"]["name"], "vision");
        let several = NewTeam {
            namespaces: vec!["a".into(), "b".into()],
            quota: Amounts::new(),
            ..team
        };
        assert_eq!(several.manifests().len(), 1 + 2 + 6);
        let isolated = NewTeam {
            isolate_network: true,
            ..several
        };
        let manifests = isolated.manifests();
        assert_eq!(manifests.len(), 1 + 2 + 2 + 6);
        let from = &manifests[3]["spec"]["ingress"][0]["from"][0];
        assert_eq!(from["namespaceSelector"]["matchLabels"][TEAM], "vision");
    }

    #[test]
    fn names_of_the_system_and_too_many_are_refused() {
        let none = Members::new();
        let names = |count: usize| (0..count).map(|n| format!("n{n}")).collect::<Vec<_>>();
        assert!(check("vision", &names(NAMESPACES_MAX), &none).is_ok());
        assert!(check("vision", &names(NAMESPACES_MAX + 1), &none).is_err());
        assert!(check("default", &names(1), &none).is_err());
        assert!(check("vision", &["kube-system".to_owned()], &none).is_err());
        let many = |count: usize| {
            names(count)
                .into_iter()
                .map(|n| (n, TeamRole::Member))
                .collect()
        };
        assert!(check("vision", &names(1), &many(MEMBERS_MAX)).is_ok());
        assert!(check("vision", &names(1), &many(MEMBERS_MAX + 1)).is_err());
    }

    #[test]
    fn a_refusal_names_a_bounded_number_of_pods() {
        let pods = |count: usize| (0..count).map(|n| format!("v1/p{n:02}")).collect();
        let few = running_refusal("vision", &pods(PODS_NAMED_MAX));
        assert!(few.contains("8 pods") && few.contains("v1/p07") && !few.contains("more"));
        let many = running_refusal("vision", &pods(PODS_NAMED_MAX + 3));
        assert!(many.contains("11 pods") && many.contains("and 3 more") && !many.contains("p08"));
    }
}
