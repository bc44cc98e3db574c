//! Partitions the node's GPUs as its label `nvidia.com/mig.config` says: withholds the GPUs to be
//! partitioned, waits for their holders or evicts them, lets the driver partition the GPUs, and
//! offers the new devices after the next inventory. The label `nvidia.com/mig.config.state` has the
//! progress. `devices::mig` plans the steps, and `hardware::mig_partitioner` calls the driver, on its own
//! thread.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use devices::dra::Specs;
use devices::inventory::NodeHardware;
use devices::mig::configurations::possible;
use devices::mig::drain::{self, Live};
use devices::mig::next::{BlockingHolder, GpuHolders, ReadySteps, RepartitionPlan, next};
use devices::mig::{Drain, MigSettings, Withheld, shows};
use devices::mig_executor::Executor;
use devices::sharing::Sharing;
use hardware::mig_partitioner::Card;
use resources::devices::{MIG_NONE, MIG_SINGLE};
use resources::mig::Possible;
use resources::names::{MIG_CONFIG, MIG_CONFIG_STATE, MIG_CONFIGURATIONS};
use resources::node_conditions::MIG_CONFIG_FAILED;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::cluster::{HealthyCondition, NodeClient};
use super::evictions::Evictions;
use super::{DeviceDelivery, KubeletConfig, LOOK_EVERY, TRY_EVERY, socket};

/// Maximum number of cuts of a GPU for one configuration: its mode, once more after a reset, its
/// instances.
const CUTS_MAX: u32 = 3;
/// Pause before the next try if the driver doesn't answer.
const AGAIN: Duration = Duration::from_secs(60);

/// The node's labels for MIG: the wanted configuration, and the last state written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct MigLabels {
    wanted: Option<String>,
    state: Option<String>,
}

/// The result of a round.
enum Round {
    /// Nothing is to be done until the label names another configuration.
    Over,
    /// There is more to do after this time.
    Again(Duration),
}

struct MigManager<'a> {
    settings: &'a MigSettings,
    cluster: NodeClient,
    executor: Executor,
    withheld: Withheld,
    machine: watch::Receiver<NodeHardware>,
    pod_resources: PathBuf,
    specs: Specs,
    /// The value of the node's state label.
    state: Option<String>,
    /// Whether others wrote the label since, so that its value is uncertain.
    unsure: bool,
    /// Whether the possible layouts are published to schedulers: not if their resources would
    /// differ from the published ones.
    publishes_layouts: bool,
    /// The possible layouts published last.
    possible: Option<Possible>,
    /// The last message about holders in the way.
    last_message: String,
    /// Pods with an eviction request.
    evictions: Evictions,
    /// How often each GPU was cut for the label's present value.
    cuts: BTreeMap<String, u32>,
}

/// Keeps the node's GPUs partitioned as its label says, for as long as the agent runs.
pub async fn manage(
    config: &KubeletConfig,
    settings: &MigSettings,
    cluster: NodeClient,
    withheld: Withheld,
    machine: watch::Receiver<NodeHardware>,
) {
    let (labels_sender, mut labels) = watch::channel(None);
    let mut manager = MigManager {
        settings,
        cluster: cluster.clone(),
        executor: Executor::new(&config.source),
        withheld,
        machine,
        pod_resources: config.pod_resources(),
        specs: Specs::new(&config.cdi),
        state: None,
        unsure: true,
        publishes_layouts: config.given_by == DeviceDelivery::Plugin
            && config.settings.sharing == Sharing::default(),
        possible: None,
        last_message: String::new(),
        evictions: Evictions::default(),
        cuts: BTreeMap::new(),
    };
    let rounds = async {
        // Before the first label arrives the wanted configuration is unknown.
        let Ok(first) = labels.wait_for(Option::is_some).await.map(|it| it.clone()) else {
            return;
        };
        let mut now: MigLabels = first.unwrap_or_default();
        manager.state = now.state.take();
        loop {
            let round = manager.round(now.wanted.as_deref()).await;
            let other = labels.wait_for(|labels: &Option<MigLabels>| {
                labels
                    .as_ref()
                    .is_some_and(|labels| labels.wanted != now.wanted)
            });
            let changed = match round {
                Ok(Round::Over) => other.await.map(|it| it.clone()).ok(),
                Ok(Round::Again(after)) => match timeout(after, other).await {
                    Ok(changed) => changed.map(|it| it.clone()).ok(),
                    Err(_) => continue,
                },
                Err(error) => {
                    tracing::debug!(%error, "the state of the GPUs' partitioning cannot be written to the Node yet; trying again");
                    sleep(TRY_EVERY).await;
                    continue;
                }
            };
            match changed {
                Some(changed) => {
                    now = changed.unwrap_or_default();
                    // The author of the label may write its state with it.
                    manager.state = now.state.take();
                    manager.unsure = true;
                    manager.cuts.clear();
                }
                None => return,
            }
        }
    };
    tokio::select! {
        () = listen(&cluster, &labels_sender) => {}
        () = rounds => {}
    }
}

