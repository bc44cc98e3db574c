//! The driver's answers to the kubelet: devices for claims, as CDI specs.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::api::Api;
use rpc::kubelet::dra::v1 as wire;
use tokio::sync::{Mutex, watch};
use tonic::{Request, Response, Status};

use super::claimable::{Claimable, What};
use super::prepared::{Given, Prepared, Specs};
use super::{grant, held};
use crate::cdi::gpus::{self, Roots};
use crate::cdi::{Edits, Spec};
use crate::inventory::Machine;
use crate::kubelet::{self, KubeletConfig};

/// How often specs of claims that are gone are looked for.
const TIDY_EVERY: Duration = Duration::from_secs(60);

/// The driver of one node.
#[derive(Clone)]
pub struct Driver(Arc<Inner>);

struct Inner {
    client: kube::Client,
    node: String,
    roots: Roots,
    sysfs: PathBuf,
    pod_resources: PathBuf,
    machine: watch::Receiver<Machine>,
    devices: watch::Receiver<Vec<Claimable>>,
    /// One claim at a time: what one gets the next must know of.
    specs: Mutex<Specs>,
}

impl Driver {
    pub(super) fn new(
        config: &KubeletConfig,
        client: kube::Client,
        machine: watch::Receiver<Machine>,
        devices: watch::Receiver<Vec<Claimable>>,
    ) -> Driver {
        Driver(Arc::new(Inner {
            client,
            node: config.node.clone(),
            roots: config.settings.delivery.roots(),
            sysfs: config.source.sysfs_root.clone(),
            pod_resources: config.pod_resources(),
            machine,
            devices,
            specs: Mutex::new(Specs::new(&config.cdi)),
        }))
    }

    /// Removes specs of claims that are gone and that no pod here uses, now and again: what a
    /// kubelet that lost its own records will never ask to be undone.
    pub(super) async fn tidy(&self) {
        let mut tick = tokio::time::interval(TIDY_EVERY);
        loop {
            tick.tick().await;
            if let Err(problem) = self.0.tidy().await {
                tracing::debug!("claims that are gone can't be looked for: {problem}");
            }
        }
    }
}

impl Inner {
    async fn claim(&self, namespace: &str, name: &str) -> Result<Option<ResourceClaim>, String> {
        let claims: Api<ResourceClaim> = Api::namespaced(self.client.clone(), namespace);
        let found = claims.get_opt(name).await;
        found.map_err(|error| format!("claim {namespace}/{name} can't be read: {error}"))
    }

    async fn prepare(&self, asked: &wire::Claim) -> Result<Vec<wire::Device>, String> {
        let specs = self.specs.lock().await;
        let claim = self.claim(&asked.namespace, &asked.name).await?;
        let same = |claim: &ResourceClaim| claim.metadata.uid.as_ref() == Some(&asked.uid);
        let claim = claim.filter(same).ok_or_else(|| {
            let (namespace, name) = (&asked.namespace, &asked.name);
            format!("claim {namespace}/{name} with uid {} is gone", asked.uid)
        })?;
        let given = grant::allocated(&claim, &self.node)?;
        let held = (held(&self.pod_resources).await)
            .map_err(|error| format!("the kubelet doesn't say which devices pods have: {error}"))?;
        let all = (specs.all()).map_err(|error| format!("CDI specs can't be read: {error}"))?;
        let offered = self.devices.borrow().clone();
        let devices = grant::devices(&asked.uid, &given, &offered, &all, &held)?;
        let prepared = Prepared {
            uid: asked.uid.clone(),
            namespace: asked.namespace.clone(),
            name: asked.name.clone(),
            devices: given,
        };
        // NVIDIA's runtime must not add what an image asks for: images of CUDA ask for all GPUs.
        let gpus = gpus::spec(&self.machine.borrow(), &self.roots, true);
        let edits = devices.iter().map(|device| self.edits(&gpus, device));
        let edits = edits.collect::<Result<Vec<Edits>, String>>()?;
        let nics_only = devices.iter().all(|device| device.what == What::Nic);
        let with_any = match nics_only {
            true => Edits::default(),
            false => gpus.edits,
        };
        (specs.put(&prepared, edits, with_any))
            .map_err(|error| format!("its CDI spec can't be written: {error}"))?;
        tracing::info!(
            claim = format!("{}/{}", prepared.namespace, prepared.name),
            devices = (devices.iter().map(|it| it.id.as_str()))
                .collect::<Vec<_>>()
                .join(","),
            "devices given"
        );
        let answer = |given: &Given| wire::Device {
            request_names: vec![given.main_request().to_owned()],
            pool_name: self.node.clone(),
            device_name: given.device.clone(),
            cdi_device_ids: vec![prepared.cdi_id(given)],
        };
        Ok(prepared.devices.iter().map(answer).collect())
    }

