//! `muster server kubernetes` against a real kube-apiserver, with the rights that
//! packaging/kubernetes/rbac.yaml gives and no more. Nodes are plain objects: pods get bound,
//! none runs.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod admission;
mod agreement;
mod extender;
mod faults;
mod ground;
mod open_ports;
mod stores;
mod volumes;
mod worlds;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use e2e::{Cluster, eventually, repository};
use serde_json::{Value, json};

use ground::{Ground, SOON, devices_of, job, node_of};

/// How soon another server leads after the leader's death.
const TAKEOVER: Duration = Duration::from_secs(15);

/// Loosens the kind's schema as in another operator's CRD, and creates a job that Muster cannot
/// parse.
fn unreadable_job(ground: &Ground) {
    let policy = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties\
        /pytorchReplicaSpecs/additionalProperties/properties/restartPolicy";
    let loose = json!([
        {"op": "replace", "path": policy, "value": {"type": "string"}},
    ]);
    let arguments = [
        "patch",
        "crd",
        "pytorchjobs.kubeflow.org",
        "--type=json",
        "-p",
    ];
    let patch = loose.to_string();
    ground
        .cluster
        .kubectl(&[&arguments[..], &[patch.as_str()]].concat())
        .ok();
    let bad = job("unreadable", 1).replacen(
        "\"template\"",
        "\"restartPolicy\":\"Sometimes\",\"template\"",
        1,
    );
    let file = ground.cluster.directory().join("unreadable.json");
    std::fs::write(&file, bad).unwrap();
    eventually("the looser kind is served", SOON, || {
        let ran = ground
            .cluster
            .kubectl(&["apply", "-f", &file.display().to_string()]);
        ran.code.filter(|code| *code == 0)
    });
}

#[test]
fn a_gang_is_bound_whole_beside_what_others_placed_and_one_too_large_waits_and_says_why() {
    let ground = Ground::start();
    ground.node("n1", 4);
    ground.node("n2", 4);
    // A foreign pod, placed by another scheduler: two GPUs of n2 are taken.
    let others = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "others", "namespace": "default"},
        "spec": {"nodeName": "n2", "schedulerName": "other", "containers": [{
            "name": "c", "image": "example.com/serve:1", "resources": {"limits": {"nvidia.com/gpu": 2}},
        }]},
    });
    ground.cluster.apply(&others.to_string());
    unreadable_job(&ground);
    let server = ground.server("server", &[]);
    server.until_leading();
    assert!(server.ask("/healthz").unwrap().contains(" 200 "));
    let default_queue = || {
        let queue = ground
            .cluster
            .get(&["queues.scheduling.volcano.sh", "default"]);
        (!queue.is_null()).then_some(queue)
    };
    let queue = eventually("the default queue is made", SOON, default_queue);
    assert_eq!(queue["spec"]["weight"], 1);

    ground.cluster.apply(&job("fits", 5));
    let pods = ground.until_bound("fits", 6);
    let on_second = pods.iter().filter(|pod| node_of(pod) == Some("n2")).count();
    assert_eq!(on_second, 2, "six of the six that are left");
    assert_eq!(
        ground
            .items(&["services", "-l", "training.kubeflow.org/job-name=fits"])
            .len(),
        6
    );
    let created = || {
        let job = ground.cluster.get(&["pytorchjob", "fits"]);
        (job["status"]["conditions"][0]["type"] == "Created").then_some(())
    };
    eventually("the job's status says that it was created", SOON, created);
    // The Binding's annotation has become the pod's.
    let first: BTreeSet<String> = (pods.iter())
        .filter(|pod| node_of(pod) == Some("n1"))
        .flat_map(devices_of)
        .collect();
    assert_eq!(
        first.into_iter().collect::<Vec<_>>(),
        ["n1-0", "n1-1", "n1-2", "n1-3"]
    );

    ground.cluster.apply(&job("large", 8));
    let reported = || {
        let group = ground
            .cluster
            .get(&["podgroups.scheduling.volcano.sh", "large"]);
        let conditions = group["status"]["conditions"].as_array().cloned()?;
        let unschedulable = |c: &&Value| c["type"] == "Unschedulable" && c["status"] == "True";
        let message = conditions.iter().find(unschedulable)?["message"].clone();
        (group["status"]["phase"] == "Pending").then_some(message)
    };
    let message = eventually("the gang's wait is reported", SOON, reported);
    assert!(
        message.as_str().unwrap().contains("nvidia.com/gpu"),
        "{message}"
    );
    let said = || {
        let selector = "involvedObject.kind=PodGroup,involvedObject.name=large";
        let events = ground.items(&["events", "--field-selector", selector]);
        events
            .into_iter()
            .find(|event| event["reason"] == "Unschedulable")
    };
    eventually("an event says so", SOON, said);
    assert!(
        ground
            .pods_of("large")
            .iter()
            .all(|pod| node_of(pod).is_none())
    );
    let refused = server.ask("/metrics").unwrap();
    assert!(refused.contains("\nmuster_binds_total 6\n"), "{refused}");
    assert!(
        refused.contains("\nmuster_invariant_violations_total 0\n"),
        "{refused}"
    );
    let log = server.logged();
    assert!(!log.contains("forbidden"), "the rights are enough");
    assert!(
        log.contains("an object cannot be read"),
        "an unreadable job is told of, and holds up no other"
    );
    assert_eq!(server.stop(), Some(0));
    assert_eq!(ground.holder(), "", "the server released the leader lease");
}

