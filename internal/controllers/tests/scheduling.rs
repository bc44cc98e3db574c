//! The scheduler's loop against the embedded resource API, in this process: a submitted gang is
//! bound with its devices, or its status, conditions and events say why not.

#![allow(clippy::unwrap_used, reason = "a test's helpers may fail the test")]

mod served;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use controllers::scheduling::{self, ReportBoard};
use controllers::{Config, Context, ControlLoop};
use http::{Request, Response};
use k8s_openapi::api::core::v1::{Event, Node, Pod};
use k8s_openapi::api::scheduling::v1::PriorityClass;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::client::Body;
use kube::runtime::wait::await_condition;
use kube::{Api, Client};
use resources::devices::chosen;
use resources::kinds::{PodGroup, PodGroupPhase, Queue};
use resources::report::WaitReason;
use serde_json::{Value, json};
use tokio::sync::watch;

use served::served;

/// Far longer than any step here takes: a test that waits this long has failed.
const PATIENCE: Duration = Duration::from_secs(60);
const NAMESPACE: &str = "default";

struct Cluster {
    client: Client,
    board: Arc<ReportBoard>,
    stop: watch::Sender<bool>,
    loops: Vec<ControlLoop>,
    _data: tempfile::TempDir,
}

/// Refuses the first bindings of a name, then passes them on.
#[derive(Clone, Default)]
struct Refusals {
    of: Option<&'static str>,
    left: Arc<AtomicUsize>,
}

impl Refusals {
    fn refuses(&self, path: &str) -> bool {
        let meant = self
            .of
            .is_some_and(|name| path.ends_with(&format!("/{name}/binding")));
        let once_less = |left: usize| left.checked_sub(1);
        meant
            && self
                .left
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, once_less)
                .is_ok()
    }
}

fn refusing(client: Client, refusals: Refusals) -> Client {
    let service = tower::service_fn(move |request: Request<Body>| {
        let (client, refusals) = (client.clone(), refusals.clone());
        async move {
            if refusals.refuses(request.uri().path()) {
                let status = json!({
                    "kind": "Status", "apiVersion": "v1", "status": "Failure",
                    "message": "the admission plugin says no", "reason": "Forbidden", "code": 403,
                });
                let body = Body::from(status.to_string().into_bytes());
                return Ok(Response::builder().status(403).body(body).unwrap());
            }
            client.send(request).await
        }
    });
    Client::new(service, NAMESPACE)
}

impl Cluster {
    async fn start() -> Cluster {
        Cluster::start_with(Refusals::default()).await
    }

    async fn start_with(refusals: Refusals) -> Cluster {
        let (data, client) = served("controllers").await;
        let (stop, board, loops) = schedule(refusing(client.clone(), refusals));
        Cluster {
            client,
            board,
            stop,
            loops,
            _data: data,
        }
    }

    async fn restart(&mut self) {
        self.stop.send(true).unwrap();
        for ControlLoop { task, .. } in self.loops.drain(..) {
            tokio::time::timeout(PATIENCE, task).await.unwrap().unwrap();
        }
        (self.stop, self.board, self.loops) = schedule(self.client.clone());
    }

    fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    async fn node(&self, name: &str, gpus: usize) {
        let list: Vec<Value> = (0..gpus)
            .map(|i| json!({"id": format!("{name}-{i}"), "index": i, "numa": 0, "healthy": true}))
            .collect();
        let inventory = json!({ "gpus": list }).to_string();
        let node: Node = read(json!({
            "metadata": {
                "name": name, "annotations": {"muster.io/inventory": inventory},
                "labels": {"muster.io/runtime.process": "true"},
            },
        }));
        let nodes: Api<Node> = Api::all(self.client.clone());
        nodes.create(&PostParams::default(), &node).await.unwrap();
        let status = json!({"status": {
            "allocatable": {"cpu": "16", "memory": "64Gi", "pods": "110", "nvidia.com/gpu": gpus.to_string()},
            "capacity": {"cpu": "16", "memory": "64Gi", "pods": "110", "nvidia.com/gpu": gpus.to_string()},
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}],
        }});
        nodes
            .patch_status(name, &PatchParams::default(), &Patch::Merge(status))
            .await
            .unwrap();
    }

    async fn pod(&self, name: &str, group: Option<&str>, gpus: usize) {
        let pod: Pod = read(pod(name, group, gpus));
        self.api()
            .create(&PostParams::default(), &pod)
            .await
            .unwrap();
    }

    async fn gang(&self, name: &str, members: usize) {
        let group: PodGroup = read(group(name, members));
        self.api()
            .create(&PostParams::default(), &group)
            .await
            .unwrap();
        for i in 0..members {
            self.pod(&format!("{name}-{i}"), Some(name), 1).await;
        }
    }

    async fn until_bound(&self, name: &str) -> Pod {
        let condition = |pod: Option<&Pod>| pod.is_some_and(|pod| node_of(pod).is_some());
        let waiting = await_condition(self.api::<Pod>(), name, condition);
        tokio::time::timeout(PATIENCE, waiting)
            .await
            .expect("the pod was bound")
            .unwrap()
            .unwrap()
    }

    async fn until_group(&self, name: &str, met: impl Fn(&PodGroup) -> bool) -> PodGroup {
        let api = self.api::<PodGroup>();
        let condition = |group: Option<&PodGroup>| group.is_some_and(&met);
        match tokio::time::timeout(PATIENCE, await_condition(api.clone(), name, condition)).await {
            Ok(found) => found.unwrap().unwrap(),
            Err(_) => panic!(
                "{name} never came to it: {:#?}",
                api.get(name).await.unwrap().status
            ),
        }
    }

    async fn until_event(&self, reason: &str, about: &str) -> String {
        let api = self.api::<Event>();
        let found = async {
            loop {
                let all = api.list(&ListParams::default()).await.unwrap();
                let event = all.into_iter().find(|event| {
                    event.reason.as_deref() == Some(reason)
                        && event.involved_object.name.as_deref() == Some(about)
                });
                if let Some(event) = event {
                    return event.message.unwrap_or_default();
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(PATIENCE, found)
            .await
            .expect("the event came")
    }

    /// Waits until the board's reports meet a condition.
    async fn until_board(&self, met: impl Fn(&ReportBoard) -> bool) {
        let mut changes = self.board.changes();
        let waiting = async {
            while !met(&self.board) {
                changes.changed().await.unwrap();
            }
        };
        tokio::time::timeout(PATIENCE, waiting)
            .await
            .expect("the board said so");
    }

    async fn bound_pods(&self) -> usize {
        let pods = self
            .api::<Pod>()
            .list(&ListParams::default())
            .await
            .unwrap();
        pods.iter().filter(|pod| node_of(pod).is_some()).count()
    }
}

fn schedule(client: Client) -> (watch::Sender<bool>, Arc<ReportBoard>, Vec<ControlLoop>) {
    let (stop, stopping) = watch::channel(false);
    let (board, loops) = scheduling::spawn(&Context {
        client,
        config: Arc::new(Config {
            scheduler: controllers::SchedulerConfig::default(),
            node_grace: Duration::from_secs(40),
            jobs: controllers::jobs::JobKind::ALL.into(),
            core_controllers: true,
            rendezvous_ports: 20_000..=20_099,
            root_ca: None,
        }),
        stop: stopping,
    });
    (stop, board, loops)
}

fn read<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

fn pod(name: &str, group: Option<&str>, gpus: usize) -> Value {
    let mut pod = json!({
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"schedulerName": "muster", "containers": [{
            "name": "main", "command": ["true"],
            "resources": {"limits": {"nvidia.com/gpu": gpus.to_string()}},
        }]},
    });
    if let Some(group) = group {
        pod["metadata"]["annotations"] = json!({"scheduling.k8s.io/group-name": group});
    }
    pod
}

fn group(name: &str, members: usize) -> Value {
    json!({
        "apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "PodGroup",
        "metadata": {"name": name, "namespace": NAMESPACE}, "spec": {"minMember": members},
    })
}

fn node_of(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref()
}

fn phase(group: &PodGroup) -> Option<PodGroupPhase> {
    group.status.as_ref()?.phase
}

fn condition<'a>(
    group: &'a PodGroup,
    kind: &str,
) -> Option<&'a resources::kinds::PodGroupCondition> {
    let status = group.status.as_ref()?;
    status.conditions.iter().find(|c| c.type_ == kind)
}

