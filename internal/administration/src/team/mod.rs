//! Teams: namespaces, queue, quota and members, made of ordinary objects with the label `muster.io/team`. Each step asks
//! the API; nothing repairs the objects between two steps.

mod objects;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use kube::api::{ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams};
use kube::core::GroupVersionKind;
use kube::{Api, Client};
use resources::names::{QUEUE_NAME, TEAM};
use resources::training;
use serde_json::{Value, json};

pub use objects::{
    Amounts, MEMBERS_MAX, Members, NAMESPACES_MAX, NewTeam, TeamError, TeamQueue, TeamRole,
    members_of, team_of,
};

/// The field manager of a team's objects.
const FIELD_MANAGER: &str = "muster-team";

/// How long a drained team's pods may take to end.
const DRAIN: Duration = Duration::from_secs(300);

/// How often a drain looks whether they have.
const LOOK: Duration = Duration::from_secs(1);

/// A kind: group, version, kind, plural, and whether it has namespaces.
#[derive(Clone, Copy)]
struct ObjectKind(&'static str, &'static str, &'static str, &'static str, bool);

const RBAC: &str = "rbac.authorization.k8s.io";
const QUEUES: ObjectKind = ObjectKind("scheduling.volcano.sh", "v1beta1", "Queue", "queues", false);
const NAMESPACES: ObjectKind = ObjectKind("", "v1", "Namespace", "namespaces", false);
const QUOTAS: ObjectKind = ObjectKind("", "v1", "ResourceQuota", "resourcequotas", true);
const BINDINGS: ObjectKind = ObjectKind(RBAC, "v1", "RoleBinding", "rolebindings", true);
const POLICIES: ObjectKind = ObjectKind(
    "networking.k8s.io",
    "v1",
    "NetworkPolicy",
    "networkpolicies",
    true,
);
const PODS: ObjectKind = ObjectKind("", "v1", "Pod", "pods", true);

/// The kinds beside training jobs that a drain deletes, owners first.
const DRAINED: [ObjectKind; 15] = [
    ObjectKind(
        "autoscaling",
        "v2",
        "HorizontalPodAutoscaler",
        "horizontalpodautoscalers",
        true,
    ),
    ObjectKind(
        "trainer.kubeflow.org",
        "v1alpha1",
        "TrainJob",
        "trainjobs",
        true,
    ),
    ObjectKind("jobset.x-k8s.io", "v1alpha2", "JobSet", "jobsets", true),
    ObjectKind(
        "leaderworkerset.x-k8s.io",
        "v1",
        "LeaderWorkerSet",
        "leaderworkersets",
        true,
    ),
    ObjectKind("ray.io", "v1", "RayJob", "rayjobs", true),
    ObjectKind("batch", "v1", "CronJob", "cronjobs", true),
    ObjectKind("apps", "v1", "Deployment", "deployments", true),
    ObjectKind("apps", "v1", "StatefulSet", "statefulsets", true),
    ObjectKind("apps", "v1", "DaemonSet", "daemonsets", true),
    ObjectKind("apps", "v1", "ReplicaSet", "replicasets", true),
    ObjectKind("ray.io", "v1", "RayService", "rayservices", true),
    ObjectKind("ray.io", "v1", "RayCluster", "rayclusters", true),
    ObjectKind("batch.volcano.sh", "v1alpha1", "Job", "jobs", true),
    ObjectKind("batch", "v1", "Job", "jobs", true),
    PODS,
];

/// Why a step on a team failed.
#[derive(Debug, thiserror::Error)]
pub enum TeamProblem {
    /// The team is not one that a server should have.
    #[error(transparent)]
    Invalid(#[from] TeamError),
    /// The team does not exist.
    #[error("there is no team {0:?}")]
    Missing(String),
    /// An object of the name belongs to another team.
    #[error("{kind} {name:?} belongs to team {owner:?}; choose another name")]
    Taken {
        /// The object's kind.
        kind: &'static str,
        /// The object's name.
        name: String,
        /// The team that it belongs to.
        owner: String,
    },
    /// An object of the name exists without a team.
    #[error(
        "{kind} {name:?} exists already and belongs to no team; choose another name for the team"
    )]
    Exists {
        /// The object's kind.
        kind: &'static str,
        /// The object's name.
        name: String,
    },
    /// The user is no member.
    #[error("user {user:?} is no member of team {team:?}")]
    NoMember {
        /// The user.
        user: String,
        /// The team.
        team: String,
    },
    /// The team's work runs.
    #[error("{0}")]
    Running(String),
    /// A drain took too long.
    #[error(
        "these pods did not end within {} s: {pods}; look at them with `muster describe`, and repeat the command",
        DRAIN.as_secs()
    )]
    Slow {
        /// Some of the pods.
        pods: String,
    },
    /// The API refused an object.
    #[error("{object}")]
    Object {
        /// Kind and name.
        object: String,
        /// The refusal.
        #[source]
        source: kube::Error,
    },
    /// The API refused to list or read.
    #[error("the API refused a request")]
    Request(#[from] kube::Error),
}

