//! Names of kinds on the command line, and the API calls for each kind.

use anyhow::Result;
use kube::api::{ApiResource, DynamicObject};
use kube::{Api, core::GroupVersionKind};
use resources::jobset;
use resources::leader_worker_set;
use resources::registry::{self, Kind};
use resources::trainer;
use resources::training;
use resources::volcano;
use serde_json::Value;

use super::connection::ServerConnection;
use super::failure;

/// Finds a kind by its plural, singular, short name or kind, with or without its group
/// (`pytorchjobs.kubeflow.org`).
pub fn kind(word: &str) -> Result<&'static Kind> {
    let word = word.to_ascii_lowercase();
    let (name, group) = match word.split_once('.') {
        Some((name, group)) => (name, Some(group)),
        None => (word.as_str(), None),
    };
    // The pages and the REST API call Volcano's Jobs so.
    let (name, group) = match name {
        volcano::PLURAL if group.is_none() => ("jobs", Some(volcano::GROUP)),
        name => (name, group),
    };
    let named = |kind: &&Kind| {
        (kind.plural == name
            || kind.singular == name
            || kind.short_names.contains(&name)
            || kind.kind.eq_ignore_ascii_case(name))
            && group.is_none_or(|group| kind.group == group)
    };
    match registry::all().iter().find(named) {
        Some(kind) => Ok(kind),
        None => {
            let known: Vec<&str> = registry::all().iter().map(|kind| kind.plural).collect();
            Err(failure::not_found(format!(
                "there is no kind {word:?}\n  those known are: {}",
                known.join(", ")
            )))
        }
    }
}

/// Splits `KIND/NAME`, or takes the kind from the first word and names from the rest.
pub fn split(what: &str, names: &[String]) -> Result<(&'static Kind, Vec<String>)> {
    match what.split_once('/') {
        Some((_, "")) => Err(failure::usage(format!(
            "{what:?} names no resource after the slash"
        ))),
        Some((word, name)) if names.is_empty() => Ok((kind(word)?, vec![name.to_string()])),
        Some(_) => Err(failure::usage(
            "give either KIND/NAME or KIND NAME..., not both",
        )),
        None => Ok((kind(what)?, names.to_vec())),
    }
}

/// A kind in the form of kube's client.
pub fn api_resource(kind: &Kind) -> ApiResource {
    let gvk = GroupVersionKind::gvk(kind.group, kind.version, kind.kind);
    ApiResource::from_gvk_with_plural(&gvk, kind.plural)
}

impl ServerConnection {
    /// The API for a kind, in this connection's namespace when the kind has one.
    pub fn api(&self, kind: &Kind) -> Api<DynamicObject> {
        self.api_in(kind, &self.namespace)
    }

    /// The API for a kind in a namespace.
    pub fn api_in(&self, kind: &Kind, namespace: &str) -> Api<DynamicObject> {
        let resource = api_resource(kind);
        if kind.namespaced {
            Api::namespaced_with(self.client.clone(), namespace, &resource)
        } else {
            Api::all_with(self.client.clone(), &resource)
        }
    }

    /// The path of a kind's collection: in one namespace, or in all.
    pub fn collection(&self, kind: &Kind, namespace: Option<&str>) -> String {
        let root = if kind.group.is_empty() {
            format!("/api/{}", kind.version)
        } else {
            format!("/apis/{}/{}", kind.group, kind.version)
        };
        match namespace.filter(|_| kind.namespaced) {
            Some(namespace) => format!("{root}/namespaces/{namespace}/{}", kind.plural),
            None => format!("{root}/{}", kind.plural),
        }
    }
}

/// The plural of a kind of jobs in addresses of the REST API.
pub fn address(kind: &Kind) -> &'static str {
    if kind.is_volcano_job() {
        volcano::PLURAL
    } else {
        kind.plural
    }
}

/// The word for a kind that commands take and print: its singular, if no other kind has the same.
pub fn word(kind: &Kind) -> &'static str {
    if kind.is_volcano_job() {
        volcano::SINGULAR
    } else {
        kind.singular
    }
}

/// Whether a kind runs as a JobSet, whose labels its pods have.
pub fn is_job_set(kind: &Kind) -> bool {
    [jobset::KIND, trainer::KIND].contains(&kind.kind)
}

/// The kinds of jobs, in the order of the search for a bare name.
pub fn job_kinds() -> Vec<&'static Kind> {
    let training = training::ALL.iter().map(|kind| kind.plural);
    training
        .chain([
            "jobs",
            volcano::PLURAL,
            "rayjobs",
            "rayservices",
            "trainjobs",
            "jobsets",
            "leaderworkersets",
        ])
        .filter_map(|word| kind(word).ok())
        .collect()
}

