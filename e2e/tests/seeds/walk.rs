//! The kinds that Muster stores but does not run yet on one engine or both, through kubectl: shown, described, applied
//! again, refused, changed under either version, deleted.

use std::time::Duration;

use e2e::{Platform, eventually};

use crate::Seed;
use crate::ground::Ground;

const SOON: Duration = Duration::from_secs(30);

/// The engines on which Muster stores a kind and does not run it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Inert {
    Both,
    Kubernetes,
    Neither,
}

/// Manifest, resource, name, and where it is not run.
const KEPT: [(&str, &str, &str, Inert); 6] = [
    (
        "000-raycluster",
        "rayclusters",
        "ray-gpu",
        Inert::Kubernetes,
    ),
    (
        "001-keda-scaledobject",
        "so",
        "llm-inference-scaler",
        Inert::Both,
    ),
    ("001-knative-service", "ksvc", "ai-inference", Inert::Both),
    (
        "001-volcano-job-v1beta1",
        "jobs.batch.volcano.sh",
        "distributed-training",
        Inert::Kubernetes,
    ),
    (
        "004-volcano-job-v1alpha1",
        "vcjob",
        "gpu-job",
        Inert::Kubernetes,
    ),
    ("002-hpa-gpu", "hpa", "gpu-node-autoscaler", Inert::Neither),
];

/// Runs all of it on one engine; the objects are deleted when this returns.
pub(crate) fn walk(ground: &Ground, seeds: &[Seed]) {
    let embedded = matches!(ground, Ground::Embedded(_));
    for (manifest, resource, name, inert) in KEPT {
        let Some(seed) = seeds.iter().find(|seed| seed.name == manifest) else {
            panic!("{manifest} is among the manifests");
        };
        let place = ["-n", seed.namespace.as_str()];
        let shown = ground.kubectl(&[&["get", resource, name], &place[..]].concat());
        assert!(shown.ok().lines().count() == 2, "{manifest}");
        let told = ground.kubectl(&[&["describe", resource, name], &place[..]].concat());
        let told = told.ok();
        assert!(
            told.contains("NotRunByMuster")
                == match inert {
                    Inert::Both => true,
                    Inert::Kubernetes => !embedded,
                    Inert::Neither => false,
                },
            "{manifest}: {told}"
        );
        let path = seed.path.display().to_string();
        let again = ground.kubectl(&[&["apply", "-f", &path], &place[..]].concat());
        let again = again.ok();
        assert!(again.ends_with(" unchanged\n"), "{manifest}: {again}");
    }
    if let Ground::Embedded(platform) = ground {
        other_commands(platform);
    }
    changed(ground, seeds);
    versions(ground);
    refusals(ground);
    for (manifest, resource, name, _) in KEPT {
        let delete = ["delete", resource, name, "-n", manifest, "--wait=false"];
        ground.kubectl(&delete).ok();
        eventually(&format!("{manifest} is gone"), SOON, || {
            let ran = ground.kubectl(&["get", resource, name, "-n", manifest]);
            ran.err.contains("NotFound").then_some(())
        });
    }
}

/// Muster's own commands distinguish the kinds named Job, and a CronJob's Job starts by hand.
fn other_commands(platform: &Platform) {
    let place = ["-n", "004-volcano-job-v1alpha1"];
    let told = platform.cli(&[&["describe", "vcjob/gpu-job"], &place[..]].concat());
    let told = told.ok();
    assert!(told.contains("State:       Pending"), "{told}");
    let told = platform.cli(&[&["explain", "vcjob/gpu-job"], &place[..]].concat());
    let told = told.ok();
    assert!(
        told.contains("job.batch.volcano.sh/gpu-job  Pending"),
        "{told}"
    );
    let place = ["-n", "002-cronjob"];
    let create = ["create", "job", "now", "--from=cronjob/daily-training"];
    let made = platform.kubectl(&[&create[..], &place[..]].concat());
    assert_eq!(made.ok(), "job.batch/now created\n");
}

