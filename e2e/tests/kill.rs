//! Server and agent are killed repeatedly at random times, and paused (SIGSTOP), each alone and both
//! together as on a suspended machine, under concurrent writers, a watcher and a running pod: every acknowledged
//! write exists, no batch is half written, the watch resumes without a gap or a repetition, and the pod keeps running.
//!
//! `MUSTER_KILLS` sets how many kills there are (200), `MUSTER_KILL_SEED` their moments, and
//! `MUSTER_KILL_PAUSE_MAX` the longest pause in seconds (2). With
//! `MUSTER_KILL_PROGRESS` rounds that passed are noted in that file, and a run that was interrupted
//! goes on after them (`make kills`).
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use e2e::Platform;
use futures::TryStreamExt;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, ResourceQuota};
use kube::api::{
    DeleteParams, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams,
};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client};
use resources::quantity::Quantity;
use resources::splitmix::SplitMix;
use serde_json::json;

/// How many kills there are, of servers and agents.
const KILLS: u64 = 200;

/// The longest pause, in seconds.
const PAUSE_MAX: u64 = 2;

/// The longest pause of the agent alone with the default grace (40 seconds), in seconds. A node that is silent for longer
/// than its grace while the server is awake is lost, as it should be: for a longer pause the server gets a grace that
/// is longer than the pause by as much as `GRACE_BEYOND`.
const AGENT_PAUSE_IN_GRACE: u64 = 20;
const GRACE_BEYOND: u64 = 40;

/// In one of so many rounds the agent is killed, too.
const AGENT_EVERY: u64 = 4;

/// In one of so many rounds the server, the agent or both are stopped for a while.
const PAUSE_EVERY: u64 = 20;

const SOON: Duration = Duration::from_secs(90);

/// Writers at work at once.
const WRITERS: usize = 6;

/// The seed of the moments; printed, so that a failure can be run again.
const SEED: u64 = 0x006d_7573_7465_7221;

/// The numbers of one round, whichever came before: a run that goes on has the same ones.
fn of_round(seed: u64, round: u64) -> SplitMix {
    SplitMix::new(SplitMix::new(seed ^ round).next_u64())
}

/// What is stopped for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Paused {
    Server,
    Agent,
    Both,
}

/// What happens in a round, and after how long.
#[derive(Clone, Debug, PartialEq, Eq)]
struct RoundPlan {
    work: Duration,
    pause: Option<(Paused, Duration)>,
    /// Reactions of a resumed server that takes others for silent happen within this time.
    after_pause: Duration,
    /// Whether the agent of two that were stopped goes on first.
    agent_first: bool,
    kills_agent: bool,
}

impl RoundPlan {
    /// Of each so many rounds one has a pause, in turn of the server, the agent and both.
    fn of(seed: u64, round: u64, pause_max: u64) -> RoundPlan {
        let block = round / PAUSE_EVERY;
        let paused = SplitMix::new(seed ^ !block).below(PAUSE_EVERY) == round % PAUSE_EVERY;
        let mut moments = of_round(seed, round);
        let work = Duration::from_millis(20 + moments.below(130));
        // Short ones are more frequent than long ones.
        let longest = 1000 + moments.below(pause_max.saturating_sub(1) * 1000 + 1);
        let length = Duration::from_millis(1000 + moments.below(longest - 999));
        let who = [Paused::Server, Paused::Agent, Paused::Both];
        let who = who[usize::try_from(block % 3).unwrap()];
        RoundPlan {
            work,
            pause: paused.then_some((who, length)),
            after_pause: Duration::from_millis(moments.below(500)),
            agent_first: moments.below(2) == 0,
            kills_agent: moments.below(AGENT_EVERY) == 0,
        }
    }

