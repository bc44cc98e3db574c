//! Keeps the node's ResourceSlices at what the machine has, whoever removes or changes them: a
//! kubelet that starts removes those of its node.

use std::collections::BTreeMap;

use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::resource::v1::{Device, ResourceSlice};
use kube::api::{Api, DeleteParams, PostParams};
use kube::runtime::{WatchStreamExt, watcher};
use tokio::sync::watch;

use super::slices::{Owner, Write};
use super::{Claimable, DRIVER, held};
use crate::kubelet::{KubeletConfig, LOOK_EVERY};

/// The slices of this driver and node, as last heard of.
#[derive(Default)]
struct Known {
    slices: BTreeMap<String, ResourceSlice>,
    /// All have been told since the watch began.
    whole: bool,
}

impl Known {
    fn take(&mut self, event: watcher::Event<ResourceSlice>) {
        match event {
            watcher::Event::Init => *self = Known::default(),
            watcher::Event::InitDone => self.whole = true,
            watcher::Event::InitApply(slice) | watcher::Event::Apply(slice) => self.keep(slice),
            watcher::Event::Delete(slice) => {
                let name = slice.metadata.name.unwrap_or_default();
                self.slices.remove(&name);
            }
        }
    }

    fn keep(&mut self, slice: ResourceSlice) {
        let name = slice.metadata.name.clone().unwrap_or_default();
        self.slices.insert(name, slice);
    }
}

struct Publisher<'a> {
    config: &'a KubeletConfig,
    nodes: Api<Node>,
    slices: Api<ResourceSlice>,
    known: Known,
    owner: Option<Owner>,
}

/// Writes slices for as long as anybody says what the machine has.
pub async fn publish(
    config: &KubeletConfig,
    client: kube::Client,
    mut devices: watch::Receiver<Vec<Claimable>>,
) {
    let slices: Api<ResourceSlice> = Api::all(client.clone());
    let ours = format!("spec.driver={DRIVER},spec.nodeName={}", config.node);
    let events = watcher(slices.clone(), watcher::Config::default().fields(&ours));
    let mut events = events.default_backoff().boxed();
    let mut publisher = Publisher {
        config,
        nodes: Api::all(client),
        slices,
        known: Known::default(),
        owner: None,
    };
    let mut tick = tokio::time::interval(LOOK_EVERY);
    let mut said = String::new();
    let mut again = false;
    loop {
        let done = tokio::select! {
            event = events.try_next() => match event {
                Ok(Some(event)) => {
                    publisher.known.take(event);
                    publisher.write(&devices).await
                }
                Ok(None) => return,
                Err(error) => Err(format!(
                    "they can't be watched: {error} (resource.k8s.io/v1 is Kubernetes 1.34's and later's)"
                )),
            },
            changed = devices.changed() => match changed {
                Ok(()) => publisher.write(&devices).await,
                Err(_) => return,
            },
            // What could not be written is tried again, and what pods have from the device plugin
            // becomes free.
            _ = tick.tick(), if again => publisher.write(&devices).await,
        };
        again = *done.as_ref().unwrap_or(&true);
        let problem = done.err().unwrap_or_default();
        if problem != said {
            if !problem.is_empty() {
                tracing::warn!("the node's ResourceSlices: {problem}");
            }
            said = problem;
        }
    }
}

impl Publisher<'_> {
    /// The devices that may be given out now, and whether pods have some from the device plugin.
    async fn offered(
        &self,
        devices: &watch::Receiver<Vec<Claimable>>,
    ) -> Result<(Vec<Device>, bool), String> {
        let held = (held(&self.config.pod_resources()).await)
            .map_err(|error| format!("the kubelet doesn't say which devices pods have: {error}"))?;
        let devices = devices.borrow();
        let free = |one: &&Claimable| one.problem.is_empty() && !held.contains(&one.id);
        let offered = devices.iter().filter(free);
        let offered = offered.map(|one| one.device.clone()).collect();
        Ok((offered, !held.is_empty()))
    }

    /// Writes what is not as it should be; whether to look again soon.
    async fn write(&mut self, devices: &watch::Receiver<Vec<Claimable>>) -> Result<bool, String> {
        if !self.known.whole {
            return Ok(false);
        }
        let (offered, held) = self.offered(devices).await?;
        let owner = match self.owner.take() {
            Some(owner) => owner,
            None => {
                let node = self.nodes.get(&self.config.node).await;
                Owner::of(&node.map_err(|error| format!("node {}: {error}", self.config.node))?)
            }
        };
        let there: Vec<&ResourceSlice> = self.known.slices.values().collect();
        let writes = owner.writes(&there, &offered);
        self.owner = Some(owner);
        for write in writes {
            // What could not be written is looked at anew: a later event says what is there.
            self.carry_out(write)
                .await
                .map_err(|error| error.to_string())?;
        }
        Ok(held)
    }

    async fn carry_out(&mut self, write: Write) -> Result<(), kube::Error> {
        let as_usual = PostParams::default();
        match write {
            Write::Create(slice) => {
                let made = self.slices.create(&as_usual, &slice).await?;
                tracing::info!(devices = devices_of(&made), "a ResourceSlice was made");
                self.known.keep(made);
            }
            Write::Replace(slice) => {
                let name = slice.metadata.name.clone().unwrap_or_default();
                let now = self.slices.replace(&name, &as_usual, &slice).await?;
                tracing::info!(devices = devices_of(&now), "a ResourceSlice was renewed");
                self.known.keep(now);
            }
            Write::Delete(name) => {
                match self.slices.delete(&name, &DeleteParams::default()).await {
                    Err(kube::Error::Api(gone)) if gone.is_not_found() => {}
                    deleted => drop(deleted?),
                }
                self.known.slices.remove(&name);
            }
        }
        Ok(())
    }
}

fn devices_of(slice: &ResourceSlice) -> usize {
    slice.spec.devices.as_ref().map_or(0, Vec::len)
}