/// Removes the possible layouts that an earlier agent published, for an agent that does not cut
/// GPUs.
pub async fn cut_nothing(cluster: &NodeClient) {
    while let Err(error) = cluster.annotate(MIG_CONFIGURATIONS, None).await {
        tracing::debug!(%error, "the GPUs' possible configurations cannot be removed from the Node yet; trying again");
        sleep(TRY_EVERY).await;
    }
    std::future::pending().await
}

/// Receives the node's labels.
async fn listen(cluster: &NodeClient, labels_sender: &watch::Sender<Option<MigLabels>>) {
    let follow = cluster.follow_node("the node's labels", |node| {
        let all = node.labels.unwrap_or_default();
        let value = |name| all.get(name).filter(|value| !value.is_empty()).cloned();
        let labels = MigLabels {
            wanted: value(MIG_CONFIG),
            state: value(MIG_CONFIG_STATE),
        };
        labels_sender.send_if_modified(|before| {
            let news = before.as_ref().map(|before| &before.wanted) != Some(&labels.wanted);
            if news {
                *before = Some(labels);
            }
            news
        });
    });
    follow.await;
}

impl MigManager<'_> {
    /// Does what can be done now.
    async fn round(&mut self, wanted: Option<&str>) -> Result<Round, kube::Error> {
        let Some(name) = wanted else {
            self.withheld.set(BTreeMap::new());
            let cards = self.executor.ask(|partitioner| partitioner.observe()).await;
            if self.state.is_some() || self.unsure {
                self.notify(None, "").await?;
            }
            // No configuration is requested, so a driver that doesn't answer is no problem yet.
            self.report_possible(cards.as_deref().unwrap_or_default())
                .await?;
            return Ok(match cards {
                Ok(_) => Round::Over,
                Err(_) => Round::Again(AGAIN),
            });
        };
        // GPUs that were withheld before the holders are read: no pod has been given one since.
        let free = self.withheld.seen_in(&self.machine.borrow());
        let cards = match self.executor.ask(|partitioner| partitioner.observe()).await {
            Ok(cards) => cards,
            Err(error) => {
                self.fail(name, &error.to_string(), "in a minute").await?;
                return Ok(Round::Again(AGAIN));
            }
        };
        self.report_possible(&cards).await?;
        let all = match self.settings.configurations.wanted(name, &cards) {
            Ok(all) => all,
            Err(error) => return self.give_up(name, &error.to_string()).await,
        };
        let Some((holders, live)) = self.holders().await else {
            return Ok(Round::Again(LOOK_EVERY));
        };
        let next = match next(&cards, &all, &holders) {
            Ok(next) => next,
            Err(error) => return self.give_up(name, &error.to_string()).await,
        };
        self.withheld.set(next.withheld.clone());
        if next == RepartitionPlan::default() {
            let meant = cards.into_iter().filter(|card| all.contains_key(&card.id));
            if !shows(&self.machine.borrow(), &meant.collect::<Vec<_>>()) {
                return Ok(Round::Again(LOOK_EVERY));
            }
            let before = self.state.clone();
            self.notify(Some("success"), "").await?;
            if before.as_deref() != Some("success") {
                let done = format!("the GPUs are partitioned as {name} says");
                tracing::info!("{done}");
                self.cluster
                    .report_event(false, "MigConfigured", &done)
                    .await;
            }
            self.evictions = Evictions::default();
            return Ok(Round::Over);
        }
        // Not before the GPUs are withheld: a replacement pod would get them.
        let all_out = next.withheld.keys().all(|gpu| free.contains(gpu));
        if self.settings.drain == Drain::Evict && all_out {
            let why = "its GPU is to be partitioned";
            (self.evictions.ask(&self.cluster, &next.held, &live, why)).await;
        }
        self.report_pending(name, &next).await?;
        let unused =
            |cut: &ReadySteps| !next.withheld.contains_key(&cut.gpu) || free.contains(&cut.gpu);
        for cut in next.ready.into_iter().filter(unused) {
            let ReadySteps { gpu, index, steps } = cut;
            let cuts = self.cuts.entry(gpu.clone()).or_default();
            *cuts += 1;
            if *cuts > CUTS_MAX {
                let why = format!(
                    "GPU {index}: its driver reported success for every step, and still shows other partitions; reset the GPU or restart the node"
                );
                return self.give_up(name, &why).await;
            }
            let done = self
                .executor
                .ask(move |partitioner| partitioner.take(&gpu, &steps))
                .await;
            if let Err(error) = done {
                return self.give_up(name, &format!("GPU {index}: {error}")).await;
            }
        }
        Ok(Round::Again(LOOK_EVERY))
    }

    /// The current holders, and the pods that have not ended; `None` while these are unknown.
    async fn holders(&self) -> Option<(GpuHolders, BTreeMap<BlockingHolder, Live>)> {
        let listed = socket::held(&self.pod_resources, true).await;
        let listed = listed.map_err(|error| error.to_string());
        let pods = self.cluster.pods().await.map_err(|error| error.to_string());
        let prepared = self.specs.all().map_err(|error| error.to_string());
        match (listed, pods, prepared) {
            (Ok(listed), Ok(pods), Ok(prepared)) => Some((
                drain::holders(&listed, &pods, &prepared),
                drain::live(&pods),
            )),
            (Err(error), ..) | (_, Err(error), _) | (.., Err(error)) => {
                tracing::warn!(
                    "no GPU is partitioned, because the pods that hold GPUs cannot be read: {error}"
                );
                None
            }
        }
    }

    /// Publishes the possible layouts to schedulers.
    async fn report_possible(&mut self, cards: &[Card]) -> Result<(), kube::Error> {
        let strategy = self.machine.borrow().inventory.mig_strategy.clone();
        let by_profile = self.publishes_layouts && strategy != MIG_SINGLE && strategy != MIG_NONE;
        let now = match by_profile {
            true => possible(&self.settings.configurations, cards),
            false => Possible::new(),
        };
        if self.possible.as_ref() == Some(&now) {
            return Ok(());
        }
        let text = (!now.is_empty()).then(|| serde_json::to_string(&now));
        let text = text.transpose().map_err(kube::Error::SerdeError)?;
        (self.cluster.annotate(MIG_CONFIGURATIONS, text.as_deref())).await?;
        self.possible = Some(now);
        Ok(())
    }

    /// Reports that the change is in progress, and which holders it waits for.
    async fn report_pending(
        &mut self,
        name: &str,
        next: &RepartitionPlan,
    ) -> Result<(), kube::Error> {
        let resets: Vec<String> = next.resets.iter().map(u32::to_string).collect();
        let stuck = next.held.is_empty() && next.ready.is_empty();
        let state = if stuck { "rebooting" } else { "pending" };
        self.notify(Some(state), "").await?;
        let who = next
            .held
            .iter()
            .map(|held| match self.evictions.refused(held) {
                Some(refused) => format!("{held} (its eviction is refused: {refused})"),
                None => held.to_string(),
            });
        let who: Vec<String> = who.collect();
        let mut waits = Vec::new();
        if !who.is_empty() {
            waits.push(format!("these must be gone: {}", who.join(", ")));
        }
        if !resets.is_empty() {
            waits.push(format!(
                "MIG mode changes when GPU {} is reset (nvidia-smi --gpu-reset -i {}), while no other \
                 process uses it, or when the machine restarts",
                resets.join(", "),
                resets.join(","),
            ));
        }
        let waits = match waits.is_empty() {
            true => format!("the GPUs are being partitioned as {name} says"),
            false => format!("to partition the GPUs as {name} says, {}", waits.join("; ")),
        };
        if waits != self.last_message {
            tracing::info!("{waits}");
            (self.cluster.report_event(false, "MigConfigPending", &waits)).await;
            self.last_message = waits;
        }
        Ok(())
    }

    /// Reports that the change is impossible; the next try is after the label names another
    /// configuration.
    async fn give_up(&mut self, name: &str, why: &str) -> Result<Round, kube::Error> {
        let again = "when the label changes or the agent restarts";
        self.fail(name, why, again).await?;
        Ok(Round::Over)
    }

    async fn fail(&mut self, name: &str, why: &str, again: &str) -> Result<(), kube::Error> {
        self.withheld.set(BTreeMap::new());
        let why = format!(
            "the GPUs are not partitioned as {MIG_CONFIG}={name} says: {why}; the agent tries again {again}"
        );
        self.notify(Some("failed"), &why).await
    }

    /// Writes the node's label and condition.
    async fn notify(&mut self, state: Option<&str>, trouble: &str) -> Result<(), kube::Error> {
        if state != Some("pending") && state != Some("rebooting") {
            self.last_message.clear();
        }
        if self.state.as_deref() == state && trouble.is_empty() && !self.unsure {
            return Ok(());
        }
        // The reason is written first, so that a reader of the label finds it.
        let (condition, well) = (&MIG_CONFIG_FAILED, HealthyCondition::Absent);
        (self.cluster.report_condition(condition, trouble, well)).await?;
        self.cluster.label(MIG_CONFIG_STATE, state).await?;
        self.state = state.map(str::to_owned);
        self.unsure = false;
        Ok(())
    }
}