/// A manifest that was edited is applied.
fn changed(ground: &Ground, seeds: &[Seed]) {
    let seed = seeds.iter().find(|seed| seed.name == KEPT[0].0).unwrap();
    let text = std::fs::read_to_string(&seed.path).unwrap();
    let more = text.replace("replicas: 3", "replicas: 4");
    assert_ne!(text, more);
    let file = tempfile::Builder::new().suffix(".yaml").tempfile().unwrap();
    std::fs::write(file.path(), more).unwrap();
    let path = file.path().display().to_string();
    let place = ["-n", seed.namespace.as_str()];
    let said = ground.kubectl(&[&["apply", "-f", &path], &place[..]].concat());
    assert!(said.ok().ends_with(" configured\n"));
    let get = [
        "get",
        "rayclusters",
        "ray-gpu",
        "-o",
        "jsonpath={.spec.workerGroupSpecs[0].replicas} {.metadata.generation} {.status.desiredWorkerReplicas}{.status.conditions[0].reason}",
    ];
    let expected = match ground {
        Ground::Embedded(_) => "4 2 4",
        _ => "4 2 NotRunByMuster",
    };
    eventually("the change has its effect", SOON, || {
        let said = ground.kubectl(&[&get[..], &place[..]].concat()).ok();
        said.starts_with(expected).then_some(())
    });
}

/// A Volcano Job is the same object under both versions.
fn versions(ground: &Ground) {
    let place = ["distributed-training", "-n", "001-volcano-job-v1beta1"];
    for version in ["v1alpha1", "v1beta1"] {
        let resource = format!("jobs.{version}.batch.volcano.sh");
        let get = [
            "get",
            &resource,
            "-o",
            "jsonpath={.apiVersion} {.spec.minAvailable}",
        ];
        let said = ground.kubectl(&[&get[..], &place[..]].concat()).ok();
        assert_eq!(said, format!("batch.volcano.sh/{version} 5"));
        let change = format!("{{\"metadata\":{{\"labels\":{{\"seen\":\"{version}\"}}}}}}");
        let patch = ["patch", &resource, "--type=merge", "-p", &change];
        ground.kubectl(&[&patch[..], &place[..]].concat()).ok();
        let list = ["get", &resource, "-A", "-l"];
        let selector = format!("seen={version}");
        let found = ground.kubectl(&[&list[..], &[selector.as_str(), "-o", "name"]].concat());
        assert_eq!(found.ok(), "job.batch.volcano.sh/distributed-training\n");
    }
}

/// A refusal names the invalid field, on both engines.
fn refusals(ground: &Ground) {
    let table: [(&str, &str, &str, &[&str]); 6] = [
        (
            "ray.io/v1",
            "RayCluster",
            "{headGroupSpec: {}, workerGroupSpecs: [{replicas: -1, template: {spec: {containers: [{name: c, image: i}]}}}]}",
            &[
                "spec.workerGroupSpecs[0].replicas",
                "-1",
                "greater than or equal to 0",
            ],
        ),
        (
            "batch.volcano.sh/v1beta1",
            "Job",
            "{tasks: []}",
            &["spec.tasks"],
        ),
        (
            "keda.sh/v1alpha1",
            "ScaledObject",
            "{scaleTargetRef: {name: d}, triggers: [{metadata: {}}]}",
            &["spec.triggers[0].type", "Required value"],
        ),
        (
            "serving.knative.dev/v1",
            "Service",
            "{template: {spec: {containers: [{image: i}]}}, trafic: []}",
            &["unknown field \"spec.trafic\""],
        ),
        (
            "batch/v1",
            "CronJob",
            "{schedule: 61 * * * *, jobTemplate: {spec: {template: {spec: {restartPolicy: Never, containers: [{name: c, image: i}]}}}}}",
            &[
                "spec.schedule",
                "61 * * * *",
                "end of range (61) above maximum (59): 61",
            ],
        ),
        (
            "autoscaling/v2",
            "HorizontalPodAutoscaler",
            "{scaleTargetRef: {kind: Deployment, name: d}, minReplicas: 5, maxReplicas: 2}",
            &["spec.maxReplicas: Invalid value: 2: must be greater than or equal to `minReplicas`"],
        ),
    ];
    let file = tempfile::Builder::new().suffix(".yaml").tempfile().unwrap();
    for (version, kind, spec, words) in table {
        let text = format!(
            "apiVersion: {version}\nkind: {kind}\nmetadata: {{name: wrong, namespace: default}}\nspec: {spec}\n"
        );
        std::fs::write(file.path(), text).unwrap();
        let ran = ground.kubectl(&["apply", "-f", &file.path().display().to_string()]);
        assert_ne!(ran.code, Some(0), "{kind}");
        for word in words {
            assert!(
                ran.err.contains(word),
                "{kind}: {word:?} is not in {}",
                ran.err
            );
        }
    }
}
