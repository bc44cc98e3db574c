//! No manifest, trace or option makes the readers of `muster simulate` panic.

use proptest::prelude::*;
use simulator::read::{InputFile, InputFormat, ReadOptions, duration, read};
use simulator::{shape, synthetic};

#[path = "../../resources/testing/documents.rs"]
mod texts;

use texts::broken;

const FORMATS: [InputFormat; 6] = [
    InputFormat::Objects,
    InputFormat::Openb,
    InputFormat::OpenbNodes,
    InputFormat::Philly,
    InputFormat::Sacct,
    InputFormat::Swf,
];

proptest! {
    #[test]
    fn no_input_panics(
        text in broken(vec![
            include_str!("small.yaml"),
            include_str!("../../resources/tests/manifests/001-pytorchjob-elastic.yaml"),
            "JobID|Submit|Start|End|State|ReqTRES|User\n1|2024-01-01T00:00:00|2024-01-01T00:00:01|2024-01-01T01:00:00|COMPLETED|gres/gpu=8,node=1|u\n",
            "; MaxNodes: 4\n1 0 10 100 8 -1 -1 8 200 -1 1 1 1 1 1 -1 -1 -1\n",
            "arrival,duration,gpus,user\n0,100,8,u\n60,1000,16,v\n",
            "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time\np,1000,1024,1,500,,LS,Running,0,100,1\n",
            "sn,cpu_milli,memory_mib,gpu,model\nn,64000,262144,8,V100\n",
        ]),
        format in proptest::option::of(proptest::sample::select(FORMATS.to_vec())),
    ) {
        let options = ReadOptions { format, ..ReadOptions::default() };
        let _ = read(&[InputFile { file: "input", text: &text }], &options);
    }

    #[test]
    fn no_option_panics(text in broken(vec![
        "seed=1,jobs=1000,days=3,gpus=64,load=0.85,queues=8", "4xhgx-h100,2x8x-l4", "1d2h", "90m",
    ])) {
        let _ = synthetic::parse(&text);
        let _ = duration::seconds(&text);
        let _ = shape::cluster("--cluster", &text);
    }
}
