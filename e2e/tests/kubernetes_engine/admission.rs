//! What the chart's ValidatingAdmissionPolicies have a real kube-apiserver refuse: a member sets no reserved field,
//! chooses no node and names no queue that takes no work from its namespace; Muster binds pods as before.

use e2e::{Ran, eventually};
use serde_json::{Value, json};

use crate::ground::{Ground, SOON};

const TEAM: &str = "team";
const MEMBER: [&str; 2] = ["--as=ann", "--as-group=system:authenticated"];

/// A namespace of a team whose member `ann` may write pods and Muster's kinds, and two queues, of which `red` takes the
/// team's work.
fn team(ground: &Ground) {
    ground.cluster.apply_packaged(&["user-roles.yaml"]);
    let queue = |name: &str, selector: Value| {
        json!({"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "Queue", "metadata": {"name": name},
            "spec": {"weight": 1, "namespaceSelector": selector}})
    };
    let rule = json!({"apiGroups": [""], "resources": ["pods", "pods/status"], "verbs": ["*"]});
    let bound = |role: &str| {
        let api = "rbac.authorization.k8s.io";
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
            "metadata": {"name": role, "namespace": TEAM},
            "roleRef": {"apiGroup": api, "kind": "ClusterRole", "name": role},
            "subjects": [{"apiGroup": api, "kind": "User", "name": "ann"}]})
    };
    for object in [
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": TEAM, "labels": {"team": "red"}}}),
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "pods"},
            "rules": [rule]}),
        // No controller manager makes it.
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": TEAM}}),
        bound("pods"),
        bound("muster-member"),
        queue("red", json!({"matchLabels": {"team": "red"}})),
        queue(
            "blue",
            json!({"matchExpressions": [{"key": "team", "operator": "In", "values": ["blue"]}]}),
        ),
    ] {
        ground.cluster.apply(&object.to_string());
    }
}

fn pod(name: &str, annotations: &Value, spec: &Value) -> Value {
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": TEAM, "annotations": annotations},
        "spec": {"automountServiceAccountToken": false, "schedulerName": "muster",
            "containers": [{"name": "c", "image": "example.com/i:1"}]},
    });
    for (field, value) in spec.as_object().into_iter().flatten() {
        pod["spec"][field] = value.clone();
    }
    pod
}

fn job(name: &str, queue: &str, template: &Value) -> Value {
    let mut template = template.clone();
    template["spec"]["containers"] = json!([{"name": "pytorch", "image": "example.com/i:1"}]);
    json!({
        "apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": name, "namespace": TEAM},
        "spec": {"runPolicy": {"schedulingPolicy": {"queue": queue}},
            "pytorchReplicaSpecs": {"Master": {"replicas": 1, "template": template}}},
    })
}

/// The same job as another kind of kubeflow.org.
fn job_of(kind: &str, field: &str, mut job: Value) -> Value {
    job["kind"] = kind.into();
    let spec = job["spec"].as_object_mut().unwrap();
    let mut replicas = spec.remove("pytorchReplicaSpecs").unwrap();
    let replica = replicas["Master"].take();
    spec.insert(field.to_owned(), json!({"Worker": replica}));
    job
}

fn create(ground: &Ground, who: &[&str], object: &Value) -> Ran {
    let name = object["metadata"]["name"].as_str().unwrap();
    let file = ground.cluster.directory().join(format!("{name}.json"));
    std::fs::write(&file, object.to_string()).unwrap();
    let file = file.display().to_string();
    ground
        .cluster
        .kubectl(&[&["create", "-f", &file], who].concat())
}

/// Creates pods as the member until the policies have arrived at the server, which takes a moment: it looks every
/// second for the kind of the queues' policy's parameters, until it knows it.
fn until_in_force(ground: &Ground) {
    let early = [
        json!({"muster.io/devices": "x"}),
        json!({"scheduling.volcano.sh/queue-name": "blue"}),
    ];
    for annotations in early {
        let object = pod("early", &annotations, &Value::Null);
        eventually("the policies are in force", SOON, || {
            let made = create(ground, &MEMBER, &object);
            if made.code == Some(0) {
                delete_pod(ground, "early");
                return None;
            }
            Some(())
        });
    }
}

fn delete_pod(ground: &Ground, name: &str) {
    let delete = ["-n", TEAM, "delete", "pod", name];
    let at_once = ["--force", "--grace-period=0"];
    ground
        .cluster
        .kubectl(&[&delete[..], &at_once].concat())
        .ok();
}