    /// The options with which the server runs in this round.
    fn server_options(&self) -> Vec<String> {
        match self.pause {
            Some((Paused::Agent, length)) if length.as_secs() >= AGENT_PAUSE_IN_GRACE => {
                let grace = length.as_secs() + GRACE_BEYOND;
                vec!["--node-grace".to_owned(), grace.to_string()]
            }
            _ => Vec::new(),
        }
    }
}

#[test]
fn rounds_pause_the_server_the_agent_and_both() {
    for (rounds, pause_max) in [(160, PAUSE_MAX), (800, 120)] {
        let mut pauses = BTreeMap::<Paused, Vec<u64>>::new();
        for round in 0..rounds {
            let plan = RoundPlan::of(SEED, round, pause_max);
            assert_eq!(plan, RoundPlan::of(SEED, round, pause_max));
            if let Some((who, length)) = plan.pause {
                pauses.entry(who).or_default().push(length.as_secs());
                assert!(length <= Duration::from_secs(pause_max), "{length:?}");
            }
        }
        assert_eq!(pauses.len(), 3, "{pauses:?}");
        let all = pauses.values().map(Vec::len).sum::<usize>();
        assert_eq!(u64::try_from(all).unwrap(), rounds / PAUSE_EVERY);
        let long = pauses
            .values()
            .all(|lengths| lengths.iter().any(|length| *length > 40));
        assert_eq!(long, pause_max == 120, "{pauses:?}");
    }
}

async fn client(platform: &Platform) -> Client {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let kubeconfig = Kubeconfig::read_from(platform.kubeconfig()).unwrap();
    let options = KubeConfigOptions::default();
    let mut config = kube::Config::from_custom_kubeconfig(kubeconfig, &options)
        .await
        .unwrap();
    config.read_timeout = None;
    Client::try_from(config).unwrap()
}

/// A writer's knowledge of its objects: the last acknowledged value (none: deleted), and the value
/// in flight when the server died, which may or may not have been written.
#[derive(Default, Clone)]
struct Known {
    acknowledged: Option<i64>,
    in_flight: Option<Option<i64>>,
}

impl Known {
    fn may_be(&self, found: Option<i64>) -> bool {
        found == self.acknowledged || self.in_flight == Some(found)
    }

    fn settle(&mut self, found: Option<i64>) {
        *self = Known {
            acknowledged: found,
            in_flight: None,
        };
    }
}

type Book = Arc<Mutex<BTreeMap<String, Known>>>;

fn value_of(map: &ConfigMap) -> Option<i64> {
    map.data.as_ref()?.get("value")?.parse().ok()
}

/// Creates, changes and deletes its own objects until a write fails.
async fn write(
    client: Client,
    writer: usize,
    mut value: i64,
    book: Book,
    count: Arc<AtomicUsize>,
) -> i64 {
    let api: Api<ConfigMap> = Api::default_namespaced(client.clone());
    let pods: Api<Pod> = Api::default_namespaced(client);
    loop {
        value += 1;
        let name = format!("w{writer}-{}", value % 5);
        let now = book
            .lock()
            .unwrap()
            .get(&name)
            .cloned()
            .unwrap_or_default()
            .acknowledged;
        let next = if now.is_some() && value % 7 == 0 {
            None
        } else {
            Some(value)
        };
        book.lock()
            .unwrap()
            .entry(name.clone())
            .or_default()
            .in_flight = Some(next);
        let body = json!({"metadata": {"name": name}, "data": {"value": value.to_string()}});
        let answer = match (now, next) {
            (None, _) => {
                let map = serde_json::from_value(body).unwrap();
                api.create(&PostParams::default(), &map).await.map(|_| ())
            }
            (Some(_), Some(_)) => api
                .patch(&name, &PatchParams::default(), &Patch::Merge(&body))
                .await
                .map(|_| ()),
            (Some(_), None) => api
                .delete(&name, &DeleteParams::default())
                .await
                .map(|_| ()),
        };
        match answer {
            Ok(()) => {
                let settled = if now.is_none() { Some(value) } else { next };
                book.lock()
                    .unwrap()
                    .entry(name)
                    .or_default()
                    .settle(settled);
                count.fetch_add(1, Ordering::Relaxed);
            }
            Err(kube::Error::Api(status)) => panic!("writer {writer}: {name}: {}", status.message),
            Err(_) => {
                // A create reports its value even if a delete was intended.
                if now.is_none() {
                    book.lock().unwrap().entry(name).or_default().in_flight = Some(Some(value));
                }
                return value;
            }
        }
        // A pod and the quota it counts against are one batch.
        if value % 4 == 0 {
            let pod = json!({
                "metadata": {"generateName": "batch-"},
                "spec": {"schedulerName": "nobody", "containers": [{"name": "c", "command": ["x"], "resources": {"requests": {"cpu": "1m"}}}]},
            });
            let pod = serde_json::from_value(pod).unwrap();
            if let Err(kube::Error::Api(status)) = pods.create(&PostParams::default(), &pod).await {
                panic!("writer {writer}: pod: {}", status.message);
            }
        }
    }
}

