//! A RayService's life: its clusters, the configuration, the switch of the Services, deletion, suspension, and what Ray
//! refuses; and that it always comes to rest with one cluster that serves.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::ServicePort;
use proptest::prelude::*;
use resources::names;
use serde_json::{Value, json};

use super::*;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + second).unwrap()
}

/// A service's namespace in memory, with Ray clusters that do what they are told.
struct World {
    service: RayService,
    clusters: Vec<RayCluster>,
    pods: Vec<Pod>,
    services: Vec<Service>,
    serve: BTreeMap<String, ServeObservation>,
    /// The configuration that each cluster has.
    configs: BTreeMap<String, Value>,
    /// What Ray refuses.
    refuses: Option<String>,
    /// The state of all applications.
    state: String,
    /// Where pods share their node's address.
    shared: bool,
    created: u32,
    submitted: u32,
}

impl World {
    fn new(more: Value) -> World {
        let pod = json!({"spec": {"containers": [{"name": "ray", "image": "r:1",
            "ports": [{"name": "serve", "containerPort": 8000}]}]}});
        let mut spec = json!({"serveConfigV2": "applications:\n- name: a\n  import_path: a:app\n",
            "rayClusterConfig": {"headGroupSpec": {"template": pod}, "workerGroupSpecs": [
                {"groupName": "small", "replicas": 1, "template": pod}]}});
        for (key, value) in more.as_object().unwrap() {
            spec[key] = value.clone();
        }
        let meta = json!({"name": "demo", "namespace": "team", "uid": "service-uid", "generation": 1,
            "annotations": {"muster.io/user": "ann", "scheduling.volcano.sh/queue-name": "q"}});
        let service = json!({"metadata": meta, "spec": spec});
        World {
            service: serde_json::from_value(service).unwrap(),
            clusters: Vec::new(),
            pods: Vec::new(),
            services: Vec::new(),
            serve: BTreeMap::new(),
            configs: BTreeMap::new(),
            refuses: None,
            state: "RUNNING".to_owned(),
            shared: true,
            created: 0,
            submitted: 0,
        }
    }

    fn decide(&self, second: i64) -> RayServiceDecision {
        let observed = ObservedRayService {
            service: &self.service,
            clusters: &self.clusters.iter().collect::<Vec<_>>(),
            pods: &self.pods.iter().collect::<Vec<_>>(),
            services: &self.services.iter().collect::<Vec<_>>(),
            serve: &self.serve,
        };
        reconcile(&observed, at(second))
    }

    /// One decision, carried out. Returns the events' reasons, and whether nothing changed.
    fn step(&mut self, second: i64) -> (Vec<String>, bool) {
        let decision = self.decide(second);
        let reasons = decision.outcome.events.iter();
        let reasons = reasons.map(|event| event.reason.clone()).collect();
        let mut same = self.service.status.as_ref() == Some(&decision.outcome.status);
        same &= decision.outcome.actions.is_empty();
        self.service.status = Some(decision.outcome.status);
        for action in decision.outcome.actions {
            self.act(action);
        }
        for request in decision.requests {
            same &= self.answer(request);
        }
        (reasons, same)
    }

    /// Decides and acts until nothing is left to do; returns the events' reasons.
    fn settle(&mut self, second: i64) -> Vec<String> {
        let mut all = Vec::new();
        for _ in 0..40 {
            let (reasons, same) = self.step(second);
            all.extend(reasons);
            if same {
                return all;
            }
        }
        panic!(
            "the decisions do not come to rest: {:#?}",
            self.service.status
        );
    }

