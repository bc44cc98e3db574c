//! The worker of one pod: gets actions from the pod's state machine and does them, saves the state
//! to disk before anything starts, and reports to the server. Decides nothing itself.

mod act;
mod cleanup;
mod report;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, Pod};
use network::PodNetwork;
use resources::names::{EVICTED, NODE_UNFIT};
use rpc::agent::v1::{Assign, PodGone};
use runtime::{ContainerExit, ContainerId, ContainerState, ContainerStatus, ExitReason};
use tokio::sync::{mpsc, watch};
use tokio::task::AbortHandle;

use crate::accounts::ProcessOwner;
use crate::confinement;
use crate::container;
use crate::disk::PodDir;
use crate::engine::{ContainerEngine, NotStarted};
use crate::eviction::PressureReason;
use crate::fields::NodeFieldValues;
use crate::lifecycle::{
    Gates, PodLifecycle, PodPlan, ProbeVerdict, RunEnd, RunObservation, StartBlock, WorkerAction,
};
use crate::network_policies::NotReady;
use crate::node::AgentNode;
use crate::runs::Beginning;
use crate::shares::OVER_SHARE;
use crate::volumes::{self, VolumePaths};
use crate::worker_message::WorkerMessage;
use cleanup::Cleanup;

/// Pause before a failed preparation of a pod is retried.
const PREPARE_AGAIN: Duration = Duration::from_secs(5);

/// One pod's worker.
pub struct Worker {
    node: Arc<AgentNode>,
    engine: Result<Arc<dyn ContainerEngine>, StartBlock>,
    dir: PodDir,
    assigned: Assign,
    pod: Pod,
    plan: PodPlan,
    machine: PodLifecycle,
    /// The state as saved to disk.
    kept: PodLifecycle,
    places: Option<VolumePaths>,
    /// The user that the pod runs as, once that is determined.
    owner: Option<ProcessOwner>,
    /// The pod's own network, once it is made.
    network: Option<PodNetwork>,
    /// Whether it has a `resolv.conf` of its own.
    own_resolvers: bool,
    /// The facts of the node and the pod's address.
    facts: NodeFieldValues,
    problem: Option<StartBlock>,
    gates: Gates,
    /// The pod must end for good: its record is removed when nothing of it runs.
    leaving: bool,
    fence: watch::Receiver<bool>,
    words: mpsc::Receiver<WorkerMessage>,
    to_self: mpsc::Sender<WorkerMessage>,
    probing: BTreeMap<String, (u32, Vec<AbortHandle>)>,
    /// The starts of the latest runs, by container.
    begun: BTreeMap<String, Beginning>,
    /// Runs whose end was requested.
    ending: BTreeSet<ContainerId>,
    /// The removal of the files that the pod wrote, once it has ended.
    cleanup: Cleanup,
}

/// The parameters of a new worker.
pub struct WorkerParameters {
    /// The node.
    pub node: Arc<AgentNode>,
    /// The pod as assigned.
    pub assigned: Assign,
    /// The pod, parsed.
    pub pod: Pod,
    /// Its state, from an earlier agent or new.
    pub machine: PodLifecycle,
    /// True while pods that must end first still run.
    pub fence: watch::Receiver<bool>,
    /// The worker's messages.
    pub words: mpsc::Receiver<WorkerMessage>,
    /// The sender to the worker itself.
    pub to_self: mpsc::Sender<WorkerMessage>,
}

impl Drop for Worker {
    /// Ends the probes, also those of a worker that panicked.
    fn drop(&mut self) {
        for (_, tasks) in self.probing.values() {
            tasks.iter().for_each(AbortHandle::abort);
        }
    }
}

