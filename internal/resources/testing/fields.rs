//! Owns the generator of extreme values for every field of every kind, which tests of several crates share: the fields
//! from the kind's definition, the extremes, and a valid base object of each kind. Makes no assertions.

use resources::registry::Kind;
use resources::{crds, names};
use serde_json::{Map, Value, json};

/// The built-in kinds' definitions.
const DEFINITIONS: &str = include_str!("../../../api/openapi/kubernetes-v1.34.json");
/// The deepest nesting of the definitions that are read, except recursive ones.
const DEPTH_MAX: usize = 24;
/// The annotations from which Muster reads numbers, spans and lists.
const ANNOTATIONS: [&str; 16] = [
    names::WALLTIME,
    names::MIN_RUNTIME,
    names::CHECKPOINT,
    names::CHECKPOINT_GRACE,
    names::TOPOLOGY,
    names::SUB_GROUPS,
    names::RESTARTS,
    names::RENDEZVOUS_PORT,
    names::ON_FAILURE,
    names::FAILURE,
    names::RECOVERY,
    names::HANG_AFTER,
    names::ON_HANG,
    names::HUNG,
    "muster.io/attempts",
    "muster.io/devices",
];

/// One step of the path to a field.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    Member(String),
    /// The first item of a list.
    Item,
}

pub type Way = Vec<Step>;

/// The type of a field.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Holds {
    Number,
    NumberOrText,
    Quantity,
    Text,
}

/// Finds the fields of a definition.
struct Walk<'a> {
    definitions: &'a Map<String, Value>,
    /// The definitions on the path here: a recursive definition is not entered again.
    within: Vec<String>,
    found: Vec<(Way, Holds)>,
}

impl Walk<'_> {
    fn walk(&mut self, schema: &Value, way: &mut Way) {
        assert!(way.len() < DEPTH_MAX, "{way:?}");
        if let Some(name) = schema["$ref"].as_str() {
            let name = name.rsplit('/').next().unwrap().to_owned();
            match name.rsplit('.').next().unwrap() {
                "Quantity" => self.found.push((way.clone(), Holds::Quantity)),
                "IntOrString" => self.found.push((way.clone(), Holds::NumberOrText)),
                "Time" | "MicroTime" => self.found.push((way.clone(), Holds::Text)),
                _ if self.within.contains(&name) => {}
                _ => {
                    let definition = self.definitions[&name].clone();
                    self.within.push(name);
                    self.walk(&definition, way);
                    self.within.pop();
                }
            }
            return;
        }
        if let Some(only) = schema["allOf"].get(0).cloned() {
            return self.walk(&only, way);
        }
        if schema["x-kubernetes-int-or-string"] == true {
            self.found.push((way.clone(), Holds::NumberOrText));
            self.found.push((way.clone(), Holds::Quantity));
            return;
        }
        match schema["type"].as_str() {
            Some("integer") => self.found.push((way.clone(), Holds::Number)),
            Some("string") => self.found.push((way.clone(), Holds::Text)),
            Some("array") => self.step(Step::Item, &schema["items"].clone(), way),
            _ => {
                for (name, field) in schema["properties"].as_object().into_iter().flatten() {
                    self.step(Step::Member(name.clone()), field, way);
                }
                let more = &schema["additionalProperties"];
                let names: &[&str] = match more.is_object() {
                    true => &["cpu", "nvidia.com/gpu"],
                    false => &[],
                };
                for name in names {
                    self.step(Step::Member((*name).to_owned()), more, way);
                }
            }
        }
    }

    fn step(&mut self, step: Step, schema: &Value, way: &mut Way) {
        way.push(step);
        self.walk(schema, way);
        way.pop();
    }
}

/// The fields of a kind.
pub fn fields(kind: &Kind) -> Vec<(Way, Holds)> {
    let definitions: Map<String, Value> = serde_json::from_str(DEFINITIONS).unwrap();
    let own = crds::all().into_iter().find_map(|crd| {
        let same = crd.spec.group == kind.group && crd.spec.names.kind == kind.kind;
        let version = same
            .then(|| crd.spec.versions.into_iter().next())
            .flatten()?;
        serde_json::to_value(version.schema?.open_api_v3_schema?).ok()
    });
    let mut walk = Walk {
        definitions: &definitions,
        within: Vec::new(),
        found: Vec::new(),
    };
    let schema = match own {
        Some(own) => {
            let meta = "#/components/schemas/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";
            walk.step(
                Step::Member("metadata".to_owned()),
                &json!({ "$ref": meta }),
                &mut Way::new(),
            );
            own
        }
        None => definitions
            .get(kind.schema)
            .unwrap_or_else(|| panic!("{} is defined nowhere", kind.schema))
            .clone(),
    };
    walk.walk(&schema, &mut Way::new());
    let known = |way: &Way| {
        let first = way.first();
        first != Some(&Step::Member("kind".to_owned()))
            && first != Some(&Step::Member("apiVersion".to_owned()))
    };
    walk.found.retain(|(way, _)| known(way));
    for name in ANNOTATIONS {
        let way = ["metadata", "annotations", name].map(|name| Step::Member(name.to_owned()));
        walk.found.push((way.to_vec(), Holds::Text));
        walk.found.push((way.to_vec(), Holds::Quantity));
    }
    walk.found
}

