//! The mapping of other schedulers' queues: the result for each key, and the keys without a counterpart.
#![allow(clippy::unwrap_used, reason = "a test's helpers may fail the test")]

use std::collections::BTreeMap;

use resources::kinds::{Queue, QueueState};
use resources::mapping::{Mapped, queues};
use serde::de::Deserialize;
use serde_json::{Value, json};

fn documents(text: &str) -> Vec<Value> {
    serde_norway::Deserializer::from_str(text)
        .map(|document| Value::deserialize(document).unwrap())
        .collect()
}

fn mapped(text: &str) -> Mapped {
    queues(&documents(text)).unwrap()
}

/// The queue's spec, its annotations (parsed if they are JSON), and its state.
fn said(mapped: &Mapped, name: &str) -> Value {
    let queue: &Queue = mapped
        .queues
        .iter()
        .find(|queue| queue.metadata.name.as_deref() == Some(name))
        .unwrap_or_else(|| panic!("no queue {name}"));
    let notes: BTreeMap<String, Value> = queue
        .metadata
        .annotations
        .iter()
        .flatten()
        .map(|(key, text)| {
            let value = serde_json::from_str(text).unwrap_or(json!(text));
            (key.replace("muster.io/", ""), value)
        })
        .collect();
    let mut said = serde_json::to_value(&queue.spec).unwrap();
    // Resources that no object mentions are deserved in plenty.
    if let Some(deserved) = said.get_mut("deserved").and_then(Value::as_object_mut) {
        for usual in ["memory", "pods"] {
            deserved.remove(usual);
        }
    }
    if !notes.is_empty() {
        said["notes"] = json!(notes);
    }
    if let Some(state) = queue.status.as_ref().and_then(|status| status.state) {
        said["state"] = json!(state);
    }
    said
}

fn warned(mapped: &Mapped) -> Vec<String> {
    let keys = mapped.warnings.iter();
    keys.map(|warning| format!("{}: {}", warning.object, warning.key))
        .collect()
}

#[test]
fn volcanos_queue_is_the_same_kind_and_what_has_no_effect_is_named() {
    let mapped = mapped(
        r"
apiVersion: scheduling.volcano.sh/v1beta1
kind: Queue
metadata: {name: research}
spec:
  weight: 3
  parent: dept
  priority: 7
  reclaimable: false
  capability: {nvidia.com/gpu: '16'}
  guarantee: {resource: {nvidia.com/gpu: '4'}}
  deserved: {nvidia.com/gpu: '8'}
  type: batch
  dequeueStrategy: fifo
  extendClusters: [{name: other}]
---
apiVersion: scheduling.volcano.sh/v1beta1
kind: Queue
metadata: {name: plain}
spec: {guaranteed: {cpu: '2'}, dequeueStrategy: traverse}
",
    );
    assert_eq!(
        said(&mapped, "research"),
        json!({
            "weight": 3, "parent": "dept", "priority": 7, "reclaimable": false, "type": "batch",
            "capability": {"nvidia.com/gpu": "16"}, "deserved": {"nvidia.com/gpu": "8"},
            "guarantee": {"resource": {"nvidia.com/gpu": "4"}},
            "dequeueStrategy": "fifo", "extendClusters": [{"name": "other"}],
        })
    );
    let plain = &mapped.queues[1].spec;
    assert_eq!(plain.guaranteed_resources().unwrap()["cpu"].0, "2");
    assert_eq!(
        warned(&mapped),
        [
            "Queue research: spec.dequeueStrategy",
            "Queue research: spec.extendClusters",
            "Queue research: spec.type",
        ]
    );
}

const KUEUE: &str = r"
apiVersion: kueue.x-k8s.io/v1beta1
kind: Cohort
metadata: {name: org}
spec:
  resourceGroups:
  - coveredResources: [nvidia.com/gpu]
    flavors: [{name: h100, resources: [{name: nvidia.com/gpu, nominalQuota: 2}]}]
