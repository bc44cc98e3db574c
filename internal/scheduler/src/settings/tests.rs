//! Tables of valid and invalid configurations.

use super::*;
use serde_json::json;

fn document(spec: Value) -> Value {
    json!({"apiVersion": API_VERSION, "kind": KIND, "spec": spec})
}

#[test]
fn a_document_sets_what_it_says_and_leaves_the_rest() {
    let read = Settings::read(&document(json!({
        "actions": ["reclaim"], "topology": ["block", "rack"], "placement": "spread",
        "gpus": "spread", "staleAfter": "1m30s", "usage": {"halfLife": "7d", "strength": 0.5},
    })))
    .unwrap();
    let config = read.applied(Config::default());
    assert!(config.actions.reclaim && !config.actions.allocate && !config.actions.backfill);
    assert_eq!(config.topology, ["block", "rack"]);
    assert_eq!(config.placement, PlacementStrategy::Spread);
    assert_eq!(config.gpus, GpuOrder::Spread);
    assert_eq!(config.stale_after, SignedDuration::from_secs(90));
    let usage = config.usage.unwrap();
    assert_eq!((usage.half_life_seconds, usage.strength), (604_800, 500));
    assert_eq!(config.scheduler_names, Config::default().scheduler_names);
    assert_eq!(config.reserve_after, Config::default().reserve_after);
    let nothing = Settings::read(&document(Value::Null)).unwrap();
    assert_eq!(nothing, Settings::default());
}

#[test]
fn waiting_eviction_load_and_expected_pod_settings_are_read() {
    let read = Settings::read(&document(json!({
        "reserveAfter": "2h", "reserveFor": "age", "weighLosses": false, "breakBudgets": true,
        "loadAge": 30, "defragmentation": {"movesAnHour": 100},
        "expected": [
            {"count": 3, "requests": {"cpu": "500m", "nvidia.com/gpu": 1},
             "annotations": {"muster.io/gpu-fraction": "0.5"}, "nodeSelector": {"zone": "a"}},
            {"count": 1, "requests": {"nvidia.com/gpu": "8"}},
        ],
    })))
    .unwrap();
    let config = read.applied(Config::default());
    assert_eq!(config.reserve_after, SignedDuration::from_hours(2));
    assert_eq!(config.lead, Lead::Age);
    assert!(!config.weigh_losses && config.break_budgets);
    assert_eq!(config.load_age, SignedDuration::from_secs(30));
    assert_eq!(config.defragmentation.moves_an_hour, 100);
    assert_eq!(config.defragmentation.gpus_interrupted_each, 2);
    let [(pod, 3), (_, 1)] = &config.expected[..] else {
        panic!("{:?}", config.expected)
    };
    let spec = pod.spec.as_ref().unwrap();
    let asked = resources::amounts::pod_requests(spec);
    assert_eq!((asked.get("cpu"), asked.get("nvidia.com/gpu")), (500, 1));
    assert_eq!(spec.node_selector.as_ref().unwrap()["zone"], "a");
}

#[test]
fn an_invalid_value_is_named_with_what_is_expected() {
    let table = [
        (
            json!({"actions": ["alocate"]}),
            "spec.actions",
            "consolidate",
        ),
        (json!({"actions": "allocate"}), "spec.actions", "list"),
        (json!({"placement": "tight"}), "spec.placement", "spread"),
        (json!({"staleAfter": "soon"}), "spec.staleAfter", "1h30m"),
        (json!({"topologies": []}), "spec", "topology"),
        (json!({"topology": ["a b"]}), "spec.topology[0]", "label"),
        (json!({"topology": ["a", "a"]}), "spec.topology[1]", "once"),
        (json!({"schedulerNames": []}), "spec.schedulerNames", "one"),
        (
            json!({"usage": {"strength": 1}}),
            "spec.usage.halfLife",
            "1h30m",
        ),
        (
            json!({"usage": {"halfLife": "1d", "strength": "much"}}),
            "spec.usage.strength",
            "number",
        ),
        (json!({"breakBudgets": "yes"}), "spec.breakBudgets", "true"),
        (
            json!({"mig": {"every": "30s"}}),
            "spec.mig.every",
            "at least 1m",
        ),
        (
            json!({"mig": {"queue": "research"}}),
            "spec.mig",
            "queues, after, every",
        ),
        (
            json!({"defragmentation": {"movesAnHour": -1}}),
            "spec.defragmentation.movesAnHour",
            "from 0",
        ),
        (json!({"expected": 3}), "spec.expected", "list"),
        (
            json!({"expected": [{"count": 0, "requests": {"cpu": 1}}]}),
            "spec.expected[0].count",
            "from 1",
        ),
        (
            json!({"expected": [{"count": 1}]}),
            "spec.expected[0].requests",
            "cpu",
        ),
        (
            json!({"expected": [{"count": 1, "requests": {"cpu": "many"}}]}),
            "spec.expected[0].requests[cpu]",
            "500m",
        ),
    ];
    for (spec, field, word) in table {
        let wrong = Settings::read(&document(spec)).unwrap_err();
        assert_eq!(wrong.field(), field);
        assert!(wrong.valid().contains(word), "{wrong}");
    }
    let other = |field: &str, value: Value| {
        let mut document = document(json!({}));
        document[field] = value;
        Settings::read(&document).unwrap_err().field().to_owned()
    };
    assert_eq!(other("apiVersion", Value::Null), "apiVersion");
    assert_eq!(other("kind", json!("Queue")), "kind");
    assert_eq!(other("actions", json!([])), "document");
    assert_eq!(Settings::read(&json!([])).unwrap_err().field(), "document");
}