/// The extremes of a field's type, as numbers.
pub fn numbers(holds: Holds) -> Vec<Value> {
    let ends = [i64::MIN, -1, 0, 1, i64::from(i32::MAX), i64::MAX];
    let plain = || ends.map(Value::from).to_vec();
    let texts = |texts: &[&str]| texts.iter().map(|text| json!(text)).collect::<Vec<Value>>();
    match holds {
        Holds::Number => plain(),
        Holds::NumberOrText => [plain(), texts(&["-1%", "100%", "9223372036854775807%"])].concat(),
        Holds::Quantity => texts(&[
            "-9223372036854775808",
            "-1",
            "0",
            "1n",
            "2147483647",
            "9223372036854775807",
            "9223372036854775807Ei",
            "1e999999999",
        ]),
        Holds::Text => Vec::new(),
    }
}

/// The extremes of a text field.
pub fn texts(holds: Holds) -> Vec<Value> {
    match holds {
        Holds::Number => Vec::new(),
        Holds::Quantity | Holds::NumberOrText | Holds::Text => vec![
            json!(""),
            json!("\u{0}\u{7f}\r\n"),
            json!("é\u{202e}\u{1f600}"),
            json!("../../etc/passwd"),
            json!("9".repeat(400)),
            json!("x".repeat(64 * 1024)),
        ],
    }
}

/// The object with this value at this path; absent parents are created.
pub fn with(object: &Value, way: &[Step], end: &Value) -> Value {
    let mut changed = object.clone();
    let mut at = &mut changed;
    for step in way {
        at = match step {
            Step::Member(name) => {
                if !at.is_object() {
                    *at = json!({});
                }
                at.as_object_mut()
                    .unwrap()
                    .entry(name.as_str())
                    .or_insert(Value::Null)
            }
            Step::Item => {
                if at.as_array().is_none_or(Vec::is_empty) {
                    *at = json!([null]);
                }
                &mut at.as_array_mut().unwrap()[0]
            }
        };
    }
    *at = end.clone();
    changed
}

pub fn pod_spec() -> Value {
    json!({
        "schedulerName": "muster", "restartPolicy": "Never",
        "containers": [{"name": "main", "image": "x", "resources": {
            "requests": {"cpu": "1"}, "limits": {"nvidia.com/gpu": "4"}}}],
    })
}

