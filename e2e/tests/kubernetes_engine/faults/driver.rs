//! Applies a round's faults to the real programs and objects at the drawn times. It records in the ledger when a
//! program stops working and when it works again.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use e2e::{History, eventually_async};
use tokio::sync::Mutex;

use super::actors::{self, Stage};
use super::draw::{Draw, Event, Fault, GPUS, PODS};
use super::ledger::Ledger;
use crate::ground::{Ground, Server};

/// How soon the API answers again and a server leads.
const HEALED: Duration = Duration::from_secs(90);
/// If a pod was bound this recently, other members of its gang may be in progress.
const JUST_NOW: Duration = Duration::from_millis(40);
/// Interval and duration of the search for recent bindings.
const GLANCE: Duration = Duration::from_millis(2);
const NOBODY: Duration = Duration::from_secs(3);
const LONG_AGO: Duration = Duration::from_secs(3600);

/// The servers of a round; none for a server that is currently dead.
pub struct Servers {
    seats: Vec<Option<Server>>,
    /// The arguments of their start.
    arguments: Vec<String>,
    started: usize,
    /// The logs of ended servers.
    logged: String,
}

impl Servers {
    pub fn start(ground: &Ground, count: usize, arguments: Vec<String>) -> Servers {
        let mut servers = Servers {
            seats: Vec::new(),
            arguments,
            started: 0,
            logged: String::new(),
        };
        servers.seats.resize_with(count, || None);
        (0..count).for_each(|seat| servers.seat(ground, seat));
        servers
    }

    fn seat(&mut self, ground: &Ground, seat: usize) {
        let name = format!("server-{}", self.started);
        self.started += 1;
        let arguments: Vec<&str> = self.arguments.iter().map(String::as_str).collect();
        self.seats[seat] = Some(ground.server(&name, &arguments));
    }

    pub fn somebody_leads(&self) -> bool {
        self.seats.iter().flatten().any(Server::leads)
    }

    /// The leader, or the first running server.
    fn leader(&self) -> Option<usize> {
        let lives = |seat: &usize| self.seats[*seat].is_some();
        let leads = |seat: &usize| self.seats[*seat].as_ref().is_some_and(Server::leads);
        let all = 0..self.seats.len();
        all.clone().find(leads).or_else(|| all.clone().find(lives))
    }

    fn kill(&mut self, seat: usize) {
        if let Some(server) = self.seats[seat].take() {
            self.logged += &server.logged();
            server.kill();
        }
    }

    /// Stops all servers, and returns their logs.
    pub fn stop(mut self) -> String {
        for server in self.seats.into_iter().flatten() {
            self.logged += &server.logged();
            assert_eq!(server.stop(), Some(0), "{}", self.logged);
        }
        self.logged
    }
}

/// The driver of the faults.
#[derive(Clone)]
pub struct Driver {
    pub stage: Stage,
    pub ground: Arc<Ground>,
    pub history: Arc<History>,
    pub servers: Arc<Mutex<Servers>>,
    /// Limits the API to one fault at a time.
    api: Arc<Mutex<()>>,
}

impl Driver {
    pub fn new(
        stage: Stage,
        ground: Arc<Ground>,
        history: Arc<History>,
        servers: Servers,
    ) -> Driver {
        let servers = Arc::new(Mutex::new(servers));
        Driver {
            stage,
            ground,
            history,
            servers,
            api: Arc::default(),
        }
    }

    /// Applies all of a round's faults; all are over when this returns.
    pub async fn drive(&self) {
        let round = self.stage.round.clone();
        let all = round.events.iter().enumerate().map(|(at, event)| {
            let (this, event) = (self.clone(), *event);
            let draw = Draw::new(round.seed ^ (at as u64 + 1));
            tokio::spawn(async move {
                tokio::time::sleep_until((this.stage.begun + event.at).into()).await;
                this.befall(event, draw).await;
            })
        });
        for one in all.collect::<Vec<_>>() {
            one.await.unwrap();
        }
    }