    /// What a cluster answers. Returns whether it is the same as before.
    fn answer(&mut self, request: ServeRequest) -> bool {
        let before = self.serve.get(&request.cluster).cloned();
        let same_run = before
            .as_ref()
            .filter(|before| before.head_run == request.head_run);
        let mut submission = same_run.and_then(|before| before.submission.clone());
        if same_run.is_none() {
            self.configs.remove(&request.cluster);
        }
        if let Some((hash, config)) = request.submit {
            self.submitted += 1;
            let result = match &self.refuses {
                Some(refusal) => Err(refusal.clone()),
                None => Ok(()),
            };
            if result.is_ok() {
                self.configs.insert(request.cluster.clone(), config);
            }
            submission = Some((hash, result));
        }
        let config = self.configs.get(&request.cluster);
        let applications = config.map_or(json!({}), |config| {
            let all = config["applications"].as_array().unwrap().iter();
            let named = all.map(|one| {
                let told = json!({"status": self.state, "message": "Traceback:\n  boom",
                    "deployments": {"D": {"status": "UPDATING", "message": "x\nno module a"}}});
                (one["name"].as_str().unwrap().to_owned(), told)
            });
            Value::Object(named.collect())
        });
        let healthy: BTreeSet<String> = match config {
            Some(_) => request.pods.values().cloned().collect(),
            None => BTreeSet::new(),
        };
        let after = ServeObservation {
            head_run: request.head_run,
            answer: Ok(json!({"applications": applications})),
            healthy,
            submission,
        };
        let same = before.as_ref() == Some(&after);
        self.serve.insert(request.cluster, after);
        same
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Create(Dependent::RayCluster(cluster)) => {
                self.created += 1;
                let mut cluster = *cluster;
                let taken = self
                    .clusters
                    .iter()
                    .any(|one| name_of(one) == name_of(&cluster));
                assert!(!taken, "the name is taken");
                cluster.metadata.uid = Some(format!("cluster-{}", self.created));
                self.clusters.push(cluster);
            }
            Action::CreateService(service) => {
                let mut service = *service;
                service.metadata.uid = service.metadata.name.clone();
                self.services.push(service);
            }
            Action::DeleteService { name, .. } => {
                self.services
                    .retain(|one| one.metadata.name.as_ref() != Some(&name));
            }
            Action::Delete { kind, uid, .. } => {
                assert_eq!(kind, DependentKind::RayCluster);
                self.clusters
                    .retain(|one| one.metadata.uid.as_ref() != Some(&uid));
                let of =
                    |pod: &Pod| controller(&pod.metadata).is_some_and(|owner| owner.uid == uid);
                self.pods.retain(|pod| !of(pod));
            }
            Action::Change {
                kind, name, patch, ..
            } => match kind {
                DependentKind::Pod => {
                    let mut pods = self.pods.iter_mut();
                    let pod = pods
                        .find(|pod| pod.metadata.name.as_ref() == Some(&name))
                        .unwrap();
                    let value = patch["metadata"]["labels"][names::RAY_SERVE]
                        .as_str()
                        .unwrap();
                    let labels = pod.metadata.labels.get_or_insert_default();
                    labels.insert(names::RAY_SERVE.to_owned(), value.to_owned());
                }
                DependentKind::Service => {
                    let mut services = self.services.iter_mut();
                    let found = services.find(|one| one.metadata.name.as_ref() == Some(&name));
                    let spec = found.unwrap().spec.as_mut().unwrap();
                    let selector = patch["spec"]["selector"].as_object().unwrap();
                    let own = selector.iter().filter(|(_, value)| !value.is_null());
                    let own =
                        own.map(|(key, value)| (key.clone(), value.as_str().unwrap().to_owned()));
                    spec.selector = Some(own.collect());
                    spec.ports = serde_json::from_value(patch["spec"]["ports"].clone()).unwrap();
                }
                DependentKind::RayCluster => {
                    let mut clusters = self.clusters.iter_mut();
                    let cluster = clusters.find(|one| name_of(one) == name).unwrap();
                    let groups = patch["spec"]["workerGroupSpecs"].clone();
                    cluster.spec.worker_group_specs = serde_json::from_value(groups).unwrap();
                    let notes = patch["metadata"]["annotations"].clone();
                    let notes: BTreeMap<String, String> = serde_json::from_value(notes).unwrap();
                    cluster
                        .metadata
                        .annotations
                        .get_or_insert_default()
                        .extend(notes);
                }
                other => panic!("{other:?}"),
            },
            other => panic!("{other:?}"),
        }
    }

    /// The newest cluster's head is ready, in its run of this number.
    fn ready(&mut self, run: u32) {
        let shared = self.shared;
        let number = self.clusters.len();
        let cluster = self.clusters.last_mut().expect("a cluster");
        let (name, uid) = (
            name_of(cluster).to_owned(),
            cluster.metadata.uid.clone().unwrap(),
        );
        let serve = if shared { 14_006 + 12 * number } else { 8000 };
        if shared {
            let notes = cluster.metadata.annotations.get_or_insert_default();
            notes.insert(names::RENDEZVOUS_PORT.to_owned(), "14000".to_owned());
        }
        let status = json!({"state": "ready", "conditions": [{"type": "HeadPodReady", "status": "True",
                "reason": "r", "message": "", "lastTransitionTime": at(0)}],
            "endpoints": {"dashboard": "14001", "serve": serve.to_string()},
            "head": {"run": format!("{uid}/{run}"), "podName": format!("{name}-head")}});
        cluster.status = serde_json::from_value(status).unwrap();
        for (pod, type_) in [("head", "head"), ("small-worker-0", "worker")] {
            let pod_name = format!("{name}-{pod}");
            self.pods
                .retain(|known| known.metadata.name.as_ref() != Some(&pod_name));
            let pod = json!({
                "metadata": {"name": pod_name, "namespace": "team", "uid": format!("{pod_name}/{run}"),
                    "labels": {"ray.io/cluster": name, "ray.io/node-type": type_,
                        "ray.io/originated-from-cr-name": "demo"},
                    "ownerReferences": [{"apiVersion": "ray.io/v1", "kind": "RayCluster",
                        "name": name, "uid": uid, "controller": true}]},
                "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
            });
            self.pods.push(serde_json::from_value(pod).unwrap());
        }
    }

    /// A service with a cluster that serves.
    fn serving(more: Value) -> World {
        let mut world = World::new(more);
        world.settle(0);
        world.ready(0);
        world.settle(1);
        assert_eq!(world.status().service_status.as_deref(), Some("Running"));
        world
    }

    fn change(&mut self, path: &str, value: Value) {
        let mut spec = serde_json::to_value(&self.service.spec).unwrap();
        let (parent, member) = path.rsplit_once('/').unwrap();
        let parent = spec.pointer_mut(parent).expect(path);
        match member.parse::<usize>() {
            Ok(index) => parent[index] = value,
            Err(_) => parent[member] = value,
        }
        self.service.spec = serde_json::from_value(spec).unwrap();
    }

    fn status(&self) -> &RayServiceStatus {
        self.service.status.as_ref().unwrap()
    }

    fn condition(&self, type_: &str) -> (String, String, String) {
        let all = &self.status().conditions;
        let one = all.iter().find(|one| one.type_ == type_).expect(type_);
        (one.status.clone(), one.reason.clone(), one.message.clone())
    }

    fn active(&self) -> Option<String> {
        let active = self.status().active_service_status.as_ref()?;
        active.ray_cluster_name.clone()
    }

    fn pending(&self) -> Option<String> {
        let pending = self.status().pending_service_status.as_ref()?;
        pending.ray_cluster_name.clone()
    }

    /// Where the serve Service leads to, with its first port.
    fn leads(&self) -> Option<(String, ServicePort)> {
        let name = Some("demo-serve-svc".to_owned());
        let serve = self.services.iter().find(|one| one.metadata.name == name)?;
        let port = serve.spec.as_ref()?.ports.as_ref()?.first()?.clone();
        Some((objects::leads_to(serve)?.to_owned(), port))
    }
}