#[test]
fn a_pod_of_higher_priority_gets_its_room_by_eviction() {
    let ground = Ground::start();
    ground.node("n1", 2);
    let class = |name: &str, value: u32| {
        json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass",
            "metadata": {"name": name}, "value": value})
    };
    ground.cluster.apply(&class("urgent", 1000).to_string());
    let server = ground.server("server", &[]);
    server.until_leading();
    let pod = |name: &str, class: Option<&str>| {
        json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"},
            "spec": {"schedulerName": "muster", "priorityClassName": class, "containers": [{
                "name": "c", "image": "example.com/c:1", "resources": {"limits": {"nvidia.com/gpu": 2}},
            }]},
        })
    };
    let is_bound = |name: &str| node_of(&ground.cluster.get(&["pod", name])).map(|_| ());
    ground.cluster.apply(&pod("victim", None).to_string());
    eventually("the first pod is bound", SOON, || is_bound("victim"));
    ground
        .cluster
        .apply(&pod("urgent", Some("urgent")).to_string());
    let told = || {
        let victim = ground.cluster.get(&["pod", "victim"]);
        let conditions = victim["status"]["conditions"].as_array().cloned()?;
        let target = conditions.iter().any(|c| c["type"] == "DisruptionTarget");
        (target && victim["metadata"]["deletionTimestamp"].is_string()).then_some(())
    };
    eventually("the victim is evicted and told why", SOON, told);
    // No kubelet ends the pod: its room is not free before its deletion.
    assert_eq!(is_bound("urgent"), None);
    ground
        .cluster
        .kubectl(&["delete", "pod", "victim", "--force", "--grace-period=0"])
        .ok();
    eventually("the urgent pod is bound", SOON, || is_bound("urgent"));
    assert!(
        !server.logged().contains("forbidden"),
        "the rights are enough"
    );
}

#[test]
fn a_kind_that_is_left_out_is_left_alone_and_pods_of_the_named_scheduler_are_placed() {
    let ground = Ground::start();
    ground.node("n1", 4);
    let server = ground.server(
        "server",
        &["--kinds", "none", "--scheduler-name", "volcano"],
    );
    server.until_leading();
    let metrics = server.ask("/metrics").unwrap();
    assert!(
        metrics.contains("muster_controls{kind=\"PyTorchJob\"} 0"),
        "{metrics}"
    );
    assert!(
        server
            .logged()
            .contains("this server leaves PyTorchJobs to another operator")
    );
    ground.cluster.apply(&job("others", 1));
    let group = json!({
        "apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "PodGroup",
        "metadata": {"name": "g", "namespace": "default"}, "spec": {"minMember": 2},
    });
    ground.cluster.apply(&group.to_string());
    for name in ["g-0", "g-1"] {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": "default",
                "annotations": {"scheduling.k8s.io/group-name": "g"}},
            "spec": {"schedulerName": "volcano", "containers": [{"name": "c", "image": "example.com/c:1"}]},
        });
        ground.cluster.apply(&pod.to_string());
    }
    eventually("the gang is bound", SOON, || {
        let pods = ground.items(&["pods"]);
        let bound = pods.iter().filter(|pod| node_of(pod).is_some()).count();
        (bound == 2).then_some(())
    });
    let left = ground.cluster.get(&["pytorchjob", "others"]);
    assert_eq!(left["status"], Value::Null);
    assert_eq!(ground.pods_of("others").len(), 0);
    assert!(
        !server.logged().contains("forbidden"),
        "the rights are enough"
    );
}