---
apiVersion: kueue.x-k8s.io/v1beta1
kind: ClusterQueue
metadata: {name: a}
spec:
  cohort: team
  queueingStrategy: BestEffortFIFO
  namespaceSelector: {}
  fairSharing: {weight: '0.5'}
  stopPolicy: Hold
  preemption:
    withinClusterQueue: LowerPriority
    reclaimWithinCohort: Any
    borrowWithinCohort: {policy: LowerPriority, maxPriorityThreshold: 100}
  resourceGroups:
  - coveredResources: [cpu, nvidia.com/gpu]
    flavors:
    - name: h100
      resources:
      - {name: cpu, nominalQuota: 500m}
      - {name: nvidia.com/gpu, nominalQuota: '8', borrowingLimit: '4', lendingLimit: '6'}
    - name: a100
      resources:
      - {name: cpu, nominalQuota: '1'}
      - {name: nvidia.com/gpu, nominalQuota: '3', borrowingLimit: '1'}
---
apiVersion: kueue.x-k8s.io/v1beta1
kind: Cohort
metadata: {name: team}
spec: {parentName: org}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ClusterQueue
metadata: {name: alone}
spec:
  queueingStrategy: StrictFIFO
  admissionChecks: [prov]
  resourceGroups:
  - coveredResources: [nvidia.com/gpu]
    flavors: [{name: h100, resources: [{name: nvidia.com/gpu, nominalQuota: '5'}]}]
---
apiVersion: kueue.x-k8s.io/v1beta1
kind: ResourceFlavor
metadata: {name: h100}
spec: {nodeLabels: {gpu: h100}, topologyName: fabric}
---
apiVersion: kueue.x-k8s.io/v1beta1
kind: Topology
metadata: {name: fabric}
spec: {levels: [{nodeLabel: block}, {nodeLabel: rack}]}
";

#[test]
fn kueues_cohorts_are_inner_queues_and_nominal_quota_is_deserved() {
    let mapped = mapped(KUEUE);
    let names: Vec<_> = mapped
        .queues
        .iter()
        .map(|q| q.metadata.name.clone().unwrap())
        .collect();
    assert_eq!(names, ["org", "alone", "team", "a"], "parents come first");
    // Its own two and the sum below it; without a cohort it cannot borrow.
    let whole = json!({"cpu": "1500m", "nvidia.com/gpu": "13"});
    assert_eq!(
        said(&mapped, "org"),
        json!({"weight": 1, "deserved": whole, "capability": whole})
    );
    assert_eq!(
        said(&mapped, "team"),
        json!({"weight": 1, "parent": "org", "deserved": {"cpu": "1500m", "nvidia.com/gpu": "11"}})
    );
    assert_eq!(
        said(&mapped, "a"),
        json!({
            "weight": 1, "parent": "team", "state": "Closing",
            "deserved": {"cpu": "1500m", "nvidia.com/gpu": "11"},
            "notes": {
                "borrowing-limit": {"nvidia.com/gpu": "5"},
                "lending-limit": {"nvidia.com/gpu": "6"},
                "surplus-weight": "500m",
                "preemption": {
                    "withinQueue": "LowerPriority", "reclaim": "Any", "fair": null,
                    "borrow": {"policy": "LowerPriority", "maxPriorityThreshold": 100},
                },
            },
        })
    );
    let alone = said(&mapped, "alone");
    assert_eq!(
        alone["capability"],
        json!({"cpu": "0", "nvidia.com/gpu": "5"})
    );
    // Without a preemption setting, the queue evicts no gang.
    assert_eq!(alone["notes"]["preemption"]["reclaim"], "Never");
    assert_eq!(mapped.levels, ["block", "rack"]);
    assert_eq!(
        warned(&mapped),
        [
            "ClusterQueue a: spec.resourceGroups[0].flavors",
            "ClusterQueue alone: spec.queueingStrategy",
            "ClusterQueue alone: spec.admissionChecks",
            "ResourceFlavor h100: spec.nodeLabels",
        ]
    );
}

