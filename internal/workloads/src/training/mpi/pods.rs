//! What an MPIJob's pods have beyond other kinds' ones: the hostfile, and the way from the launcher to the workers.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    ConfigMapVolumeSource, Container, KeyToPath, PodSpec, SecretVolumeSource, Volume, VolumeMount,
};
use resources::names;
use resources::training::{MPI_WORKER_COMMAND, ReplicaType};

use super::{CONFIG_PATH, DISCOVER_HOSTS, HOSTFILE, REMOTE_SHELL, Settings, objects};
use crate::training::plan::{ParsedTrainingJob, Replicas};

/// The volume with the hostfile.
const CONFIG_VOLUME: &str = "mpi-job-config";
/// The volume with the keys for SSH.
const SSH_VOLUME: &str = "ssh-auth";
/// Everyone may read.
const READABLE: i32 = 0o444;
/// Everyone may read and run.
const EXECUTABLE: i32 = 0o555;
/// Only the owner may read: SSH refuses other keys.
const PRIVATE: i32 = 0o600;
/// The program that workers run where the launcher reaches them by SSH.
const SSH_SERVER: [&str; 2] = ["/usr/sbin/sshd", "-De"];
/// The annotation that names the container in which commands run unless they name one.
const DEFAULT_CONTAINER: &str = "kubectl.kubernetes.io/default-container";

/// Adds to a replica's pod what the job's kind needs.
pub(crate) fn prepare(
    plan: &ParsedTrainingJob<'_>,
    mpi: &Settings,
    replicas: &Replicas<'_>,
    spec: &mut PodSpec,
    annotations: &mut BTreeMap<String, String>,
) {
    if spec.subdomain.is_none() {
        spec.subdomain = Some(plan.name().to_owned());
    }
    let main = mpi.container.as_deref();
    let main = main.unwrap_or_else(|| replicas.main_container_name());
    if spec.containers.len() > 1 {
        annotations
            .entry(DEFAULT_CONTAINER.to_owned())
            .or_insert_with(|| main.to_owned());
    }
    let launcher = replicas.role == ReplicaType::Launcher;
    // Open MPI's daemons on the workers check that the program is there that starts commands.
    let has_config = launcher || mpi.shared;
    if let Some(container) = spec.containers.iter_mut().find(|one| one.name == main) {
        if has_config {
            mount(container, CONFIG_VOLUME, CONFIG_PATH);
        }
        if !launcher {
            serve(container, mpi);
        }
        if !mpi.shared {
            mount(container, SSH_VOLUME, &mpi.ssh_path);
        }
    }
    if has_config {
        volume(spec, config_volume(plan, mpi));
    }
    if !mpi.shared {
        volume(spec, ssh_volume(plan));
    } else if launcher {
        annotations.insert(names::COMMAND_LINE.to_owned(), "true".to_owned());
        spec.service_account_name = Some(objects::account_name(plan));
    }
}

/// Gives a worker its program if its template has none. An SSH server of the template cannot run where pods share
/// their node's address, and is not needed there.
fn serve(container: &mut Container, mpi: &Settings) {
    let texts = |words: &[&str]| Some(words.iter().map(|word| (*word).to_owned()).collect());
    let empty = |words: &Option<Vec<String>>| words.as_ref().is_none_or(Vec::is_empty);
    let bare = empty(&container.command) && empty(&container.args);
    let first = container.command.iter().chain(&container.args).flatten();
    let is_ssh_server = first
        .into_iter()
        .next()
        .is_some_and(|program| program.rsplit('/').next() == Some("sshd"));
    if mpi.shared && (bare || is_ssh_server) {
        container.command = texts(&MPI_WORKER_COMMAND);
        container.args = None;
    } else if bare {
        container.command = texts(&SSH_SERVER);
    }
}

fn mount(container: &mut Container, volume: &str, path: &str) {
    let mounts = container.volume_mounts.get_or_insert_default();
    if mounts.iter().all(|mount| mount.mount_path != path) {
        mounts.push(VolumeMount {
            name: volume.to_owned(),
            mount_path: path.to_owned(),
            ..VolumeMount::default()
        });
    }
}

fn volume(spec: &mut PodSpec, volume: Volume) {
    let volumes = spec.volumes.get_or_insert_default();
    if volumes.iter().all(|known| known.name != volume.name) {
        volumes.push(volume);
    }
}

fn item(key: &str, path: &str, mode: i32) -> KeyToPath {
    KeyToPath {
        key: key.to_owned(),
        path: path.to_owned(),
        mode: Some(mode),
    }
}

fn config_volume(plan: &ParsedTrainingJob<'_>, mpi: &Settings) -> Volume {
    let mut items = vec![
        item(HOSTFILE, HOSTFILE, READABLE),
        item(DISCOVER_HOSTS, DISCOVER_HOSTS, EXECUTABLE),
    ];
    if mpi.shared {
        items.push(item(REMOTE_SHELL, REMOTE_SHELL, EXECUTABLE));
    }
    Volume {
        name: CONFIG_VOLUME.to_owned(),
        config_map: Some(ConfigMapVolumeSource {
            name: objects::config_name(plan),
            items: Some(items),
            ..ConfigMapVolumeSource::default()
        }),
        ..Volume::default()
    }
}

fn ssh_volume(plan: &ParsedTrainingJob<'_>) -> Volume {
    let items = [
        ("ssh-privatekey", "id_rsa"),
        ("ssh-publickey", "id_rsa.pub"),
        ("ssh-publickey", "authorized_keys"),
    ];
    Volume {
        name: SSH_VOLUME.to_owned(),
        secret: Some(SecretVolumeSource {
            secret_name: Some(objects::secret_name(plan)),
            default_mode: Some(PRIVATE),
            items: Some(
                items
                    .into_iter()
                    .map(|(key, path)| item(key, path, PRIVATE))
                    .collect(),
            ),
            ..SecretVolumeSource::default()
        }),
        ..Volume::default()
    }
}