/// Follows all changes over all lives of the server; its last version is where it resumes.
#[derive(Default)]
struct Seen {
    version: u64,
    state: BTreeMap<String, i64>,
    events: usize,
}

async fn follow(client: Client, seen: Arc<Mutex<Seen>>, stop: Arc<AtomicBool>) {
    let api: Api<ConfigMap> = Api::default_namespaced(client);
    while !stop.load(Ordering::Relaxed) {
        let from = seen.lock().unwrap().version;
        let parameters = WatchParams::default().timeout(280).labels("!unseen");
        let Ok(events) = api.watch(&parameters, &from.to_string()).await else {
            tokio::time::sleep(Duration::from_millis(10)).await;
            continue;
        };
        let mut events = std::pin::pin!(events);
        while let Ok(Some(event)) = events.try_next().await {
            let mut seen = seen.lock().unwrap();
            let (map, gone) = match event {
                WatchEvent::Added(map) | WatchEvent::Modified(map) => (map, false),
                WatchEvent::Deleted(map) => (map, true),
                WatchEvent::Bookmark(_) => continue,
                WatchEvent::Error(status) => panic!("the watch could not resume: {status:?}"),
            };
            let version: u64 = map
                .metadata
                .resource_version
                .as_deref()
                .unwrap()
                .parse()
                .unwrap();
            assert!(
                version > seen.version,
                "{version} came after {}",
                seen.version
            );
            seen.version = version;
            seen.events += 1;
            let name = map.metadata.name.clone().unwrap();
            match value_of(&map).filter(|_| !gone) {
                Some(value) => seen.state.insert(name, value),
                None => seen.state.remove(&name),
            };
        }
    }
}

/// The actual objects of the writers, and pods against their quota.
async fn audit(client: &Client, book: &Book, round: u64) -> BTreeMap<String, i64> {
    let maps: Api<ConfigMap> = Api::default_namespaced(client.clone());
    let list = maps.list(&ListParams::default()).await.unwrap();
    let found: BTreeMap<String, i64> = list
        .into_iter()
        .filter_map(|map| Some((map.metadata.name.clone()?, value_of(&map)?)))
        .collect();
    for (name, known) in book.lock().unwrap().iter_mut() {
        let there = found.get(name).copied();
        assert!(
            known.may_be(there),
            "round {round}: {name} is {there:?}; acknowledged {:?}, in flight {:?}",
            known.acknowledged,
            known.in_flight
        );
        known.settle(there);
    }
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    let pods = pods.list(&ListParams::default()).await.unwrap().items.len();
    let quotas: Api<ResourceQuota> = Api::default_namespaced(client.clone());
    let quota = quotas.get("all").await.unwrap();
    let used = &quota.status.unwrap().used.unwrap()["pods"];
    // A number of them is written as a quantity: 1000 is "1k".
    let used: Quantity = used.0.parse().unwrap();
    assert_eq!(
        usize::try_from(used.value()).unwrap(),
        pods,
        "round {round}: a batch is half there"
    );
    found
}

