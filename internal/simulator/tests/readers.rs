//! Tables of the readers: what each format yields, and the message for each fault.
#![allow(clippy::unwrap_used, reason = "a test's helpers may fail the test")]

use std::collections::BTreeMap;

use simulator::read::{InputFile, InputFormat, ReadOptions, read};
use simulator::{JobWork, Scenario, SimulatorError, shape};

fn options() -> ReadOptions {
    ReadOptions {
        nodes: shape::cluster("--cluster", "2xhgx-h100").unwrap(),
        ..ReadOptions::default()
    }
}

fn scenario(file: &str, text: &str) -> Scenario {
    read(&[InputFile { file, text }], &options()).unwrap()
}

fn refusal(file: &str, text: &str) -> String {
    match read(&[InputFile { file, text }], &options()) {
        Err(error) => error.to_string(),
        Ok(scenario) => panic!("{file} was read: {:?}", scenario.jobs),
    }
}

/// Each job's name, arrival, duration, walltime, queue, and pods as (how many, GPUs each).
type Row<'a> = (
    &'a str,
    i64,
    Option<i64>,
    Option<i64>,
    &'a str,
    Vec<(u32, i64)>,
);

fn rows(scenario: &Scenario) -> Vec<Row<'_>> {
    let row = |job: &'_ simulator::Job| -> Vec<(u32, i64)> {
        match &job.work {
            JobWork::Shaped(shapes) => shapes
                .iter()
                .map(|(shape, count)| (*count, shape.gpus))
                .collect(),
            _ => Vec::new(),
        }
    };
    scenario
        .jobs
        .iter()
        .map(|job| {
            (
                job.name.as_str(),
                job.arrival,
                job.duration,
                job.walltime,
                job.queue.as_str(),
                row(job),
            )
        })
        .collect()
}

#[test]
fn a_csv_says_arrival_duration_and_gpus_by_its_header() {
    let text = "job_id,user,vc,submitted_time,start_time,end_time,num_gpus\n\
        app_1,u1,Research,2017-10-07 01:00:00,2017-10-07 01:10:00,2017-10-07 02:10:00,1\n\
        app_2,u2,\"Prod, west\",2017-10-07 01:00:30,2017-10-07 01:10:00,2017-10-07 01:11:40,20\n\
        app_3,u2,prod,2017-10-07 01:00:40,None,None,4\n";
    let scenario = scenario("philly.csv", text);
    assert_eq!(
        rows(&scenario),
        [
            ("app-1", 0, Some(3600), None, "research", vec![(1, 1)]),
            (
                "app-2",
                30,
                Some(100),
                None,
                "prod--west",
                vec![(2, 8), (1, 4)]
            ),
        ]
    );
    assert_eq!(scenario.start.to_string(), "2017-10-07T01:00:00Z");
    assert_eq!(
        scenario.notes,
        ["philly.csv: 1 lines never ran and are left out"]
    );
    assert_eq!(scenario.queues.len(), 2);
}

#[test]
fn columns_can_be_named() {
    let columns = BTreeMap::from([
        ("arrival".to_owned(), "t".to_owned()),
        ("gpus".to_owned(), "n".to_owned()),
    ]);
    let options = ReadOptions {
        columns,
        ..options()
    };
    let source = InputFile {
        file: "x.csv",
        text: "t,n,duration\n100,2,60\n160,1,1h30m\n",
    };
    let scenario = read(&[source], &options).unwrap();
    assert_eq!(
        rows(&scenario),
        [
            ("job-2", 0, Some(60), None, "default", vec![(1, 2)]),
            ("job-3", 60, Some(5400), None, "default", vec![(1, 1)])
        ]
    );
}

#[test]
fn slurms_accounting_is_read_without_its_steps() {
    let text = "JobID|User|Partition|Submit|Start|End|Elapsed|Timelimit|AllocTRES|NCPUS\n\
        17|ann|gpu|2026-01-01T00:00:00|2026-01-01T00:05:00|2026-01-01T01:05:00|01:00:00|2-00:00:00|billing=8,cpu=8,gres/gpu:a100=2,gres/gpu=2,mem=64G,node=1|8\n\
        17.batch||||2026-01-01T00:05:00|2026-01-01T01:05:00|01:00:00||cpu=8|8\n\
        18|bob|cpu|2026-01-01T00:01:00|2026-01-01T00:05:00|2026-01-01T00:05:10|00:00:10|UNLIMITED|cpu=4,mem=1G,node=1|4\n\
        19|bob|gpu|2026-01-01T00:02:00|Unknown|Unknown|00:00:00|01:00:00||4\n";
    let scenario = scenario("sacct.txt", text);
    assert_eq!(
        rows(&scenario),
        [
            ("17", 0, Some(3600), Some(172_800), "gpu", vec![(1, 2)]),
            ("18", 60, Some(10), None, "cpu", vec![(1, 0)])
        ]
    );
    assert_eq!(
        scenario.notes,
        ["sacct.txt: 1 lines never ran and are left out"]
    );
}

