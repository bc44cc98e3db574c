//! What an MPIJob's pods have beyond other kinds' ones: the hostfile, and the way from the launcher to the workers.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    ConfigMapVolumeSource, Container, KeyToPath, PodSpec, Volume, VolumeMount,
};
use resources::names;
use resources::training::ReplicaType;

use super::{DISCOVER_HOSTS, HOSTFILE, Settings, objects};
use crate::mpi::remote_shell::{CONFIG_PATH, DEFAULT_CONTAINER, EXECUTABLE, SCRIPT};
use crate::mpi::{ssh, worker};
use crate::training::plan::{ParsedTrainingJob, Replicas};

/// The volume with the hostfile.
const CONFIG_VOLUME: &str = "mpi-job-config";
/// The volume with the keys for SSH.
const SSH_VOLUME: &str = "ssh-auth";
/// Everyone may read.
const READABLE: i32 = 0o444;

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
            worker::serve(container, mpi.shared);
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
        spec.service_account_name = Some(objects::account(plan).name().to_owned());
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
        items.push(item(SCRIPT, SCRIPT, EXECUTABLE));
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
    let files = [
        (objects::PRIVATE_KEY, ssh::PRIVATE_KEY),
        (objects::PUBLIC_KEY, ssh::PUBLIC_KEY),
        (objects::PUBLIC_KEY, ssh::AUTHORIZED_KEYS),
    ];
    ssh::volume(SSH_VOLUME, &objects::secret_name(plan), &files)
}
