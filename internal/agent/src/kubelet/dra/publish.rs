//! Keeps the node's ResourceSlices equal to the machine's devices, also when others remove or
//! change them: a starting kubelet removes those of its node.

use std::collections::BTreeMap;
use std::time::Duration;

use devices::dra::DRIVER;
use devices::dra::partitions::AllocatableDevices;
use devices::dra::slices::{SliceOwner, SliceWrite};
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::resource::v1::{CounterSet, Device, ResourceSlice};
use kube::api::{Api, DeleteParams, PostParams};
use kube::runtime::{WatchStreamExt, watcher};
use tokio::sync::watch;
use tokio::time::Instant;

use super::error::SlicePublishError;
use super::held;
use crate::kubelet::{KubeletConfig, LOOK_EVERY};

/// Interval at which an API that drops counters is asked again.
const ASK_EVERY: Duration = Duration::from_secs(60);
/// Maximum number of rounds of writes: counters, the devices with them, and once more without.
const ROUNDS: usize = 3;

/// Whether the API keeps shared counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CounterSupport {
    /// Not asked yet.
    Unknown,
    /// The API keeps them.
    Kept,
    /// The API dropped them at this time.
    Dropped(Instant),
}

/// The slices of this driver and node, as last received.
#[derive(Default)]
struct KnownSlices {
    slices: BTreeMap<String, ResourceSlice>,
    /// Whether the watch has listed all slices.
    whole: bool,
}