type Outcome<T> = Result<T, TeamProblem>;

/// A quota of a team in one of its namespaces: the namespace, and by resource what is used and the most.
pub type QuotaUse = (String, Vec<(String, String, String)>);

/// The teams, as the client's owner may see and change them.
pub struct Teams {
    client: Client,
}

fn name_of(object: &Value) -> String {
    let name = object["metadata"]["name"].as_str();
    name.unwrap_or_default().to_owned()
}

impl Teams {
    /// By a client.
    pub fn new(client: Client) -> Teams {
        Teams { client }
    }

    fn api(&self, kind: ObjectKind, namespace: &str) -> Api<DynamicObject> {
        let ObjectKind(group, version, kind, plural, namespaced) = kind;
        let gvk = GroupVersionKind::gvk(group, version, kind);
        let resource = ApiResource::from_gvk_with_plural(&gvk, plural);
        match namespaced {
            true => Api::namespaced_with(self.client.clone(), namespace, &resource),
            false => Api::all_with(self.client.clone(), &resource),
        }
    }

    /// Objects of a kind with a team's label (any team's if none is given), in one namespace or without one.
    async fn labelled(
        &self,
        kind: ObjectKind,
        namespace: &str,
        team: Option<&str>,
    ) -> Outcome<Vec<Value>> {
        let selector = match team {
            Some(team) => format!("{TEAM}={team}"),
            None => TEAM.to_owned(),
        };
        let parameters = ListParams::default().labels(&selector);
        let found = self.api(kind, namespace).list(&parameters).await?;
        let objects = found.items.iter().map(serde_json::to_value);
        // Objects that were read as JSON are written as JSON.
        Ok(objects.filter_map(Result::ok).collect())
    }

    async fn apply(&self, object: &Value) -> Outcome<()> {
        let kinds = [QUEUES, NAMESPACES, QUOTAS, BINDINGS, POLICIES];
        let mut kinds = kinds.into_iter().filter(|kind| object["kind"] == kind.2);
        let Some(kind) = kinds.next() else {
            return Ok(());
        };
        let namespace = object["metadata"]["namespace"].as_str().unwrap_or_default();
        let name = name_of(object);
        let parameters = PatchParams::apply(FIELD_MANAGER).force();
        let applied = self
            .api(kind, namespace)
            .patch(&name, &parameters, &Patch::Apply(object))
            .await;
        applied.map(drop).map_err(|source| TeamProblem::Object {
            object: format!("{}/{name}", kind.2.to_lowercase()),
            source,
        })
    }

    /// All teams with their namespaces.
    pub async fn list(&self) -> Outcome<BTreeMap<String, Vec<String>>> {
        let mut teams: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for namespace in self.labelled(NAMESPACES, "", None).await? {
            let team = team_of(&namespace).unwrap_or_default().to_owned();
            teams.entry(team).or_default().push(name_of(&namespace));
        }
        Ok(teams)
    }

    /// The team's namespaces.
    pub async fn namespaces(&self, team: &str) -> Outcome<Vec<String>> {
        let found = self.labelled(NAMESPACES, "", Some(team)).await?;
        match found.is_empty() {
            true => Err(TeamProblem::Missing(team.to_owned())),
            false => Ok(found.iter().map(name_of).collect()),
        }
    }

    /// The team's members in these namespaces.
    pub async fn members(&self, team: &str, namespaces: &[String]) -> Outcome<Members> {
        let mut bindings = Vec::new();
        for namespace in namespaces {
            bindings.extend(self.labelled(BINDINGS, namespace, Some(team)).await?);
        }
        Ok(members_of(&bindings))
    }

    /// The team's quotas with their use.
    pub async fn quotas(&self, team: &str, namespaces: &[String]) -> Outcome<Vec<QuotaUse>> {
        let mut all = Vec::new();
        for namespace in namespaces {
            for quota in self.labelled(QUOTAS, namespace, Some(team)).await? {
                let hard = quota["spec"]["hard"].as_object().into_iter().flatten();
                let used = &quota["status"]["used"];
                let text = |value: &Value| value.as_str().unwrap_or("0").to_owned();
                let amounts =
                    hard.map(|(name, most)| (name.clone(), text(&used[name]), text(most)));
                all.push((namespace.clone(), amounts.collect()));
            }
        }
        Ok(all)
    }