    async fn befall(&self, event: Event, mut draw: Draw) {
        let (cluster, lasts) = (&self.ground.cluster, event.lasts);
        match event.fault {
            Fault::Killed(program) => self.kill(&[program], lasts).await,
            Fault::BothKilled => self.kill(&["kube-apiserver", "etcd"], lasts).await,
            Fault::Paused(program) => {
                let alone = self.api.lock().await;
                let trouble = self.stage.ledger().trouble();
                cluster.pause(program);
                tokio::time::sleep(lasts).await;
                cluster.resume(program);
                self.healed(trouble).await;
                drop(alone);
            }
            Fault::WatchesExpired => self.expire_watches(lasts).await,
            Fault::NodesVanish(count) => {
                let nodes = self.busy_nodes(count, &mut draw).await;
                self.without(&nodes, lasts).await;
            }
            Fault::NodesCordoned(count) => {
                let nodes = self.busy_nodes(count, &mut draw).await;
                for cordoned in [true, false] {
                    let asks = || {
                        nodes
                            .iter()
                            .map(|name| actors::cordon(name, cordoned))
                            .collect()
                    };
                    let so = |ledger: &Ledger| {
                        let all = nodes.iter().filter_map(|name| ledger.nodes.get(name));
                        all.into_iter()
                            .all(|node| node.cordoned.is_some() == cordoned)
                    };
                    self.until(so, asks).await;
                    if cordoned {
                        tokio::time::sleep(lasts).await;
                    }
                }
            }
            Fault::Crowd(count) => {
                self.crowd(count, &mut draw).await;
                tokio::time::sleep(lasts).await;
                self.disperse().await;
            }
            Fault::Squeezed => {
                self.crowd(self.stage.round.nodes, &mut draw).await;
                let node = self.stage.ledger().gangs_node();
                self.without(node.as_slice(), lasts).await;
                self.disperse().await;
            }
            Fault::LeaderKilled => {
                let mut servers = self.servers.lock().await;
                let trouble = self.stage.ledger().trouble();
                if let Some(seat) = servers.leader() {
                    servers.kill(seat);
                    tokio::time::sleep(lasts).await;
                    servers.seat(&self.ground, seat);
                }
                drop(servers);
                self.healed(trouble).await;
            }
            Fault::LeaderSleeps => {
                let servers = self.servers.lock().await;
                let trouble = self.stage.ledger().trouble();
                if let Some(server) = servers
                    .leader()
                    .and_then(|seat| servers.seats[seat].as_ref())
                {
                    server.pause();
                    tokio::time::sleep(lasts).await;
                    server.resume();
                }
                drop(servers);
                self.healed(trouble).await;
            }
        }
    }

    async fn kill(&self, programs: &[&str], lasts: Duration) {
        let alone = self.api.lock().await;
        let trouble = self.stage.ledger().trouble();
        programs
            .iter()
            .for_each(|program| self.ground.cluster.kill(program));
        tokio::time::sleep(lasts).await;
        // etcd starts first, because kube-apiserver ends without it.
        for program in programs.iter().rev() {
            self.ground.cluster.start_again(program);
        }
        self.healed(trouble).await;
        drop(alone);
    }

    async fn expire_watches(&self, lasts: Duration) {
        let alone = self.api.lock().await;
        let servers = self.servers.lock().await;
        let trouble = self.stage.ledger().trouble();
        let asleep: Vec<&Server> = servers.seats.iter().flatten().collect();
        asleep.iter().for_each(|server| server.pause());
        tokio::time::sleep(lasts).await;
        let cluster = &self.ground.cluster;
        let compacted = cluster.compact(self.history.seen());
        assert!(compacted.is_some(), "etcd compacts");
        cluster.kill("kube-apiserver");
        cluster.start_again("kube-apiserver");
        asleep.iter().for_each(|server| server.resume());
        drop(servers);
        self.healed(trouble).await;
        drop(alone);
    }

    /// Waits until the API answers and a server leads.
    async fn healed(&self, trouble: usize) {
        eventually_async("the API is ready again", HEALED, || async {
            let request = http::Request::get("/readyz").body(Vec::new()).unwrap();
            let asked = self.stage.client.request_text(request);
            let asked = tokio::time::timeout(Duration::from_secs(2), asked).await;
            matches!(asked, Ok(Ok(_))).then_some(())
        })
        .await;
        eventually_async("somebody leads again", HEALED, || async {
            self.servers.lock().await.somebody_leads().then_some(())
        })
        .await;
        self.stage.ledger().healed(trouble);
    }