#[test]
fn a_service_gets_a_cluster_its_configuration_and_two_services() {
    let mut world = World::new(json!({}));
    // The name is written before the cluster is created.
    world.step(0);
    let name = world.pending().expect("a name");
    assert!(name.starts_with("demo-") && name.len() == 10, "{name}");
    assert_eq!(world.created, 0);
    world.settle(0);
    assert_eq!((world.created, world.active()), (1, None));
    let cluster = &world.clusters[0];
    let labels = cluster.metadata.labels.as_ref().unwrap();
    assert_eq!(labels[names::RAY_ORIGIN_KIND], "RayService");
    let notes = cluster.metadata.annotations.as_ref().unwrap();
    assert_eq!(notes[names::QUEUE_NAME], "q");
    assert_eq!(notes[names::RAY_WORKER_GROUPS], "1");
    let (status, reason, message) = world.condition("Ready");
    assert_eq!(
        (status.as_str(), reason.as_str()),
        ("False", "Initializing")
    );
    assert!(message.contains("is not ready"), "{message}");

    world.ready(0);
    let events = world.settle(1);
    assert_eq!(
        events,
        ["UpdatedServeApplications", "ServesRequests", "Ready"]
    );
    assert_eq!(
        (world.active(), world.pending()),
        (Some(name.clone()), None)
    );
    let (to, port) = world.leads().unwrap();
    let target = json!(port.target_port);
    assert_eq!((to, port.port, target), (name.clone(), 8000, json!(14_018)));
    assert_eq!(world.services.len(), 2);
    assert_eq!(world.status().num_serve_endpoints, Some(2));
    assert_eq!(world.condition("Ready").1, "NonZeroServeEndpoints");
    assert_eq!(world.condition("UpgradeInProgress").1, "NoPendingCluster");
    let config = &world.configs[&name];
    assert_eq!(config["http_options"]["port"], 14_018);
    assert_eq!(config["proxy_location"], "HeadOnly");
    assert_eq!(world.submitted, 1);
}