impl KnownSlices {
    fn take(&mut self, event: watcher::Event<ResourceSlice>) {
        match event {
            watcher::Event::Init => *self = KnownSlices::default(),
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
    known: KnownSlices,
    owner: Option<SliceOwner>,
    counters: CounterSupport,
}

/// Publishes slices for as long as there is a source of offers.
pub async fn publish(
    config: &KubeletConfig,
    client: kube::Client,
    mut offer: watch::Receiver<AllocatableDevices>,
) {
    let slices: Api<ResourceSlice> = Api::all(client.clone());
    let ours = format!("spec.driver={DRIVER},spec.nodeName={}", config.node);
    let events = watcher(slices.clone(), watcher::Config::default().fields(&ours));
    let mut events = events.default_backoff().boxed();
    let mut publisher = Publisher {
        config,
        nodes: Api::all(client),
        slices,
        known: KnownSlices::default(),
        owner: None,
        counters: CounterSupport::Unknown,
    };
    let mut tick = tokio::time::interval(LOOK_EVERY);
    let mut logged = String::new();
    let mut again = false;
    loop {
        let done = tokio::select! {
            event = events.try_next() => match event {
                Ok(Some(event)) => {
                    publisher.known.take(event);
                    publisher.write(&offer).await
                }
                Ok(None) => return,
                Err(error) => Err(SlicePublishError::Watch(Box::new(error))),
            },
            changed = offer.changed() => match changed {
                Ok(()) => publisher.write(&offer).await,
                Err(_) => return,
            },
            // Retries failed writes, and publishes devices that the device plugin's pods have released.
            _ = tick.tick(), if again => publisher.write(&offer).await,
        };
        again = *done.as_ref().unwrap_or(&true);
        let failed = done.err().map(|error| error.to_string());
        let problem = failed.unwrap_or_default();
        if problem != logged {
            if !problem.is_empty() {
                tracing::warn!("the node's ResourceSlices: {problem}");
            }
            logged = problem;
        }
    }
}

impl Publisher<'_> {
    /// The devices that may be allocated now, with their shared counters, and whether pods have
    /// devices from the device plugin.
    async fn offered(
        &self,
        offer: &AllocatableDevices,
    ) -> Result<(Vec<Device>, Vec<CounterSet>, bool), SlicePublishError> {
        let held = held(&self.config.pod_resources())
            .await
            .map_err(SlicePublishError::Holders)?;
        let (devices, shared) = match self.counters {
            CounterSupport::Kept => (&offer.devices, offer.shared.clone()),
            _ => (&offer.apart, Vec::new()),
        };
        let free = devices
            .iter()
            .filter(|one| one.problem.is_empty() && !held.contains(&one.id));
        let offered = free.map(|one| one.device.clone()).collect();
        Ok((offered, shared, !held.is_empty()))
    }

    /// Writes the differences; whether to look again soon.
    async fn write(
        &mut self,
        offer: &watch::Receiver<AllocatableDevices>,
    ) -> Result<bool, SlicePublishError> {
        if !self.known.whole {
            return Ok(false);
        }
        let offer = offer.borrow().clone();
        let owner = match self.owner.take() {
            Some(owner) => owner,
            None => {
                let node = self.nodes.get(&self.config.node).await;
                let node = node.map_err(|error| SlicePublishError::Node {
                    node: self.config.node.clone(),
                    error: Box::new(error),
                })?;
                SliceOwner::of(&node)
            }
        };
        let written = self.write_as(&owner, &offer).await;
        self.owner = Some(owner);
        let held = written?;
        let asks = !offer.shared.is_empty() && self.counters != CounterSupport::Kept;
        Ok(held || asks)
    }

    async fn write_as(
        &mut self,
        owner: &SliceOwner,
        offer: &AllocatableDevices,
    ) -> Result<bool, SlicePublishError> {
        if let Some(set) = offer.shared.first() {
            self.ask(&owner.question(set)).await?;
        }
        let mut held = false;
        for _ in 0..ROUNDS {
            let (devices, shared, some) = self.offered(offer).await?;
            held = some;
            let there: Vec<&ResourceSlice> = self.known.slices.values().collect();
            let writes = owner.writes(&there, &devices, &shared);
            if writes.is_empty() {
                break;
            }
            for write in writes {
                // After a failed write the next event has the actual state.
                if !self.carry_out(write).await? {
                    self.dropped();
                    break;
                }
            }
        }
        Ok(held)
    }

    /// Asks the API whether it keeps shared counters, unless that is known.
    async fn ask(&mut self, question: &ResourceSlice) -> Result<(), SlicePublishError> {
        let known = match self.counters {
            CounterSupport::Unknown => false,
            CounterSupport::Kept => true,
            CounterSupport::Dropped(at) => at.elapsed() < ASK_EVERY,
        };
        if known {
            return Ok(());
        }
        let nothing_kept = PostParams {
            dry_run: true,
            ..PostParams::default()
        };
        let answer = self.slices.create(&nothing_kept, question).await?;
        match answer.spec.shared_counters == question.spec.shared_counters {
            true => self.counters = CounterSupport::Kept,
            false => self.dropped(),
        }
        Ok(())
    }

    /// Logs once that the API keeps no counters.
    fn dropped(&mut self) {
        if !matches!(self.counters, CounterSupport::Dropped(_)) {
            tracing::warn!(
                "this cluster's API drops what MIG partitions share (spec.sharedCounters), so GPUs are \
                 offered to claims as they are: whole, or in the slices that are there; start \
                 kube-apiserver and kube-scheduler with --feature-gates=DRAPartitionableDevices=true \
                 (alpha in Kubernetes 1.34), or leave out --mig-partitions"
            );
        }
        self.counters = CounterSupport::Dropped(Instant::now());
    }

    /// Does a write; whether the API kept all of it.
    async fn carry_out(&mut self, write: SliceWrite) -> Result<bool, kube::Error> {
        let as_usual = PostParams::default();
        let counted = |slice: &ResourceSlice| slice.spec.shared_counters.is_some();
        match write {
            SliceWrite::Create(slice) => {
                let made = self.slices.create(&as_usual, &slice).await?;
                tracing::info!(devices = devices_of(&made), "a ResourceSlice was made");
                let kept = counted(&made) == counted(&slice);
                self.known.keep(made);
                return Ok(kept);
            }
            SliceWrite::Replace(slice) => {
                let name = slice.metadata.name.clone().unwrap_or_default();
                let now = self.slices.replace(&name, &as_usual, &slice).await?;
                tracing::info!(devices = devices_of(&now), "a ResourceSlice was renewed");
                let kept = counted(&now) == counted(&slice);
                self.known.keep(now);
                return Ok(kept);
            }
            SliceWrite::Delete(name) => {
                match self.slices.delete(&name, &DeleteParams::default()).await {
                    Err(kube::Error::Api(gone)) if gone.is_not_found() => {}
                    deleted => drop(deleted?),
                }
                self.known.slices.remove(&name);
            }
        }
        Ok(true)
    }
}

fn devices_of(slice: &ResourceSlice) -> usize {
    slice.spec.devices.as_ref().map_or(0, Vec::len)
}
