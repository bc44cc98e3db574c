//! The content of a manifest file beyond arriving pods: scheduler settings, running and terminating
//! pods, queues of other schedulers; and how unreadable input is refused.
#![allow(clippy::unwrap_used, reason = "a test's helpers may fail the test")]

use serde_json::Value;
use simulator::read::{InputFile, ReadOptions, read};
use simulator::{Scenario, SimulationOptions, run};

const NODE: &str = r#"
apiVersion: v1
kind: Node
metadata: {name: n1}
status: {allocatable: {cpu: "64", memory: 256Gi, pods: "110", nvidia.com/gpu: "8"}}
"#;

fn scenario(text: &str) -> Scenario {
    let file = "case.yaml";
    read(&[InputFile { file, text }], &ReadOptions::default()).unwrap()
}

/// The decisions on pods and gangs, a line each.
fn lines(text: &str, until: i64) -> Vec<String> {
    let mut lines = Vec::new();
    let options = SimulationOptions {
        until: Some(until),
        ..SimulationOptions::default()
    };
    let mut record = |decision: &simulator::Decision<'_>| {
        let line = serde_json::to_value(decision).unwrap();
        let word = |name: &str| line[name].as_str().unwrap_or_default().to_owned();
        let pod = match word("pod") {
            pod if pod.is_empty() => word("group"),
            pod => pod,
        };
        let said = format!("{} {} {pod}", line["second"], word("decision"));
        lines.push(format!("{said} {}", word("node")).trim_end().to_owned());
    };
    run(&scenario(text), &options, &mut record).unwrap();
    lines
}

fn with(parts: &[&str]) -> String {
    parts.join("---\n")
}

fn pod(name: &str, gpus: u32, metadata: &str, spec: &str) -> String {
    format!(
        r#"
apiVersion: v1
kind: Pod
metadata: {{name: {name}, {metadata}}}
spec: {{{spec} containers: [{{name: main, resources: {{limits: {{nvidia.com/gpu: "{gpus}"}}}}}}]}}
"#
    )
}

#[test]
fn a_pod_that_is_leaving_holds_its_room_until_its_grace_is_over() {
    let leaving = "deletionTimestamp: '2025-12-31T00:00:00Z'";
    let text = with(&[
        NODE,
        &pod("old", 8, leaving, "nodeName: n1,"),
        &pod("new", 8, "", ""),
    ]);
    // No controller recreates a pod without group or owner.
    assert_eq!(
        lines(&text, 100),
        [
            "0 nominated new n1",
            "30 gone old n1",
            "30 ended old",
            "30 bound new n1",
            "30 started new",
        ]
    );
}

#[test]
fn a_leaving_member_of_a_gang_is_made_again() {
    let group = "annotations: {scheduling.k8s.io/group-name: g}";
    let leaving = format!("{group}, deletionTimestamp: '2025-12-31T00:00:00Z'");
    let text = with(&[
        NODE,
        "{kind: PodGroup, metadata: {name: g}, spec: {minMember: 1}}\n",
        &pod("stays", 4, group, "nodeName: n1,"),
        &pod("goes", 4, &leaving, "nodeName: n1,"),
    ]);
    assert_eq!(
        lines(&text, 100),
        ["0 started g", "30 gone goes n1", "30 bound goes n1"]
    );
}

#[test]
fn a_pod_with_a_finalizer_leaves_and_never_goes() {
    let leaving = "deletionTimestamp: '2025-12-31T00:00:00Z', finalizers: [a/b]";
    let text = with(&[
        NODE,
        &pod("old", 8, leaving, "nodeName: n1,"),
        &pod("new", 8, "", ""),
    ]);
    assert_eq!(lines(&text, 100_000), ["0 nominated new n1"]);
}