impl Worker {
    /// A worker that hasn't started.
    pub fn new(start: WorkerParameters) -> Worker {
        let plan = PodPlan::of(&start.pod);
        let dir = start.node.layout.pod(&plan.uid);
        let leaving = matches!(
            start.machine.stopping,
            Some(ref stopping) if matches!(stopping.cause, crate::lifecycle::StopCause::Asked { .. })
        );
        Worker {
            engine: start.node.engine_for(&start.pod),
            dir,
            plan,
            kept: PodLifecycle::default(),
            places: None,
            owner: None,
            network: None,
            own_resolvers: false,
            facts: NodeFieldValues {
                pod_ip: start.machine.address.map(|address| address.to_string()),
                ..start.node.facts.clone()
            },
            machine: start.machine,
            problem: None,
            gates: Gates::default(),
            leaving,
            fence: start.fence,
            words: start.words,
            to_self: start.to_self,
            probing: BTreeMap::new(),
            begun: BTreeMap::new(),
            ending: BTreeSet::new(),
            cleanup: Cleanup::default(),
            node: start.node,
            assigned: start.assigned,
            pod: start.pod,
        }
    }

    /// Takes over the runs of an earlier agent; called once, before `run`.
    pub fn recover(&mut self, found: &[ContainerStatus]) {
        let names: Vec<String> = self.machine.containers.keys().cloned().collect();
        for name in names {
            let attempt = self.machine.containers[&name].attempt;
            let status = found.iter().find(|status| {
                status.pod.uid == self.plan.uid && status.name == name && status.attempt == attempt
            });
            match status {
                Some(status) => self.see(status),
                None => self.machine.mark_unobserved(&name, Timestamp::now()),
            }
            // The task that ended the run may have died before it was done: the end is requested
            // again.
            if let Some(record) = self.machine.containers.get_mut(&name) {
                record.killed = None;
            }
        }
    }