#[test]
fn kueues_fair_sharing_applies_to_every_queue_and_a_cohort_may_have_a_queues_name() {
    let mapped = mapped(
        r"
apiVersion: config.kueue.x-k8s.io/v1beta1
kind: Configuration
fairSharing: {enable: true, preemptionStrategies: [LessThanInitialShare]}
---
apiVersion: kueue.x-k8s.io/v1beta1
kind: ClusterQueue
metadata: {name: all}
spec: {cohort: all}
",
    );
    assert_eq!(said(&mapped, "all")["parent"], "cohort-all");
    for name in ["all", "cohort-all"] {
        let fair = &said(&mapped, name)["notes"]["preemption"]["fair"];
        assert_eq!(*fair, json!(["LessThanInitialShare"]));
    }
}

#[test]
fn yunikorns_guaranteed_is_deserved_and_max_is_capability() {
    let mapped = mapped(
        r"
partitions:
- name: default
  placementrules: [{name: tag}]
  queues:
  - name: root
    submitacl: '*'
    queues:
    - name: research
      parent: true
      resources:
        guaranteed: {vcore: 500m, memory: 10Gi, nvidia.com/gpu: 8}
        max: {vcore: 100, nvidia.com/gpu: 16}
      properties: {priority.offset: '5', preemption.policy: fence}
      limits:
      - {limit: everybody, users: ['*'], maxapplications: 3, maxresources: {nvidia.com/gpu: 2}}
      - {limit: groups, groups: ['*', ops], maxresources: {vcore: 4}}
      queues:
      - name: night
        properties:
          application.sort.policy: fifo
          application.sort.priority: disabled
          preemption.policy: disabled
      - name: shared
        properties: {application.sort.policy: fair}
",
    );
    assert_eq!(said(&mapped, "root"), json!({"weight": 1}));
    assert_eq!(
        said(&mapped, "root.research"),
        json!({
            "weight": 1, "parent": "root", "priority": 5,
            "deserved": {"cpu": "500m", "nvidia.com/gpu": "8"},
            "capability": {"cpu": "100", "nvidia.com/gpu": "16"},
            "notes": {"user-limit": {"nvidia.com/gpu": "2"}, "team-limit": {"cpu": "4"}},
        })
    );
    assert_eq!(
        said(&mapped, "root.research.night"),
        json!({
            "weight": 1, "parent": "root.research", "reclaimable": false,
            "notes": {"policy": "fifo", "preemption": {"withinQueue": "Never", "reclaim": "Never"}},
        })
    );
    assert_eq!(
        said(&mapped, "root.research.shared")["notes"]["policy"],
        "fair"
    );
    assert_eq!(
        warned(&mapped),
        [
            "queue configuration: partitions[0].queues[0].queues[0].properties.preemption.policy",
            "queue configuration: partitions[0].queues[0].queues[0].limits[0].maxapplications",
            "queue configuration: partitions[0].queues[0].queues[0].limits[1].groups",
            "queue configuration: partitions[0].queues[0].queues[0].queues[1].properties.application.sort.policy",
            "queue configuration: partitions[0].queues[0].submitacl",
            "queue configuration: partitions[0].placementrules",
        ]
    );
}

#[test]
fn kais_quota_is_deserved_and_minus_one_is_no_bound() {
    let mapped = mapped(
        r"
apiVersion: scheduling.run.ai/v2
kind: Queue
metadata: {name: team}
spec:
  displayName: Team
  parentQueue: dept
  preemptMinRuntime: 5m
  resources:
    gpu: {quota: 2.5, overQuotaWeight: 3, limit: 8}
    cpu: {quota: 1500, overQuotaWeight: 0, limit: -1}
    memory: {quota: 64000, limit: -1}
---
apiVersion: scheduling.run.ai/v2
kind: Queue
metadata: {name: dept}
spec: {priority: 7, resources: {gpu: {quota: -1}}}
",
    );
    assert_eq!(
        said(&mapped, "team"),
        json!({
            "weight": 1, "parent": "dept", "priority": 100,
            "deserved": {"nvidia.com/gpu": "2500m", "cpu": "1500m"},
            "capability": {"nvidia.com/gpu": "8"},
            "notes": {"surplus-weight": {"nvidia.com/gpu": "3", "cpu": "0"}},
        })
    );
    let memory = &mapped.queues[1].spec.deserved.as_ref().unwrap()["memory"].0;
    assert_eq!(memory, "64G");
    let dept = said(&mapped, "dept");
    assert_eq!(dept["priority"], 7);
    assert_eq!(
        dept["deserved"],
        json!({"nvidia.com/gpu": "100M", "cpu": "0"})
    );
    assert_eq!(warned(&mapped), ["Queue team: spec.preemptMinRuntime"]);
}