#[test]
fn work_that_saves_itself_on_eviction_has_its_time_and_loses_nothing() {
    let class = |name: &str, value: u32| {
        format!(
            "{{kind: PriorityClass, apiVersion: scheduling.k8s.io/v1, metadata: {{name: {name}}}, value: {value}}}\n"
        )
    };
    let lost = |grace: &str| {
        let saves = format!(
            "annotations: {{muster.io/duration: '1000'{grace}}}, ownerReferences: [{{apiVersion: batch/v1, kind: Job, name: j, uid: u}}]"
        );
        let late = "annotations: {muster.io/arrival: '100', muster.io/duration: '50'}";
        let text = with(&[
            NODE,
            &class("low", 1),
            &class("high", 9),
            &pod("old", 8, &saves, "priorityClassName: low, priority: 1,"),
            &pod("new", 8, late, "priorityClassName: high, priority: 9,"),
        ]);
        let mut found = (None, None);
        let options = SimulationOptions {
            until: Some(1000),
            ..SimulationOptions::default()
        };
        run(&scenario(&text), &options, &mut |decision| {
            let line = serde_json::to_value(decision).unwrap();
            match line["decision"].as_str() {
                Some("interrupted") => found.0 = line["lostGpuSeconds"].as_i64(),
                Some("gone") if found.1.is_none() => found.1 = line["second"].as_i64(),
                _ => {}
            }
        })
        .unwrap();
        found
    };
    assert_eq!(lost(""), (Some(800), Some(130)));
    assert_eq!(
        lost(", muster.io/checkpoint-grace: 2m"),
        (Some(0), Some(220))
    );
}

#[test]
fn one_action_alone_can_be_asked_for() {
    let class = |name: &str, value: u32| {
        format!(
            "{{apiVersion: scheduling.k8s.io/v1, kind: PriorityClass, metadata: {{name: {name}}}, value: {value}}}\n"
        )
    };
    let config = |actions: &str| {
        format!(
            "{{apiVersion: muster.io/v1alpha1, kind: SchedulerConfig, spec: {{actions: [{actions}]}}}}\n"
        )
    };
    let file = |actions: &str| {
        with(&[
            NODE,
            &class("low", 1),
            &class("high", 9),
            &pod(
                "runs",
                8,
                "",
                "nodeName: n1, priorityClassName: low, priority: 1,",
            ),
            &pod("wants", 8, "", "priorityClassName: high, priority: 9,"),
            &config(actions),
        ])
    };
    assert_eq!(
        lines(&file("preempt"), 0),
        [
            "0 started runs",
            "0 evicted runs n1",
            "0 interrupted runs",
            "0 nominated wants n1"
        ]
    );
    for other in ["allocate", "reclaim", "consolidate"] {
        assert_eq!(
            lines(&file(other), 0),
            ["0 started runs", "0 pending wants"]
        );
    }
}

#[test]
fn a_disruption_budget_protects_the_pods_it_selects() {
    let file = |least: u32| {
        with(&[
            NODE,
            "{kind: PriorityClass, metadata: {name: high}, value: 9}\n",
            &pod("kept", 8, "labels: {app: web}", "nodeName: n1,"),
            &pod("wants", 8, "", "priorityClassName: high, priority: 9,"),
            &format!(
                "{{kind: PodDisruptionBudget, metadata: {{name: b}}, spec: {{minAvailable: {least}, selector: {{matchLabels: {{app: web}}}}}}}}\n"
            ),
        ])
    };
    let evicted = |least: u32| lines(&file(least), 0).contains(&"0 evicted kept n1".to_owned());
    assert!(evicted(0) && !evicted(1));
}

#[test]
fn a_pod_on_a_node_that_is_not_there_stays_there() {
    let text = with(&[
        NODE,
        &pod("far", 8, "", "nodeName: n9,"),
        &pod("new", 8, "", ""),
    ]);
    assert!(scenario(&text).notes[0].contains("n9"));
    assert_eq!(
        lines(&text, 0),
        ["0 started far", "0 bound new n1", "0 started new"]
    );
}

#[test]
fn work_without_any_node_waits_and_says_why() {
    assert_eq!(lines(&pod("new", 8, "", ""), 0), ["0 pending new"]);
}

