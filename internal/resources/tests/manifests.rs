//! Users' manifests: each passes defaulting and validation unchanged, or is refused exactly as kube-apiserver refuses
//! it.

use std::collections::BTreeMap;

use resources::admission::pod_security::{NamespaceRequest, PodSecurity};
use resources::registry;
use serde::Deserialize;
use serde_json::{Value, json};

/// Defaults, prepares and checks an object, as on create in namespace `team`.
fn admit(mut object: Value) -> (Value, Vec<String>) {
    let kind = registry::of(&object)
        .unwrap_or_else(|| panic!("no kind for {} {}", object["apiVersion"], object["kind"]));
    if kind.namespaced {
        object["metadata"]["namespace"] = json!("team");
    }
    object["metadata"]["uid"] = json!("2f2f1c0e-0000-4000-8000-000000000001");
    (kind.default)(&mut object);
    let once = object.clone();
    (kind.default)(&mut object);
    assert_eq!(object, once, "defaulting twice differs from once");
    (kind.prepare)(&mut object, None);
    let errors = (kind.validate)(&object, None)
        .iter()
        .map(ToString::to_string)
        .collect();
    (object, errors)
}

fn documents(text: &str) -> Vec<Value> {
    serde_norway::Deserializer::from_str(text)
        .map(|doc| Value::deserialize(doc).expect("a manifest is YAML"))
        .collect()
}

const NEEDS_LIMITS: &str = "spec.template.spec.containers[0].resources.limits: Required value: Limit must be set for non overcommitable resources";

#[test]
fn users_manifests_are_taken_or_refused_as_kubernetes_does() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/manifests");
    let mut files: Vec<_> = std::fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    assert_eq!(files.len(), 26);
    for file in files {
        let name = file.file_name().unwrap().to_str().unwrap().to_owned();
        for document in documents(&std::fs::read_to_string(&file).unwrap()) {
            let (object, errors) = admit(document);
            let expected: &[&str] = match name.as_str() {
                "002-job.yaml" => &[NEEDS_LIMITS],
                _ => &[],
            };
            assert_eq!(errors, expected, "{name} {}", object["metadata"]["name"]);
        }
    }
}

#[test]
fn no_users_manifest_and_no_example_violates_the_default_pod_security() {
    let crate_root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let files = std::fs::read_dir(crate_root.join("tests/manifests")).unwrap();
    let example = crate_root.join("../../packaging/examples/pytorch-ddp.yaml");
    let security = PodSecurity::default();
    let labels = BTreeMap::new();
    let request = NamespaceRequest {
        namespace: "team",
        labels: &labels,
        user: "ann",
        own_pod_networks: false,
    };
    let mut asked = 0;
    for file in files.map(|entry| entry.unwrap().path()).chain([example]) {
        for document in documents(&std::fs::read_to_string(&file).unwrap()) {
            let (object, _) = admit(document);
            let kind = registry::of(&object).unwrap();
            let verdict = match kind.kind {
                "Pod" => security.pod(&request, &object),
                _ => security.templates(&request, kind, &object),
            };
            assert_eq!(verdict.refused, None, "{}", file.display());
            assert!(
                verdict.warnings.is_empty(),
                "{}: {:?}",
                file.display(),
                verdict.warnings
            );
            asked += usize::from(kind.kind == "Pod" || PodSecurity::has_templates(kind));
        }
    }
    assert!(asked > 10, "{asked} pods and templates");
}

/// The default allow-list permits the only setting in the manifests that the standard alone refuses.
#[test]
fn the_default_allow_list_is_needed_by_a_manifest() {
    let mut security = PodSecurity::default();
    security.allow.host_network = Some(Vec::new());
    let job = manifest("001-pytorchjob-70b.yaml");
    let labels = BTreeMap::new();
    let request = NamespaceRequest {
        namespace: "team",
        labels: &labels,
        user: "ann",
        own_pod_networks: false,
    };
    let verdict = security.templates(&request, registry::of(&job).unwrap(), &job);
    assert_eq!(
        verdict.warnings,
        ["would violate PodSecurity \"baseline:latest\": host namespaces (hostNetwork=true)"]
    );
}

