//! The user that work runs for: the user that creates it, unless a caller that may impersonate users names another one.
//! Queues limit the usage of each user (`muster.io/user-limit`), so a user can't choose this freely.

use serde_json::{Map, Value};

use super::templates::templates;
use crate::access::Caller;
use crate::json;
use crate::names::USER;
use crate::registry::Kind;
use crate::trainer;
use crate::training::MPI_JOB;
use crate::volcano;

/// The kinds that carry the user; the objects that controllers create from them inherit it.
pub const OWNED: [&str; 20] = [
    "Pod",
    "PodGroup",
    "PyTorchJob",
    "TFJob",
    "XGBoostJob",
    "PaddleJob",
    "JAXJob",
    "RayCluster",
    "RayJob",
    "RayService",
    "MPIJob",
    "JobSet",
    "LeaderWorkerSet",
    "TrainJob",
    "Job",
    "CronJob",
    "Deployment",
    "ReplicaSet",
    "StatefulSet",
    "DaemonSet",
];

/// A caller names another user as the one that work runs for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "metadata.annotations[{USER}]: {named:?} is not the user that creates the object; leave the annotation out, write {caller:?}, or have an administrator set another user"
)]
pub struct OwnerRefused {
    /// The user that the object names.
    pub named: String,
    /// The caller that names it.
    pub caller: String,
}

/// Sets the user that an object of one of these kinds runs for, in its annotation (or, if it has none, its label)
/// `muster.io/user`. A new object without it runs for its creator; an update without it keeps the old user. Objects
/// that Muster's components create already name the user.
///
/// # Errors
/// When the object names another user than the caller, and `impersonates` says that the caller may not act in that
/// user's name.
pub fn owner(
    caller: &Caller,
    impersonates: impl FnOnce(&str) -> bool,
    object: &mut Value,
    live: Option<&Value>,
) -> Result<(), OwnerRefused> {
    if caller.is_component() || caller.node_name().is_some() {
        return Ok(());
    }
    let before = live.and_then(user_of);
    let Some(now) = user_of(object) else {
        let mine = live.is_none().then(|| caller.user.clone());
        if let Some(user) = before.or(mine) {
            note(object, user);
        }
        return Ok(());
    };
    let may = now == caller.user || before.as_ref() == Some(&now) || impersonates(&now);
    may.then_some(()).ok_or_else(|| OwnerRefused {
        named: now,
        caller: caller.user.clone(),
    })
}

/// A caller changes work that runs for another user.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "metadata.annotations[{USER}]: only {user:?} may change an object that runs for this user; write {caller:?} to run it for yourself, or have an administrator change it"
)]
pub struct ChangeRefused {
    /// The user that the work runs for.
    pub user: String,
    /// The caller that changes it.
    pub caller: String,
}

/// Prevents other users from changing what a user's work runs: they could run their own commands under that user's
/// name, limits and Unix account. Other users may still change replica counts and when the work runs.
///
/// # Errors
/// When the containers of a pod or template that runs for another user than the caller change, and `impersonates` says
/// that the caller may not act in that user's name.
pub fn keep_work(
    caller: &Caller,
    impersonates: impl FnOnce(&str) -> bool,
    kind: &Kind,
    object: &Value,
    live: &Value,
) -> Result<(), ChangeRefused> {
    if caller.is_component() || caller.node_name().is_some() {
        return Ok(());
    }
    let Some(user) = user_of(object) else {
        return Ok(());
    };
    let may = user == caller.user || same_work(kind, object, live) || impersonates(&user);
    may.then_some(()).ok_or_else(|| ChangeRefused {
        user,
        caller: caller.user.clone(),
    })
}

/// A caller asks for a command in another user's pod.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the pod runs for user {user:?}, and only this user may run commands in it; start a pod of your own, or have an administrator run the command"
)]
pub struct PodEntryRefused {
    /// The user that the pod runs for.
    pub user: String,
}

/// Prevents other users from running commands in a user's pod: they would run with that user's name and Unix account.
///
/// # Errors
/// When the pod runs for another user than the caller, and `impersonates` says that the caller may not act in that
/// user's name.
pub fn enter_work(
    caller: &Caller,
    impersonates: impl FnOnce(&str) -> bool,
    pod: &Value,
) -> Result<(), PodEntryRefused> {
    let Some(user) = user_of(pod) else {
        return Ok(());
    };
    let may = user == caller.user || impersonates(&user);
    may.then_some(()).ok_or(PodEntryRefused { user })
}

