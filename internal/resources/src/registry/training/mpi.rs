//! MPIJob: the MPI operator's defaults and checks. Unlike there, `runPolicy.cleanPodPolicy` has no default: workers that
//! still run when the job ends are deleted unless the user says otherwise.

use serde_json::Value;

use crate::field::{FieldError, Path};
use crate::json;
use crate::registry::meta;
use crate::syntax;
use crate::training::{MPI_JOB, MPI_WORKER_COMMAND, ReplicaType};

const IMPLEMENTATIONS: [&str; 3] = ["OpenMPI", "Intel", "MPICH"];
const CREATION_POLICIES: [&str; 2] = ["AtStartup", "WaitForWorkersReady"];
const CLEAN_POLICIES: [&str; 3] = ["All", "Running", "None"];
/// Where the keys for SSH are mounted unless the job says otherwise.
const SSH_PATH: &str = "/root/.ssh";

/// Fills in what the user left out.
pub(super) fn default(job: &mut Value) {
    let Some(spec) = json::object(job, "spec") else {
        return;
    };
    json::fill(spec, "slotsPerWorker", 1);
    json::fill(spec, "runLauncherAsWorker", false);
    json::fill_text(spec, "sshAuthMountPath", SSH_PATH);
    json::fill_text(spec, "launcherCreationPolicy", "AtStartup");
    json::fill_text(spec, "mpiImplementation", "OpenMPI");
    let main = json::text(spec, &["mainContainer"]).to_owned();
    let workers = json::child(spec, MPI_JOB.replicas_field).and_then(Value::as_object_mut);
    for (key, replica) in workers.into_iter().flatten() {
        if MPI_JOB.role(key) == Some(ReplicaType::Worker) {
            let containers = replica.pointer_mut("/template/spec/containers");
            let containers = containers.and_then(Value::as_array_mut);
            wait(containers.map_or(&mut [], Vec::as_mut_slice), &main);
        }
    }
}

/// Without an image and a command there is nothing to run: the worker waits for the launcher's commands.
fn wait(containers: &mut [Value], main: &str) {
    let main = if main.is_empty() {
        MPI_JOB.container
    } else {
        main
    };
    let named = containers
        .iter()
        .position(|container| json::text(container, &["name"]) == main);
    let Some(container) = containers.get_mut(named.unwrap_or(0)) else {
        return;
    };
    let bare = ["command", "args"]
        .iter()
        .all(|field| json::items(container, &[field]).is_empty());
    if bare && json::text(container, &["image"]).is_empty() && container.is_object() {
        container["command"] = MPI_WORKER_COMMAND.into();
    }
}