#[test]
fn others_queues_bind_like_musters() {
    let text = with(&[
        NODE,
        "
apiVersion: kueue.x-k8s.io/v1beta1
kind: ClusterQueue
metadata: {name: a}
spec:
  admissionChecks: [x]
  resourceGroups:
  - coveredResources: [nvidia.com/gpu]
    flavors: [{name: f, resources: [{name: nvidia.com/gpu, nominalQuota: 4}]}]
",
        "{apiVersion: kueue.x-k8s.io/v1beta1, kind: Topology, metadata: {name: t}, spec: {levels: [{nodeLabel: rack}]}}\n",
        &pod(
            "one",
            4,
            "labels: {scheduling.volcano.sh/queue-name: a}",
            "",
        ),
        &pod(
            "two",
            4,
            "labels: {scheduling.volcano.sh/queue-name: a}",
            "",
        ),
    ]);
    let scenario = scenario(&text);
    assert!(
        scenario
            .notes
            .iter()
            .any(|note| note.contains("spec.admissionChecks"))
    );
    assert_eq!(scenario.settings.topology.unwrap(), ["rack"]);
    let bound = lines(&text, 0)
        .iter()
        .filter(|line| line.contains("bound"))
        .count();
    assert_eq!(bound, 1);
}

#[test]
fn hypernodes_are_the_topology_and_limits_are_in_their_tiers() {
    let node = |name: &str| NODE.replace("name: n1", &format!("name: {name}"));
    let domain = |name: &str, tier: u32, kind: &str, members: [&str; 2]| {
        let member =
            |name: &str| format!("{{type: {kind}, selector: {{exactMatch: {{name: {name}}}}}}}");
        let members = members.map(member).join(", ");
        format!(
            "{{apiVersion: topology.volcano.sh/v1alpha1, kind: HyperNode, metadata: {{name: {name}}}, spec: {{tier: {tier}, members: [{members}]}}}}\n"
        )
    };
    let file = |limit: u32| {
        let group = "annotations: {scheduling.k8s.io/group-name: g}";
        let pods = ["a", "b", "c"].map(|name| pod(name, 8, group, ""));
        let mut parts = ["n1", "n2", "n3", "n4"].map(node).to_vec();
        parts.extend(pods);
        parts.push(domain("leaf0", 2, "Node", ["n1", "n2"]));
        parts.push(domain("leaf1", 2, "Node", ["n3", "n4"]));
        // Tier numbers need not be consecutive.
        parts.push(domain("spine", 5, "HyperNode", ["leaf0", "leaf1"]));
        parts.push(format!(
            "{{kind: PodGroup, metadata: {{name: g}}, spec: {{minMember: 3, networkTopology: {{mode: hard, highestTierAllowed: {limit}}}}}}}\n"
        ));
        parts.join("---\n")
    };
    let topology = scenario(&file(2)).settings.topology.unwrap();
    assert_eq!(topology, ["muster.io/tier-5", "muster.io/tier-2"]);
    assert_eq!(lines(&file(2), 0), ["0 pending g"]);
    assert_eq!(
        lines(&file(5), 0).len(),
        4,
        "three are bound, the gang starts"
    );
}

#[test]
fn when_a_pod_started_is_kept() {
    let started = |name: &str, at: &str| {
        pod(
            name,
            4,
            "",
            "nodeName: n1, priority: 1, priorityClassName: low,",
        ) + &format!("status: {{phase: Running, startTime: '{at}'}}\n")
    };
    let text = with(&[
        NODE,
        "{kind: PriorityClass, metadata: {name: high}, value: 9}\n",
        "{kind: PriorityClass, metadata: {name: low}, value: 1}\n",
        &started("later", "2025-12-31T02:00:00Z"),
        &started("sooner", "2025-12-31T01:00:00Z"),
        &pod("wants", 4, "", "priorityClassName: high, priority: 9,"),
    ]);
    let lines = lines(&text, 0);
    assert!(
        lines.contains(&"0 evicted later n1".to_owned()),
        "{lines:?}"
    );
}