#[test]
fn a_kept_kind_that_another_operator_owns_is_neither_installed_over_nor_spoken_of() {
    let cluster = Cluster::start();
    let file = repository().join("api/crds/rayclusters.ray.io.yaml");
    let definition = std::fs::read_to_string(file).unwrap();
    let theirs = definition.replace("managed-by: muster", "managed-by: kuberay");
    assert_ne!(definition, theirs);
    cluster.apply(&theirs);
    let ground = Ground::on(cluster);
    let said = &ground.installed;
    assert!(
        said.contains("customresourcedefinition/rayclusters.ray.io left alone"),
        "{said}"
    );
    assert_eq!(said.matches(" applied\n").count(), 19, "{said}");
    let server = ground.server("server", &[]);
    server.until_leading();
    let head = json!({"headGroupSpec": {}});
    let target = json!({"scaleTargetRef": {"name": "d"},
        "triggers": [{"type": "cron", "metadata": {"start": "0 8 * * *"}}]});
    for (version, kind, spec) in [
        ("ray.io/v1", "RayCluster", head),
        ("keda.sh/v1alpha1", "ScaledObject", target),
    ] {
        let object = json!({"apiVersion": version, "kind": kind, "spec": spec,
            "metadata": {"name": "one", "namespace": "default"}});
        ground.cluster.apply(&object.to_string());
    }
    let told = || {
        let object = ground.cluster.get(&["scaledobject", "one"]);
        (object["status"]["conditions"][0]["reason"] == "NotRunByMuster").then_some(())
    };
    eventually("our own kind's object is told of", SOON, told);
    let left = || {
        let logged = server.logged();
        logged
            .contains("the server leaves rayclusters.ray.io alone")
            .then_some(())
    };
    eventually("the log says whose the other kind is", SOON, left);
    let other = ground.cluster.get(&["raycluster", "one"]);
    assert_eq!(other["status"], Value::Null);
    assert!(
        !server.logged().contains("forbidden"),
        "the rights are enough"
    );
}

/// A definition of Muster's as another operator's helm release has it.
fn installed_by_helm(name: &str, release: &str) -> String {
    let file = repository().join(format!("api/crds/{name}.yaml"));
    let definition = std::fs::read_to_string(file).unwrap();
    let label = "app.kubernetes.io/managed-by: muster";
    assert!(definition.contains(label), "{name}");
    let definition = definition.replace(label, "app.kubernetes.io/managed-by: Helm");
    let annotation =
        format!("metadata:\n  annotations: {{meta.helm.sh/release-name: {release}}}\n");
    definition.replacen("metadata:\n", &annotation, 1)
}

#[test]
fn beside_the_kinds_of_volcano_and_kubeflow_the_rest_is_installed_and_jobs_run() {
    let cluster = Cluster::start();
    for (name, release) in [
        ("podgroups.scheduling.volcano.sh", "volcano"),
        ("pytorchjobs.kubeflow.org", "training-operator"),
    ] {
        cluster.apply(&installed_by_helm(name, release));
    }
    let before = cluster.get(&["crd", "podgroups.scheduling.volcano.sh"]);
    let ground = Ground::on(cluster);
    let said = &ground.installed;
    for words in [
        "customresourcedefinition/podgroups.scheduling.volcano.sh shared: helm's release volcano installed it, and Muster can use it",
        "customresourcedefinition/pytorchjobs.kubeflow.org shared: helm's release training-operator installed it",
        "`muster server kubernetes --kinds none`",
        "customresourcedefinition/queues.scheduling.volcano.sh applied",
    ] {
        assert!(said.contains(words), "{words:?} in\n{said}");
    }
    assert_eq!(said.matches(" applied\n").count(), 18, "{said}");
    let after = ground
        .cluster
        .get(&["crd", "podgroups.scheduling.volcano.sh"]);
    assert_eq!(
        after["metadata"]["generation"],
        before["metadata"]["generation"]
    );
    assert_eq!(after["metadata"]["labels"], before["metadata"]["labels"]);
    ground.node("n1", 2);
    let server = ground.server("server", &[]);
    server.until_leading();
    ground.cluster.apply(&job("shared", 1));
    ground.until_bound("shared", 2);
}

