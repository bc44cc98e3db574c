//! What the chart's ValidatingAdmissionPolicies have a real kube-apiserver refuse: a member sets no reserved field,
//! chooses no node, uses no system class and names no queue that takes no work from its namespace; Muster binds pods as
//! before. Work that names no queue gets its namespace's, where kube-apiserver has MutatingAdmissionPolicies.

use e2e::{Ran, Setup, eventually};
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

/// Creates an object, which must be refused with these words.
#[track_caller]
fn refused(ground: &Ground, object: &Value, words: &str) {
    let made = create(ground, &MEMBER, object);
    assert_ne!(made.code, Some(0), "{object}");
    assert!(made.err.contains(words), "{object}: {}", made.err);
}

#[test]
fn a_member_uses_no_class_of_the_system() {
    let ground = Ground::start();
    ground.node("n1", 2);
    team(&ground);
    until_in_force(&ground);
    let queue = json!({"scheduling.volcano.sh/queue-name": "red"});
    let of_class =
        |name: &str, class: &str| pod(name, &queue, &json!({"priorityClassName": class}));
    let words = |class: &str| {
        format!(
            "priority class \"{class}\" is not usable in namespace \"team\"; name another PriorityClass, or have an \
             administrator label the namespace muster.io/critical-pods=true"
        )
    };
    let node = "system-node-critical";
    let whole = "system-cluster-critical";
    for class in [node, whole] {
        refused(&ground, &of_class("critical", class), &words(class));
    }
    let critical = json!({"spec": {"priorityClassName": node}});
    let none = json!({});
    refused(&ground, &job("template", "red", &critical), &words(node));
    let tensorflow = |job| job_of("TFJob", "tfReplicaSpecs", job);
    refused(
        &ground,
        &tensorflow(job("template", "red", &critical)),
        &words(node),
    );
    let mut gang = job("gang", "red", &none);
    gang["spec"]["runPolicy"]["schedulingPolicy"]["priorityClass"] = whole.into();
    refused(&ground, &gang, &words(whole));
    let group = json!({"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "PodGroup",
        "metadata": {"name": "gang", "namespace": TEAM},
        "spec": {"minMember": 1, "queue": "red", "priorityClassName": node}});
    refused(&ground, &group, &words(node));

    // A job does not get there by a change.
    create(&ground, &MEMBER, &job("later", "red", &none)).ok();
    let change =
        r#"{"spec":{"runPolicy":{"schedulingPolicy":{"priorityClass":"system-node-critical"}}}}"#;
    let patch = [
        "-n",
        TEAM,
        "patch",
        "pytorchjob",
        "later",
        "--type=merge",
        "-p",
        change,
    ];
    let changed = ground.cluster.kubectl(&[&patch, &MEMBER[..]].concat());
    assert!(changed.err.contains(&words(node)), "{}", changed.err);

    // Pods of other schedulers are the cluster's matter.
    let mut other = of_class("other", node);
    other["spec"]["schedulerName"] = "default-scheduler".into();
    create(&ground, &MEMBER, &other).ok();
    // An administrator lets a namespace use the classes.
    let label = ["label", "namespace", TEAM, "muster.io/critical-pods=true"];
    ground.cluster.kubectl(&label).ok();
    eventually("the label counts", SOON, || {
        let made = create(&ground, &MEMBER, &of_class("critical", node));
        (made.code == Some(0)).then_some(())
    });
}

#[test]
fn work_that_names_no_queue_gets_its_namespaces() {
    let beta = Setup::default()
        .gates("MutatingAdmissionPolicy=true")
        .versions("admissionregistration.k8s.io/v1beta1=true");
    let ground = Ground::on(beta.start());
    ground.node("n1", 4);
    team(&ground);
    ground
        .cluster
        .apply_chart("namespace-queues.yaml", "server.namespaceQueues=v1beta1");
    let server = ground.server("server", &[]);
    server.until_leading();
    until_in_force(&ground);
    let name = "scheduling.volcano.sh/queue-name";
    let label = ["label", "namespace", TEAM, &format!("{name}=red")];
    ground.cluster.kubectl(&label).ok();

    let none = json!({});
    let named = |what: &[&str]| {
        let object = ground.cluster.get(&[&["-n", TEAM], what].concat());
        object["metadata"]["annotations"][name]
            .as_str()
            .map(str::to_owned)
    };
    eventually("the policy is in force", SOON, || {
        create(&ground, &MEMBER, &pod("lone", &none, &none)).ok();
        let queue = named(&["pod", "lone"]);
        if queue.is_none() {
            delete_pod(&ground, "lone");
        }
        queue
    });
    assert_eq!(named(&["pod", "lone"]).as_deref(), Some("red"));

    // A job of every kind; Muster queues the gang of one that it controls.
    let mut unnamed = job("unnamed", "", &none);
    unnamed["spec"].as_object_mut().unwrap().remove("runPolicy");
    create(&ground, &MEMBER, &unnamed).ok();
    assert_eq!(named(&["pytorchjob", "unnamed"]).as_deref(), Some("red"));
    create(
        &ground,
        &MEMBER,
        &job_of("TFJob", "tfReplicaSpecs", unnamed.clone()),
    )
    .ok();
    assert_eq!(named(&["tfjob", "unnamed"]).as_deref(), Some("red"));
    let queue = eventually("the gang's PodGroup is made", SOON, || {
        let group = ground.cluster.get(&["-n", TEAM, "podgroup", "unnamed"]);
        group["spec"]["queue"].as_str().map(str::to_owned)
    });
    assert_eq!(queue, "red");

    // What names a queue keeps it, and so do members of a gang and pods of other schedulers.
    create(&ground, &MEMBER, &job("kept", "default", &none)).ok();
    assert_eq!(named(&["pytorchjob", "kept"]), None);
    let member = json!({"scheduling.k8s.io/group-name": "gang"});
    create(&ground, &MEMBER, &pod("member", &member, &none)).ok();
    assert_eq!(named(&["pod", "member"]), None);
    let mut other = pod("other", &none, &none);
    other["spec"]["schedulerName"] = "default-scheduler".into();
    create(&ground, &MEMBER, &other).ok();
    assert_eq!(named(&["pod", "other"]), None);
}