#[test]
fn a_pods_runtime_before_the_start_counts_in_its_end_and_in_estimates() {
    let times = "annotations: {muster.io/duration: '1000', muster.io/walltime: '1000'}";
    let text = with(&[
        NODE,
        &(pod("runs", 8, times, "nodeName: n1,")
            + "status: {phase: Running, startTime: '2025-12-31T00:00:00Z'}\n"),
        // The last event in the objects: the simulation starts then.
        &pod("wants", 8, "creationTimestamp: '2025-12-31T00:10:00Z'", ""),
    ]);
    let mut told = None;
    let mut record = |decision: &simulator::Decision<'_>| {
        let line = serde_json::to_value(decision).unwrap();
        if line["decision"] == "pending" {
            told = line["report"]["estimate"]["likely"]
                .as_str()
                .map(str::to_owned);
        }
    };
    run(&scenario(&text), &SimulationOptions::default(), &mut record).unwrap();
    assert_eq!(told.as_deref(), Some("2025-12-31T00:16:40Z"));
    let lines = lines(&text, 1000);
    assert!(
        lines.contains(&"400 bound wants n1".to_owned()),
        "{lines:?}"
    );
}

#[test]
fn unreadable_input_is_refused_with_place_field_value_and_accepted_form() {
    let config = "apiVersion: muster.io/v1alpha1\nkind: SchedulerConfig\n";
    let queue = |text: &str| format!("kind: Queue\nmetadata: {{name: q{text}}}\n");
    let note = |name: &str, value: &str| {
        format!(
            "kind: Queue\nmetadata: {{name: q, annotations: {{muster.io/{name}: '{value}'}}}}\n"
        )
    };
    let table: [(String, &[&str]); 15] = [
        (
            format!("{config}spec: {{actions: [alocate]}}"),
            &["document 2", "SchedulerConfig, spec.actions", "\"alocate\"", "allocate, consolidate"],
        ),
        (
            format!("{config}---\n{config}"),
            &["document 3", "SchedulerConfig", "document 2 has this one"],
        ),
        (note("policy", "lifo"), &["document 2", "muster.io/policy] of Queue q", "\"lifo\"", "fifo"]),
        (note("borrowing-limit", "8"), &["borrowing-limit", "\"8\"", "nvidia.com/gpu"]),
        (
            note("preemption", "{\"reclaim\": \"Some\"}"),
            &["preemption", "unknown variant `Some`", "LowerPriority"],
        ),
        (
            queue(", annotations: {muster.io/user-limit: 3}"),
            &["user-limit", "\"3\"", "quotes"],
        ),
        (
            format!("{}apiVersion: example.com/v2\n", queue("")),
            &["document 2", "apiVersion", "example.com/v2", "scheduling.volcano.sh/v1beta1"],
        ),
        (
            format!("{}---\n{}", queue(""), queue("")),
            &["document 3", "metadata.name", "\"q\"", "document 2"],
        ),
        (
            pod("p", 1, "annotations: {muster.io/gpu-fraction: '1.5'}", ""),
            &["gpu-fraction] of Pod p", "\"1.5\"", "0.5"],
        ),
        (
            pod("p", 1, "annotations: {muster.io/devices: 'GPU-1'}", ""),
            &["muster.io/devices", "\"GPU-1\"", "{\"main\""],
        ),
        (
            "kind: List\nitems:\n- {kind: Pod, metadata: {name: a}, spec: {containers: []}}\n- {kind: Pod}\n".to_owned(),
            &["document 2, item 2", "metadata.name"],
        ),
        (
            pod("p", 1, "", "tolerations: [{operator: Equals}],"),
            &["document 2", "spec.tolerations[0].operator of Pod p", "\"Equals\"", "Exists, Equal"],
        ),
        (
            "kind: StorageClass\nmetadata: {name: s}\nprovisioner: x\nvolumeBindingMode: Later\n".to_owned(),
            &["volumeBindingMode of StorageClass s", "\"Later\"", "WaitForFirstConsumer"],
        ),
        (
            queue("").replace("}", "}\nspec: {guarantee: {resource: {cpu: '-1'}}}"),
            &["spec.guarantee.resource.cpu", "\"-1\"", "500m"],
        ),
        (
            "apiVersion: scheduling.sigs.k8s.io/v1alpha1\nkind: ElasticQuota\nmetadata: {name: e}\nspec: {min: {cpu: many}}\n".to_owned(),
            &["document 2", "ElasticQuota e, spec.min.cpu", "\"many\"", "500m"],
        ),
    ];
    for (text, words) in table {
        let text = with(&[NODE, &text]);
        let source = InputFile {
            file: "case.yaml",
            text: &text,
        };
        let error = read(&[source], &ReadOptions::default())
            .unwrap_err()
            .to_string();
        for word in words {
            assert!(error.contains(word), "{word:?} is not in: {error}");
        }
    }
}

