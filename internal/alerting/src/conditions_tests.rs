//! Each condition at its threshold, with its message.

use serde_json::{Value, json};

use super::*;
use crate::rule::Severity;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn node(status: Value, annotations: Value) -> Node {
    let node = json!({"metadata": {"name": "gpu7", "annotations": annotations}, "status": status});
    serde_json::from_value(node).unwrap()
}

fn of_one(node: &Node) -> Vec<(Rule, String, String)> {
    let found = conditions([node], [], &ServerFacts::default(), at(0));
    found
        .into_iter()
        .map(|one| (one.rule, one.subject.name, one.message))
        .collect()
}

#[test]
fn a_lost_node_is_one_condition_with_its_gpus_whatever_its_agent_said_before() {
    let lost = node(
        json!({
            "capacity": {"nvidia.com/gpu": "8"}, "allocatable": {"nvidia.com/gpu": "7"},
            "conditions": [
                {"type": "Ready", "status": "Unknown", "lastTransitionTime": "2026-11-01T10:00:00Z"},
                {"type": "DiskPressure", "status": "True"},
            ],
        }),
        json!({}),
    );
    let found = conditions([&lost], [], &ServerFacts::default(), at(0));
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].rule, Rule::NodeLost);
    assert_eq!(
        found[0].since,
        Some("2026-11-01T10:00:00Z".parse().unwrap())
    );
    assert_eq!(
        found[0].message,
        "the agent of node gpu7 does not answer; its 8 GPUs cannot be used"
    );
    let well = node(
        json!({
            "capacity": {"nvidia.com/gpu": "8"}, "allocatable": {"nvidia.com/gpu": "8"},
            "conditions": [{"type": "Ready", "status": "True"}, {"type": "DiskPressure", "status": "False"}],
        }),
        json!({}),
    );
    assert_eq!(of_one(&well), []);
}

#[test]
fn each_condition_of_a_node_is_told_with_its_message() {
    let ill = node(
        json!({
            "capacity": {"nvidia.com/gpu": "8"}, "allocatable": {"nvidia.com/gpu": "6"},
            "conditions": [
                {"type": "Ready", "status": "False", "message": "the container runtime is down."},
                {"type": "muster.io/suspect", "status": "True", "message": "a PCIe link is slow"},
                {"type": "muster.io/fabric-failed", "status": "True", "reason": "PortDown"},
                {"type": "DiskPressure", "status": "True"},
            ],
        }),
        json!({"muster.io/alerts": json!([
            {"alert": "GpuHot", "id": "GPU-0", "gpu": 3, "since": "2026-01-02T03:04:05Z", "value": 91.0},
        ]).to_string()}),
    );
    let found = of_one(&ill);
    let told: Vec<(Rule, &str)> = found
        .iter()
        .map(|(rule, name, _)| (*rule, name.as_str()))
        .collect();
    assert_eq!(
        told,
        [
            (Rule::NodeNotReady, "gpu7"),
            (Rule::GpuUnhealthy, "gpu7"),
            (Rule::NodeFabricFailed, "gpu7"),
            (Rule::NodeSuspect, "gpu7"),
            (Rule::NodeDiskPressure, "gpu7"),
            (Rule::GpuHot, "gpu7/3"),
        ]
    );
    let words: Vec<&str> = found.iter().map(|(_, _, words)| words.as_str()).collect();
    assert_eq!(
        words[0],
        "node gpu7 takes no pods: the container runtime is down"
    );
    assert_eq!(
        words[1],
        "2 of 8 GPUs of node gpu7 are taken out of use as unhealthy"
    );
    assert_eq!(words[2], "the RDMA of node gpu7: PortDown");
    assert_eq!(
        words[4],
        "the disk is nearly full on node gpu7: the node gives no reason"
    );
    assert!(
        words[5].starts_with("node gpu7: GPU 3 is over 85 °C"),
        "{}",
        words[5]
    );
}

#[test]
fn quotas_and_the_server_are_judged_at_their_thresholds() {
    let quota = |used: &str| -> ResourceQuota {
        serde_json::from_value(json!({
            "metadata": {"namespace": "vision", "name": "team"},
            "status": {
                "hard": {"requests.nvidia.com/gpu": "10", "pods": "0", "cpu": "4"},
                "used": {"requests.nvidia.com/gpu": used, "pods": "0", "cpu": "3500m"},
            },
        }))
        .unwrap()
    };
    let none = ServerFacts::default();
    assert_eq!(conditions([], [&quota("8")], &none, at(0)), []);
    let found = conditions([], [&quota("9")], &none, at(0));
    assert_eq!(found[0].subject.name, "vision/team");
    assert_eq!(found[0].subject.owner(), "vision");
    assert_eq!(
        found[0].message,
        "the quota team of namespace vision is used to 90% or more: nvidia.com/gpu 9 of 10"
    );

    let week = 7 * 86_400;
    for (ends, message) in [
        (week, None),
        (week - 1, Some("expires at 1970-01-07T23:59:59Z")),
        (0, Some("expired at 1970-01-01T00:00:00Z")),
    ] {
        let server = ServerFacts {
            certificate_ends: Some(at(ends)),
            ..ServerFacts::default()
        };
        let found = conditions([], [], &server, at(0));
        assert_eq!(!found.is_empty(), message.is_some(), "{ends}");
        if let Some(message) = message {
            assert!(found[0].message.ends_with(message), "{}", found[0].message);
        }
    }
    let gib = 1_u64 << 30;
    for (free, total, low) in [
        (4 * gib, 100 * gib, true),
        (6 * gib, 200 * gib, false),
        (2 * gib, 20 * gib, false),
    ] {
        let server = ServerFacts {
            certificate_ends: None,
            disk: Some(DiskFacts {
                path: "/var/lib/muster".to_owned(),
                free,
                total,
            }),
            backup: None,
        };
        let found = conditions([], [], &server, at(0));
        assert_eq!(!found.is_empty(), low, "{free} of {total}");
    }
    assert_eq!(Rule::ServerDiskLow.severity(), Severity::Critical);
}

#[test]
fn a_failed_backup_and_one_that_is_overdue_are_told() {
    let facts = |last: Option<i64>, failure: Option<&str>| BackupFacts {
        directory: "/backups".to_owned(),
        last: last.map(at),
        begun: at(0),
        every: SignedDuration::from_secs(100),
        failure: failure.map(str::to_owned),
    };
    let table = [
        (facts(None, None), 200, None),
        (
            facts(None, None),
            201,
            Some("the server has taken no backup in /backups in time; there is none"),
        ),
        (facts(Some(150), None), 350, None),
        // The server was off: its backups begin again with it.
        (facts(Some(-900), None), 150, None),
        (
            facts(None, Some("the disk is full")),
            1,
            Some(
                "the server could not take its backup in /backups (there is none): the disk is full",
            ),
        ),
    ];
    for (facts, now, want) in table {
        let server = ServerFacts {
            backup: Some(facts.clone()),
            ..ServerFacts::default()
        };
        let found = conditions([], [], &server, at(now));
        let message = found.first().map(|condition| condition.message.as_str());
        assert_eq!(message, want, "{facts:?} {now}");
        assert!(found.iter().all(|one| one.rule == Rule::BackupFailed));
    }
}
