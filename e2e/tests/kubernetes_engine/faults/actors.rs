//! The other actors of a round, each of which reads the ledger and retries every failed request: the owner of the
//! work, the kubelets, a client that binds its own pods, and one that interferes with every object.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use futures::StreamExt;
use http::Request;
use kube::Client;
use serde_json::{Value, json};

use super::draw::{Draw, GPUS, NAMES, Placer, Room, Round, Work};
use super::ledger::{Ledger, Pod};

/// Interval at which each actor reads the ledger.
const PACE: Duration = Duration::from_millis(25);
/// Concurrent requests of one actor.
const IN_FLIGHT: usize = 16;
/// Time limit of one request; it is retried afterwards.
const PATIENCE: Duration = Duration::from_secs(5);
/// A pod is removed this long after its node, as by the garbage collector.
const ORPHANED: Duration = Duration::from_millis(300);

const PODS: &str = "/api/v1/namespaces/default/pods";
const GROUPS: &str = "/apis/scheduling.volcano.sh/v1beta1/namespaces/default/podgroups";
const JOBS: &str = "/apis/kubeflow.org/v1/namespaces/default/pytorchjobs";
const SERVICES: &str = "/api/v1/namespaces/default/services";
const NODES: &str = "/api/v1/nodes";
const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/muster-system/leases/muster-server";

/// A request that may fail.
pub struct Ask {
    method: &'static str,
    path: String,
    body: Value,
}

pub fn create(path: &str, body: Value) -> Ask {
    Ask {
        method: "POST",
        path: path.to_owned(),
        body,
    }
}

pub fn delete(path: String) -> Ask {
    Ask {
        method: "DELETE",
        path,
        body: json!({"gracePeriodSeconds": 0}),
    }
}

pub fn merge(path: String, body: Value) -> Ask {
    Ask {
        method: "PATCH",
        path,
        body,
    }
}

/// Deletes exactly this pod, by uid.
fn remove(pod: &Pod) -> Ask {
    let mut ask = delete(format!("{PODS}/{}", pod.name));
    ask.body["preconditions"] = json!({"uid": pod.uid});
    ask
}

/// A round's shared state: the client and the ledger for all actors.
#[derive(Clone)]
pub struct Stage {
    pub client: Client,
    ledger: Arc<Mutex<Ledger>>,
    pub round: Arc<Round>,
    pub begun: Instant,
}

impl Stage {
    pub fn new(client: Client, ledger: Arc<Mutex<Ledger>>, round: Arc<Round>) -> Stage {
        Stage {
            client,
            ledger,
            round,
            begun: Instant::now(),
        }
    }

    pub fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap()
    }

    /// Sends all requests and ignores the answers: the actor reads the ledger again.
    pub async fn send(&self, asks: Vec<Ask>) {
        let sending = asks.into_iter().map(|ask| {
            let kind = match ask.method {
                "PATCH" => "application/merge-patch+json",
                _ => "application/json",
            };
            let request = Request::builder()
                .method(ask.method)
                .uri(ask.path)
                .header("content-type", kind)
                .body(ask.body.to_string().into_bytes())
                .unwrap();
            tokio::time::timeout(PATIENCE, self.client.request_text(request))
        });
        let mut sending = futures::stream::iter(sending).buffer_unordered(IN_FLIGHT);
        while sending.next().await.is_some() {}
    }

    /// Repeats this until it is dropped.
    async fn forever(&self, mut look: impl FnMut(&Ledger) -> Vec<Ask>) {
        loop {
            let asks = look(&self.ledger());
            self.send(asks).await;
            tokio::time::sleep(PACE).await;
        }
    }
}

/// A request to create the node's object (again).
pub fn node(name: &str, has: Room) -> Ask {
    let room: BTreeMap<&str, Value> = NAMES.into_iter().zip(amounts(has)).collect();
    let gpu =
        |at: i64| json!({"id": format!("{name}-{at}"), "index": at, "numa": 0, "healthy": true});
    let gpus: Vec<Value> = (0..has[GPUS]).map(gpu).collect();
    let inventory = json!({"gpus": gpus}).to_string();
    create(
        NODES,
        json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name},
                "annotations": {"muster.io/inventory": inventory}},
            "status": {"capacity": room, "allocatable": room, "conditions": [
                {"type": "Ready", "status": "True", "reason": "Described", "message": "no kubelet"}]},
        }),
    )
}