#[test]
fn a_value_that_only_makes_a_gang_wait_is_noted() {
    let slices = "annotations: {muster.io/topology: '{\"slices\": [{\"level\": \"rack\"}]}'}";
    let text = with(&[
        NODE,
        &pod("p", 1, slices, ""),
        &pod(
            "q",
            1,
            "annotations: {muster.io/topolgy: '{}'}",
            "nodeSelecter: {a: b},",
        ),
    ]);
    let notes = scenario(&text).notes.join("\n");
    for word in [
        "document 2",
        "missing field `size`",
        "muster.io/topolgy of Pod q",
        "spec.nodeSelecter of Pod q",
    ] {
        assert!(notes.contains(word), "{word:?} is not in: {notes}");
    }
    let lines = lines(&text, 0);
    assert_eq!(lines, ["0 bound q n1", "0 started q", "0 pending p"]);
}

#[test]
fn volumes_say_where_pods_go() {
    let zone = |zone: &str| {
        let name = format!("name: n-{zone}, labels: {{zone: {zone}}}");
        NODE.replace("name: n1", &name)
    };
    let volume = r#"
apiVersion: v1
kind: PersistentVolume
metadata: {name: pv}
spec:
  capacity: {storage: 1Ti}
  accessModes: [ReadWriteMany]
  nodeAffinity: {required: {nodeSelectorTerms: [{matchExpressions: [{key: zone, operator: In, values: [b]}]}]}}
"#;
    let claim = r#"
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec: {volumeName: pv, accessModes: [ReadWriteMany], resources: {requests: {storage: 1Ti}}}
"#;
    let mount = "volumes: [{name: d, persistentVolumeClaim: {claimName: data}}],";
    let text = with(&[
        &zone("a"),
        &zone("b"),
        volume,
        claim,
        &pod("p", 1, "", mount),
    ]);
    assert_eq!(lines(&text, 0), ["0 bound p n-b", "0 started p"]);
}

#[test]
fn nodes_take_as_many_disks_as_their_csi_nodes_say() {
    let disk = |name: &str| {
        format!(
            r#"
apiVersion: v1
kind: PersistentVolume
metadata: {{name: {name}}}
spec: {{capacity: {{storage: 1Ti}}, accessModes: [ReadWriteOnce], csi: {{driver: d, volumeHandle: {name}}}}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {{name: {name}}}
spec: {{volumeName: {name}, accessModes: [ReadWriteOnce], resources: {{requests: {{storage: 1Ti}}}}}}
"#
        )
    };
    let limit = r#"
apiVersion: storage.k8s.io/v1
kind: CSINode
metadata: {name: n1}
spec: {drivers: [{name: d, nodeID: n1, allocatable: {count: 1}}]}
"#;
    let mount = |claim: &str| {
        format!("volumes: [{{name: d, persistentVolumeClaim: {{claimName: {claim}}}}}],")
    };
    let text = with(&[
        NODE,
        limit,
        &disk("one"),
        &disk("two"),
        &pod("p", 1, "", &mount("one")),
        &pod("q", 1, "", &mount("two")),
    ]);
    let said = lines(&text, 0);
    assert_eq!(said, ["0 bound p n1", "0 started p", "0 pending q"]);
}

#[test]
fn a_list_as_kubectl_prints_it_is_its_items() {
    let list = serde_json::json!({
        "apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": ""},
        "items": [
            serde_norway::from_str::<Value>(NODE).unwrap(),
            serde_norway::from_str::<Value>(&pod("p", 1, "", "")).unwrap(),
        ],
    });
    let text = serde_norway::to_string(&list).unwrap();
    assert_eq!(lines(&text, 0), ["0 bound p n1", "0 started p"]);
}