    /// Sends the requests until the ledger satisfies the condition.
    async fn until(&self, so: impl Fn(&Ledger) -> bool, asks: impl Fn() -> Vec<actors::Ask>) {
        let begun = Instant::now();
        while !so(&self.stage.ledger()) {
            assert!(
                begun.elapsed() < HEALED,
                "what was asked for did not come about"
            );
            self.stage.send(asks()).await;
        }
    }

    /// Nodes with a very recent binding, as soon as there are any; other nodes if there is no binding for a while.
    async fn busy_nodes(&self, count: usize, draw: &mut Draw) -> Vec<String> {
        let begun = Instant::now();
        loop {
            let lately = if begun.elapsed() < NOBODY {
                JUST_NOW
            } else {
                LONG_AGO
            };
            let nodes = self.nodes_bound_to(count, lately, draw);
            if !nodes.is_empty() || lately == LONG_AGO {
                return nodes;
            }
            tokio::time::sleep(GLANCE).await;
        }
    }

    fn nodes_bound_to(&self, count: usize, lately: Duration, draw: &mut Draw) -> Vec<String> {
        let ledger = self.stage.ledger();
        let just = |at: Option<Instant>| at.is_some_and(|at| at.elapsed() < lately);
        let busy = ledger.pods.values().filter(|pod| just(pod.bound.1));
        let mut nodes: BTreeSet<String> = busy.filter_map(|pod| pod.node.clone()).collect();
        nodes.retain(|name| ledger.nodes.contains_key(name));
        if nodes.is_empty() {
            return Vec::new();
        }
        let all: Vec<&String> = ledger.nodes.keys().collect();
        while nodes.len() < count.min(all.len()) {
            nodes.insert(draw.one_of(&all).clone());
        }
        nodes.into_iter().take(count).collect()
    }

    /// Deletes nodes for a while.
    async fn without(&self, nodes: &[String], lasts: Duration) {
        let there = |ledger: &Ledger| {
            let there = nodes.iter().filter(|name| ledger.nodes.contains_key(*name));
            there.count()
        };
        let gone = || nodes.iter().map(|name| actors::node_gone(name)).collect();
        self.until(|ledger| there(ledger) == 0, gone).await;
        tokio::time::sleep(lasts).await;
        let room = self.stage.round.room;
        let back = || nodes.iter().map(|name| actors::node(name, room)).collect();
        self.until(|ledger| there(ledger) == nodes.len(), back)
            .await;
    }

    /// Fills nodes with pods that no scheduler placed.
    async fn crowd(&self, count: usize, draw: &mut Draw) {
        let asks = {
            let ledger = self.stage.ledger();
            let all: Vec<&String> = ledger.nodes.keys().collect();
            let first = draw.within(0, all.len().max(1) as u64) as usize;
            let chosen = all.iter().cycle().skip(first).take(count.min(all.len()));
            let free = |name: &str| {
                let (has, used) = (ledger.nodes[name].room, ledger.used(name));
                (has[GPUS] - used[GPUS]).min(i64::from(used[PODS] < has[PODS]) * has[GPUS])
            };
            let filled = chosen.filter(|name| free(name) > 0);
            let word = self.stage.begun.elapsed().as_millis();
            let name = |node: &str| format!("crowd-{word}-{node}");
            filled
                .map(|node| actors::forced(&name(node), node, free(node)))
                .collect()
        };
        self.stage.send(asks).await;
    }

    /// Removes all these pods.
    async fn disperse(&self) {
        let forced = |ledger: &Ledger| ledger.pods.values().any(|pod| pod.scheduler == "crowd");
        let begun = Instant::now();
        while forced(&self.stage.ledger()) {
            assert!(begun.elapsed() < HEALED, "the crowd does not go");
            actors::disperse(&self.stage).await;
        }
    }
}