/// The room as quantities.
fn amounts(room: Room) -> [Value; 4] {
    let [cores, gib, gpus, pods] = room.map(|n| n.to_string());
    [
        json!(cores),
        json!(format!("{gib}Gi")),
        json!(gpus),
        json!(pods),
    ]
}

pub fn cordon(name: &str, cordoned: bool) -> Ask {
    merge(
        format!("{NODES}/{name}"),
        json!({"spec": {"unschedulable": cordoned}}),
    )
}

pub fn node_gone(name: &str) -> Ask {
    delete(format!("{NODES}/{name}"))
}

/// A pod that is bound to a node without a scheduler.
pub fn forced(name: &str, node: &str, gpus: i64) -> Ask {
    let mut pod = pod(name, None, "crowd", [1, 1, gpus, 1]);
    pod["spec"]["nodeName"] = json!(node);
    create(PODS, pod)
}

fn pod(name: &str, gang: Option<&str>, scheduler: &str, asks: Room) -> Value {
    let notes = gang.map_or(
        json!({}),
        |gang| json!({"scheduling.k8s.io/group-name": gang}),
    );
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "annotations": notes},
        "spec": {
            "schedulerName": scheduler, "restartPolicy": "Never", "terminationGracePeriodSeconds": 0,
            "containers": [container("c", asks)],
        },
    })
}

fn container(name: &str, asks: Room) -> Value {
    let [cores, gib, gpus, _] = amounts(asks);
    let mut requests = json!({"cpu": cores, "memory": gib});
    let mut limits = json!({});
    if asks[GPUS] > 0 {
        requests["nvidia.com/gpu"] = gpus.clone();
        limits["nvidia.com/gpu"] = gpus;
    }
    json!({"name": name, "image": "example.com/c:1",
        "resources": {"requests": requests, "limits": limits}})
}

/// A job that creates the work's gang. It continues however often its pods are lost.
fn pytorch(work: &Work, minimum: usize) -> Value {
    let replica = |count: usize| {
        json!({"replicas": count, "restartPolicy": "OnFailure", "template": {"spec": {
            "terminationGracePeriodSeconds": 0, "containers": [container("pytorch", work.asks)],
        }}})
    };
    json!({
        "apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob",
        "metadata": {"name": work.name, "namespace": "default"},
        "spec": {
            "runPolicy": {"schedulingPolicy": {"minAvailable": minimum}},
            "pytorchReplicaSpecs": {"Master": replica(1), "Worker": replica(work.size - 1)},
        },
    })
}