#[test]
fn with_addresses_of_their_own_pods_serve_on_the_users_port() {
    let mut world = World::new(json!({"excludeHeadPodFromServeSvc": true,
        "serveConfigV2": "http_options: {port: 9000}\napplications: [{name: a}]"}));
    world.shared = false;
    world.settle(0);
    world.ready(0);
    world.settle(1);
    assert_eq!(world.status().num_serve_endpoints, Some(1), "not the head");
    let config = world.configs.values().next().unwrap();
    assert_eq!(config["http_options"]["port"], 9000);
    assert!(config["proxy_location"].is_null());
}

#[test]
fn pods_with_addresses_of_their_own_all_have_proxies_on_the_chosen_port() {
    let mut world = World::new(json!({}));
    world.settle(0);
    world.ready(0);
    for pod in &mut world.pods {
        let status = pod.status.as_mut().unwrap();
        status.pod_ip = Some("10.244.0.2".to_owned());
        status.host_ip = Some("192.0.2.1".to_owned());
    }
    world.settle(1);
    let config = world.configs.values().next().unwrap();
    assert_eq!(config["http_options"]["port"], 14_018);
    assert!(config["proxy_location"].is_null());
}

#[test]
fn a_changed_configuration_goes_to_the_same_cluster() {
    let mut world = World::serving(json!({}));
    let cluster = world.active();
    world.change(
        "/serveConfigV2",
        "applications: [{name: b}, {name: c}]".into(),
    );
    let events = world.settle(10);
    assert_eq!(events, ["UpdatedServeApplications"]);
    assert_eq!((world.active(), world.created), (cluster, 1));
    let active = world.status().active_service_status.as_ref().unwrap();
    let known: Vec<&String> = active.application_statuses.keys().collect();
    assert_eq!(known, ["b", "c"]);
    assert_eq!(world.submitted, 2);
}