/// Whether a pod is a fellow of another one: both belong to the same MPIJob or Volcano Job, and run for the same user.
/// `mpirun` in a pod of such a job runs commands in its fellows, as itself, if a role lets it.
#[must_use]
pub fn are_fellows(one: &Value, other: &Value) -> bool {
    let job = |pod: &Value| -> Option<String> {
        let owners = json::items(pod, &["metadata", "ownerReferences"]);
        let controller = owners.iter().find(|owner| owner["controller"] == true)?;
        let group = json::text(controller, &["apiVersion"]).split('/').next();
        // `batch/v1` has a Job, too.
        let of_volcano = controller["kind"] == "Job" && group == Some(volcano::GROUP);
        let runs_mpi = controller["kind"] == MPI_JOB.kind || of_volcano;
        runs_mpi.then(|| json::text(controller, &["uid"]).to_owned())
    };
    let known = job(one).filter(|uid| !uid.is_empty());
    known.is_some() && known == job(other) && user_of(one) == user_of(other)
}

/// True if two states of an object run the same containers.
fn same_work(kind: &Kind, one: &Value, other: &Value) -> bool {
    let (one, other) = (work(kind, one), work(kind, other));
    one.len() == other.len()
        && one
            .iter()
            .zip(&other)
            .all(|(a, b)| a.0 == b.0 && json::same(a.1, b.1))
}

/// The fields of a RayCluster's groups that become a part of their containers' command.
const IN_RAYS_COMMAND: [&str; 3] = ["rayStartParams", "resources", "labels"];

/// The fields of a RayJob that become a part of the submitted program.
const IN_RAY_JOBS: [&str; 7] = [
    "entrypoint",
    "runtimeEnvYAML",
    "metadata",
    "entrypointNumCpus",
    "entrypointNumGpus",
    "entrypointResources",
    "clusterSelector",
];

/// The field of a RayService that becomes a part of what its cluster runs.
const IN_RAY_SERVICES: &str = "serveConfigV2";

/// The fields of a TrainJob that become a part of its pods.
const IN_TRAIN_JOBS: [&str; 4] = ["runtimeRef", "trainer", "initializer", "runtimePatches"];