/// Owns the work: creates jobs, PodGroups and pods at their time; creates pods without a job again if they failed,
/// were evicted or lost their node; ends work that has run long enough; and deletes cancelled work. It also acts as
/// the garbage collector.
pub async fn owner(stage: Stage) {
    let mut whole_since: BTreeMap<String, Instant> = BTreeMap::new();
    let mut ended: BTreeMap<String, bool> = BTreeMap::new();
    let round = stage.round.clone();
    let begun = stage.begun;
    let mut asked_for: BTreeMap<String, Instant> = BTreeMap::new();
    stage
        .forever(|ledger| {
            let mut asks = Vec::new();
            for work in &round.work {
                let now = begun.elapsed();
                if now < work.comes {
                    continue;
                }
                let group = format!("{GROUPS}/{}", work.name);
                let job = ledger.jobs.contains(&work.name);
                let there: Vec<(String, Option<&Pod>)> = (work.members().into_iter())
                    .map(|name| (name.clone(), ledger.pods.get(&name)))
                    .collect();
                let pods = || there.iter().filter_map(|(_, pod)| *pod);
                let over = ended.get(&work.name).copied().unwrap_or(false)
                    || work.cancelled.is_some_and(|at| now >= at);
                if over {
                    if job {
                        asks.push(delete(format!("{JOBS}/{}", work.name)));
                        continue;
                    }
                    // The garbage collector removes the dependents of a job.
                    asks.extend(pods().map(remove));
                    if work.minimum.is_some() && ledger.has_gang(&work.name) {
                        asks.push(delete(group));
                    }
                    continue;
                }
                let head = if work.job {
                    job
                } else {
                    ledger.has_gang(&work.name)
                };
                if let Some(minimum) = work.minimum.filter(|_| !head) {
                    // No second request before the answer to the first may have arrived.
                    let asked = asked_for.get(&work.name);
                    if asked.is_none_or(|at| at.elapsed() > PACE * 4) {
                        asked_for.insert(work.name.clone(), Instant::now());
                        asks.push(match work.job {
                            true => create(JOBS, pytorch(work, minimum)),
                            false => create(GROUPS, group_of(work, minimum)),
                        });
                    }
                }
                let running = pods().filter(|pod| pod.phase == "Running").count();
                let succeeded = pods().filter(|pod| pod.phase == "Succeeded").count();
                let all = running + succeeded == work.size;
                if all {
                    let since = *whole_since
                        .entry(work.name.clone())
                        .or_insert_with(Instant::now);
                    if work.runs.is_some_and(|runs| since.elapsed() >= runs) {
                        asks.extend(pods().map(|pod| phase(pod, "Succeeded", "")));
                        ended.insert(work.name.clone(), succeeded == work.size);
                        continue;
                    }
                }
                for (name, there) in &there {
                    let lost = |pod: &Pod| {
                        let gone = pod.node.as_ref().and_then(|node| ledger.gone.get(node));
                        gone.is_some_and(|at| at.elapsed() > ORPHANED)
                    };
                    let gang = work.minimum.map(|_| work.name.as_str());
                    let scheduler = work.placer.scheduler_name();
                    match there {
                        Some(pod) if lost(pod) => asks.push(remove(pod)),
                        _ if work.job => {}
                        None => asks.push(create(PODS, pod(name, gang, scheduler, work.asks))),
                        Some(pod) if pod.phase == "Failed" => asks.push(remove(pod)),
                        Some(_) => {}
                    }
                }
            }
            asks
        })
        .await;
}

fn group_of(work: &Work, minimum: usize) -> Value {
    json!({
        "apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "PodGroup",
        "metadata": {"name": work.name, "namespace": "default"},
        "spec": {"minMember": minimum},
    })
}

fn phase(pod: &Pod, phase: &str, reason: &str) -> Ask {
    let path = format!("{PODS}/{}/status", pod.name);
    merge(
        path,
        json!({"metadata": {"uid": pod.uid}, "status": {"phase": phase, "reason": reason}}),
    )
}

/// The part of every kubelet: it admits the pods that were bound to its node in order, and fails a pod that finds no
/// room any more.
pub async fn kubelets(stage: Stage) {
    let mut admitted: BTreeMap<String, bool> = BTreeMap::new();
    stage
        .forever(|ledger| {
            let mut asks = Vec::new();
            for (name, node) in &ledger.nodes {
                let mut pods: Vec<&Pod> = (ledger.pods.values())
                    .filter(|pod| pod.holds() && pod.node.as_ref() == Some(name))
                    .collect();
                // Running pods come first, whatever else has changed.
                pods.sort_by_key(|pod| (!admitted.contains_key(&pod.uid), pod.bound.0));
                let mut used = Room::default();
                for pod in pods {
                    let with: Vec<i64> = (0..4).map(|at| used[at] + pod.asks[at]).collect();
                    let fits = (0..4).all(|at| with[at] <= node.room[at]);
                    let admitted = *admitted.entry(pod.uid.clone()).or_insert(fits);
                    if admitted {
                        (0..4).for_each(|at| used[at] = with[at]);
                    }
                    match (admitted, pod.phase.as_str()) {
                        (true, "Pending") => asks.push(phase(pod, "Running", "")),
                        (false, "Pending") => asks.push(phase(pod, "Failed", "OutOfResources")),
                        _ => {}
                    }
                }
            }
            asks
        })
        .await;
}