    /// Works until the pod is over and can be forgotten.
    pub async fn run(mut self) {
        loop {
            self.prepare().await;
            self.gates = self.gates();
            let step = self.machine.step(&self.plan, &self.gates, Timestamp::now());
            // Saved first: a restarted agent must find what was started.
            if !self.keep()
                && step
                    .actions
                    .iter()
                    .any(|a| matches!(a, WorkerAction::Start { .. }))
            {
                tracing::error!(
                    pod = self.plan.name,
                    "a container is started though its record is not on disk"
                );
            }
            for action in step.actions {
                self.act(action);
            }
            self.follow_probes();
            self.report();
            if self.leaving && self.machine.is_over() {
                self.leave().await;
                return;
            }
            if self.machine.is_over() {
                self.clear().await;
            }
            // The condition for which a container waits may change without a message, for instance
            // a GPU's MPS daemon.
            let held = self.problem.is_some() || !self.gates.containers.is_empty();
            let retry = held.then(|| tokio::time::Instant::now() + PREPARE_AGAIN);
            let wake = step.wake.map(|wake| {
                let left = wake.duration_since(Timestamp::now());
                tokio::time::Instant::now() + Duration::try_from(left).unwrap_or(Duration::ZERO)
            });
            let at = [retry, wake, self.cleanup.next()];
            let at = at.into_iter().flatten().min();
            let sleep = async {
                match at {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                word = self.words.recv() => match word {
                    Some(word) => self.receive(word),
                    None => return,
                },
                changed = self.fence.changed() => if changed.is_err() { return },
                () = sleep => {}
            }
            // Processes all pending messages before the next step.
            while let Ok(word) = self.words.try_recv() {
                self.receive(word);
            }
        }
    }

    fn receive(&mut self, word: WorkerMessage) {
        match word {
            WorkerMessage::Assigned(mut assigned) => {
                // The pod's files already have an owner: a changed label applies to other pods.
                if self.owner.is_some() || self.machine.has_begun() {
                    assigned.unix_account = std::mem::take(&mut self.assigned.unix_account);
                }
                self.assigned = *assigned;
                self.places = None;
                self.problem = None;
                if let Err(error) = self.dir.keep_assigned(&self.assigned) {
                    tracing::warn!(pod = self.plan.name, %error, "the agent could not write a pod's description to disk");
                }
            }
            WorkerMessage::Hosts(hosts) => {
                self.assigned.hosts = hosts;
                self.write_hosts();
            }
            WorkerMessage::Stop { grace, reason } => {
                self.leaving = true;
                self.machine.stop(grace, &reason, Timestamp::now());
            }
            WorkerMessage::Seen(status) => self.see(&status),
            WorkerMessage::NotStarted(container, attempt, NotStarted::Failed(why)) => {
                let end = RunEnd {
                    code: 128,
                    signal: None,
                    reason: "StartError".to_owned(),
                    message: why,
                    started_at: None,
                    finished_at: Timestamp::now(),
                };
                self.machine
                    .observe(&self.plan, &container, attempt, RunObservation::Ended(end));
            }
            WorkerMessage::NotStarted(container, attempt, NotStarted::Waiting(hold)) => {
                let text = format!("Error: {}", hold.message);
                if self
                    .machine
                    .not_made(&container, attempt, hold, Timestamp::now())
                {
                    self.note(true, "Failed", text, Some(&container));
                }
            }
            WorkerMessage::OverShare {
                container,
                why,
                report,
                end,
            } => {
                if report {
                    self.note(true, OVER_SHARE, why.clone(), Some(&container));
                }
                let record = self.machine.containers.get(&container);
                if let Some(attempt) = record.map(|record| record.attempt).filter(|_| end) {
                    let verdict = ProbeVerdict::Condemned(why);
                    self.machine.probed(&container, attempt, verdict);
                }
            }
            WorkerMessage::Evict(PressureReason { message, by_node }) => {
                if self.machine.evict(&message, by_node, Timestamp::now()) {
                    self.note(true, EVICTED, message, None);
                }
            }
            WorkerMessage::Probed(container, attempt, verdict) => {
                let text = match &verdict {
                    ProbeVerdict::Condemned(why) => Some(why.clone()),
                    _ => None,
                };
                if self.machine.probed(&container, attempt, verdict)
                    && let Some(text) = text
                {
                    self.note(true, "Unhealthy", text, Some(&container));
                }
            }
        }
    }

    fn see(&mut self, status: &ContainerStatus) {
        let seen = match &status.state {
            ContainerState::Starting => RunObservation::Starting,
            ContainerState::Running { started_at, .. } => {
                RunObservation::Running { since: *started_at }
            }
            ContainerState::Exited(exit) => {
                let message = self.termination_message(status, exit.code != 0);
                RunObservation::Ended(RunEnd {
                    code: exit.code,
                    signal: exit.signal,
                    reason: exit.reason.as_str().to_owned(),
                    message: message.unwrap_or_else(|| exit.message.clone()),
                    started_at: exit.started_at,
                    finished_at: exit.finished_at,
                })
            }
        };
        let begins = matches!(seen, RunObservation::Running { .. });
        let failed = matches!(&seen, RunObservation::Ended(end) if end.reason == "StartError");
        let news = self
            .machine
            .observe(&self.plan, &status.name, status.attempt, seen);
        if news && begins {
            let text = format!("Started container {}", status.name);
            self.note(false, "Started", text, Some(&status.name));
            for note in &status.notes {
                self.note(true, "NotEnforced", note.clone(), Some(&status.name));
            }
            self.post_start(&status.name, status.attempt);
        }
        let of_node = |exit: &&ContainerExit| {
            matches!(exit.reason, ExitReason::NodeUnfit | ExitReason::NodeBusy)
        };
        if let Some(exit) = status.exit().filter(of_node)
            && news
        {
            let (unfit, now) = (&self.node.fault, tokio::time::Instant::now());
            match exit.reason {
                ExitReason::NodeUnfit => unfit.saw(&exit.message, now),
                _ => unfit.saw_passing(&exit.message, now),
            }
            let text = format!("Error: {}", exit.message);
            self.note(true, NODE_UNFIT, text, Some(&status.name));
        }
        if news && failed {
            let text = format!("Error: {}", status.exit().map_or("", |exit| &exit.message));
            self.note(true, "Failed", text, Some(&status.name));
        }
    }

    fn container(&self, name: &str) -> Option<&Container> {
        let spec = self.pod.spec.as_ref()?;
        let init = spec.init_containers.iter().flatten();
        init.chain(&spec.containers).find(|c| c.name == name)
    }

    /// Determines the pod's user, and creates volumes and the hosts file, once.
    async fn prepare(&mut self) {
        if self.places.is_some() || self.leaving || self.machine.verdict.is_some() {
            return;
        }
        let (node, dir) = (self.node.clone(), self.dir.clone());
        let (pod, data) = (self.pod.clone(), self.assigned.volumes.clone());
        let label = self.assigned.unix_account.clone();
        let own_network = self.has_own_network();
        let (process, begun) = (self.process(), self.machine.has_begun());
        let (uid, mut facts) = (self.plan.uid.clone(), self.facts.clone());
        // In the background, because the account lookup may ask a directory service.
        let made = tokio::task::spawn_blocking(move || {
            let owner =
                (node.tenants.owner(&pod, &label)).map_err(|why| ("NoPodUser", why.to_string()))?;
            let network = own_network
                .then(|| attach(&node, &uid, process, begun))
                .transpose();
            let network = network.map_err(|why| ("FailedCreatePodSandBox", why))?;
            if let Some(network) = &network {
                facts.pod_ip = Some(network.address.to_string());
            }
            let places = volumes::prepare(&volumes::VolumeInputs {
                pod: &pod,
                data: &data,
                node: &facts,
                pod_dir: &dir.volumes(),
                claims_dir: &node.layout.claims(),
                owner: owner.as_ref().map(|owner| (owner.uid, owner.gid)),
                group: confinement::fs_group(&pod, owner.as_ref()),
            })
            .map_err(|why| ("FailedMount", why.to_string()))?;
            Ok::<_, (&'static str, String)>((owner, network, places))
        })
        .await
        .unwrap_or_else(|error| Err(("FailedMount", error.to_string())));
        match made {
            Ok((owner, network, places)) => {
                self.owner = owner;
                if let Some(network) = &network {
                    self.facts.pod_ip = Some(network.address.to_string());
                    self.machine.address = Some(network.address);
                }
                self.network = network;
                self.places = Some(places);
                self.problem = None;
                self.write_hosts();
                self.write_resolv_conf().await;
            }
            Err((event, why)) => {
                if self.problem.as_ref().map(|hold| &hold.message) != Some(&why) {
                    self.note(true, event, why.clone(), None);
                }
                self.problem = Some(StartBlock {
                    reason: "CreateContainerConfigError".to_owned(),
                    message: why,
                });
            }
        }
    }

    fn write_hosts(&mut self) {
        let aliases = self
            .pod
            .spec
            .as_ref()
            .and_then(|spec| spec.host_aliases.as_deref());
        let mut names = vec![container::hostname(&self.pod, &self.node.facts)];
        // An image's container has the machine's own host name and must be able to resolve it.
        if crate::node::first_image(&self.pod).is_some() {
            names.push(self.node.machine.lock().inventory.hostname.clone());
        }
        names.dedup();
        let text = crate::hosts::text(
            self.facts.of_pod(),
            &names,
            &self.assigned.hosts,
            aliases.unwrap_or_default(),
        );
        if let Err(error) = runtime::volumes::write_in_place(&self.dir.hosts(), text.as_bytes()) {
            tracing::warn!(pod = self.plan.name, %error, "a pod's hosts file was not written");
        }
    }

    /// Containers of a container runtime have the runtime's.
    async fn write_resolv_conf(&mut self) {
        let as_process = (self.engine.as_ref()).is_ok_and(|engine| !engine.renumbers_devices());
        let (services, pod) = (self.node.services.clone(), self.pod.clone());
        let (file, own_network) = (self.dir.resolv_conf(), self.network.is_some());
        let write = move || {
            let text = services
                .resolv_conf(&pod, own_network)
                .filter(|_| as_process);
            text.map(|text| runtime::volumes::write_in_place(&file, text.as_bytes()))
        };
        match tokio::task::spawn_blocking(write).await {
            Ok(Some(Err(error))) => {
                tracing::warn!(pod = self.plan.name, %error, "a pod's resolv.conf was not written; it has the node's");
            }
            Ok(written) => self.own_resolvers = written.is_some(),
            Err(error) => {
                tracing::error!(pod = self.plan.name, %error, "a pod's resolv.conf was not written")
            }
        }
    }

    /// A process of the pod, if any runs.
    fn process(&self) -> Option<i32> {
        let engine = self.engine.as_ref().ok()?;
        let of_pod = engine.list().into_iter();
        let mut running =
            of_pod.filter(|status| status.pod.uid == self.plan.uid && status.is_running());
        running.find_map(|status| engine.processes(&status.id).first().copied())
    }

    /// Whether the pod has, or is to have, a network of its own.
    fn has_own_network(&self) -> bool {
        let engine = self.engine.as_ref();
        let as_process = engine.is_ok_and(|engine| !engine.renumbers_devices());
        let networks = &self.node.networks;
        networks.wanted(&self.pod, as_process, &self.machine)
    }

    /// The reasons that prevent containers from starting now.
    fn gates(&self) -> Gates {
        let hold = |reason: &str, message: &str| StartBlock {
            reason: reason.to_owned(),
            message: message.to_owned(),
        };
        if *self.fence.borrow() {
            return Gates {
                pod: Some(hold(
                    "ContainerCreating",
                    "waiting until the pods that this node has to give up have ended",
                )),
                ..Gates::default()
            };
        }
        if let Some(problem) = &self.problem {
            return Gates {
                pod: Some(problem.clone()),
                ..Gates::default()
            };
        }
        let mut gates = Gates::default();
        match &self.engine {
            Err(hold) => gates.pod = Some(hold.clone()),
            Ok(engine) => {
                for planned in self.plan.all() {
                    let attempt = self
                        .machine
                        .containers
                        .get(&planned.name)
                        .map_or(0, |record| record.attempt);
                    if let Err(why) = self.describe(&planned.name, attempt, engine.as_ref()) {
                        gates.containers.insert(
                            planned.name.clone(),
                            hold("CreateContainerConfigError", &why.to_string()),
                        );
                    }
                }
            }
        }
        gates
    }

    /// Saves the state if it changed; false if that failed.
    fn keep(&mut self) -> bool {
        if self.machine == self.kept {
            return true;
        }
        match self.dir.keep_state(&self.machine) {
            Ok(()) => {
                self.kept = self.machine.clone();
                true
            }
            Err(error) => {
                tracing::warn!(pod = self.plan.name, %error, "the agent could not write a pod's state to disk");
                false
            }
        }
    }

    /// Removes the engine's records of the pod's containers, which have ended, and what they wrote
    /// over their images; their logs stay.
    async fn remove_containers(&mut self) {
        let Ok(engine) = &self.engine else { return };
        for (name, record) in &self.machine.containers {
            for attempt in [record.attempt.checked_sub(1), Some(record.attempt)] {
                let Some(attempt) = attempt else { continue };
                if let Ok(id) = ContainerId::of(&self.plan.uid, name, attempt) {
                    let _ = engine.remove(&id).await;
                }
            }
        }
    }

    /// Removes everything of the pod but its logs, and reports that.
    async fn leave(&mut self) {
        for (_, (_, tasks)) in std::mem::take(&mut self.probing) {
            tasks.iter().for_each(AbortHandle::abort);
        }
        self.remove_containers().await;
        if let Ok(engine) = &self.engine {
            engine.release(&self.plan.uid).await;
        }
        self.node.networks.detach(&self.plan.uid).await;
        self.node.policies.changed();
        self.remove_directory().await;
        self.node.outbox.gone(PodGone {
            namespace: self.plan.namespace.clone(),
            name: self.plan.name.clone(),
            uid: self.plan.uid.clone(),
        });
    }
}

/// The network of a pod, with the rules of NetworkPolicies in place before anything of the pod runs. A pod that an
/// earlier agent started, and whose network exists, has its rules in the kernel already. Blocks.
fn attach(
    node: &AgentNode,
    uid: &str,
    process: Option<i32>,
    begun: bool,
) -> Result<PodNetwork, String> {
    let text = |why: &dyn std::error::Error| why.to_string();
    let kept = begun && (process.is_some() || node.networks.is_made(uid));
    if !kept && !node.policies.has_rules_of(uid) {
        return Err(text(&NotReady::NotSent));
    }
    let network = node.networks.attach(uid, process);
    let network = network.map_err(|why| text(&why))?;
    node.policies.put_in_place().map_err(|why| text(&why))?;
    Ok(network)
}