/// The kinds whose objects wait as gangs of their own: jobs and RayClusters.
pub fn waiting_kinds() -> Vec<&'static Kind> {
    let mut kinds = job_kinds();
    kinds.extend(kind("rayclusters"));
    kinds
}

/// Finds a job by `KIND/NAME` or by its bare name.
pub async fn find_job(
    connection: &ServerConnection,
    name: &str,
) -> Result<(&'static Kind, DynamicObject)> {
    match find(connection, name, &job_kinds()).await? {
        Some(found) => Ok(found),
        None => Err(failure::not_found(format!(
            "there is no job {name:?} in namespace {:?}\n  `muster get pytorchjobs`, `muster get jobs` and so on for each kind list those there are",
            connection.namespace
        ))),
    }
}

/// Finds an object of one of these kinds by `KIND/NAME` or by its bare name. The first kind with
/// an object of that name wins.
pub async fn find(
    connection: &ServerConnection,
    name: &str,
    among: &[&'static Kind],
) -> Result<Option<(&'static Kind, DynamicObject)>> {
    if let Some((word, name)) = name.split_once('/') {
        let kind = kind(word)?;
        if !among.iter().any(|one| one.is(kind)) {
            let known: Vec<&str> = among.iter().map(|kind| self::word(kind)).collect();
            let qualified = format!("{}.{}", kind.singular, kind.group);
            return Err(failure::usage(format!(
                "a {} is not what this command is for; it takes: {}",
                if known.contains(&kind.singular) {
                    &qualified
                } else {
                    kind.singular
                },
                known.join(", ")
            )));
        }
        return Ok(Some((kind, connection.api(kind).get(name).await?)));
    }
    for kind in among {
        if let Some(object) = connection.api(kind).get_opt(name).await? {
            return Ok(Some((kind, object)));
        }
    }
    Ok(None)
}

/// How a job or a pod ended, if it did: a condition's name, or a pod's phase.
pub fn ended(object: &DynamicObject) -> Option<&'static str> {
    let of_volcano = volcano::FINAL_PHASES.into_iter();
    let mut ends = ["Succeeded", "Failed", "Complete"]
        .into_iter()
        .chain(of_volcano);
    ends.find(|end| has_condition(object, end))
}

/// Whether an object's condition is `True`; the phase of a pod and of a Volcano Job, and the state of a JobSet, TrainJob
/// or LeaderWorkerSet, count as one.
pub fn has_condition(object: &DynamicObject, name: &str) -> bool {
    let status = &object.data["status"];
    let same = |value: &Value| value.as_str().is_some_and(|v| v.eq_ignore_ascii_case(name));
    let conditions = status["conditions"].as_array();
    same(&status["phase"])
        || volcano::phase(status).is_some_and(|phase| phase.eq_ignore_ascii_case(name))
        || jobset::state(status)
            .or_else(|| leader_worker_set::state(status))
            .is_some_and(|state| state.eq_ignore_ascii_case(name))
        || conditions
            .into_iter()
            .flatten()
            .any(|condition| condition["status"] == "True" && same(&condition["type"]))
}

/// The latest true condition with its message, or the phase.
pub fn state(object: &DynamicObject) -> (String, String) {
    let status = &object.data["status"];
    let text = |value: &Value| value.as_str().unwrap_or("").to_string();
    let conditions = status["conditions"].as_array();
    let holds = conditions
        .into_iter()
        .flatten()
        .rfind(|condition| condition["status"] == "True");
    if let Some(phase) = volcano::phase(status) {
        return (phase.to_owned(), text(&status["state"]["message"]));
    }
    if let Some(state) = jobset::state(status) {
        return (state.to_owned(), jobset::message(status, state).to_owned());
    }
    if let Some(state) = leader_worker_set::state(status) {
        let message = leader_worker_set::sentence(&object.data);
        return (state.to_owned(), message.unwrap_or_default());
    }
    match (&status["phase"], holds) {
        (Value::String(phase), _) => (phase.clone(), text(&status["message"])),
        (_, Some(condition)) => (text(&condition["type"]), text(&condition["message"])),
        // A Job has no condition before its end.
        _ if status["ready"].as_i64().is_some_and(|ready| ready > 0) => {
            ("Running".to_string(), String::new())
        }
        // A RayService says in this condition what it waits for.
        _ => {
            let mut all = conditions.into_iter().flatten();
            let ready = all.find(|condition| condition["type"] == "Ready");
            let message = ready.map_or_else(String::new, |ready| text(&ready["message"]));
            ("Pending".to_string(), message)
        }
    }
}