    /// Refuses to take over an object of this name that exists without the team's label.
    async fn require_free(
        &self,
        kind: ObjectKind,
        name: &str,
        team: &str,
        adopts: bool,
    ) -> Outcome<()> {
        let found = self.api(kind, "").get_opt(name).await?;
        let Some(found) = found else { return Ok(()) };
        let labels = found.metadata.labels.unwrap_or_default();
        let words = match kind.2 {
            "Queue" => "queue",
            _ => "namespace",
        };
        let name = name.to_owned();
        match labels.get(TEAM) {
            Some(owner) if owner == team => Ok(()),
            Some(owner) => Err(TeamProblem::Taken {
                kind: words,
                name,
                owner: owner.clone(),
            }),
            None if adopts => Ok(()),
            None => Err(TeamProblem::Exists { kind: words, name }),
        }
    }

    /// Makes a team, or completes one that was made in part. A namespace that an administrator made before becomes the
    /// team's.
    pub async fn create(&self, new: &NewTeam) -> Outcome<()> {
        let team = new.name.as_str();
        let namespaces = new.own_namespaces();
        objects::check(team, &namespaces, &new.members)?;
        self.require_free(QUEUES, team, team, false).await?;
        for name in &namespaces {
            self.require_free(NAMESPACES, name, team, true).await?;
        }
        for object in new.manifests() {
            self.apply(&object).await?;
        }
        Ok(())
    }

    /// Replaces the quota in each of the team's namespaces, which are the answer.
    pub async fn set_quota(&self, team: &str, amounts: &Amounts) -> Outcome<Vec<String>> {
        let namespaces = self.namespaces(team).await?;
        for namespace in &namespaces {
            self.apply(&objects::quota(team, namespace, amounts))
                .await?;
        }
        Ok(namespaces)
    }

    /// Isolates the network of the team's namespaces, which are the answer, or opens it again.
    pub async fn set_isolation(&self, team: &str, isolated: bool) -> Outcome<Vec<String>> {
        let namespaces = self.namespaces(team).await?;
        for namespace in &namespaces {
            match isolated {
                true => self.apply(&objects::isolation(team, namespace)).await?,
                false => self.delete_labelled(POLICIES, namespace, team).await?,
            }
        }
        Ok(namespaces)
    }

    /// Which of these namespaces of the team have its policy.
    pub async fn isolated(&self, team: &str, namespaces: &[String]) -> Outcome<Vec<String>> {
        let mut all = Vec::new();
        for namespace in namespaces {
            let found = self.labelled(POLICIES, namespace, Some(team)).await?;
            if found
                .iter()
                .any(|policy| name_of(policy) == objects::ISOLATION)
            {
                all.push(namespace.clone());
            }
        }
        Ok(all)
    }

    /// Adds a user to a team, or gives a member another role.
    pub async fn add_member(&self, team: &str, user: &str, role: TeamRole) -> Outcome<()> {
        let namespaces = self.namespaces(team).await?;
        let mut members = self.members(team, &namespaces).await?;
        members.insert(user.to_owned(), role);
        self.put_members(team, &namespaces, &members).await
    }

    /// Removes a user from a team.
    pub async fn remove_member(&self, team: &str, user: &str) -> Outcome<()> {
        let namespaces = self.namespaces(team).await?;
        let mut members = self.members(team, &namespaces).await?;
        if members.remove(user).is_none() {
            return Err(TeamProblem::NoMember {
                user: user.to_owned(),
                team: team.to_owned(),
            });
        }
        self.put_members(team, &namespaces, &members).await
    }

    async fn put_members(
        &self,
        team: &str,
        namespaces: &[String],
        members: &Members,
    ) -> Outcome<()> {
        objects::check(team, namespaces, members)?;
        for namespace in namespaces {
            for binding in objects::bindings(team, namespace, members) {
                self.apply(&binding).await?;
            }
        }
        Ok(())
    }

    /// The pods in these namespaces that wait or run.
    async fn running(&self, namespaces: &[String]) -> Outcome<BTreeSet<String>> {
        let mut found = BTreeSet::new();
        for namespace in namespaces {
            let pods = self.api(PODS, namespace);
            for pod in pods.list(&ListParams::default()).await?.items {
                let phase = pod.data["status"]["phase"].as_str().unwrap_or_default();
                if !["Succeeded", "Failed"].contains(&phase) {
                    let name = pod.metadata.name.unwrap_or_default();
                    found.insert(format!("{namespace}/{name}"));
                }
            }
        }
        Ok(found)
    }