/// A valid base object of the kind.
pub fn plain(kind: &Kind) -> Value {
    let template = json!({"spec": pod_spec()});
    let rest = match (kind.group, kind.kind) {
        ("", "Pod") => json!({"spec": pod_spec()}),
        ("", "ConfigMap") => json!({"data": {"a": "1"}}),
        ("", "Secret") => json!({"stringData": {"a": "1"}}),
        ("", "ServiceAccount") => json!({"automountServiceAccountToken": false}),
        ("", "Endpoints") => json!({"subsets": [
            {"addresses": [{"ip": "10.0.0.1"}], "ports": [{"name": "p", "port": 80}]},
        ]}),
        ("", "Event") => json!({
            "involvedObject": {"kind": "Pod", "name": "p", "namespace": "ns"},
            "reason": "Started", "message": "started", "type": "Normal", "count": 1,
        }),
        ("", "LimitRange") => {
            json!({"spec": {"limits": [{"type": "Container", "max": {"cpu": "100"}}]}})
        }
        ("", "PersistentVolumeClaim") => json!({"spec": {
            "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}},
        }}),
        ("", "ResourceQuota") => {
            json!({"spec": {"hard": {"count/leases.coordination.k8s.io": "1000"}}})
        }
        ("", "Service") => json!({"spec": {
            "clusterIP": "None", "selector": {"app": "x"}, "ports": [{"name": "p", "port": 80}],
        }}),
        ("apps", "ControllerRevision") => json!({"revision": 1, "data": {"spec": {}}}),
        ("apps", _) => {
            let mut template = json!({"spec": pod_spec(), "metadata": {"labels": {"app": "x"}}});
            template["spec"]["restartPolicy"] = "Always".into();
            json!({"spec": {"selector": {"matchLabels": {"app": "x"}}, "template": template}})
        }
        ("batch", "Job") => json!({"spec": {
            "parallelism": 2, "completions": 2, "completionMode": "Indexed", "template": template,
        }}),
        ("batch", "CronJob") => json!({"spec": {
            "schedule": "0 2 * * *", "jobTemplate": {"spec": {"template": template}},
        }}),
        ("autoscaling", _) => json!({"spec": {
            "scaleTargetRef": {"apiVersion": "batch/v1", "kind": "Job", "name": "j"}, "maxReplicas": 3,
        }}),
        ("discovery.k8s.io", _) => json!({
            "addressType": "IPv4", "endpoints": [{"addresses": ["10.0.0.1"]}],
            "ports": [{"name": "p", "port": 80}],
        }),
        ("coordination.k8s.io", _) => {
            json!({"spec": {"holderIdentity": "me", "leaseDurationSeconds": 15}})
        }
        ("kubeflow.org", "JAXJob") => json!({"spec": {"jaxReplicaSpecs": {
            "Worker": {"replicas": 2, "template": template},
        }}}),
        ("kubeflow.org", "MPIJob") => json!({"spec": {"mpiReplicaSpecs": {
            "Launcher": {"replicas": 1, "template": template},
            "Worker": {"replicas": 2, "template": template},
        }}}),
        ("kubeflow.org", name) => {
            let field = match name {
                "TFJob" => "tfReplicaSpecs",
                "XGBoostJob" => "xgbReplicaSpecs",
                "PaddleJob" => "paddleReplicaSpecs",
                _ => "pytorchReplicaSpecs",
            };
            json!({"spec": {field: {
                "Master": {"replicas": 1, "template": template},
                "Worker": {"replicas": 2, "template": template},
            }}})
        }
        ("node.k8s.io", _) => json!({"handler": "runc"}),
        ("policy", _) => {
            json!({"spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "x"}}}})
        }
        ("rbac.authorization.k8s.io", "Role" | "ClusterRole") => {
            json!({"rules": [{"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}]})
        }
        ("rbac.authorization.k8s.io", _) => json!({
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "viewer"},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "u"}],
        }),
        ("scheduling.k8s.io", _) => json!({"value": 10}),
        ("scheduling.volcano.sh", "PodGroup") => {
            json!({"spec": {"minMember": 1, "queue": "default"}})
        }
        ("scheduling.volcano.sh", _) => json!({"spec": {"weight": 1}}),
        ("batch.volcano.sh", _) => {
            json!({"spec": {"tasks": [{"name": "t", "template": template}]}})
        }
        ("bus.volcano.sh", _) => json!({"action": "AbortJob", "target": {
            "apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "name": "j", "uid": "u",
        }}),
        ("ray.io", "RayJob") => json!({"spec": {
            "entrypoint": "true", "rayClusterSpec": {"headGroupSpec": {"template": template}},
        }}),
        ("ray.io", "RayService") => json!({"spec": {
            "serveConfigV2": "applications: []",
            "rayClusterConfig": {"headGroupSpec": {"template": template}},
        }}),
        ("ray.io", _) => json!({"spec": {
            "headGroupSpec": {"template": template},
            "workerGroupSpecs": [{"groupName": "g", "replicas": 1, "template": template}],
        }}),
        ("jobset.x-k8s.io", _) => json!({"spec": {"replicatedJobs": [
            {"name": "j", "template": {"spec": {"template": template}}},
        ]}}),
        ("leaderworkerset.x-k8s.io", _) => {
            let mut template = template;
            template["spec"]["restartPolicy"] = "Always".into();
            json!({"spec": {"leaderWorkerTemplate": {"size": 2, "workerTemplate": template}}})
        }
        ("trainer.kubeflow.org", "TrainJob") => json!({"spec": {
            "runtimeRef": {"name": "torch-distributed"},
            "trainer": {"numNodes": 1, "command": ["true"]},
        }}),
        ("trainer.kubeflow.org", _) => json!({"spec": {
            "mlPolicy": {"numNodes": 1, "torch": {}},
            "template": {"spec": {"replicatedJobs": [
                {"name": "node", "template": {"spec": {"template": template}}},
            ]}},
        }}),
        ("keda.sh", _) => json!({"spec": {
            "scaleTargetRef": {"name": "j"},
            "triggers": [{"type": "cron", "metadata": {"timezone": "UTC"}}],
        }}),
        ("serving.knative.dev", _) => json!({"spec": {"template": {"spec": {
            "containers": [{"image": "x"}],
        }}}}),
        _ => json!({"spec": {}}),
    };
    let mut object = rest;
    object["apiVersion"] = kind.api_version().into();
    object["kind"] = kind.kind.into();
    object["metadata"] = json!({"name": "new", "uid": "uid-new"});
    if kind.namespaced {
        object["metadata"]["namespace"] = "ns".into();
    }
    object
}

pub fn name(kind: &Kind, way: &[Step], end: &Value) -> String {
    let mut text = kind.kind.to_owned();
    for step in way {
        match step {
            Step::Member(name) => text.push_str(&format!(".{name}")),
            Step::Item => text.push_str("[0]"),
        }
    }
    let mut end = end.to_string();
    end = end.chars().take(40).collect();
    format!("{text} = {end}")
}

/// If set, every field is tested at every boundary value; otherwise at one that the seed selects.
const ALL: &str = "MUSTER_FUZZ_ENDS";

/// The boundary values to test of the field with this number.
pub fn chosen(ends: Vec<Value>, field: usize) -> Vec<Value> {
    if ends.is_empty() || std::env::var_os(ALL).is_some() {
        return ends;
    }
    let seed = std::env::var("PROPTEST_RNG_SEED").ok();
    let seed: usize = seed.and_then(|seed| seed.parse().ok()).unwrap_or(0);
    let at = field.wrapping_add(seed) % ends.len();
    vec![ends[at].clone()]
}