/// The job that an object waits with: the object itself, or the job that owns it. A pod or gang
/// that has started, that has no job, or whose job is a LeaderWorkerSet, stands for itself.
pub async fn waits_with(
    connection: &ServerConnection,
    kind: &'static Kind,
    object: &DynamicObject,
) -> Result<Option<(&'static Kind, String)>> {
    let jobs = waiting_kinds();
    let name = object.metadata.name.clone().unwrap_or_default();
    if jobs.iter().any(|job| job.is(kind)) {
        return Ok(Some((kind, name)));
    }
    if !matches!(state(object).0.as_str(), "Pending" | "Inqueue") {
        return Ok(None);
    }
    let owners = object.metadata.owner_references.iter().flatten();
    for owner in owners.filter(|owner| owner.controller == Some(true)) {
        let group = owner.api_version.split('/').next().unwrap_or_default();
        let same = |job: &&&'static Kind| job.kind == owner.kind && job.group == group;
        let Some(job) = jobs.iter().find(same) else {
            continue;
        };
        if job.is_leader_worker_set() {
            continue;
        }
        // A job that is being deleted has no explanation.
        if connection.api(job).get_opt(&owner.name).await?.is_some() {
            return Ok(Some((job, owner.name.clone())));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_answer_to_all_their_names_and_an_unknown_one_is_told_which_there_are() {
        for word in ["po", "pod", "Pods", "pytorchjobs.kubeflow.org", "pg", "no"] {
            assert!(kind(word).is_ok(), "{word}");
        }
        let error = kind("gadget").unwrap_err().to_string();
        assert!(
            error.contains("gadget") && error.contains("pytorchjobs"),
            "{error}"
        );
        assert!(kind("pods.apps").is_err());
    }

    #[test]
    fn volcanos_job_has_a_word_and_an_address_of_its_own() {
        let batch = kind("jobs").unwrap();
        assert_eq!(
            (batch.group, address(batch), word(batch)),
            ("batch", "jobs", "job")
        );
        for name in ["vcjob", "vcjobs", "vj", "jobs.batch.volcano.sh"] {
            let volcano = kind(name).unwrap();
            assert_eq!(
                (volcano.group, address(volcano), word(volcano)),
                ("batch.volcano.sh", "vcjobs", "vcjob")
            );
        }
    }

    #[test]
    fn the_state_is_the_last_condition_that_holds_or_the_phase() {
        let object = |status: Value| -> DynamicObject {
            serde_json::from_value(serde_json::json!({"metadata": {}, "status": status})).unwrap()
        };
        let job = object(serde_json::json!({"conditions": [
            {"type": "Created", "status": "True", "message": "made"},
            {"type": "Running", "status": "False"},
        ]}));
        assert_eq!(state(&job), ("Created".into(), "made".into()));
        assert_eq!(ended(&job), None);
        let plain = object(serde_json::json!({"active": 1, "ready": 1}));
        assert_eq!(state(&plain).0, "Running");
        let pod = object(serde_json::json!({"phase": "Failed"}));
        assert_eq!(state(&pod).0, "Failed");
        assert_eq!(ended(&pod), Some("Failed"));
        assert_eq!(state(&object(Value::Null)).0, "Pending");
        let volcano = |phase: &str| {
            let state = serde_json::json!({"phase": phase, "message": "why"});
            object(serde_json::json!({"state": state, "conditions": [{"status": "Running"}]}))
        };
        assert_eq!(
            state(&volcano("Restarting")),
            ("Restarting".into(), "why".into())
        );
        let set = object(
            serde_json::json!({"replicatedJobsStatus": [{"name": "a", "ready": 1}],
            "conditions": [{"type": "StartupPolicyCompleted", "status": "True"}]}),
        );
        assert_eq!(state(&set).0, "Running");
        assert!(has_condition(&set, "running") && ended(&set).is_none());
        let set = |ready: u32| {
            let set = serde_json::json!({"metadata": {}, "status": {"hpaPodSelector": "x", "readyReplicas": ready},
                "spec": {"replicas": 2, "leaderWorkerTemplate": {}}});
            serde_json::from_value::<DynamicObject>(set).unwrap()
        };
        let served = |state: &str, text: &str| (state.to_owned(), text.to_owned());
        let text = "1 of 2 groups are ready.";
        assert_eq!(super::state(&set(1)), served("Running", text));
        let text = "0 of 2 groups are ready.";
        assert_eq!(super::state(&set(0)), served("Pending", text));
        assert!(has_condition(&set(1), "running") && ended(&set(1)).is_none());
        assert_eq!(ended(&volcano("Restarting")), None);
        assert_eq!(ended(&volcano("Aborted")), None);
        assert_eq!(ended(&volcano("Terminated")), Some("Terminated"));
    }
}