#[test]
fn another_spec_makes_another_cluster_which_takes_over_once_it_serves() {
    let mut world = World::serving(json!({}));
    let first = world.active().unwrap();
    world.change("/rayClusterConfig/rayVersion", "2.60.0".into());
    world.settle(10);
    let second = world.pending().expect("a pending cluster");
    assert_ne!(first, second);
    assert_eq!(world.leads().unwrap().0, first);
    assert_eq!(world.condition("UpgradeInProgress").0, "True");
    assert_eq!(world.condition("Ready").0, "True");
    // Its applications do not run yet.
    world.state = "DEPLOYING".to_owned();
    world.ready(0);
    world.settle(11);
    assert_eq!(world.leads().unwrap().0, first);
    world.state = "RUNNING".to_owned();
    let events = world.settle(12);
    assert_eq!(events, ["ServesRequests"]);
    let (to, port) = world.leads().unwrap();
    assert_eq!(
        (to, json!(port.target_port)),
        (second.clone(), json!(14_030))
    );
    assert_eq!((world.active(), world.pending()), (Some(second), None));
    assert_eq!(
        world.clusters.len(),
        2,
        "the old cluster stays for a minute"
    );
    assert!(world.status().retired_clusters.contains_key(&first));
    world.settle(71);
    assert_eq!(world.clusters.len(), 2);
    world.settle(72);
    assert_eq!(world.clusters.len(), 1);
    assert!(world.status().retired_clusters.is_empty());
}

#[test]
fn numbers_of_workers_and_further_groups_change_the_cluster_itself() {
    let mut world = World::serving(json!({}));
    world.change("/rayClusterConfig/workerGroupSpecs/0/replicas", 3.into());
    world.settle(10);
    let groups = |world: &World| world.clusters[0].spec.worker_group_specs.clone().unwrap();
    assert_eq!(groups(&world)[0].replicas, Some(3));
    let given = &world.service.spec.ray_cluster_config.worker_group_specs;
    let mut more = json!(given);
    let mut group = more[0].clone();
    group["groupName"] = "large".into();
    more.as_array_mut().unwrap().push(group);
    world.change("/rayClusterConfig/workerGroupSpecs", more);
    world.settle(11);
    assert_eq!((world.created, groups(&world).len()), (1, 2));
    let notes = world.clusters[0].metadata.annotations.as_ref().unwrap();
    assert_eq!(notes[names::RAY_WORKER_GROUPS], "2");
    // Without the upgrade strategy's new clusters, other changes have no effect.
    world.change("/rayClusterConfig/rayVersion", "3".into());
    world.service.spec.upgrade_strategy = serde_json::from_value(json!({"type": "None"})).unwrap();
    world.settle(12);
    assert_eq!((world.created, world.pending()), (1, None));
}

#[test]
fn a_spec_that_is_changed_back_ends_the_upgrade_at_once() {
    let mut world = World::serving(json!({}));
    let first = world.active();
    world.change("/rayClusterConfig/rayVersion", "3".into());
    world.settle(10);
    world.change("/rayClusterConfig/rayVersion", "4".into());
    world.settle(11);
    assert_eq!((world.created, world.clusters.len()), (3, 2));
    world.change("/rayClusterConfig/rayVersion", Value::Null);
    world.settle(12);
    assert_eq!((world.pending(), world.active()), (None, first));
    assert_eq!((world.created, world.clusters.len()), (3, 1));
}

#[test]
fn what_ray_says_is_the_cause() {
    let mut world = World::new(json!({}));
    world.settle(0);
    world.refuses = Some("1 validation error for ServeDeploySchema\n  Field required\n".to_owned());
    world.ready(0);
    for second in 1..5 {
        world.step(second);
    }
    let name = name_of(&world.clusters[0]).to_owned();
    let cause = world.condition("Ready").2;
    let want = format!(
        "RayCluster {name} did not accept serveConfigV2: 1 validation error for ServeDeploySchema Field required."
    );
    assert_eq!(cause, want);
    assert!(world.submitted > 1, "it is submitted again");
    world.refuses = None;
    world.state = "DEPLOY_FAILED".to_owned();
    world.settle(9);
    let want =
        format!("Application a failed to deploy on RayCluster {name}: deployment D: no module a.");
    assert_eq!(world.condition("Ready").2, want);
    assert!(world.services.is_empty());
    world.state = "RUNNING".to_owned();
    world.settle(10);
    assert_eq!(world.condition("Ready").0, "True");
}

