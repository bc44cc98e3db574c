//! How a job of each kind is suspended, resumed and cancelled, so that its record stays. Pure, but for [`send_command`]:
//! kind and names in, the change out.

use std::collections::BTreeMap;

use kube::api::{ApiResource, DynamicObject, PostParams};
use kube::{Api, Client};
use resources::kinds::VolcanoCommand;
use resources::names::{CANCELLED_BECAUSE, CANCELLED_BY};
use resources::registry::Kind;
use resources::volcano;
use serde_json::{Value, json};

/// Who or what cancels a job.
#[derive(Clone, Copy, Debug)]
pub enum Canceller<'a> {
    /// A user, by name.
    User(&'a str),
    /// A policy; the text is the rest of a sentence after "because".
    Policy(&'a str),
}

/// What cancels a job.
#[derive(Clone, Debug, PartialEq)]
pub enum Cancellation {
    /// A merge patch of the job.
    Patch(Value),
    /// A Command of Volcano, for [`send_command`].
    Command(Value),
    /// Its deletion: a pod without a job has no record that could stay.
    Deletion,
}

/// The merge patch that suspends a job or starts it again; with a canceller the job counts as cancelled. A
/// LeaderWorkerSet is scaled to no groups; it starts again when it is scaled, not by this patch.
#[must_use]
pub fn suspension(kind: &Kind, on: bool, by: Option<Canceller<'_>>) -> Value {
    let spec = match kind.training() {
        Some(_) => json!({"runPolicy": {"suspend": on}}),
        None if kind.is_leader_worker_set() && on => json!({"replicas": 0}),
        None if kind.is_leader_worker_set() => json!({}),
        None => json!({"suspend": on}),
    };
    let (user, because) = match by {
        None => (None, None),
        Some(Canceller::User(user)) => (Some(user), None),
        Some(Canceller::Policy(because)) => (None, Some(because)),
    };
    let annotations = json!({CANCELLED_BY: user, CANCELLED_BECAUSE: because});
    json!({"metadata": {"annotations": annotations}, "spec": spec})
}

/// Who or what cancelled a job with these annotations, in one sentence; none if nothing did. The job may run again since.
#[must_use]
pub fn sentence(annotations: Option<&BTreeMap<String, String>>) -> Option<String> {
    let of = |name: &str| annotations?.get(name).filter(|text| !text.is_empty());
    let what = match (of(CANCELLED_BY), of(CANCELLED_BECAUSE)) {
        (Some(user), _) => format!("User {user} cancelled the job"),
        (None, Some(because)) => format!("The job was cancelled because {because}"),
        (None, None) => return None,
    };
    Some(format!("{what}: its pods are gone, and its record stays."))
}

/// What cancels a job of this kind because of a policy.
#[must_use]
pub fn by_policy(kind: &Kind, name: &str, uid: &str, because: &str) -> Cancellation {
    if (kind.group, kind.kind) == ("", "Pod") {
        return Cancellation::Deletion;
    }
    if kind.is_volcano_job() {
        let message = format!("cancelled because {because}");
        return Cancellation::Command(volcano::command(name, uid, "TerminateJob", &message));
    }
    let mut patch = suspension(kind, true, Some(Canceller::Policy(because)));
    // A later job of the same name is another one.
    patch["metadata"]["uid"] = uid.into();
    Cancellation::Patch(patch)
}

/// Creates a Command of Volcano in its job's namespace, with the client's rights.
///
/// # Errors
///
/// When the API refuses the Command or does not answer.
pub async fn send_command(client: Client, namespace: &str, command: Value) -> kube::Result<()> {
    let command: DynamicObject =
        serde_json::from_value(command).map_err(kube::Error::SerdeError)?;
    let commands = ApiResource::erase::<VolcanoCommand>(&());
    let commands: Api<DynamicObject> = Api::namespaced_with(client, namespace, &commands);
    let created = commands.create(&PostParams::default(), &command).await;
    created.map(drop)
}

#[cfg(test)]
mod tests {
    use resources::{leader_worker_set, registry};

    use super::*;

    #[test]
    fn a_job_is_suspended_where_its_kind_says_so_and_told_why() {
        let kind = |group, version, plural| registry::find(group, version, plural).unwrap();
        let trained = kind("kubeflow.org", "v1", "pytorchjobs");
        let patch = suspension(trained, true, Some(Canceller::User("ann")));
        assert_eq!(patch["spec"]["runPolicy"]["suspend"], true);
        assert_eq!(patch["metadata"]["annotations"][CANCELLED_BY], "ann");
        let resumed = suspension(kind("batch", "v1", "jobs"), false, None);
        assert_eq!(resumed["spec"], json!({"suspend": false}));
        let cleared = json!({CANCELLED_BY: null, CANCELLED_BECAUSE: null});
        assert_eq!(resumed["metadata"]["annotations"], cleared);

        let Cancellation::Patch(patch) = by_policy(trained, "train", "u", "it did nothing") else {
            panic!("a training job is suspended");
        };
        assert_eq!(patch["metadata"]["uid"], "u");
        assert_eq!(
            patch["metadata"]["annotations"][CANCELLED_BECAUSE],
            "it did nothing"
        );
        let set = kind(leader_worker_set::GROUP, "v1", "leaderworkersets");
        let cancelled = suspension(set, true, Some(Canceller::User("ann")));
        assert_eq!(cancelled["spec"], json!({"replicas": 0}));
        assert_eq!(cancelled["metadata"]["annotations"][CANCELLED_BY], "ann");

        let annotations = |name: &str, text: &str| {
            let one = BTreeMap::from([(name.to_owned(), text.to_owned())]);
            sentence(Some(&one))
        };
        assert_eq!(
            annotations(CANCELLED_BY, "ann").unwrap(),
            "User ann cancelled the job: its pods are gone, and its record stays."
        );
        assert_eq!(
            annotations(CANCELLED_BECAUSE, "it did nothing").unwrap(),
            "The job was cancelled because it did nothing: its pods are gone, and its record stays."
        );
        assert_eq!(annotations("other", "x"), None);
        assert_eq!(sentence(None), None);

        let pods = kind("", "v1", "pods");
        assert_eq!(by_policy(pods, "p", "u", ""), Cancellation::Deletion);
        let volcano = kind(volcano::GROUP, "v1alpha1", "jobs");
        let ordered = by_policy(volcano, "job", "u", "it did nothing");
        let Cancellation::Command(command) = ordered else {
            panic!("Volcano's Job gets a Command: {ordered:?}");
        };
        assert_eq!(command["action"], "TerminateJob");
    }
}