/// The rounds that passed, noted in a file where one is named.
struct Progress {
    file: Option<PathBuf>,
    seed: u64,
    rounds: u64,
    kills: u64,
}

impl Progress {
    fn read(file: Option<PathBuf>, seed: u64) -> Progress {
        let text = file
            .as_ref()
            .and_then(|file| std::fs::read_to_string(file).ok())
            .unwrap_or_default();
        let numbers: Vec<u64> = text
            .split_whitespace()
            .filter_map(|word| word.parse().ok())
            .collect();
        let (rounds, kills) = match numbers[..] {
            [of, rounds, kills] if of == seed => (rounds, kills),
            _ => (0, 0),
        };
        Progress {
            file,
            seed,
            rounds,
            kills,
        }
    }

    fn note(&self) {
        if let Some(file) = &self.file {
            let text = format!("{} {} {}\n", self.seed, self.rounds, self.kills);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, text).unwrap();
        }
    }

    fn forget(&self) {
        if let Some(file) = &self.file {
            std::fs::remove_file(file).unwrap();
        }
    }
}

/// Stops processes for a while, as a paused machine would, and lets them go on in this order.
async fn pause(pids: &[u32], length: Duration) {
    let signal = |name: &str, pid: &u32| {
        let mut kill = std::process::Command::new("kill");
        e2e::run(kill.args([name, &pid.to_string()])).ok();
    };
    for pid in pids {
        signal("-STOP", pid);
    }
    tokio::time::sleep(length).await;
    for pid in pids {
        signal("-CONT", pid);
    }
}

const STEADY: &str = r#"apiVersion: v1
kind: Pod
metadata:
  name: steady
spec:
  restartPolicy: Never
  containers:
    - name: c
      command: [/bin/sh, -c, "i=0; while true; do i=$((i+1)); echo count $i; sleep 1; done"]
      resources:
        requests: {cpu: 50m, memory: 16Mi}
"#;

/// When the pod that runs through all of it started, once it runs and has not been restarted.
async fn started(client: &Client) -> Option<String> {
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    let pod = serde_json::to_value(pods.get("steady").await.unwrap()).unwrap();
    let container = &pod["status"]["containerStatuses"][0];
    let first = container["restartCount"] == 0 && pod["metadata"]["deletionTimestamp"].is_null();
    let started = container["state"]["running"]["startedAt"].as_str();
    started.filter(|_| first).map(str::to_owned)
}