/// Binds its own pods wherever it sees room, without regard to others; in some rounds also Muster's pods.
pub async fn rival(stage: Stage) {
    let mut draw = Draw::new(stage.round.seed ^ 0x0072_6976_616c);
    let thieving = stage.round.thieving;
    stage
        .forever(|ledger| {
            let mut asks = Vec::new();
            let steals = draw.chance(thieving);
            let wanted = |pod: &&Pod| {
                let mine = pod.scheduler == Placer::Rival.scheduler_name();
                let prey = pod.scheduler == Placer::Muster.scheduler_name() && pod.asks[GPUS] > 0;
                (mine || steals && prey) && pod.node.is_none() && !pod.ended()
            };
            // One at a time, by the current state.
            let Some(pod) = ledger.pods.values().find(wanted) else {
                return asks;
            };
            let open: Vec<&String> = (ledger.nodes.iter())
                .filter(|(name, node)| {
                    let used = ledger.used(name);
                    node.cordoned.is_none()
                        && (0..4).all(|at| used[at] + pod.asks[at] <= node.room[at])
                })
                .map(|(name, _)| name)
                .collect();
            if !open.is_empty() {
                let node = draw.one_of(&open);
                asks.push(create(
                    &format!("{PODS}/{}/binding", pod.name),
                    json!({
                        "apiVersion": "v1", "kind": "Binding",
                        "metadata": {"name": pod.name, "uid": pod.uid},
                        "target": {"apiVersion": "v1", "kind": "Node", "name": node},
                    }),
                ));
            }
            asks
        })
        .await;
}

/// Writes to objects that others are about to write.
pub async fn meddler(stage: Stage) {
    let rate = stage.round.meddling;
    if rate == 0 {
        return;
    }
    let mut draw = Draw::new(stage.round.seed ^ 0x6d65_6464);
    let mut times = 0;
    loop {
        let path = {
            let ledger = stage.ledger();
            let waiting = ledger.pods.values().filter(|pod| pod.node.is_none());
            let pods = waiting.map(|pod| format!("{PODS}/{}", pod.name));
            let groups = ledger.gangs().map(|name| format!("{GROUPS}/{name}"));
            let jobs = ledger.jobs.iter().map(|name| format!("{JOBS}/{name}"));
            let nodes = ledger.nodes.keys().map(|name| format!("{NODES}/{name}"));
            let all: Vec<String> = match draw.within(0, 10) {
                0..3 => pods.collect(),
                3..6 => groups.chain(jobs).collect(),
                6..9 => nodes.collect(),
                _ => vec![LEASE.to_owned()],
            };
            (!all.is_empty()).then(|| all[draw.within(0, all.len() as u64) as usize].clone())
        };
        times += 1;
        if let Some(path) = path {
            let note = json!({"metadata": {"annotations": {"meddled": times.to_string()},
                "labels": {"meddled": (times % 7).to_string()}}});
            stage.send(vec![merge(path, note)]).await;
        }
        tokio::time::sleep(Duration::from_secs(1) / rate).await;
    }
}

/// Removes all objects of a round; retries for those that remain.
pub async fn sweep(stage: &Stage) {
    let asks = {
        let ledger = stage.ledger();
        let pods = ledger.pods.values().map(remove);
        let groups = ledger
            .gangs()
            .map(|name| delete(format!("{GROUPS}/{name}")));
        let nodes = ledger.nodes.keys().map(|name| node_gone(name));
        let object = |path: &'static str| move |name: &String| delete(format!("{path}/{name}"));
        let jobs = ledger.jobs.iter().map(object(JOBS));
        let services = ledger.services.iter().map(object(SERVICES));
        let made = pods.chain(groups).chain(services);
        jobs.chain(made).chain(nodes).collect()
    };
    stage.send(asks).await;
}

/// Removes the pods that were bound without a scheduler.
pub async fn disperse(stage: &Stage) {
    let asks = {
        let ledger = stage.ledger();
        let forced = ledger.pods.values().filter(|pod| pod.scheduler == "crowd");
        forced.map(remove).collect()
    };
    stage.send(asks).await;
}