#[tokio::test(flavor = "multi_thread")]
async fn one_gang_runs_whole_and_the_other_waits_whole_and_says_why() {
    let cluster = Cluster::start().await;
    cluster.node("n1", 4).await;
    cluster.node("n2", 4).await;
    cluster.gang("first", 6).await;
    let mut devices = Vec::new();
    for i in 0..6 {
        let pod = cluster.until_bound(&format!("first-{i}")).await;
        let chosen = chosen(pod.metadata.annotations.as_ref());
        devices.extend(chosen["main"]["nvidia.com/gpu"].clone());
    }
    devices.sort();
    devices.dedup();
    assert_eq!(devices.len(), 6, "each member has a device of its own");
    let first = cluster
        .until_group("first", |g| phase(g) == Some(PodGroupPhase::Running))
        .await;
    assert_eq!(condition(&first, "Scheduled").unwrap().status, "True");

    cluster.gang("second", 6).await;
    let want = "gang of 6 must start together (2 can be scheduled): 0/2 nodes are available: 2 Insufficient nvidia.com/gpu.";
    let second = cluster
        .until_group("second", |g| {
            condition(g, "Unschedulable").is_some_and(|c| c.message.as_deref() == Some(want))
        })
        .await;
    assert_eq!(phase(&second), Some(PodGroupPhase::Inqueue));
    assert_eq!(
        condition(&second, "Unschedulable")
            .unwrap()
            .reason
            .as_deref(),
        Some("NotEnoughResources")
    );
    assert!(
        cluster
            .until_event("Unschedulable", "second")
            .await
            .contains("must start together")
    );
    let report = cluster.board.get(NAMESPACE, "second").unwrap();
    assert_eq!(
        (report.verdict, report.sentence().as_str()),
        (WaitReason::InsufficientResources, want)
    );
    let told = |pod: Option<&Pod>| {
        let conditions = pod
            .and_then(|pod| pod.status.as_ref())
            .and_then(|s| s.conditions.as_ref());
        conditions.is_some_and(|all| {
            all.iter().any(|c| {
                c.type_ == "PodScheduled"
                    && c.status == "False"
                    && c.reason.as_deref() == Some("Unschedulable")
            })
        })
    };
    let waiting = await_condition(cluster.api::<Pod>(), "second-0", told);
    tokio::time::timeout(PATIENCE, waiting)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(cluster.bound_pods().await, 6);

    let now = DeleteParams::default().grace_period(0);
    for i in 0..6 {
        cluster
            .api::<Pod>()
            .delete(&format!("first-{i}"), &now)
            .await
            .unwrap();
    }
    for i in 0..6 {
        cluster.until_bound(&format!("second-{i}")).await;
    }
    let second = cluster
        .until_group("second", |g| phase(g) == Some(PodGroupPhase::Running))
        .await;
    assert_eq!(condition(&second, "Unschedulable").unwrap().status, "False");
    cluster
        .until_board(|board| board.get(NAMESPACE, "second").is_none())
        .await;
    assert_eq!(cluster.board.violations(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_single_pod_waits_with_an_event_and_is_bound_when_a_node_comes() {
    let cluster = Cluster::start().await;
    cluster.pod("alone", None, 1).await;
    assert_eq!(
        cluster.until_event("FailedScheduling", "alone").await,
        "there are no nodes."
    );
    cluster.node("n1", 1).await;
    let pod = cluster.until_bound("alone").await;
    assert_eq!(node_of(&pod), Some("n1"));
    assert_eq!(
        cluster.until_event("Scheduled", "alone").await,
        "Successfully assigned default/alone to n1"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_shows_its_allocation_and_the_phases_of_its_gangs() {
    let cluster = Cluster::start().await;
    cluster.node("n1", 4).await;
    cluster.gang("g", 2).await;
    let queues: Api<Queue> = Api::all(cluster.client.clone());
    let shown = |queue: Option<&Queue>| {
        let status = queue.and_then(|queue| queue.status.as_ref());
        status.is_some_and(|status| {
            let held = status
                .allocated
                .as_ref()
                .and_then(|held| held.get("nvidia.com/gpu"));
            status.running == 1 && held.is_some_and(|gpus| gpus.0 == "2")
        })
    };
    let waiting = await_condition(queues, "default", shown);
    tokio::time::timeout(PATIENCE, waiting)
        .await
        .expect("the queue's status said so")
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_restart_bound_pods_stay_and_waiting_pods_are_placed() {
    let mut cluster = Cluster::start().await;
    cluster.node("n1", 4).await;
    cluster.gang("first", 3).await;
    for i in 0..3 {
        cluster.until_bound(&format!("first-{i}")).await;
    }
    cluster.restart().await;
    cluster.gang("second", 3).await;
    cluster
        .until_board(|board| board.get(NAMESPACE, "second").is_some())
        .await;
    assert_eq!(cluster.bound_pods().await, 3);
    cluster.node("n2", 4).await;
    for i in 0..3 {
        let pod = cluster.until_bound(&format!("second-{i}")).await;
        assert_eq!(node_of(&pod), Some("n2"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_binding_is_reported_and_retried() {
    let refusals = Refusals {
        of: Some("g-1"),
        left: Arc::new(AtomicUsize::new(2)),
    };
    let cluster = Cluster::start_with(refusals.clone()).await;
    cluster.node("n1", 4).await;
    cluster.gang("g", 3).await;
    for i in 0..3 {
        cluster.until_bound(&format!("g-{i}")).await;
    }
    let said = cluster.until_event("FailedScheduling", "g-1").await;
    assert!(said.contains("the admission plugin says no"), "{said}");
    assert_eq!(refusals.left.load(Ordering::Relaxed), 0);
    cluster
        .until_group("g", |g| phase(g) == Some(PodGroupPhase::Running))
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dry_run_says_where_a_gang_would_go_and_why_not() {
    let cluster = Cluster::start().await;
    cluster.node("n1", 2).await;
    cluster.pod("busy", None, 1).await;
    cluster.until_bound("busy").await;
    let ask = |members: usize| {
        let pods = (0..members).map(|i| read(pod(&format!("p-{i}"), Some("g"), 1)));
        cluster
            .board
            .would_place(Some(read(group("g", members))), pods.collect())
    };
    let trial = ask(1).await;
    assert_eq!(trial.binds[0].node, "n1");
    let trial = ask(2).await;
    assert!(trial.binds.is_empty());
    assert_eq!(
        trial.reports[0].sentence(),
        "gang of 2 must start together (1 can be scheduled): 0/1 nodes are available: 1 Insufficient nvidia.com/gpu."
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gang_of_higher_priority_preempts_and_the_victims_show_the_reason() {
    let cluster = Cluster::start().await;
    cluster.node("n1", 2).await;
    let classes: Api<PriorityClass> = Api::all(cluster.client.clone());
    let class: PriorityClass = read(json!({"metadata": {"name": "urgent"}, "value": 1000}));
    classes
        .create(&PostParams::default(), &class)
        .await
        .unwrap();
    cluster.gang("old", 2).await;
    for i in 0..2 {
        cluster.until_bound(&format!("old-{i}")).await;
    }
    let saves = json!({"metadata": {"annotations": {"muster.io/checkpoint-grace": "10m"}}});
    let groups: Api<PodGroup> = cluster.api();
    groups
        .patch("old", &PatchParams::default(), &Patch::Merge(&saves))
        .await
        .unwrap();
    let mut wanted = group("new", 2);
    wanted["spec"]["priorityClassName"] = json!("urgent");
    let wanted: PodGroup = read(wanted);
    cluster
        .api()
        .create(&PostParams::default(), &wanted)
        .await
        .unwrap();
    for i in 0..2 {
        cluster.pod(&format!("new-{i}"), Some("new"), 1).await;
    }
    for i in 0..2 {
        let name = format!("old-{i}");
        // An eviction writes the reason first, and deletes the pod then.
        let told = |pod: Option<&Pod>| {
            pod.is_some_and(|pod| {
                disruption(pod).is_some() && pod.metadata.deletion_timestamp.is_some()
            })
        };
        let waiting = await_condition(cluster.api::<Pod>(), &name, told);
        let pod = tokio::time::timeout(PATIENCE, waiting)
            .await
            .expect("the pod was told, and has its grace")
            .unwrap()
            .unwrap();
        assert_eq!(pod.metadata.deletion_grace_period_seconds, Some(600));
        assert!(
            pod.metadata
                .annotations
                .as_ref()
                .is_some_and(|notes| notes.contains_key("muster.io/checkpoint-by")),
            "it knows by when it must have saved itself"
        );
        let (reason, message) = disruption(&pod).unwrap();
        assert_eq!(reason, "PreemptionByScheduler");
        assert!(message.contains("default/new"), "{message}");
        let said = cluster.until_event("Preempted", &name).await;
        assert!(said.contains("default/new"), "{said}");
    }
    cluster
        .until_board(|board| {
            let report = board.get(NAMESPACE, "new");
            report.is_some_and(|report| report.binding.contains("nominated nodes"))
        })
        .await;
    // The other pods come only once the node has ended these.
    assert_eq!(cluster.bound_pods().await, 2);
    for i in 0..2 {
        let now = DeleteParams::default().grace_period(0);
        cluster
            .api::<Pod>()
            .delete(&format!("old-{i}"), &now)
            .await
            .unwrap();
    }
    for i in 0..2 {
        cluster.until_bound(&format!("new-{i}")).await;
    }
    assert_eq!(cluster.board.violations(), 0);
}

/// The reason and message of a pod's disruption condition.
fn disruption(pod: &Pod) -> Option<(&str, &str)> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let condition = conditions.iter().find(|c| {
        c.type_ == "DisruptionTarget" && c.reason.as_deref() == Some("PreemptionByScheduler")
    })?;
    Some((condition.reason.as_deref()?, condition.message.as_deref()?))
}

#[tokio::test(flavor = "multi_thread")]
async fn decisions_on_gangs_that_are_gone_are_forgotten_and_on_those_that_are_there_never() {
    let cluster = Cluster::start().await;
    cluster.node("n1", 4).await;
    cluster.gang("gone", 2).await;
    for name in ["there", "left"] {
        cluster.pod(name, None, 1).await;
    }
    for name in ["gone-0", "gone-1", "there", "left"] {
        cluster.until_bound(name).await;
    }
    let long_after = jiff::Timestamp::MAX;
    assert_eq!(cluster.board.forget_gone(long_after).await, 0);
    // No agent runs here that would end them first.
    let delete = DeleteParams::default().grace_period(0);
    for name in ["gone-0", "gone-1", "left"] {
        cluster.api::<Pod>().delete(name, &delete).await.unwrap();
    }
    cluster
        .api::<PodGroup>()
        .delete("gone", &delete)
        .await
        .unwrap();
    let before = jiff::Timestamp::UNIX_EPOCH;
    assert_eq!(cluster.board.forget_gone(before).await, 0);
    let forgotten = async {
        let mut gangs = 0;
        while gangs < 2 {
            gangs += cluster.board.forget_gone(long_after).await;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        gangs
    };
    let gangs = tokio::time::timeout(PATIENCE, forgotten).await;
    assert_eq!(gangs, Ok(2));
    let told = ["gone", "left", "there"].map(|gang| cluster.board.history(NAMESPACE, gang).len());
    assert_eq!(told, [0, 0, 1]);
}