fn no_text(_: &str) -> Result<Value, ParseError> {
    Err("nothing is parsed here".into())
}

/// The keys of the warnings, in order.
fn keys(read: &ForeignSettings) -> Vec<&str> {
    let warnings = read.warnings.iter();
    warnings.map(|warning| warning.key.as_str()).collect()
}

#[test]
fn volcanos_configuration_is_translated_and_each_key_without_a_counterpart_is_named() {
    let document = json!({
        "actions": "enqueue, allocate, gangpreempt",
        "tiers": [
            {"plugins": [{"name": "priority"}, {"name": "gang", "enablePreemptable": false},
                         {"name": "conformance"}]},
            {"plugins": [{"name": "drf"}, {"name": "usage", "arguments": {"thresholds": 1}},
                         {"name": "sla", "arguments": {"sla-waiting-time": "1h30m", "other": 1}},
                         {"name": "nodeorder", "arguments": {"mostrequested.weight": "2",
                             "leastrequested.weight": 1, "nodeaffinity.weight": 3}}]},
        ],
        "configurations": [],
    });
    let read = read(&document, &no_text).unwrap();
    let actions = read.settings.actions.unwrap();
    assert!(actions.allocate && actions.preempt);
    assert!(!actions.reclaim && !actions.backfill);
    assert_eq!(read.settings.placement, Some(PlacementStrategy::Pack));
    assert_eq!(read.settings.reserve_after, Some(5400));
    let expected = [
        "configurations",
        "actions, enqueue",
        "tiers[0].plugins[1].enablePreemptable",
        "tiers[0].plugins[2]",
        "tiers[1].plugins[1]",
        "tiers[1].plugins[1].arguments.thresholds",
        "tiers[1].plugins[2].arguments.other",
        "tiers[1].plugins[3].arguments.nodeaffinity.weight",
    ];
    assert_eq!(keys(&read), expected);
}

#[test]
fn volcanos_defaults_are_those_that_it_has_and_its_node_order_spreads_unless_bins_are_packed() {
    let tiers = |plugins: Value| json!({"tiers": [{"plugins": plugins}]});
    let plain = read(&tiers(json!([{"name": "nodeorder"}])), &no_text).unwrap();
    let actions = plain.settings.actions.unwrap();
    assert!(actions.allocate && actions.backfill && !actions.preempt && !actions.reclaim);
    assert_eq!(plain.settings.placement, Some(PlacementStrategy::Spread));
    let both = json!([{"name": "nodeorder"}, {"name": "binpack"}]);
    let packed = read(&tiers(both), &no_text).unwrap();
    assert_eq!(packed.settings.placement, Some(PlacementStrategy::Pack));
    let neither = read(&tiers(json!([{"name": "gang"}])), &no_text).unwrap();
    assert_eq!(neither.settings.placement, None);
}

#[test]
fn volcanos_configuration_is_found_in_its_config_map_and_errors_name_the_place_in_it() {
    let map = |text: &str| {
        json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "volcano"},
            "data": {"volcano-scheduler.conf": text}})
    };
    let parse = |text: &str| serde_json::from_str(text).map_err(ParseError::from);
    let good = read(&map(r#"{"actions": "reclaim"}"#), &parse).unwrap();
    assert!(good.settings.actions.unwrap().reclaim);
    for (text, field) in [
        ("nonsense", "data[volcano-scheduler.conf]"),
        (r#"{"actions": 3}"#, "data[volcano-scheduler.conf]: actions"),
        (
            r#"{"tiers": [{"plugins": [{"arguments": {}}]}]}"#,
            "data[volcano-scheduler.conf]: tiers[0].plugins[0].name",
        ),
    ] {
        assert_eq!(
            read(&map(text), &parse).unwrap_err().field(),
            field,
            "{text}"
        );
    }
    let other = json!({"kind": "ConfigMap", "data": {"settings.conf": "a"}});
    assert!(!takes(&other));
}

#[test]
fn kube_schedulers_configuration_is_translated_and_each_key_without_a_counterpart_is_named() {
    let document = json!({
        "apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration",
        "parallelism": 16,
        "profiles": [
            {"schedulerName": "ai",
             "plugins": {"score": {"enabled": [{"name": "NodeResourcesFit", "weight": 1}, {"name": "Own"}],
                                   "disabled": [{"name": "NodeAffinity"}, {"name": "ImageLocality"}]},
                         "postFilter": {"disabled": [{"name": "DefaultPreemption"}]}},
             "pluginConfig": [{"name": "NodeResourcesFit", "args": {"ignoredResources": [],
                                   "scoringStrategy": {"type": "MostAllocated", "resources": []}}},
                              {"name": "InterPodAffinity", "args": {}}]},
            {},
        ],
    });
    let read = read(&document, &no_text).unwrap();
    let names = read.settings.scheduler_names.clone().unwrap();
    assert_eq!(names, ["ai", "default-scheduler"]);
    assert_eq!(read.settings.placement, Some(PlacementStrategy::Pack));
    assert!(!read.settings.actions.unwrap().preempt && read.settings.actions.unwrap().allocate);
    let mut said = keys(&read);
    said.sort_unstable();
    let expected = [
        "parallelism",
        "profiles[0].pluginConfig[0].args.ignoredResources",
        "profiles[0].pluginConfig[0].args.scoringStrategy.resources",
        "profiles[0].pluginConfig[1]",
        "profiles[0].plugins.score.disabled[0]",
        "profiles[0].plugins.score.enabled[0].weight",
        "profiles[0].plugins.score.enabled[1]",
    ];
    assert_eq!(said, expected);
}