    async fn unprepare(&self, asked: &wire::Claim) -> Result<(), String> {
        let removed = self.specs.lock().await.remove(&asked.uid);
        removed.map_err(|error| format!("its CDI spec can't be removed: {error}"))
    }

    /// What a container with a device gets. GPUs that are described and have no number have no files.
    fn edits(&self, gpus: &Spec, device: &Claimable) -> Result<Edits, String> {
        let mut edits = match device.what {
            What::Nic => {
                let files = verbs(&self.sysfs, &device.id);
                let files = files.iter().filter_map(|file| self.roots.node(file));
                Edits {
                    device_nodes: files.collect(),
                    ..Edits::default()
                }
            }
            _ => match gpus.devices.iter().find(|it| it.name == device.id) {
                Some(known) => known.edits.clone(),
                None if self.machine.borrow().minors.contains_key(&device.id) => {
                    let dev = self.roots.dev_seen.join("dev");
                    return Err(format!(
                        "{} has no device files in {}; load the driver, or say where it has them \
                         (nvidiaDevRoot in --device-plugin-config)",
                        device.id,
                        dev.display()
                    ));
                }
                None => Edits::default(),
            },
        };
        let (name, value) = device.variable();
        edits.env.push(format!("{name}={value}"));
        Ok(edits)
    }

    async fn tidy(&self) -> Result<(), String> {
        let specs = self.specs.lock().await;
        let all = specs.all().map_err(|error| error.to_string())?;
        for prepared in all {
            let (namespace, name) = (&prepared.namespace, &prepared.name);
            let claim = self.claim(namespace, name).await?;
            if claim.is_some_and(|claim| claim.metadata.uid.as_ref() == Some(&prepared.uid)) {
                continue;
            }
            // A pod that was deleted by force may run on for a while.
            let used = kubelet::claims(&self.pod_resources).await;
            let used = used.map_err(|error| error.to_string())?;
            if !used.contains(&(namespace.clone(), name.clone())) {
                tracing::info!("claim {namespace}/{name} is gone, and with it its CDI spec");
                (specs.remove(&prepared.uid)).map_err(|error| error.to_string())?;
            }
        }
        Ok(())
    }
}

/// The files under `/dev` by which programs do RDMA through a card.
fn verbs(sysfs: &Path, card: &str) -> Vec<String> {
    let directory = sysfs.join(format!(
        "sys/class/infiniband/{card}/device/infiniband_verbs"
    ));
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let mut files: Vec<String> = entries
        .map(|entry| format!("infiniband/{}", entry.file_name().to_string_lossy()))
        .collect();
    files.sort();
    files.push("infiniband/rdma_cm".into());
    files
}

#[tonic::async_trait]
impl wire::dra_plugin_server::DraPlugin for Driver {
    async fn node_prepare_resources(
        &self,
        request: Request<wire::NodePrepareResourcesRequest>,
    ) -> Result<Response<wire::NodePrepareResourcesResponse>, Status> {
        let mut claims = HashMap::new();
        for claim in request.into_inner().claims {
            let answer = match self.0.prepare(&claim).await {
                Ok(devices) => wire::NodePrepareResourceResponse {
                    devices,
                    error: String::new(),
                },
                Err(error) => {
                    tracing::warn!("claim {}/{}: {error}", claim.namespace, claim.name);
                    wire::NodePrepareResourceResponse {
                        devices: Vec::new(),
                        error,
                    }
                }
            };
            claims.insert(claim.uid, answer);
        }
        Ok(Response::new(wire::NodePrepareResourcesResponse { claims }))
    }

    async fn node_unprepare_resources(
        &self,
        request: Request<wire::NodeUnprepareResourcesRequest>,
    ) -> Result<Response<wire::NodeUnprepareResourcesResponse>, Status> {
        let mut claims = HashMap::new();
        for claim in request.into_inner().claims {
            let error = self.0.unprepare(&claim).await.err().unwrap_or_default();
            claims.insert(claim.uid, wire::NodeUnprepareResourceResponse { error });
        }
        Ok(Response::new(wire::NodeUnprepareResourcesResponse {
            claims,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cards_files_are_its_own_verbs_and_the_connection_manager() {
        let root = tempfile::tempdir().expect("a directory");
        let verbs_of = |card: &str, file: &str| {
            let device = root
                .path()
                .join(format!("sys/class/infiniband/{card}/device"));
            std::fs::create_dir_all(device.join("infiniband_verbs").join(file)).expect("a tree");
        };
        verbs_of("mlx5_0", "uverbs0");
        verbs_of("mlx5_1", "uverbs1");
        let files = verbs(root.path(), "mlx5_1");
        assert_eq!(files, ["infiniband/uverbs1", "infiniband/rdma_cm"]);
        assert_eq!(verbs(root.path(), "none"), ["infiniband/rdma_cm"]);
    }
}