#[test]
fn the_standard_workload_format_is_read_with_the_machine_it_names() {
    let text = "; MaxNodes: 4\n; MaxProcs: 32\n\
        1 0 5 100 4 -1 -1 4 200 -1 1 3 1 -1 2 -1 -1 -1\n\
        2 10 5 0 4 -1 -1 4 200 -1 0 3 1 -1 2 -1 -1 -1\n\
        3 20 -1 50 -1 -1 -1 16 -1 -1 1 -1 -1 -1 -1 -1 -1 -1\n";
    let scenario = read(
        &[InputFile {
            file: "a.swf",
            text,
        }],
        &ReadOptions::default(),
    )
    .unwrap();
    assert_eq!(
        rows(&scenario),
        [
            ("1", 0, Some(100), Some(200), "queue-2", vec![(1, 4)]),
            ("3", 20, Some(50), None, "default", vec![(2, 8)])
        ]
    );
    assert_eq!(scenario.nodes.len(), 4);
}

#[test]
fn openb_lists_are_read_with_parts_of_gpus_and_models() {
    let nodes = "sn,cpu_milli,memory_mib,gpu,model\nn0,64000,262144,2,P100\n";
    let pods = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time\n\
        p0,12000,16384,1,460,P100|V100M16,LS,Running,100,400,150\n\
        p1,6000,12288,2,1000,,BE,Running,130,230,\n\
        p2,6000,12288,0,0,,BE,Pending,140,,\n";
    let sources = [
        InputFile {
            file: "n.csv",
            text: nodes,
        },
        InputFile {
            file: "p.csv",
            text: pods,
        },
    ];
    let scenario = read(&sources, &ReadOptions::default()).unwrap();
    assert_eq!(
        rows(&scenario),
        [
            ("p0", 0, Some(250), None, "ls", vec![(1, 0)]),
            ("p1", 30, Some(100), None, "be", vec![(1, 2)])
        ]
    );
    let JobWork::Shaped(shapes) = &scenario.jobs[0].work else {
        panic!("it is given by numbers")
    };
    assert_eq!((shapes[0].0.gpu_milli, shapes[0].0.models.len()), (460, 2));
    assert_eq!(scenario.nodes.len(), 1);
}

#[test]
fn manifests_are_put_together_as_gangs_and_running_work_is_taken_over() {
    let text = r#"
apiVersion: v1
kind: List
items:
- {apiVersion: v1, kind: Node, metadata: {name: n1}, status: {allocatable: {cpu: "64", memory: 256Gi, pods: "110", nvidia.com/gpu: "8"}}}
- apiVersion: scheduling.volcano.sh/v1beta1
  kind: PodGroup
  metadata: {name: g, namespace: ml, annotations: {muster.io/duration: 1h, muster.io/arrival: "2026-01-01T00:10:00Z"}}
  spec: {minMember: 2, queue: research}
- {apiVersion: v1, kind: Pod, metadata: {name: g-0, namespace: ml, annotations: {scheduling.k8s.io/group-name: g}}, spec: {containers: [{name: a}]}}
- {apiVersion: v1, kind: Pod, metadata: {name: g-1, namespace: ml, annotations: {scheduling.k8s.io/group-name: g}}, spec: {containers: [{name: a}]}}
- {apiVersion: v1, kind: Service, metadata: {name: s}}
---
apiVersion: v1
kind: Pod
metadata: {name: runs, annotations: {muster.io/duration: "3600"}}
spec: {nodeName: n1, containers: [{name: a}]}
status: {phase: Running, startTime: "2025-12-31T23:40:00Z"}
---
apiVersion: v1
kind: Pod
metadata: {name: over}
spec: {nodeName: n1, containers: [{name: a}]}
status: {phase: Succeeded}
---
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: t, namespace: ml, annotations: {muster.io/duration: 2h}}
spec:
  pytorchReplicaSpecs:
    Worker: {replicas: 2, template: {spec: {containers: [{name: pytorch, image: x}]}}}
"#;
    let scenario = read(
        &[InputFile {
            file: "c.yaml",
            text,
        }],
        &ReadOptions::default(),
    )
    .unwrap();
    let facts: Vec<_> = scenario
        .jobs
        .iter()
        .map(|job| (job.name.as_str(), job.arrival, job.duration, job.elapsed))
        .collect();
    assert_eq!(
        facts,
        [
            ("runs", 0, Some(3600), 1800),
            ("g", 0, Some(3600), 0),
            ("t", 0, Some(7200), 0)
        ]
    );
    assert!(matches!(&scenario.jobs[1].work, JobWork::Pods(Some(_), pods) if pods.len() == 2));
    assert_eq!(scenario.start.to_string(), "2026-01-01T00:10:00Z");
    assert_eq!(
        scenario.notes,
        [
            "the simulator leaves out 1 objects of kind Service: a scheduler does not read them",
            "1 pods have ended and are left out"
        ]
    );
}