#[test]
fn a_head_that_starts_anew_gets_the_configuration_again() {
    let mut world = World::serving(json!({}));
    world.ready(1);
    world.settle(10);
    assert_eq!((world.submitted, world.created), (2, 1));
    assert_eq!(world.status().num_serve_endpoints, Some(2));
    // A cluster that is deleted is replaced.
    world.clusters.clear();
    world.pods.clear();
    let events = world.settle(20);
    assert!(events.contains(&"RayClusterLost".to_owned()), "{events:?}");
    assert_eq!(world.condition("Ready").1, "ZeroServeEndpoints");
    world.ready(0);
    world.settle(21);
    assert_eq!(world.condition("Ready").0, "True");
    assert_eq!(world.leads().unwrap().0, name_of(&world.clusters[0]));
}

#[test]
fn a_suspension_deletes_all_and_is_completed_before_the_service_is_resumed() {
    let mut world = World::serving(json!({}));
    world.service.spec.suspend = Some(true);
    world.step(10);
    assert_eq!(world.condition("Suspending").1, "SuspendRequested");
    assert_eq!(world.clusters.len(), 1, "it begins once it is written");
    world.service.spec.suspend = Some(false);
    world.step(11);
    assert!(world.clusters.is_empty() && world.services.is_empty());
    world.step(12);
    assert_eq!(world.condition("Suspended").0, "True");
    world.settle(13);
    assert_eq!(world.condition("Suspended").0, "False");
    world.ready(0);
    world.settle(14);
    assert_eq!(world.condition("Ready").0, "True");
}

#[test]
fn an_invalid_spec_is_the_condition() {
    for (more, field) in [
        (json!({"serveConfigV2": ""}), "spec.serveConfigV2"),
        (json!({"serveConfigV2": "["}), "spec.serveConfigV2"),
        (
            json!({"upgradeStrategy": {"type": "NewClusterWithIncrementalUpgrade"}}),
            "spec.upgradeStrategy.type",
        ),
    ] {
        let mut world = World::new(more);
        assert_eq!(world.settle(0), ["ValidationFailed"]);
        let (_, reason, message) = world.condition("Ready");
        assert_eq!(reason, "ValidationFailed");
        assert!(message.starts_with(field), "{message}");
    }
}

#[test]
fn the_serve_service_has_what_the_user_gave_and_keeps_its_node_port() {
    let given = json!({"metadata": {"name": "front", "labels": {"a": "b"}, "annotations": {"c": "d"}},
        "spec": {"type": "NodePort", "selector": {"x": "y"}, "ports": [
            {"name": "serve", "port": 80}, {"name": "more", "port": 81}]}});
    let mut world = World::serving(json!({"serveService": given}));
    let name = Some("front".to_owned());
    let at_front = |world: &World| {
        let mut services = world.services.iter();
        services.position(|one| one.metadata.name == name).unwrap()
    };
    let front = at_front(&world);
    let spec = world.services[front].spec.as_mut().unwrap();
    assert_eq!(spec.type_.as_deref(), Some("NodePort"));
    assert!(!spec.selector.as_ref().unwrap().contains_key("x"));
    let ports = spec.ports.as_mut().unwrap();
    assert_eq!(
        (ports[0].port, json!(ports[0].target_port)),
        (80, json!(14_018))
    );
    assert_eq!(ports[1].port, 81);
    ports[0].node_port = Some(30_001);
    ports[1].target_port = Some(k8s_openapi::apimachinery::pkg::util::intstr::IntOrString::Int(81));
    assert_eq!(world.settle(2), [""; 0]);
    world.change("/rayClusterConfig/rayVersion", "3".into());
    world.settle(3);
    world.ready(0);
    world.settle(4);
    let ports = world.services[at_front(&world)]
        .spec
        .clone()
        .unwrap()
        .ports
        .unwrap();
    assert_eq!(ports[0].node_port, Some(30_001));
    assert_eq!(json!(ports[0].target_port), json!(14_030));
}