/// Checks what only this kind has.
pub(super) fn check(job: &Value, errors: &mut Vec<FieldError>) {
    let path = Path::new("spec");
    let spec = json::at(job, &["spec"]);
    meta::not_negative(spec, "slotsPerWorker", &path, errors);
    meta::one_of(spec, "mpiImplementation", &IMPLEMENTATIONS, &path, errors);
    meta::one_of(
        spec,
        "launcherCreationPolicy",
        &CREATION_POLICIES,
        &path,
        errors,
    );
    meta::one_of(spec, "cleanPodPolicy", &CLEAN_POLICIES, &path, errors);
    let mount = json::text(spec, &["sshAuthMountPath"]);
    if !mount.is_empty() && !mount.starts_with('/') {
        errors.push(FieldError::invalid(
            &path.child("sshAuthMountPath"),
            mount,
            "must be an absolute path",
        ));
    }
    let specs = path.child(MPI_JOB.replicas_field);
    let worker = json::at(spec, &[MPI_JOB.replicas_field, ReplicaType::Worker.key()]);
    let workers = json::int(worker, &["replicas"]).filter(|_| !worker.is_null());
    if workers == Some(0) {
        let at = specs.key(ReplicaType::Worker.key());
        errors.push(FieldError::invalid(
            &at.child("replicas"),
            0,
            "must be greater than or equal to 1",
        ));
    }
    // The workers' names are host names in the hostfile.
    let name = json::text(job, &["metadata", "name"]);
    if let Some(workers) = workers.filter(|workers| *workers > 0) {
        let last = u32::try_from(workers - 1).unwrap_or(u32::MAX);
        let host = ReplicaType::Worker.pod_name(name, last);
        if !syntax::dns1123_label(&host).is_empty() && syntax::dns1123_label(name).is_empty() {
            let detail = format!(
                "the last worker's host name {host:?} would be longer than 63 characters: choose a shorter name"
            );
            errors.push(FieldError::invalid(
                &Path::new("metadata").child("name"),
                name,
                detail,
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::registry;
    use crate::training::GROUP;

    fn job(name: &str, more: &Value) -> Value {
        let replica = |count: i64, container: Value| {
            json!({"replicas": count, "template": {"spec": {"containers": [
                container]}}})
        };
        let mut spec = json!({"mpiReplicaSpecs": {"launcher": replica(1, json!({"name": "mpi", "command": ["mpirun", "x"]})),
            "Worker": replica(2, json!({"name": "mpi"}))}});
        for (key, value) in more.as_object().unwrap() {
            spec[key] = value.clone();
        }
        let mut job = json!({"metadata": {"name": name, "namespace": "n"}, "spec": spec});
        let kind = registry::find(GROUP, "v2beta1", "mpijobs").unwrap();
        (kind.default)(&mut job);
        job
    }

    #[test]
    fn both_versions_fill_in_the_operators_defaults() {
        for version in ["v2beta1", "v1"] {
            let kind = registry::find(GROUP, version, "mpijobs").expect(version);
            let mut made = job("j", &json!({}));
            (kind.default)(&mut made);
            let spec = &made["spec"];
            assert_eq!(spec["slotsPerWorker"], 1);
            assert_eq!(spec["launcherCreationPolicy"], "AtStartup");
            assert_eq!(spec["mpiImplementation"], "OpenMPI");
            assert_eq!(spec["sshAuthMountPath"], "/root/.ssh");
            let replicas = &spec["mpiReplicaSpecs"];
            assert_eq!(replicas["Launcher"]["restartPolicy"], "OnFailure");
            assert_eq!(replicas["Worker"]["restartPolicy"], "Never");
            let container = &replicas["Worker"]["template"]["spec"]["containers"][0];
            assert_eq!(container["command"], json!(MPI_WORKER_COMMAND));
            let errors = (kind.validate)(&made, None);
            assert!(errors.is_empty(), "{errors:?}");
        }
    }

    #[test]
    fn a_wrong_field_is_refused_by_its_name() {
        let long = "a".repeat(55);
        for (name, more, field) in [
            ("j", json!({"slotsPerWorker": -1}), "spec.slotsPerWorker"),
            (
                "j",
                json!({"mpiImplementation": "Intel MPI"}),
                "spec.mpiImplementation",
            ),
            (
                "j",
                json!({"launcherCreationPolicy": "Later"}),
                "spec.launcherCreationPolicy",
            ),
            (
                "j",
                json!({"cleanPodPolicy": "Some"}),
                "spec.cleanPodPolicy",
            ),
            (
                "j",
                json!({"sshAuthMountPath": "keys"}),
                "spec.sshAuthMountPath",
            ),
            (
                "j",
                json!({"runPolicy": {"managedBy": "me"}}),
                "spec.runPolicy.managedBy",
            ),
            (
                "j",
                json!({"mpiReplicaSpecs": {"Worker": {"template": {"spec": {"containers": [
                {"name": "mpi", "image": "i"}]}}}}}),
                "spec.mpiReplicaSpecs[Launcher]",
            ),
            (long.as_str(), json!({}), "metadata.name"),
        ] {
            let kind = registry::find(GROUP, "v2beta1", "mpijobs").unwrap();
            let errors = (kind.validate)(&job(name, &more), None);
            let fields: Vec<String> = errors.iter().map(|error| error.path.clone()).collect();
            assert_eq!(fields, [field], "{more}");
        }
    }
}