#[test]
fn a_member_sets_no_reserved_field_chooses_no_node_and_names_no_closed_queue() {
    let ground = Ground::start();
    ground.node("n1", 2);
    team(&ground);
    let server = ground.server("server", &[]);
    server.until_leading();
    until_in_force(&ground);

    let queue = |name: &str| json!({"scheduling.volcano.sh/queue-name": name});
    let none = json!({});
    let system = "only Muster's own parts set it; leave it out";
    let node = "only callers that may create pods/binding choose a pod's node; leave it out";
    let closed = "the queue takes no work from namespace \"team\", whose labels do not match the queue's \
                  spec.namespaceSelector; name another queue, or have an administrator label the namespace";
    let group = |queue: &str| {
        json!({"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "PodGroup",
            "metadata": {"name": "gang", "namespace": TEAM}, "spec": {"minMember": 1, "queue": queue}})
    };
    let refused = [
        (
            pod("devices", &json!({"muster.io/devices": "x"}), &none),
            system,
        ),
        (
            pod("by", &json!({"muster.io/checkpoint-by": "x"}), &none),
            system,
        ),
        (pod("node", &none, &json!({"nodeName": "n1"})), node),
        (pod("queue", &queue("blue"), &none), closed),
        (
            job(
                "devices",
                "red",
                &json!({"metadata": {"annotations": {"muster.io/devices": "x"}}}),
            ),
            system,
        ),
        (
            job("node", "red", &json!({"spec": {"nodeName": "n1"}})),
            node,
        ),
        (job("queue", "blue", &none), closed),
        (group("blue"), closed),
    ];
    let kinds = [
        ("TFJob", "tfReplicaSpecs"),
        ("XGBoostJob", "xgbReplicaSpecs"),
        ("PaddleJob", "paddleReplicaSpecs"),
        ("JAXJob", "jaxReplicaSpecs"),
        ("MPIJob", "mpiReplicaSpecs"),
    ];
    let of_kinds = kinds.iter().flat_map(|(kind, field)| {
        let devices = json!({"metadata": {"annotations": {"muster.io/devices": "x"}}});
        let placed = json!({"spec": {"nodeName": "n1"}});
        [
            (
                job("devices", "red", &devices),
                format!(
                    "spec.{field}[*].template.metadata.annotations[muster.io/devices]: {system}"
                ),
            ),
            (
                job("node", "red", &placed),
                format!("spec.{field}[*].template.spec.nodeName: {node}"),
            ),
            (job("queue", "blue", &none), closed.to_owned()),
        ]
        .map(|(object, words)| (job_of(kind, field, object), words))
    });
    let of_others = refused.map(|(object, words)| (object, words.to_owned()));
    for (object, words) in of_others.into_iter().chain(of_kinds) {
        let made = create(&ground, &MEMBER, &object);
        assert_ne!(made.code, Some(0), "{object}");
        assert!(made.err.contains(&words), "{object}: {}", made.err);
    }

    // The same without what is reserved, and an administrator who may bind, are served.
    create(&ground, &MEMBER, &pod("free", &queue("red"), &none)).ok();
    create(&ground, &MEMBER, &job("free", "red", &none)).ok();
    create(
        &ground,
        &[],
        &pod("placed", &none, &json!({"nodeName": "n1"})),
    )
    .ok();

    // Muster binds a member's pod and writes the devices; the member does not change them.
    let gpu = json!({"containers": [{"name": "c", "image": "example.com/i:1",
        "resources": {"limits": {"nvidia.com/gpu": "1"}}}]});
    create(&ground, &MEMBER, &pod("work", &queue("red"), &gpu)).ok();
    let devices = eventually("the pod is bound with its device", SOON, || {
        let pod = ground.cluster.get(&["-n", TEAM, "pod", "work"]);
        let devices = pod["metadata"]["annotations"]["muster.io/devices"].as_str();
        devices.map(str::to_owned)
    });
    assert!(devices.contains("n1-"), "{devices}");
    let change = |more: &[&str]| {
        let patch = r#"{"metadata":{"annotations":{"muster.io/devices":null}}}"#;
        let words = [
            "-n",
            TEAM,
            "patch",
            "pod",
            "work",
            "--type=merge",
            "-p",
            patch,
        ];
        ground
            .cluster
            .kubectl(&[&words, &MEMBER[..], more].concat())
    };
    for more in [&[][..], &["--subresource=status"]] {
        let changed = change(more);
        assert_ne!(changed.code, Some(0));
        assert!(changed.err.contains(system), "{}", changed.err);
    }

    // A queue that closes later leaves what is in it changeable.
    ground
        .cluster
        .kubectl(&["label", "namespace", TEAM, "team-"])
        .ok();
    let label = ["-n", TEAM, "label", "pod", "work", "a=b"];
    ground.cluster.kubectl(&[&label, &MEMBER[..]].concat()).ok();
    eventually("the queue is closed to new work", SOON, || {
        let made = create(&ground, &MEMBER, &pod("late", &queue("red"), &none));
        if made.code == Some(0) {
            delete_pod(&ground, "late");
            return None;
        }
        assert!(made.err.contains(closed), "{}", made.err);
        Some(())
    });
}