/// What may happen to a service.
#[derive(Clone, Debug)]
enum Happening {
    Version(u8),
    Config(u8),
    Ready,
    HeadLost,
    Refuses(bool),
    State(bool),
    Steps(u8),
    ClusterDeleted,
    AnswersForgotten,
}

fn happening() -> impl Strategy<Value = Happening> {
    prop_oneof![
        (0..3_u8).prop_map(Happening::Version),
        (0..3_u8).prop_map(Happening::Config),
        Just(Happening::Ready),
        Just(Happening::HeadLost),
        any::<bool>().prop_map(Happening::Refuses),
        any::<bool>().prop_map(Happening::State),
        (1..6_u8).prop_map(Happening::Steps),
        Just(Happening::ClusterDeleted),
        Just(Happening::AnswersForgotten),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever happens: the Services lead to an existing cluster or the lost one, and at the end the service comes to
    /// rest with one cluster of the last spec, which has the last configuration.
    #[test]
    fn a_service_always_comes_to_rest_with_one_cluster(happenings in prop::collection::vec(happening(), 0..24)) {
        let mut world = World::new(json!({}));
        world.change("/rayClusterConfig/headGroupSpec", json!({
            "template": {"spec": {"containers": [{"name": "ray"}]}}, "resources": {"v": "0"}}));
        let (mut run, mut second, mut deleted) = (0, 0, false);
        for happening in happenings {
            match happening {
                Happening::Version(version) => {
                    world.change("/rayClusterConfig/headGroupSpec/resources/v", version.to_string().into());
                }
                Happening::Config(number) => {
                    let config = format!("applications: [{{name: a{number}}}]");
                    world.change("/serveConfigV2", config.into());
                }
                Happening::Ready if !world.clusters.is_empty() => world.ready(run),
                Happening::HeadLost if !world.clusters.is_empty() => {
                    run += 1;
                    world.ready(run);
                }
                Happening::Refuses(refuses) => world.refuses = refuses.then(|| "no".to_owned()),
                Happening::State(runs) => {
                    world.state = if runs { "RUNNING" } else { "UNHEALTHY" }.to_owned();
                }
                Happening::Steps(steps) => for _ in 0..steps {
                    world.step(second);
                    second += 1;
                    let leads = world.leads().map(|(to, _)| to);
                    let exists = |name: &String| world.clusters.iter().any(|one| name_of(one) == name);
                    prop_assert!(deleted || leads.as_ref().is_none_or(exists), "{leads:?}");
                },
                Happening::ClusterDeleted => {
                    deleted |= world.clusters.pop().is_some();
                    // A restart of the server forgets what clusters answered.
                    world.serve.clear();
                }
                Happening::AnswersForgotten => world.serve.clear(),
                Happening::Ready | Happening::HeadLost => {}
            }
        }
        world.refuses = None;
        world.state = "RUNNING".to_owned();
        for _ in 0..6 {
            world.settle(second);
            run += 1;
            if !world.clusters.is_empty() {
                world.ready(run);
            }
            second += 100;
        }
        world.settle(second);
        prop_assert_eq!(world.clusters.len(), 1);
        prop_assert_eq!(world.pending(), None);
        let last = name_of(&world.clusters[0]).to_owned();
        prop_assert_eq!(world.active(), Some(last));
        prop_assert_eq!(world.leads().map(|(to, _)| to), world.active());
        let plan = ParsedRayService::of(&world.service).unwrap();
        prop_assert_eq!(plan.compare(&world.clusters[0]), SpecChange::Nothing);
        let config = &world.configs[name_of(&world.clusters[0])];
        prop_assert_eq!(config, &plan.config_for(&world.clusters[0], true).body);
        prop_assert_eq!(world.condition("Ready").0, "True");
    }
}
