//! The lifecycle of a node and its pods, from joining to the log of a deleted pod.

use fleet::{AgentLogQuery, LogReadError};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Node};
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::server::{Server, until};
use crate::stand_in::StandIn;

fn log_of(pod: &str) -> AgentLogQuery {
    AgentLogQuery {
        namespace: "default".to_owned(),
        pod: pod.to_owned(),
        ..AgentLogQuery::default()
    }
}

fn main_state(pod: &Value) -> &Value {
    &pod["status"]["containerStatuses"][0]["state"]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_joins_with_a_fingerprint_becomes_ready_with_its_inventory() {
    let server = Server::start().await;
    let agent = server.agent("n1", &StandIn::new()).await;
    let nodes: Api<Node> = Api::all(server.client.clone());
    let node = until("the node", async || {
        let node = serde_json::to_value(nodes.get_opt("n1").await.unwrap()?).unwrap();
        let conditions = node["status"]["conditions"].as_array()?;
        conditions
            .iter()
            .any(|c| c["type"] == "Ready" && c["status"] == "True")
            .then(|| node.clone())
    })
    .await;
    assert_eq!(node["metadata"]["labels"]["zone"], "test");
    assert_eq!(
        node["metadata"]["labels"]["muster.io/runtime.process"],
        "true"
    );
    assert_eq!(node["metadata"]["labels"]["muster.io/runtime.cri"], "false");
    assert_eq!(node["status"]["addresses"][0]["address"], "127.0.0.1");
    assert!(node["metadata"]["annotations"]["muster.io/inventory"].is_string());
    let cpus = node["status"]["allocatable"]["cpu"].as_str().unwrap();
    assert!(cpus.parse::<u32>().unwrap() > 0);
    let leases: Api<Lease> = Api::namespaced(server.client.clone(), "kube-node-lease");
    let lease = leases.get("n1").await.unwrap();
    assert!(lease.spec.unwrap().renew_time.is_some());
    agent.end().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_of_a_version_that_does_not_fit_is_refused_and_its_node_says_what_to_do() {
    let server = Server::start_as(Some("9.9.0")).await;
    let nodes: Api<Node> = Api::all(server.client.clone());
    // From the time when its version fitted.
    let node = serde_json::from_value(json!({"metadata": {"name": "n1"}})).unwrap();
    nodes.create(&PostParams::default(), &node).await.unwrap();
    let agent = server.agent("n1", &StandIn::new()).await;
    let message = until("the condition", async || {
        let node = nodes.get("n1").await.unwrap();
        let conditions = node.status?.conditions?;
        let mut found = conditions.into_iter();
        let refused = found.find(|one| one.type_ == resources::names::VERSION_REFUSED)?;
        (refused.status == "True").then(|| refused.message.unwrap_or_default())
    })
    .await;
    assert!(message.contains("install muster 9.9.0"), "{message}");
    assert!(server.fleet.connected_nodes().is_empty());
    let agents = server.fleet.agents().await.unwrap();
    assert_eq!(agents[0].refused, message);
    // The agent goes on, with its pods.
    agent.end().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_token_or_another_server_prevents_a_join() {
    let server = Server::start().await;
    let engine = StandIn::new();
    let token = server.token().await;
    let id = token.split('.').next().unwrap();
    let wrong = format!("{id}.{}", "a".repeat(32));
    let refused = server.agent_with(server.config("n1", Some(wrong)), &engine);
    let error = refused.ended().await.unwrap_err().to_string();
    assert!(error.contains("does not know the join token"), "{error}");

    assert!(server.fleet.revoke_join_token(id).await.unwrap());
    let refused = server.agent_with(server.config("n1", Some(token)), &engine);
    assert!(refused.ended().await.is_err());

    let none = server.agent_with(server.config("n1", None), &engine);
    let error = none.ended().await.unwrap_err().to_string();
    assert!(error.contains("has not joined yet"), "{error}");

    // With another fingerprint nothing is sent; the agent keeps trying.
    let mut config = server.config("n1", Some(server.token().await));
    config.ca_fingerprint = Some(format!("sha256:{}", "00".repeat(32)));
    let trying = server.agent_with(config, &engine);
    trying.end().await.unwrap();
    assert!(server.fleet.connected_nodes().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_lets_one_node_join_once_and_only_the_node_that_it_names() {
    let server = Server::start().await;
    let engine = StandIn::new();
    let token = server.token_for(Some("n1")).await;
    let other = server.agent_with(server.config("n2", Some(token.clone())), &engine);
    let error = other.ended().await.unwrap_err().to_string();
    assert!(error.contains("for another node"), "{error}");
    let agent = server.agent_with(server.config("n1", Some(token.clone())), &engine);
    connected(&server, &["n1"]).await;
    assert!(server.fleet.list_join_tokens().await.unwrap().is_empty());
    let late = server.agent_with(server.config("n3", Some(token)), &engine);
    let error = late.ended().await.unwrap_err().to_string();
    assert!(error.contains("used already"), "{error}");
    agent.end().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_joins_at_once_no_more_succeed_than_a_token_has_uses() {
    let server = Server::start().await;
    let engine = StandIn::new();
    let options = fleet::JoinTokenOptions {
        ttl: jiff::SignedDuration::from_mins(5),
        description: String::new(),
        node: None,
        uses: 3,
    };
    let token = server.fleet.create_join_token(&options).await.unwrap();
    let agents: Vec<_> = (0..5)
        .map(|n| server.config(&format!("n{n}"), Some(token.token.clone())))
        .map(|config| server.agent_with(config, &engine))
        .collect();
    until("three nodes", async || {
        (server.fleet.connected_nodes().len() == 3).then_some(())
    })
    .await;
    let mut refused = 0;
    for agent in agents {
        refused += usize::from(agent.end().await.is_err());
    }
    assert_eq!(refused, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_that_names_no_node_takes_no_name_of_a_node_that_is_away() {
    let server = Server::start().await;
    let engine = StandIn::new();
    let agent = server.agent("n1", &engine).await;
    connected(&server, &["n1"]).await;
    agent.end().await.unwrap();
    connected(&server, &[]).await;
    // Another machine, without the node's files.
    let thief = |token: String| {
        let mut config = server.config("n1", Some(token));
        config.data = server.data("elsewhere");
        server.agent_with(config, &engine)
    };
    let refused = thief(server.token().await).ended().await.unwrap_err();
    assert!(refused.to_string().contains("joined before"), "{refused}");
    let agent = thief(server.token_for(Some("n1")).await);
    connected(&server, &["n1"]).await;
    agent.end().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_removed_node_is_out_at_once_and_its_key_opens_nothing_any_more() {
    let server = Server::start().await;
    let engine = StandIn::new();
    let agent = server.agent("n1", &engine).await;
    connected(&server, &["n1"]).await;
    assert!(server.fleet.remove_node("n1").await.unwrap());
    connected(&server, &[]).await;
    let nodes: Api<Node> = Api::all(server.client.clone());
    assert!(nodes.get_opt("n1").await.unwrap().is_none());
    assert!(!server.fleet.remove_node("n1").await.unwrap());
    agent.end().await.unwrap();
    // A stolen key and certificate identify the node, and are refused.
    let stolen = server.agent_with(server.config("n1", None), &engine);
    let token = server.token_for(Some("n1")).await;
    let rejoined = server.data("elsewhere");
    let mut config = server.config("n1", Some(token));
    config.data = rejoined;
    let returned = server.agent_with(config, &engine);
    connected(&server, &["n1"]).await;
    // The agent that joined again is the node from now on: the stolen key never takes its place.
    stolen.end().await.unwrap();
    connected(&server, &["n1"]).await;
    returned.end().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_without_a_valid_certificate_joins_again_with_a_remaining_token() {
    let server = Server::start().await;
    let engine = StandIn::new();
    let token = server.fleet.own_join_token("n1").unwrap();
    let agent = server.agent_with(server.config("n1", Some(token)), &engine);
    connected(&server, &["n1"]).await;
    assert!(server.fleet.remove_node("n1").await.unwrap());
    let nodes: Api<Node> = Api::all(server.client.clone());
    until("the node to be back", async || {
        nodes.get_opt("n1").await.unwrap().map(drop)
    })
    .await;
    connected(&server, &["n1"]).await;
    agent.end().await.unwrap();
}

/// Waits until exactly these nodes have a session.
async fn connected(server: &Server, names: &[&str]) {
    until(&format!("the sessions of {names:?}"), async || {
        (server.fleet.connected_nodes() == names).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_runs_to_its_end_and_its_log_outlasts_it() {
    let server = Server::start().await;
    let engine = StandIn::new();
    let agent = server.agent("n1", &engine).await;
    server.bound_pod("p", "n1", json!({})).await;
    let running = server.phase("p", "Running").await;
    assert_eq!(running["status"]["podIP"], "127.0.0.1");
    assert_eq!(running["status"]["containerStatuses"][0]["ready"], true);
    engine.end("p", 0);
    let ended = server.phase("p", "Succeeded").await;
    assert_eq!(main_state(&ended)["terminated"]["reason"], "Completed");
    assert_eq!(server.log(log_of("p")).await.unwrap(), "hello from p\n");
    server
        .pods()
        .delete("p", &DeleteParams::default())
        .await
        .unwrap();
    server.gone("p").await;
    until("the container to be forgotten", async || {
        engine.spec("p").is_none().then_some(())
    })
    .await;
    assert_eq!(server.log(log_of("p")).await.unwrap(), "hello from p\n");
    let none = server.log(log_of("never")).await;
    assert!(matches!(none, Err(LogReadError::NotFound(_))), "{none:?}");
    agent.end().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_whose_worker_panics_is_worked_on_again_and_the_others_run_on() {
    let server = Server::start().await;
    let engine = StandIn::new();
    let agent = server.agent("n1", &engine).await;
    server.bound_pod("calm", "n1", json!({})).await;
    server.bound_pod("wild", "n1", json!({})).await;
    server.phase("calm", "Running").await;
    server.phase("wild", "Running").await;
    *engine.panics.lock().unwrap() = 2;
    let parameters = DeleteParams::default();
    server.pods().delete("wild", &parameters).await.unwrap();
    // The request to end the pod outlasts two workers.
    server.gone("wild").await;
    assert_eq!(*engine.panics.lock().unwrap(), 0);
    let events: kube::Api<k8s_openapi::api::core::v1::Event> =
        kube::Api::namespaced(server.client.clone(), "default");
    until("the event on the pod", async || {
        let all = events
            .list(&kube::api::ListParams::default())
            .await
            .unwrap();
        let told = all.items.into_iter().find(|event| {
            event.reason.as_deref() == Some("WorkerPanicked")
                && event.involved_object.name.as_deref() == Some("wild")
        })?;
        told.message?.contains("over wild").then_some(())
    })
    .await;
    assert!(engine.runs("calm"));
    engine.end("calm", 0);
    server.phase("calm", "Succeeded").await;
    agent.end().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_evicted_pods_containers_are_removed_and_its_object_and_log_stay() {
    let server = Server::start().await;
    let engine = StandIn::new();
    let agent = server.agent("n1", &engine).await;
    // Less than the block of the line in its log.
    let container = json!({"name": "main", "command": ["work"],
        "resources": {"limits": {"ephemeral-storage": "1Ki"}}});
    server
        .bound_pod("p", "n1", json!({"containers": [container]}))
        .await;
    let evicted = server.phase("p", "Failed").await;
    assert_eq!(evicted["status"]["reason"], "Evicted");
    until("the container to be removed", async || {
        engine.spec("p").is_none().then_some(())
    })
    .await;
    assert_eq!(server.log(log_of("p")).await.unwrap(), "hello from p\n");
    let after = server.phase("p", "Failed").await;
    assert_eq!(main_state(&after)["terminated"]["exitCode"], 143);
    agent.end().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_waits_for_its_config_map_and_starts_when_it_is_there() {
    let server = Server::start().await;
    let engine = StandIn::new();
    let agent = server.agent("n1", &engine).await;
    let container = json!({"name": "main", "command": ["work", "$(LEVEL)"], "env": [
        {"name": "LEVEL", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "level"}}}]});
    server
        .bound_pod("p", "n1", json!({"containers": [container]}))
        .await;
    let waiting = server
        .pod_until("p", |pod| main_state(pod)["waiting"]["message"].is_string())
        .await;
    let state = &main_state(&waiting)["waiting"];
    assert_eq!(state["reason"], "CreateContainerConfigError");
    assert_eq!(state["message"], "configmap \"c\" not found");
    let mut log = server.log(log_of("p")).await;
    // The server answers from its watch of pods, which can be a moment behind the API.
    while matches!(&log, Err(LogReadError::NotReady(why)) if why.contains("ContainerCreating")) {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        log = server.log(log_of("p")).await;
    }
    assert!(
        matches!(&log, Err(LogReadError::NotReady(why)) if why.contains("CreateContainerConfigError")),
        "{log:?}"
    );
    let maps: Api<ConfigMap> = Api::namespaced(server.client.clone(), "default");
    let map = serde_json::from_value(json!({
        "metadata": {"name": "c"}, "data": {"level": "high"}}))
    .unwrap();
    maps.create(&PostParams::default(), &map).await.unwrap();
    server.phase("p", "Running").await;
    assert_eq!(engine.spec("p").unwrap().command, ["work", "high"]);
    agent.end().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_namespaces_label_sets_its_pods_account_if_the_node_allows_it() {
    // An account that exists on every node.
    const ACCOUNT: &str = "nobody";
    let server = Server::start().await;
    let engine = StandIn::new();
    *engine.root.lock().unwrap() = true;
    let mut config = server.config("n1", Some(server.token().await));
    let file = json!({"labels": {"research": ACCOUNT}});
    config.accounts = agent::Accounts::read(&file).unwrap();
    let agent = server.agent_with(config, &engine);
    let namespaces: Api<Namespace> = Api::all(server.client.clone());
    let label = async |value: &str| {
        let labelled = json!({"metadata": {"labels": {"muster.io/unix-account": value}}});
        let patch = Patch::Merge(labelled);
        namespaces
            .patch("default", &PatchParams::default(), &patch)
            .await
            .unwrap();
    };
    label("research").await;
    server.bound_pod("allowed", "n1", json!({})).await;
    server.phase("allowed", "Running").await;
    let account = nix::unistd::User::from_name(ACCOUNT).unwrap().unwrap();
    let user = engine.spec("allowed").unwrap().user;
    assert_eq!(user.uid, Some(account.uid.as_raw()));
    // The label's value is looked up in the node's file; it is not an account's name.
    label(ACCOUNT).await;
    server.bound_pod("refused", "n1", json!({})).await;
    let waiting = server
        .pod_until("refused", |pod| {
            main_state(pod)["waiting"]["message"].is_string()
        })
        .await;
    let state = &main_state(&waiting)["waiting"];
    assert_eq!(state["reason"], "CreateContainerConfigError");
    let message = state["message"].as_str().unwrap();
    assert!(message.contains("allows no account"), "{message}");
    assert!(!engine.runs("refused"));
    agent.end().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deleted_pod_is_gone_only_after_its_container_has_ended() {
    let server = Server::start().await;
    let engine = StandIn::new();
    let agent = server.agent("n1", &engine).await;
    server.bound_pod("p", "n1", json!({})).await;
    server.phase("p", "Running").await;
    *engine.stubborn.lock().unwrap() = true;
    server
        .pods()
        .delete("p", &DeleteParams::default())
        .await
        .unwrap();
    let deleting = server
        .pod_until("p", |pod| pod["metadata"]["deletionTimestamp"].is_string())
        .await;
    assert_eq!(deleting["status"]["phase"], "Running");
    assert!(engine.runs("p"));
    engine.end("p", 143);
    server.gone("p").await;
    agent.end().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_of_a_gang_find_each_other_by_name() {
    let server = Server::start().await;
    let engine = StandIn::new();
    let agent = server.agent("n1", &engine).await;
    for name in ["a", "b"] {
        server
            .bound_pod(name, "n1", json!({"hostname": name, "subdomain": "gang"}))
            .await;
    }
    let hosts = until("both names in the hosts file", async || {
        let path = engine.spec("a")?.hosts_file?;
        let text = std::fs::read_to_string(path).unwrap();
        (text.contains("a.gang.default.svc") && text.contains("b.gang.default.svc")).then_some(text)
    })
    .await;
    assert!(hosts.contains("localhost"));
    agent.end().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_that_comes_back_reports_what_happened_meanwhile() {
    let server = Server::start().await;
    let engine = StandIn::new();
    let agent = server.agent("n1", &engine).await;
    for name in ["ends", "stays"] {
        server.bound_pod(name, "n1", json!({})).await;
        server.phase(name, "Running").await;
    }
    agent.end().await.unwrap();
    assert!(engine.runs("ends") && engine.runs("stays"));
    engine.end("ends", 3);
    // No token: the identity is on disk.
    let agent = server.agent_with(server.config("n1", None), &engine);
    let failed = server.phase("ends", "Failed").await;
    assert_eq!(main_state(&failed)["terminated"]["exitCode"], 3);
    assert!(engine.runs("stays"));
    let starts = |engine: &StandIn| {
        let history = engine.history.lock().unwrap();
        history.iter().filter(|event| *event == "+stays").count()
    };
    assert_eq!(starts(&engine), 1, "it was not started again");
    agent.end().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_container_of_a_forgotten_pod_is_ended_before_the_pod_starts_again() {
    let server = Server::start().await;
    let engine = StandIn::new();
    let agent = server.agent("n1", &engine).await;
    let pod = server.bound_pod("p", "n1", json!({})).await;
    server.phase("p", "Running").await;
    agent.end().await.unwrap();
    let kept = server.data("n1").join("pods");
    std::fs::remove_dir_all(kept.join(pod.metadata.uid.unwrap())).unwrap();
    let agent = server.agent_with(server.config("n1", None), &engine);
    let begun = "it has begun again";
    until(begun, async || {
        engine.history.lock().unwrap().get(2).cloned()
    })
    .await;
    let history = engine.history.lock().unwrap().clone();
    assert_eq!(history, ["+p", "-p", "+p"]);
    assert!(engine.runs("p"));
    server.phase("p", "Running").await;
    agent.end().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_returns_late_gives_up_lost_pods_before_anything_new_starts() {
    let server = Server::start().await;
    let engine = StandIn::new();
    let agent = server.agent("n1", &engine).await;
    server.bound_pod("lost", "n1", json!({})).await;
    server.phase("lost", "Running").await;
    agent.end().await.unwrap();
    let lost = json!({"status": {"phase": "Failed", "reason": "NodeLost", "message": "gone"}});
    server
        .pods()
        .patch_status("lost", &PatchParams::default(), &Patch::Merge(&lost))
        .await
        .unwrap();
    server.bound_pod("new", "n1", json!({})).await;
    *engine.stubborn.lock().unwrap() = true;
    let agent = server.agent_with(server.config("n1", None), &engine);
    let held = server
        .pod_until("new", |pod| {
            let message = &main_state(pod)["waiting"]["message"];
            message
                .as_str()
                .is_some_and(|m| m.contains("has to give up"))
        })
        .await;
    assert_eq!(held["status"]["phase"], "Pending");
    assert!(engine.runs("lost") && !engine.runs("new"));
    engine.end("lost", 137);
    server.phase("new", "Running").await;
    let history = engine.history.lock().unwrap().clone();
    assert_eq!(history, ["+lost", "-lost", "+new"]);
    let lost = server.phase("lost", "Failed").await;
    assert_eq!(
        lost["status"]["reason"], "NodeLost",
        "what was declared stays"
    );
    agent.end().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_with_an_image_says_why_it_waits_on_a_node_without_a_container_runtime() {
    let server = Server::start().await;
    let agent = server.agent("n1", &StandIn::new()).await;
    let container = json!({"name": "main", "image": "busybox", "command": ["work"]});
    server
        .bound_pod("p", "n1", json!({"containers": [container]}))
        .await;
    let waiting = server
        .pod_until("p", |pod| {
            main_state(pod)["waiting"]["reason"] == "NoContainerRuntime"
        })
        .await;
    let message = main_state(&waiting)["waiting"]["message"].as_str().unwrap();
    assert!(message.contains("busybox"), "{message}");
    server
        .pods()
        .delete("p", &DeleteParams::default())
        .await
        .unwrap();
    server.gone("p").await;
    agent.end().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn load_and_problems_of_gpus_appear_on_the_node_and_disappear() {
    let server = Server::start().await;
    let described = |healthy: bool, percent: u32| {
        format!(
            "[[gpu]]\nmodel = \"NVIDIA L4\"\nmemory_mib = 20000\nmemory_used_mib = 5000\nutilisation = {percent}\ncelsius = 70\nhealthy = {healthy}\n"
        )
    };
    let machine = server.data("n1").with_extension("toml");
    std::fs::create_dir_all(machine.parent().unwrap()).unwrap();
    std::fs::write(&machine, described(true, 90)).unwrap();
    let mut config = server.config("n1", Some(server.token().await));
    config.machine_description = Some(machine.clone());
    let agent = server.agent_with(config, &StandIn::new());
    let nodes: Api<Node> = Api::all(server.client.clone());
    let seen = async || {
        let node = serde_json::to_value(nodes.get_opt("n1").await.unwrap()?).unwrap();
        let load = node["metadata"]["annotations"]["muster.io/load"].as_str()?;
        let load: resources::load::NodeLoad = serde_json::from_str(load).unwrap();
        let conditions = node["status"]["conditions"].as_array()?.clone();
        let suspect = conditions
            .into_iter()
            .find(|c| c["type"] == "muster.io/suspect");
        Some((load, suspect))
    };
    let (load, suspect) = until("its load", seen).await;
    let gpu = load.gpus.values().next().unwrap();
    assert_eq!((gpu.utilisation, gpu.memory), (Some(90.0), Some(0.25)));
    assert_eq!((gpu.celsius, gpu.watts), (Some(70.0), None));
    assert_eq!(suspect, None);
    let suspected = async |status: &str| {
        until("the suspicion", async || {
            let (load, suspect) = seen().await?;
            suspect.filter(|s| s["status"] == status).map(|s| (load, s))
        })
        .await
    };
    std::fs::write(&machine, described(false, 10)).unwrap();
    let (load, suspect) = suspected("True").await;
    assert_eq!(load.gpus.values().next().unwrap().utilisation, Some(10.0));
    let message = suspect["message"].as_str().unwrap();
    assert!(message.contains("GPU 0 is unhealthy"), "{message}");
    std::fs::write(&machine, described(true, 10)).unwrap();
    suspected("False").await;
    agent.end().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_answers_for_its_end_of_a_pair_and_runs_no_test_beside_pods_with_gpus() {
    let server = Server::start().await;
    let machine = server.data("n1").with_extension("toml");
    std::fs::create_dir_all(machine.parent().unwrap()).unwrap();
    let text = "[[gpu]]\nmodel = \"NVIDIA L4\"\nmemory_mib = 20000\nid = [\"GPU-0\"]\n";
    std::fs::write(&machine, text).unwrap();
    let ask = async |wanted: Value| server.fleet.ask_rdma("n1", wanted.to_string()).await;
    let away = ask(json!("examine")).await.unwrap_err().to_string();
    assert!(away.contains("\"n1\" is not connected"), "{away}");

    let mut config = server.config("n1", Some(server.token().await));
    config.machine_description = Some(machine);
    let engine = StandIn::new();
    let agent = server.agent_with(config, &engine);
    let end = async || -> Option<Value> {
        let told: Value = serde_json::from_str(&ask(json!("examine")).await.ok()?).unwrap();
        Some(told["end"].clone())
    };
    let told = until("the node answers", end).await;
    assert_eq!(told["address"], "127.0.0.1");
    assert_eq!((&told["ports"], &told["pods"]), (&json!([]), &json!([])));
    let run = |force: bool| json!({"serve": {"test": "bandwidth", "card": "mlx5_0", "port": 1, "force": force}});
    let none = ask(run(false)).await.unwrap_err().to_string();
    assert!(
        none.contains("mlx5_0/1 is no port that work uses here"),
        "{none}"
    );
    let odd = ask(json!("explode")).await.unwrap_err().to_string();
    assert!(
        odd.contains("run one version of muster on server and agents"),
        "{odd}"
    );

    let chosen = json!({"main": {"nvidia.com/gpu": ["GPU-0"]}}).to_string();
    let pod = json!({"metadata": {"name": "p", "annotations": {"muster.io/devices": chosen}},
        "spec": {"nodeName": "n1", "restartPolicy": "Never", "containers": [{"name": "main",
            "command": ["work"], "resources": {"limits": {"nvidia.com/gpu": "1"}}}]}});
    let pod = serde_json::from_value(pod).unwrap();
    let made = server.pods().create(&PostParams::default(), &pod).await;
    made.unwrap();
    let held = async || (end().await?["pods"] == json!(["default/p"])).then_some(());
    until("the pod has its GPU", held).await;
    let refused = ask(run(false)).await.unwrap_err().to_string();
    assert!(
        refused.contains("default/p") && refused.contains("--force"),
        "{refused}"
    );
    let forced = ask(run(true)).await.unwrap_err().to_string();
    assert!(forced.contains("no port that work uses"), "{forced}");
    agent.end().await.unwrap();
}