#[test]
fn koordinators_min_is_deserved_max_is_capability_and_unlent_quota_is_kept() {
    let mapped = mapped(
        r#"
apiVersion: scheduling.sigs.k8s.io/v1alpha1
kind: ElasticQuota
metadata:
  name: parent
  labels: {quota.scheduling.koordinator.sh/is-parent: 'true', quota.scheduling.koordinator.sh/tree-id: t, app: x}
spec: {min: {cpu: '40'}, max: {cpu: '100', nvidia.com/gpu: '10'}}
---
apiVersion: scheduling.sigs.k8s.io/v1alpha1
kind: ElasticQuota
metadata:
  name: child
  labels:
    quota.scheduling.koordinator.sh/parent: parent
    quota.scheduling.koordinator.sh/allow-lent-resource: 'false'
  annotations:
    quota.scheduling.koordinator.sh/shared-weight: '{"cpu": "5"}'
    quota.scheduling.koordinator.sh/runtime: '{"cpu": "7"}'
    quota.scheduling.koordinator.sh/namespaces: '["a"]'
spec: {min: {cpu: '20'}, max: {cpu: '60'}}
"#,
    );
    let parent = said(&mapped, "parent");
    let most = json!({"cpu": "100", "nvidia.com/gpu": "10"});
    assert_eq!(parent["capability"], most);
    assert_eq!(parent["notes"]["surplus-weight"], most);
    assert_eq!(
        said(&mapped, "child"),
        json!({
            "weight": 1, "parent": "parent", "deserved": {"cpu": "20"}, "capability": {"cpu": "60"},
            "notes": {"surplus-weight": {"cpu": "5"}, "lending-limit": {"cpu": "0"}},
        })
    );
    assert_eq!(
        warned(&mapped),
        [
            "ElasticQuota parent: metadata.labels.quota.scheduling.koordinator.sh/tree-id",
            "ElasticQuota child: metadata.annotations.quota.scheduling.koordinator.sh/namespaces",
        ]
    );
}

#[test]
fn what_cannot_be_read_is_named_with_what_would_be_right() {
    let table = [
        (
            "{apiVersion: kueue.x-k8s.io/v1beta1, kind: ClusterQueue, metadata: {name: a}, spec: {stopPolicy: Pause}}",
            "ClusterQueue a: spec.stopPolicy: \"Pause\"",
            "HoldAndDrain",
        ),
        (
            "{apiVersion: scheduling.sigs.k8s.io/v1alpha1, kind: ElasticQuota, metadata: {name: a}, spec: {min: {cpu: lots}}}",
            "ElasticQuota a: spec.min.cpu: \"lots\"",
            "500m",
        ),
        (
            "{partitions: [{queues: [{name: root, properties: {priority.offset: high}}]}]}",
            "queue configuration: partitions[0].queues[0].properties.priority.offset: \"high\"",
            "whole number",
        ),
        (
            "{apiVersion: scheduling.volcano.sh/v1beta1, kind: Queue, metadata: {name: a}, spec: {capability: {cpu: 1x}}}",
            "Queue a: spec.capability.cpu: \"1x\"",
            "500m",
        ),
    ];
    for (text, start, wanted) in table {
        let error = queues(&documents(text)).unwrap_err().to_string();
        assert!(
            error.starts_with(start) && error.contains(wanted),
            "{error}"
        );
    }
}

#[test]
fn a_closed_queue_is_recognised_by_its_state() {
    let mapped = mapped(
        "{apiVersion: kueue.x-k8s.io/v1beta1, kind: ClusterQueue, metadata: {name: a}, spec: {stopPolicy: HoldAndDrain}}",
    );
    let state = mapped.queues[0].status.as_ref().unwrap().state;
    assert_eq!(state, Some(QueueState::Closed));
    assert_eq!(warned(&mapped), ["ClusterQueue a: spec.stopPolicy"]);
}