#[test]
fn a_kind_that_cannot_be_shared_is_named_with_the_remedy_and_the_rest_is_installed() {
    let cluster = Cluster::start();
    let theirs = installed_by_helm("podgroups.scheduling.volcano.sh", "old-volcano");
    let alpha = theirs.replace("name: v1beta1", "name: v1alpha1");
    assert_ne!(theirs, alpha);
    cluster.apply(&alpha);
    let ran = e2e::run(
        std::process::Command::new(e2e::muster())
            .arg("--kubeconfig")
            .arg(cluster.kubeconfig())
            .arg("crds"),
    );
    assert_eq!(ran.code, Some(1), "{}\n{}", ran.out, ran.err);
    for words in [
        "customresourcedefinition/podgroups.scheduling.volcano.sh not usable: helm's release old-volcano installed it",
        "to fix it:",
    ] {
        assert!(ran.out.contains(words), "{words:?} in\n{}", ran.out);
    }
    assert_eq!(ran.out.matches(" applied\n").count(), 19, "{}", ran.out);
    assert!(
        ran.err.contains("podgroups.scheduling.volcano.sh"),
        "{}",
        ran.err
    );
}

#[test]
fn a_server_that_waits_for_kinds_or_a_namespace_says_the_command_that_makes_them() {
    let cluster = Cluster::start();
    cluster.apply_packaged(&["rbac.yaml"]);
    // The administrator's rights, in a namespace that does not exist.
    let log = cluster.directory().join("server.log");
    let server = |arguments: &[&str]| {
        let output = std::fs::File::create(&log).unwrap();
        let mut command = std::process::Command::new(e2e::muster());
        command
            .arg("--kubeconfig")
            .arg(cluster.kubeconfig())
            .args(["server", "kubernetes", "--listen", &e2e::free_address()])
            .args(arguments)
            .stdout(output.try_clone().unwrap())
            .stderr(output);
        command.spawn().unwrap()
    };
    let says = |words: &str| {
        eventually(words, SOON, || {
            std::fs::read_to_string(&log)
                .unwrap()
                .contains(words)
                .then_some(())
        });
    };
    let mut waiting = server(&[]);
    says("install the CustomResourceDefinitions with `muster crds`");
    let _ = waiting.kill();
    let _ = waiting.wait();
    cluster.install_muster();
    let mut waiting = server(&["--lease-namespace", "nowhere"]);
    says("kubectl create namespace nowhere");
    // It goes on by itself when the command was run.
    cluster.kubectl(&["create", "namespace", "nowhere"]).ok();
    eventually("it leads", SOON, || {
        let lease = cluster.get(&["-n", "nowhere", "leases"]);
        (lease["items"].as_array().map_or(0, Vec::len) > 0).then_some(())
    });
    let _ = waiting.kill();
    let _ = waiting.wait();
}

#[test]
fn when_the_leader_dies_the_other_goes_on_and_no_device_is_given_twice() {
    const NODES: u32 = 4;
    const GPUS: u32 = 8;
    let ground = Ground::start();
    for i in 0..NODES {
        ground.node(&format!("n{i}"), GPUS);
    }
    let first = ground.server("first", &[]);
    first.until_leading();
    let second = ground.server("second", &[]);
    second.until_ready();
    assert!(!second.leads());
    let before = ground.holder();
    // Killed during the binding: a part of the gang is bound, or all, or none.
    ground.cluster.apply(&job("gang", 19));
    eventually("it is at work", SOON, || {
        (ground.pods_of("gang").len() > 10).then_some(())
    });
    first.kill();
    let killed = Instant::now();
    let changed = || (ground.holder() != before).then(|| killed.elapsed());
    let took = eventually("the other takes the lease", SOON, changed);
    assert!(took < TAKEOVER, "{took:?}");
    ground.cluster.apply(&job("next", 11));
    let mut pods = ground.until_bound("gang", 20);
    pods.extend(ground.until_bound("next", 12));
    let given: Vec<String> = pods.iter().flat_map(devices_of).collect();
    let distinct: BTreeSet<&String> = given.iter().collect();
    assert_eq!((given.len(), distinct.len()), (32, 32));
    second.until_leading();

    // A returning server stands by; a stopping server releases the lease at once.
    let third = ground.server("third", &[]);
    third.until_ready();
    assert!(!third.leads());
    assert_eq!(second.stop(), Some(0));
    let begin = Instant::now();
    third.until_leading();
    assert!(
        begin.elapsed() < TAKEOVER,
        "it need not wait for the lease to run out"
    );
}