#[test]
fn faults_are_reported_with_place_value_and_accepted_form() {
    let swf = "1 0 5 100 4 -1 -1 4 200 -1 1 3 1 -1 2 -1 -1 -1\n1 x 5 100 4 -1 -1 4 200 -1 1 3 1 -1 2 -1 -1 -1\n";
    for (file, text, words) in [
        (
            "a.csv",
            "arrival,duration,gpus\n0,60,1\n5,soon,1\n",
            &["a.csv, line 3: duration: \"soon\"", "1h30m"][..],
        ),
        (
            "a.csv",
            "arrival,duration,gpus\n0,60,-1\n",
            &["line 2: gpus: \"-1\"", "whole number"],
        ),
        (
            "a.csv",
            "arrival,duration,gpus\nyesterday,60,1\n",
            &["line 2: arrival: \"yesterday\"", "2026-01-31"],
        ),
        (
            "a.csv",
            "arrival,duration,gpus\n0,60\n",
            &["line 2: the line has 2 values, and the header has 3"],
        ),
        (
            "a.csv",
            "arrival,duration,gpus\n\"0,60,1\n",
            &["line 2: a quoted value has no closing quote"],
        ),
        (
            "a.csv",
            "when,duration,gpus\n0,60,1\n",
            &[
                "no column has the arrival",
                "submit_time",
                "when, duration, gpus",
            ],
        ),
        (
            "a.csv",
            "arrival,duration,gpus\n0,60,1\n2026-01-01T00:00:00Z,60,1\n",
            &["some arrivals are times"],
        ),
        (
            "a.swf",
            swf,
            &["a.swf, line 2: submit time: \"x\"", "write a number, or -1"],
        ),
        ("a.swf", "1 2 3\n", &["line 1: the line has 3 fields", "18"]),
        (
            "s.txt",
            "JobID|Submit|Elapsed|AllocTRES\n1|2026-01-01T00:00:00|00:01:00|gres/gpu=two\n",
            &["line 2: AllocTRES: \"gres/gpu=two\"", "gres/gpu=2"],
        ),
        (
            "o.csv",
            "name,cpu_milli,memory_mib,num_gpu,gpu_milli,creation_time,deletion_time\np,1,1,1,2000,0,5\n",
            &["line 2: gpu_milli: \"2000\"", "at most 1000"],
        ),
        (
            "c.yaml",
            "apiVersion: v1\n---\nkind: [\n",
            &["c.yaml, document 1: kind: Required value"],
        ),
        (
            "c.yaml",
            "kind: Pod\n",
            &["document 1: metadata.name", "a name for each object"],
        ),
        (
            "c.yaml",
            "kind: Node\nmetadata: {name: n}\nstatus: {allocatable: {cpu: many}}\n",
            &["document 1: status.allocatable.cpu: \"many\"", "64Gi"],
        ),
        (
            "c.yaml",
            "kind: Pod\nmetadata: {name: p, annotations: {muster.io/duration: long}}\nspec: {containers: []}\n",
            &["muster.io/duration] of Pod p: \"long\"", "1h30m"],
        ),
        (
            "c.yaml",
            "kind: Pod\nmetadata: {name: p}\nspec: {containers: 3}\n",
            &["document 1: Pod p: invalid type"],
        ),
    ] {
        let said = refusal(file, text);
        for word in words {
            assert!(said.contains(word), "{said:?} lacks {word:?}");
        }
    }
    let none = read(
        &[InputFile {
            file: "e.csv",
            text: "",
        }],
        &ReadOptions {
            format: Some(InputFormat::Philly),
            ..options()
        },
    );
    assert!(matches!(none, Err(SimulatorError::Nothing(_))));
    assert!(
        InputFormat::named("excel")
            .unwrap_err()
            .to_string()
            .contains("sacct")
    );
}

#[test]
fn synthetic_work_is_the_same_for_the_same_seed_and_asks_for_the_load() {
    let made = |text: &str| {
        simulator::synthetic::generate(&simulator::synthetic::parse(text).unwrap()).unwrap()
    };
    let (a, b, c) = (
        made("jobs=300,gpus=64,seed=7"),
        made("jobs=300,gpus=64,seed=7"),
        made("jobs=300,gpus=64,seed=8"),
    );
    assert_eq!(rows(&a), rows(&b));
    assert_ne!(rows(&a), rows(&c));
    let asked: i64 = rows(&a)
        .iter()
        .map(|row| {
            row.2.unwrap()
                * row
                    .5
                    .iter()
                    .map(|(count, gpus)| i64::from(*count) * gpus)
                    .sum::<i64>()
        })
        .sum();
    let load = asked as f64 / (64.0 * 30.0 * 86_400.0);
    assert!((0.7..=0.9).contains(&load), "{load}");
    for text in ["jobs=0", "colour=3", "load=nan", "gpus"] {
        assert!(
            simulator::synthetic::parse(text)
                .unwrap_err()
                .to_string()
                .contains("--synthetic"),
            "{text}"
        );
    }
}