/// The containers that an object runs, by field, in order.
fn work<'a>(kind: &Kind, object: &'a Value) -> Vec<(String, &'a Value)> {
    let of_template = |(path, template): (String, &'a Value)| (path, json::at(template, &["spec"]));
    let mut all: Vec<(String, &Value)> = templates(kind, object)
        .into_iter()
        .map(of_template)
        .collect();
    if (kind.group, kind.kind) == ("", "Pod") {
        let list = |name: &str| (name.to_owned(), json::at(object, &["spec", name]));
        all.extend(["containers", "initContainers"].map(list));
    }
    if kind.group == trainer::GROUP && kind.kind == trainer::KIND {
        let field = |name: &&str| ((*name).to_owned(), json::at(object, &["spec", *name]));
        all.extend(IN_TRAIN_JOBS.iter().map(field));
    }
    if (kind.group, kind.kind) == ("ray.io", "RayJob") {
        let field = |name: &&str| ((*name).to_owned(), json::at(object, &["spec", *name]));
        all.extend(IN_RAY_JOBS.iter().map(field));
    }
    if (kind.group, kind.kind) == ("ray.io", "RayService") {
        let config = json::at(object, &["spec", IN_RAY_SERVICES]);
        all.push((IN_RAY_SERVICES.to_owned(), config));
    }
    let cluster: Option<&[&str]> = match (kind.group, kind.kind) {
        ("ray.io", "RayCluster") => Some(&["spec"]),
        ("ray.io", "RayJob") => Some(&["spec", "rayClusterSpec"]),
        ("ray.io", "RayService") => Some(&["spec", "rayClusterConfig"]),
        _ => None,
    };
    if let Some(path) = cluster {
        let spec = json::at(object, path);
        let options = json::at(spec, &["autoscalerOptions"]);
        all.push(("autoscalerOptions".to_owned(), options));
        let head = json::at(spec, &["headGroupSpec"]);
        let groups = json::items(spec, &["workerGroupSpecs"]).iter();
        for (at, group) in [head].into_iter().chain(groups).enumerate() {
            let field = |name: &&str| (format!("{at}.{name}"), json::at(group, &[*name]));
            all.extend(IN_RAYS_COMMAND.iter().map(field));
        }
    }
    all.sort_by(|a, b| a.0.cmp(&b.0));
    all
}

fn user_of(object: &Value) -> Option<String> {
    let metadata = &object["metadata"];
    let value = |of: &str| metadata[of].get(USER).and_then(Value::as_str);
    let found = value("annotations").or_else(|| value("labels"));
    found.map(str::to_owned)
}

fn note(object: &mut Value, user: String) {
    let annotations = &mut object["metadata"]["annotations"];
    match annotations {
        Value::Object(all) => {
            all.insert(USER.to_owned(), user.into());
        }
        empty => *empty = Map::from_iter([(USER.to_owned(), user.into())]).into(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(annotations: Value, labels: Value) -> Value {
        json!({"metadata": {"name": "o", "annotations": annotations, "labels": labels}})
    }

    #[test]
    fn only_its_user_runs_commands_in_a_pod() {
        let pod = object(json!({USER: "ann"}), json!({}));
        let caller = |user: &str| Caller::user(user, []);
        assert!(enter_work(&caller("ann"), |_| false, &pod).is_ok());
        assert!(enter_work(&caller("root"), |user| user == "ann", &pod).is_ok());
        let refused = enter_work(&caller("bob"), |_| false, &pod).unwrap_err();
        assert!(refused.to_string().contains("user \"ann\""), "{refused}");
        assert!(enter_work(&caller("bob"), |_| false, &object(json!({}), json!({}))).is_ok());
    }

    #[test]
    fn pods_of_one_job_that_runs_mpi_for_one_user_are_fellows() {
        let pod = |(group, kind): (&str, &str), uid: &str, user: &str| {
            let mut pod = object(json!({USER: user}), json!({}));
            pod["metadata"]["ownerReferences"] = json!([{"apiVersion": group, "kind": kind, "uid": uid,
                "name": "j", "controller": true}]);
            pod
        };
        let mpi_job = ("kubeflow.org/v2beta1", "MPIJob");
        let of_volcano = ("batch.volcano.sh/v1alpha1", "Job");
        for kind in [mpi_job, of_volcano] {
            let launcher = pod(kind, "u", "ann");
            assert!(are_fellows(&launcher, &pod(kind, "u", "ann")), "{kind:?}");
            for other in [
                pod(kind, "v", "ann"),
                pod(kind, "u", "bob"),
                pod(("kubeflow.org/v1", "PyTorchJob"), "u", "ann"),
                pod(("batch/v1", "Job"), "u", "ann"),
                object(json!({USER: "ann"}), json!({})),
            ] {
                assert!(!are_fellows(&launcher, &other), "{other}");
                assert!(!are_fellows(&other, &launcher), "{other}");
            }
        }
        for other in [
            pod(("batch/v1", "Job"), "u", "ann"),
            object(json!({}), json!({})),
        ] {
            assert!(!are_fellows(&other, &other), "{other}");
        }
    }

    #[test]
    fn work_runs_for_its_creator_unless_an_administrator_names_another_user() {
        let (ann, bob) = (json!({USER: "ann"}), json!({USER: "bob"}));
        let none = Value::Null;
        let member = (Caller::user("ann", []), false);
        let admin = (Caller::user("ann", []), true);
        let component = (Caller::component("controllers"), false);
        let table = [
            (&member, &none, &none, Ok(Some("ann"))),
            (&member, &ann, &none, Ok(Some("ann"))),
            (&member, &none, &ann, Ok(None)),
            (&member, &bob, &none, Err("bob")),
            (&member, &none, &bob, Err("bob")),
            // If both are present, the annotation counts.
            (&member, &ann, &bob, Ok(Some("ann"))),
            (&admin, &none, &none, Ok(Some("ann"))),
            (&admin, &bob, &none, Ok(Some("bob"))),
            (&component, &none, &none, Ok(None)),
            (&component, &bob, &none, Ok(Some("bob"))),
        ];
        for ((caller, may), annotations, labels, want) in table {
            let mut made = object(annotations.clone(), labels.clone());
            let got = owner(caller, |_| *may, &mut made, None);
            let got = got.map_err(|error| error.named);
            let note = made["metadata"]["annotations"][USER].as_str();
            let want = want.map_err(str::to_owned);
            assert_eq!(
                got.map(|()| note),
                want,
                "{} {may} {annotations} {labels}",
                caller.user
            );
        }
    }

    #[test]
    fn the_user_of_work_is_kept_and_cannot_be_changed_to_another() {
        let live = object(json!({USER: "bob"}), Value::Null);
        let ann = Caller::user("ann", []);
        let settle = |object: &mut Value, live: &Value| owner(&ann, |_| false, object, Some(live));
        let mut without = object(json!({"other": "x"}), Value::Null);
        settle(&mut without, &live).unwrap();
        assert_eq!(without["metadata"]["annotations"][USER], "bob");
        assert_eq!(without["metadata"]["annotations"]["other"], "x");
        let mut same = live.clone();
        assert_eq!(settle(&mut same, &live), Ok(()));
        let mut another = object(json!({USER: "carol"}), Value::Null);
        let error = settle(&mut another, &live).unwrap_err();
        assert_eq!(
            error.to_string(),
            "metadata.annotations[muster.io/user]: \"carol\" is not the user that creates the object; leave the annotation out, write \"ann\", or have an administrator set another user"
        );
        // An object from before this rule names no user and stays without one.
        let mut old = object(Value::Null, Value::Null);
        settle(&mut old, &object(Value::Null, Value::Null)).unwrap();
        assert!(old["metadata"]["annotations"].is_null());
    }

    #[test]
    fn what_runs_for_a_user_is_not_changed_by_others() {
        let template =
            |image: &str| json!({"spec": {"containers": [{"name": "c", "image": image}]}});
        let owned = |spec: Value| json!({"metadata": {"annotations": {USER: "bob"}}, "spec": spec});
        let kinds = [
            (
                ("", "v1", "Pod"),
                template("a")["spec"].clone(),
                template("b")["spec"].clone(),
            ),
            (
                ("batch", "v1", "Job"),
                json!({"template": template("a")}),
                json!({"template": template("b")}),
            ),
            (
                ("kubeflow.org", "v1", "PyTorchJob"),
                json!({"pytorchReplicaSpecs": {"Worker": {"replicas": 1, "template": template("a")}}}),
                json!({"pytorchReplicaSpecs": {"Worker": {"replicas": 1, "template": template("b")}}}),
            ),
            (
                ("ray.io", "v1", "RayCluster"),
                json!({"headGroupSpec": {"rayStartParams": {"port": 1}}}),
                json!({"headGroupSpec": {"rayStartParams": {"port": "1; id"}}}),
            ),
            (
                ("ray.io", "v1", "RayJob"),
                json!({"entrypoint": "a"}),
                json!({"entrypoint": "b"}),
            ),
            (
                ("ray.io", "v1", "RayJob"),
                json!({"rayClusterSpec": {"headGroupSpec": {"rayStartParams": {"port": 1}}}}),
                json!({"rayClusterSpec": {"headGroupSpec": {"rayStartParams": {"port": "1; id"}}}}),
            ),
            (
                ("ray.io", "v1", "RayJob"),
                json!({"submitterPodTemplate": template("a")}),
                json!({"submitterPodTemplate": template("b")}),
            ),
            (
                ("ray.io", "v1", "RayService"),
                json!({"serveConfigV2": "applications: []"}),
                json!({"serveConfigV2": "applications: [{import_path: os:system}]"}),
            ),
            (
                ("ray.io", "v1", "RayService"),
                json!({"rayClusterConfig": {"headGroupSpec": {"rayStartParams": {"port": 1}}}}),
                json!({"rayClusterConfig": {"headGroupSpec": {"rayStartParams": {"port": "1; id"}}}}),
            ),
        ];
        let (ann, bob) = (Caller::user("ann", []), Caller::user("bob", []));
        for ((group, version, name), was, is) in kinds {
            let kind = crate::registry::by_kind(group, version, name).unwrap();
            let (live, next) = (owned(was), owned(is));
            let may = |caller: &Caller, admin: bool, next: &Value| {
                keep_work(caller, |_| admin, kind, next, &live).is_ok()
            };
            assert!(!may(&ann, false, &next), "{name}");
            assert!(may(&ann, true, &next) && may(&bob, false, &next), "{name}");
            assert!(may(&Caller::component("controllers"), false, &next));
            // The work may be taken over, and fields other than the work may change.
            let mut mine = next.clone();
            mine["metadata"]["annotations"][USER] = "ann".into();
            assert!(may(&ann, false, &mine), "{name}");
            let mut more = live.clone();
            more["spec"]["activeDeadlineSeconds"] = 60.into();
            assert!(may(&ann, false, &more), "{name}");
            let worker = more.pointer_mut("/spec/pytorchReplicaSpecs/Worker/replicas");
            if let Some(replicas) = worker {
                *replicas = 2.into();
                assert!(may(&ann, false, &more), "{name}");
            }
        }
    }
}