    /// Deletes a team and leaves its namespaces, which are the answer. Refused while work runs in them, unless `drain`
    /// deletes the work first.
    pub async fn delete(&self, team: &str, drain: bool) -> Outcome<Vec<String>> {
        let namespaces = self.namespaces(team).await?;
        let pods = self.running(&namespaces).await?;
        if !pods.is_empty() && !drain {
            return Err(TeamProblem::Running(objects::running_refusal(team, &pods)));
        }
        // The members submit nothing more while their work ends.
        for namespace in &namespaces {
            self.delete_labelled(BINDINGS, namespace, team).await?;
        }
        if drain {
            self.drain(&namespaces).await?;
        }
        for namespace in &namespaces {
            self.delete_labelled(QUOTAS, namespace, team).await?;
            self.delete_labelled(POLICIES, namespace, team).await?;
            let patch = json!({"metadata": {"labels": {TEAM: null, QUEUE_NAME: null}}});
            self.api(NAMESPACES, "")
                .patch(namespace, &PatchParams::default(), &Patch::Merge(patch))
                .await?;
        }
        self.delete_labelled(QUEUES, "", team).await?;
        Ok(namespaces)
    }

    async fn delete_labelled(&self, kind: ObjectKind, namespace: &str, team: &str) -> Outcome<()> {
        let api = self.api(kind, namespace);
        for object in self.labelled(kind, namespace, Some(team)).await? {
            let name = name_of(&object);
            match api.delete(&name, &DeleteParams::default()).await {
                Ok(_) => {}
                Err(kube::Error::Api(status)) if status.code == 404 => {}
                Err(source) => {
                    return Err(TeamProblem::Object {
                        object: format!("{}/{name}", kind.2.to_lowercase()),
                        source,
                    });
                }
            }
        }
        Ok(())
    }

    /// Deletes the work in these namespaces and waits until its pods are gone.
    async fn drain(&self, namespaces: &[String]) -> Outcome<()> {
        let trained = training::ALL
            .iter()
            .map(|kind| ObjectKind(training::GROUP, kind.version, kind.kind, kind.plural, true));
        let kinds: Vec<ObjectKind> = trained.chain(DRAINED).collect();
        for namespace in namespaces {
            for kind in &kinds {
                let parameters = DeleteParams::background();
                let deleted = self
                    .api(*kind, namespace)
                    .delete_collection(&parameters, &ListParams::default())
                    .await;
                match deleted {
                    Ok(_) => {}
                    // A cluster need not have the kind.
                    Err(kube::Error::Api(status)) if status.code == 404 => {}
                    Err(source) => {
                        return Err(TeamProblem::Object {
                            object: format!("{} in namespace {namespace}", kind.3),
                            source,
                        });
                    }
                }
            }
        }
        let begin = Instant::now();
        loop {
            let left = self.running(namespaces).await?;
            if left.is_empty() {
                return Ok(());
            }
            if begin.elapsed() > DRAIN {
                let left: Vec<String> = left.into_iter().take(8).collect();
                let pods = left.join(", ");
                return Err(TeamProblem::Slow { pods });
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use resources::registry;

    use super::*;

    /// The kinds in namespaces of which no pod is made.
    const NO_WORK: [&str; 20] = [
        "commands",
        "configmaps",
        "controllerrevisions",
        "endpoints",
        "endpointslices",
        "events",
        "leases",
        "limitranges",
        "networkpolicies",
        "persistentvolumeclaims",
        "poddisruptionbudgets",
        "podgroups",
        "resourcequotas",
        "rolebindings",
        "roles",
        "scaledobjects",
        "secrets",
        "serviceaccounts",
        "services",
        "trainingruntimes",
    ];

    #[test]
    fn a_drain_deletes_every_kind_that_makes_pods_and_owners_first() {
        let drained: Vec<(&str, &str)> = DRAINED.iter().map(|kind| (kind.0, kind.3)).collect();
        for kind in registry::all().iter().filter(|kind| kind.namespaced) {
            let is_drained =
                kind.group == training::GROUP || drained.contains(&(kind.group, kind.plural));
            assert!(
                is_drained != NO_WORK.contains(&kind.plural),
                "{}.{}: name it in DRAINED if pods are made of it, else in NO_WORK",
                kind.plural,
                kind.group
            );
        }
        let at = |plural: &str| drained.iter().position(|(_, one)| *one == plural).unwrap();
        for (owner, owned) in [
            ("trainjobs", "jobsets"),
            ("jobsets", "jobs"),
            ("rayjobs", "rayclusters"),
            ("rayservices", "rayclusters"),
            ("cronjobs", "jobs"),
            ("deployments", "replicasets"),
        ] {
            assert!(at(owner) < at(owned), "{owner} before {owned}");
        }
    }
}
