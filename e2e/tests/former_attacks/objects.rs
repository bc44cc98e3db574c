//! One object: the limits of a job, of a pod's grace period, of the number of owners, and damaged objects in the
//! store at a start.

use std::process::Command;

use e2e::{Platform, eventually_async, repository, run};
use serde_json::{Value, json};

use super::{
    CONFIG_MAPS, Ground, JSON, MERGE, PODS, SOON, SYSTEM_SECRETS, create, get, gone, identity, pod,
    post, refused_for, send, token_record,
};

/// The maximum number of pending pods of one Job where no node holds pods: `workloads::WAITING_FLOOR`.
const WAITING_FLOOR: u64 = 256;
/// The maximum number of owners of one object: `resources::numbers::OWNER_REFERENCES_MAX`.
const OWNER_REFERENCES_MAX: usize = 1_000;
/// The longest grace period of a pod, in seconds: `resources::numbers::POD_GRACE_MAX`.
const POD_GRACE_MAX: i64 = 86_400;

/// Pods in the default namespace.
async fn count(ground: &Ground) -> u64 {
    let list = get(&ground.admin, &format!("{PODS}?limit=1")).await.json();
    let first = list["items"].as_array().map_or(0, Vec::len) as u64;
    let more = list["metadata"]["remainingItemCount"].as_u64();
    first + more.unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_of_two_thousand_million_pods_costs_what_can_wait_and_a_gang_of_them_is_refused() {
    let ground = Ground::server().await;
    let before = ground.memory();
    // No scheduler takes these pods: the test counts the controller's pods.
    let mut template = json!({"spec": pod("x", "true")["spec"].clone()});
    template["spec"]["schedulerName"] = "nobody".into();
    let gang = json!({
        "apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": "gang"},
        "spec": {"pytorchReplicaSpecs": {"Worker": {"replicas": i32::MAX, "template": template}}},
    });
    let jobs = "/apis/kubeflow.org/v1/namespaces/default/pytorchjobs";
    let answer = post(&ground.member, jobs, &gang).await;
    refused_for(&answer, 422, "replicas");

    let job = json!({
        "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "wide"},
        "spec": {"parallelism": i32::MAX, "template": template},
    });
    let jobs = "/apis/batch/v1/namespaces/default/jobs";
    create(&ground.member, jobs, &job).await;
    let full = || async {
        let there = count(&ground).await;
        assert!(there <= WAITING_FLOOR, "{there} pods");
        (there == WAITING_FLOOR).then_some(())
    };
    eventually_async("as many wait as may", SOON, &full).await;
    ground.healthy().await;
    // The controller replaces each deleted pod, and creates no more. The replacement repeats the
    // attempt and has its name, so only its uid tells the two apart.
    let list = get(&ground.admin, &format!("{PODS}?limit=1")).await.json();
    let first = list["items"][0]["metadata"].clone();
    let path = format!("{PODS}/{}", first["name"].as_str().expect("a pod"));
    let answer = send(&ground.member, "DELETE", &path, JSON, String::new()).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    eventually_async("the deleted pod is replaced", SOON, || async {
        let uid = get(&ground.admin, &path).await.json()["metadata"]["uid"].clone();
        (uid.is_string() && uid != first["uid"]).then_some(())
    })
    .await;
    eventually_async("as many wait as before", SOON, &full).await;
    ground.has_not_grown(before);
}