/// How far the pod has counted, by its log.
fn counted(platform: &Platform) -> Option<u64> {
    let ran = platform.cli(&["logs", "steady", "--tail", "1"]);
    ran.out.trim().strip_prefix("count ")?.parse().ok()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_again_and_again_nothing_acknowledged_is_lost_and_no_pod_ends() {
    let number = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
    let kills = number("MUSTER_KILLS").unwrap_or(KILLS);
    let seed = number("MUSTER_KILL_SEED").unwrap_or(SEED);
    let pause_max = number("MUSTER_KILL_PAUSE_MAX").unwrap_or(PAUSE_MAX);
    let file = std::env::var_os("MUSTER_KILL_PROGRESS").map(PathBuf::from);
    let mut progress = Progress::read(file, seed);
    println!(
        "MUSTER_KILL_SEED={seed}, from round {} and kill {}",
        progress.rounds, progress.kills
    );
    let mut plan = RoundPlan::of(seed, progress.rounds, pause_max);
    let mut platform = Platform::server(&[]);
    platform.kill();
    platform.restart_with(&plan.server_options());
    let mut agent = platform.agent("n1", None, &[]);
    platform.await_nodes(1);
    let quotas: Api<ResourceQuota> = Api::default_namespaced(client(&platform).await);
    let quota = json!({"metadata": {"name": "all"}, "spec": {"hard": {"pods": "1000000"}}});
    let quota = quotas
        .create(
            &PostParams::default(),
            &serde_json::from_value(quota).unwrap(),
        )
        .await
        .unwrap();
    let begin: u64 = quota.metadata.resource_version.unwrap().parse().unwrap();
    platform.apply(STEADY);
    let connected = client(&platform).await;
    let steady = e2e::eventually_async("the pod runs", SOON, || started(&connected)).await;
    let first = e2e::eventually("it counts", SOON, || counted(&platform));

    let book: Book = Arc::default();
    let count = Arc::new(AtomicUsize::new(0));
    let seen = Arc::new(Mutex::new(Seen {
        version: begin,
        ..Seen::default()
    }));
    let mut values = [0; WRITERS];
    let mut rounds = 0;
    let mut pauses = BTreeMap::<Paused, Duration>::new();
    while progress.kills < kills {
        let round = progress.rounds;
        let stop = Arc::new(AtomicBool::new(false));
        let connected = client(&platform).await;
        let watcher = tokio::spawn(follow(connected.clone(), seen.clone(), stop.clone()));
        let writers: Vec<_> = (0..WRITERS)
            .map(|i| {
                tokio::spawn(write(
                    connected.clone(),
                    i,
                    values[i],
                    book.clone(),
                    count.clone(),
                ))
            })
            .collect();
        tokio::time::sleep(plan.work).await;
        if let Some((who, length)) = plan.pause {
            println!("round {round}: a pause of {who:?} for {length:?}");
            *pauses.entry(who).or_default() += length;
            let (server, agent) = (platform.pid(), agent.pid());
            match who {
                Paused::Server => pause(&[server], length).await,
                Paused::Agent => pause(&[agent], length).await,
                Paused::Both if plan.agent_first => pause(&[agent, server], length).await,
                Paused::Both => pause(&[server, agent], length).await,
            }
            tokio::time::sleep(plan.after_pause).await;
        }
        if plan.kills_agent {
            agent.kill();
            agent.restart();
            progress.kills += 1;
        }
        platform.kill();
        progress.kills += 1;
        for (i, writer) in writers.into_iter().enumerate() {
            values[i] = writer.await.expect("a writer's write was refused");
        }
        stop.store(true, Ordering::Relaxed);
        watcher.await.expect("the watch went on in order");
        plan = RoundPlan::of(seed, round + 1, pause_max);
        platform.restart_with(&plan.server_options());
        // The server writes too (its tokens), but no client writes between kill and audit.
        let connected = client(&platform).await;
        audit(&connected, &book, round).await;
        let runs = started(&connected).await;
        assert_eq!(runs.as_ref(), Some(&steady), "round {round}: the pod ended");
        rounds += 1;
        progress.rounds += 1;
        progress.note();
    }
    let written = count.load(Ordering::Relaxed);
    assert!(written > rounds, "only {written} writes were acknowledged");
    let last = e2e::eventually("it counts on", SOON, || {
        counted(&platform).filter(|last| *last > first)
    });

    // The watcher catches up and ends where the server is.
    let stop = Arc::new(AtomicBool::new(false));
    let connected = client(&platform).await;
    let found = audit(&connected, &book, progress.rounds).await;
    let watcher = tokio::spawn(follow(connected, seen.clone(), stop.clone()));
    e2e::eventually_async(
        "the watcher has seen it all",
        Duration::from_secs(30),
        || {
            let (seen, found) = (seen.clone(), found.clone());
            async move { (seen.lock().unwrap().state == found).then_some(()) }
        },
    )
    .await;
    stop.store(true, Ordering::Relaxed);
    platform.kill();
    let _ = watcher.await;
    let events = seen.lock().unwrap().events;
    println!(
        "{} kills and pauses in all of {pauses:?}, {written} acknowledged writes, {events} events seen, none lost; the pod counted from {first} to {last}",
        progress.kills
    );
    progress.forget();
}