fn manifest(name: &str) -> Value {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/manifests")
        .join(name);
    let text = std::fs::read_to_string(path).expect("the manifest is there");
    admit(documents(&text).remove(0)).0
}

#[test]
fn a_large_training_job_reads_as_its_type() {
    let job: resources::kinds::PyTorchJob =
        serde_json::from_value(manifest("001-pytorchjob-70b.yaml")).unwrap();
    let elastic = job.spec.elastic_policy.as_ref().unwrap();
    assert_eq!(
        (elastic.min_replicas, elastic.max_replicas),
        (Some(8), Some(16))
    );
    assert_eq!(job.spec.pytorch_replica_specs["Worker"].replicas, Some(8));
    let pod = job.spec.pytorch_replica_specs["Worker"]
        .template
        .spec
        .as_ref()
        .unwrap();
    let wants = resources::amounts::pod_requests(pod);
    assert_eq!(
        (wants.get("nvidia.com/gpu"), wants.get("memory")),
        (8, 500 << 30)
    );
    assert_eq!(
        job.spec.run_policy.clean_pod_policy,
        Some(resources::kinds::CleanPodPolicy::None)
    );
}

#[test]
fn a_queue_keeps_what_it_calls_guaranteed() {
    let queue: resources::kinds::Queue =
        serde_json::from_value(manifest("001-queue.yaml")).unwrap();
    let kept = resources::amounts::Amounts::from_k8s(queue.spec.guaranteed_resources().unwrap());
    assert_eq!((kept.get("cpu"), kept.get("nvidia.com/gpu")), (20_000, 10));
    assert_eq!(
        (queue.spec.weight, queue.spec.reclaimable),
        (Some(1), Some(true))
    );
}

#[test]
fn a_job_is_completed_as_kubernetes_completes_it() {
    let job = manifest("002-job.yaml");
    let uid = "2f2f1c0e-0000-4000-8000-000000000001";
    assert_eq!(job["spec"]["backoffLimit"], 6);
    assert_eq!(job["spec"]["completionMode"], "NonIndexed");
    assert_eq!(job["spec"]["podReplacementPolicy"], "TerminatingOrFailed");
    assert_eq!(
        job["spec"]["selector"],
        json!({"matchLabels": {"batch.kubernetes.io/controller-uid": uid}})
    );
    assert_eq!(
        job["spec"]["template"]["metadata"]["labels"],
        json!({
            "batch.kubernetes.io/controller-uid": uid, "batch.kubernetes.io/job-name": "ai-training-job",
            "controller-uid": uid, "job-name": "ai-training-job",
        })
    );
    let typed: k8s_openapi::api::batch::v1::Job = serde_json::from_value(job).unwrap();
    assert_eq!(typed.spec.unwrap().parallelism, Some(2));
}

#[test]
fn a_limit_range_gives_containers_their_defaults() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/manifests/002-quota-limits.yaml");
    let range = admit(documents(&std::fs::read_to_string(path).unwrap()).remove(1)).0;
    let range: k8s_openapi::api::core::v1::LimitRange = serde_json::from_value(range).unwrap();
    let mut pod = manifest("002-priority.yaml");
    pod["spec"] = json!({"containers": [{"name": "c", "image": "x"}]});
    assert!(resources::admission::limit_ranges(&mut pod, &[range]).is_empty());
    assert_eq!(
        pod["spec"]["containers"][0]["resources"],
        json!({
            "requests": {"cpu": "2", "memory": "4Gi", "nvidia.com/gpu": "1"},
            "limits": {"cpu": "4", "memory": "8Gi", "nvidia.com/gpu": "1"},
        })
    );
    assert_eq!(
        pod["metadata"]["annotations"]["kubernetes.io/limit-ranger"],
        "LimitRanger plugin set: cpu, memory, nvidia.com/gpu request for container c; cpu, memory, nvidia.com/gpu limit for container c"
    );
}