async fn running(ground: &Ground, path: &str) -> Option<()> {
    let pod = get(&ground.admin, path).await.json();
    (pod["status"]["phase"] == "Running").then_some(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_with_the_longest_grace_is_deleted_and_so_is_its_namespace() {
    let ground = Ground::of(Platform::up(&[])).await;
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}});
    create(&ground.admin, "/api/v1/namespaces", &namespace).await;
    let pods = "/api/v1/namespaces/team/pods";
    let obeys = "trap 'exit 0' TERM; while true; do sleep 0.2; done";
    for name in ["waits", "runs", "stays"] {
        let mut pod = pod(name, obeys);
        pod["spec"]["terminationGracePeriodSeconds"] = i64::MAX.into();
        if name == "waits" {
            pod["spec"]["schedulerName"] = "nobody".into();
        }
        create(&ground.member, pods, &pod).await;
    }
    for name in ["runs", "stays"] {
        let path = format!("{pods}/{name}");
        eventually_async("the pod runs", SOON, || running(&ground, &path)).await;
    }
    for name in ["waits", "runs"] {
        let path = format!("{pods}/{name}");
        let answer = send(&ground.member, "DELETE", &path, JSON, String::new()).await;
        assert!([200, 202].contains(&answer.status), "{}", answer.text());
        let grace = answer.json()["metadata"]["deletionGracePeriodSeconds"].clone();
        assert!(grace.as_i64().is_none_or(|grace| grace <= POD_GRACE_MAX));
        gone(&ground.admin, &path).await;
    }
    let path = "/api/v1/namespaces/team";
    let answer = send(&ground.admin, "DELETE", path, JSON, String::new()).await;
    assert!([200, 202].contains(&answer.status), "{}", answer.text());
    gone(&ground.admin, path).await;
    // The scheduler keeps working.
    create(&ground.member, PODS, &pod("next", obeys)).await;
    let path = format!("{PODS}/next");
    eventually_async("the next pod runs", SOON, || running(&ground, &path)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_with_the_longest_grace_gives_its_gpus_to_a_pod_of_higher_priority() {
    let machine = repository().join("packaging/examples/machines/4x-h100.toml");
    let ground = Ground::of(Platform::up(&["--machine", &machine.display().to_string()])).await;
    let class = json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass",
        "metadata": {"name": "urgent"}, "value": 1000});
    let classes = "/apis/scheduling.k8s.io/v1/priorityclasses";
    create(&ground.admin, classes, &class).await;
    let with_gpus = |name: &str, class: Option<&str>| {
        let mut pod = pod(name, "trap 'exit 0' TERM; while true; do sleep 0.2; done");
        pod["spec"]["terminationGracePeriodSeconds"] = i64::MAX.into();
        pod["spec"]["priorityClassName"] = class.into();
        pod["spec"]["containers"][0]["resources"]["limits"] = json!({"nvidia.com/gpu": 4});
        pod
    };
    let (low, urgent) = (format!("{PODS}/low"), format!("{PODS}/urgent"));
    create(&ground.member, PODS, &with_gpus("low", None)).await;
    eventually_async("the pod runs", SOON, || running(&ground, &low)).await;
    create(&ground.member, PODS, &with_gpus("urgent", Some("urgent"))).await;
    eventually_async("it takes the GPUs", SOON, || running(&ground, &urgent)).await;
    // The scheduler goes on as the same one: it takes the GPUs back.
    let answer = send(&ground.member, "DELETE", &urgent, JSON, String::new()).await;
    assert!([200, 202].contains(&answer.status), "{}", answer.text());
    gone(&ground.admin, &urgent).await;
    create(&ground.member, PODS, &with_gpus("next", None)).await;
    let next = format!("{PODS}/next");
    eventually_async("the next pod runs", SOON, || running(&ground, &next)).await;
    let log = ground.platform.logged();
    assert!(!log.contains("panicked"), "{log}");
}

fn owned(name: &str, owners: usize) -> Value {
    let owner = |at: usize| {
        let name = format!("none-{at}");
        json!({"apiVersion": "v1", "kind": "Pod", "name": name, "uid": name})
    };
    let owners: Value = (0..owners).map(owner).collect();
    json!({"apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": name, "ownerReferences": owners}})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifteen_thousand_owners_are_refused_and_a_thousand_that_are_gone_take_their_object_along()
{
    let ground = Ground::server().await;
    for many in [15_000, OWNER_REFERENCES_MAX + 1] {
        let answer = post(&ground.member, CONFIG_MAPS, &owned("many", many)).await;
        refused_for(&answer, 422, "ownerReferences");
    }
    create(&ground.member, CONFIG_MAPS, &owned("few", 0)).await;
    let patch = json!({"metadata": owned("few", 15_000)["metadata"]});
    let path = format!("{CONFIG_MAPS}/few");
    let answer = send(&ground.member, "PATCH", &path, MERGE, patch.to_string()).await;
    refused_for(&answer, 422, "ownerReferences");
    let most = owned("most", OWNER_REFERENCES_MAX);
    create(&ground.member, CONFIG_MAPS, &most).await;
    gone(&ground.admin, &format!("{CONFIG_MAPS}/most")).await;
    assert_eq!(get(&ground.admin, &path).await.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_that_expired_keeps_no_server_from_starting_on_a_full_disk() {
    e2e::require_root();
    let mount = tempfile::tempdir().expect("a directory");
    let path = mount.path().display().to_string();
    let tmpfs = ["-t", "tmpfs", "-o", "size=160m", "tmpfs", &path];
    run(Command::new("mount").args(tmpfs)).ok();
    let mut ground = Ground::of(Platform::server_in(mount.path(), &[])).await;
    let record = token_record("aaaaaaaaaaaa", "2020-01-02T00:00:00Z");
    let expired = identity("token", "aaaaaaaaaaaa", &record, "none");
    create(&ground.admin, SYSTEM_SECRETS, &expired).await;
    ground.platform.stop();
    let filler = format!("of={}", mount.path().join("filler").display());
    run(Command::new("dd").args(["if=/dev/zero", &filler, "bs=1M"]));
    ground.platform.restart();
    ground.healthy().await;
    drop(ground);
    run(Command::new("umount").arg(mount.path()));
}
