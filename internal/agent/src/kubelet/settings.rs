//! The device plugin's configuration, in the format that NVIDIA's device plugin reads
//! (`version: v1`). Pure: what it means for devices is `offer`'s. What can't be kept is refused
//! with its field, its value and what would be right; what has no counterpart here is named.

use serde_json::{Map, Value};

use super::delivery::Delivery;
use super::sharing::{Replicated, Selection, Sharing};
use crate::reading::{fields, flag, is_resource, join, present, wrong};

/// The most devices that one may count as.
const REPLICAS_MAX: u64 = 1024;

/// The strategies for slices of GPUs.
pub const MIG_STRATEGIES: [&str; 3] = ["none", "single", "mixed"];

/// Fields of `flags` that the incumbent has and that mean nothing here.
const FLAGS_UNUSED: [&str; 7] = [
    "deviceDiscoveryStrategy",
    "failOnInitError",
    "gdrcopyEnabled",
    "gdsEnabled",
    "gfd",
    "mofedEnabled",
    "useNodeFeatureAPI",
];

/// Fields of `flags.plugin` that the incumbent has and that mean nothing here.
const PLUGIN_UNUSED: [&str; 2] = ["cdiFeatureFlags", "nvidiaCTKPath"];

/// Fields that say by which ways devices reach a container.
const FLAGS_DELIVERY: [&str; 2] = ["nvidiaDevRoot", "nvidiaDriverRoot"];
const PLUGIN_DELIVERY: [&str; 3] = [
    "cdiAnnotationPrefix",
    "containerDriverRoot",
    "deviceListStrategy",
];

/// What the configuration says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PluginSettings {
    /// How slices of GPUs are given out: one of [`MIG_STRATEGIES`]; none where it isn't said.
    pub mig_strategy: Option<String>,
    /// Whether containers are given the device files themselves. NVIDIA's default is not; here it
    /// is, where nothing is said, as runtimes without NVIDIA's hook need them, unless they come by
    /// the Container Device Interface.
    pub pass_device_specs: Option<bool>,
    /// By which ways devices reach a container.
    pub delivery: Delivery,
    /// Which devices are given to several containers at once.
    pub sharing: Sharing,
    /// Fields that were read and have no counterpart here.
    pub unused: Vec<String>,
}

impl PluginSettings {
    /// Reads a document.
    ///
    /// # Errors
    ///
    /// A sentence with the field, its value and what would be right.
    pub fn read(document: &Value) -> Result<PluginSettings, String> {
        let root = fields("", document, &["version", "flags", "resources", "sharing"])?;
        match root.get("version") {
            Some(Value::String(version)) if version == "v1" => {}
            other => return Err(wrong("version", other, "\"v1\"")),
        }
        if let Some(given) = present(root, "resources") {
            return Err(wrong(
                "resources",
                Some(given),
                "nothing: resources can't be renamed by product here",
            ));
        }
        let mut settings = PluginSettings::default();
        if let Some(flags) = present(root, "flags") {
            settings.read_flags(flags)?;
        }
        if let Some(sharing) = present(root, "sharing") {
            let kinds = fields("sharing", sharing, &["timeSlicing", "mps"])?;
            if let Some(given) = present(kinds, "mps") {
                return Err(wrong(
                    "sharing.mps",
                    Some(given),
                    "sharing.timeSlicing: this agent starts no MPS daemon",
                ));
            }
            if let Some(slicing) = present(kinds, "timeSlicing") {
                settings.sharing = time_slicing("sharing.timeSlicing", slicing)?;
            }
        }
        Ok(settings)
    }

    fn read_flags(&mut self, flags: &Value) -> Result<(), String> {
        let known: Vec<&str> = ["migStrategy", "plugin"]
            .into_iter()
            .chain(FLAGS_DELIVERY)
            .chain(FLAGS_UNUSED)
            .collect();
        let flags = fields("flags", flags, &known)?;
        self.unused = names_of("flags", flags, &FLAGS_UNUSED);
        match present(flags, "migStrategy") {
            None => {}
            Some(Value::String(given)) if MIG_STRATEGIES.contains(&given.as_str()) => {
                self.mig_strategy = Some(given.clone());
            }
            other => return Err(wrong("flags.migStrategy", other, "none, single or mixed")),
        }
        let Some(plugin) = present(flags, "plugin") else {
            return self.delivery.read(flags, None);
        };
        let own = ["deviceIDStrategy", "passDeviceSpecs"].into_iter();
        let known: Vec<&str> = own.chain(PLUGIN_DELIVERY).chain(PLUGIN_UNUSED).collect();
        let plugin = fields("flags.plugin", plugin, &known)?;
        (self.unused).extend(names_of("flags.plugin", plugin, &PLUGIN_UNUSED));
        self.pass_device_specs = flag("flags.plugin", plugin, "passDeviceSpecs")?;
        match present(plugin, "deviceIDStrategy") {
            None => {}
            Some(Value::String(given)) if given == "uuid" => {}
            other => {
                let right = "uuid: an index may be another GPU's after a reset";
                return Err(wrong("flags.plugin.deviceIDStrategy", other, right));
            }
        }
        self.delivery.read(flags, Some(plugin))
    }
}

fn time_slicing(at: &str, value: &Value) -> Result<Sharing, String> {
    let known = ["renameByDefault", "failRequestsGreaterThanOne", "resources"];
    let slicing = fields(at, value, &known)?;
    let list = format!("{at}.resources");
    let resources = match slicing.get("resources") {
        Some(Value::Array(resources)) if !resources.is_empty() => resources,
        other => return Err(wrong(&list, other, "a list of {name, replicas}")),
    };
    let mut sharing = Sharing {
        rename_by_default: flag(at, slicing, "renameByDefault")?.unwrap_or(false),
        one_at_most: flag(at, slicing, "failRequestsGreaterThanOne")?.unwrap_or(false),
        resources: Vec::new(),
    };
    for (place, value) in resources.iter().enumerate() {
        let at = format!("{list}[{place}]");
        let one = replicated(&at, value)?;
        if sharing.resources.iter().any(|other| other.name == one.name) {
            let right = "each resource once";
            return Err(wrong(&format!("{at}.name"), value.get("name"), right));
        }
        sharing.resources.push(one);
    }
    Ok(sharing)
}

fn replicated(at: &str, value: &Value) -> Result<Replicated, String> {
    let one = fields(at, value, &["name", "rename", "devices", "replicas"])?;
    let offered = |name: &String| {
        name == resources::names::NVIDIA_GPU || name.starts_with(resources::names::NVIDIA_MIG)
    };
    let right = "nvidia.com/gpu, or nvidia.com/mig- and a profile";
    let name = named(one.get("name"))
        .filter(offered)
        .ok_or_else(|| wrong(&format!("{at}.name"), one.get("name"), right))?;
    let rename = match present(one, "rename") {
        None => None,
        given => {
            let right = "a resource's name, like nvidia.com/gpu.shared";
            let fault = || wrong(&format!("{at}.rename"), given, right);
            Some(named(given).ok_or_else(fault)?)
        }
    };
    let replicas = (one.get("replicas"))
        .and_then(Value::as_u64)
        .filter(|replicas| (1..=REPLICAS_MAX).contains(replicas))
        .and_then(|replicas| usize::try_from(replicas).ok());
    let replicas = replicas.ok_or_else(|| {
        let right = format!("a number from 1 to {REPLICAS_MAX}");
        wrong(&format!("{at}.replicas"), one.get("replicas"), &right)
    })?;
    Ok(Replicated {
        name,
        rename,
        replicas,
        devices: selection(&format!("{at}.devices"), present(one, "devices"))?,
    })
}

fn selection(at: &str, value: Option<&Value>) -> Result<Selection, String> {
    let right = "all, a number of devices, or a list of UUIDs and indices (0, or 0:1 for a slice)";
    let fault = || wrong(at, value, right);
    let one = |value: &Value| match value {
        Value::Number(index) => index.as_u64().map(|index| index.to_string()),
        Value::String(text) => is_device(text).then(|| text.clone()),
        _ => None,
    };
    match value {
        None => Ok(Selection::All),
        Some(Value::String(all)) if all == "all" => Ok(Selection::All),
        Some(Value::Number(count)) => (count.as_u64())
            .filter(|count| *count > 0)
            .and_then(|count| usize::try_from(count).ok())
            .map(Selection::First)
            .ok_or_else(fault),
        Some(Value::Array(list)) if !list.is_empty() => {
            let these: Option<_> = list.iter().map(one).collect();
            these.map(Selection::These).ok_or_else(fault)
        }
        _ => Err(fault()),
    }
}

/// A UUID of a GPU or slice, a GPU's index, or a slice's, `0:1`.
fn is_device(text: &str) -> bool {
    let number = |part: &str| part.parse::<u32>().is_ok();
    text.starts_with("GPU-")
        || text.starts_with("MIG-")
        || number(text)
        || (text.split_once(':')).is_some_and(|(gpu, slice)| number(gpu) && number(slice))
}

/// A resource's name; one without a domain is NVIDIA's.
fn named(value: Option<&Value>) -> Option<String> {
    let text = value?.as_str()?;
    let name = if text.contains('/') {
        text.to_owned()
    } else {
        format!("nvidia.com/{text}")
    };
    is_resource(&name).then_some(name)
}

fn names_of(at: &str, map: &Map<String, Value>, names: &[&str]) -> Vec<String> {
    let there = names.iter().filter(|name| present(map, name).is_some());
    there.map(|name| join(at, name)).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn slicing(more: Value) -> Value {
        json!({"version": "v1", "sharing": {"timeSlicing": {"resources": [more]}}})
    }

    #[test]
    fn the_incumbents_configuration_is_read() {
        let read = PluginSettings::read(&json!({
            "version": "v1",
            "flags": {"migStrategy": "mixed", "failOnInitError": true,
                "plugin": {"passDeviceSpecs": false, "deviceListStrategy": ["envvar"],
                    "deviceIDStrategy": "uuid", "nvidiaCTKPath": "/usr/bin/nvidia-ctk"}},
            "sharing": {"timeSlicing": {"renameByDefault": true, "failRequestsGreaterThanOne": true,
                "resources": [
                    {"name": "nvidia.com/gpu", "replicas": 10},
                    {"name": "mig-1g.10gb", "replicas": 2, "rename": "small",
                        "devices": [0, "1:0", "MIG-a"]}]}},
        }));
        let read = read.expect("a configuration");
        assert_eq!(read.mig_strategy.as_deref(), Some("mixed"));
        assert_eq!(read.pass_device_specs, Some(false));
        let unused = ["flags.failOnInitError", "flags.plugin.nvidiaCTKPath"];
        assert_eq!(read.unused, unused);
        assert!(read.sharing.rename_by_default && read.sharing.one_at_most);
        let these = ["0", "1:0", "MIG-a"].map(String::from).to_vec();
        let wanted = [
            Replicated {
                name: "nvidia.com/gpu".into(),
                rename: None,
                replicas: 10,
                devices: Selection::All,
            },
            Replicated {
                name: "nvidia.com/mig-1g.10gb".into(),
                rename: Some("nvidia.com/small".into()),
                replicas: 2,
                devices: Selection::These(these),
            },
        ];
        assert_eq!(read.sharing.resources, wanted);
        let least = PluginSettings::read(&json!({"version": "v1"}));
        assert_eq!(least, Ok(PluginSettings::default()));
    }

    #[test]
    fn what_is_wrong_is_said_with_its_field_its_value_and_what_would_be_right() {
        let cases: [(Value, &[&str]); 16] = [
            (json!([]), &["the document: []", "version, flags"]),
            (json!({}), &["version: missing", "\"v1\""]),
            (json!({"version": "v2"}), &["version: \"v2\"", "\"v1\""]),
            (
                json!({"version": "v1", "sharng": {}}),
                &["sharng: no such field", "sharing"],
            ),
            (
                json!({"version": "v1", "resources": {"gpus": []}}),
                &["resources: {\"gpus\":[]}"],
            ),
            (
                json!({"version": "v1", "flags": {"migStrategy": "all"}}),
                &["flags.migStrategy: \"all\"", "none, single or mixed"],
            ),
            (
                json!({"version": "v1", "flags": {"plugin": {"passDeviceSpecs": "yes"}}}),
                &["flags.plugin.passDeviceSpecs: \"yes\"", "true or false"],
            ),
            (
                json!({"version": "v1", "flags": {"plugin": {"deviceIDStrategy": "index"}}}),
                &["flags.plugin.deviceIDStrategy: \"index\"", "uuid"],
            ),
            (
                json!({"version": "v1", "flags": {"plugin": {"deviceListStrategy": "volume-mounts"}}}),
                &[
                    "flags.plugin.deviceListStrategy: \"volume-mounts\"",
                    "envvar",
                ],
            ),
            (
                json!({"version": "v1", "sharing": {"mps": {"resources": []}}}),
                &["sharing.mps: ", "sharing.timeSlicing"],
            ),
            (
                json!({"version": "v1", "sharing": {"timeSlicing": {"resources": []}}}),
                &["sharing.timeSlicing.resources: []", "{name, replicas}"],
            ),
            (
                slicing(json!({"name": "nvidia.com/gpu"})),
                &[
                    "sharing.timeSlicing.resources[0].replicas: missing",
                    "from 1 to 1024",
                ],
            ),
            (
                slicing(json!({"name": "nvidia.com/gpu", "replicas": 0})),
                &[
                    "sharing.timeSlicing.resources[0].replicas: 0",
                    "from 1 to 1024",
                ],
            ),
            (
                slicing(json!({"name": "amd.com/gpu", "replicas": 2})),
                &[
                    "sharing.timeSlicing.resources[0].name: \"amd.com/gpu\"",
                    "nvidia.com/gpu",
                ],
            ),
            (
                slicing(json!({"name": "gpu", "replicas": 2, "rename": "-x"})),
                &[
                    "sharing.timeSlicing.resources[0].rename: \"-x\"",
                    "nvidia.com/gpu.shared",
                ],
            ),
            (
                slicing(json!({"name": "gpu", "replicas": 2, "devices": ["first"]})),
                &[
                    "sharing.timeSlicing.resources[0].devices: [\"first\"]",
                    "0:1 for a slice",
                ],
            ),
        ];
        for (document, words) in cases {
            let why = PluginSettings::read(&document).expect_err(&document.to_string());
            for word in words {
                assert!(why.contains(word), "{why}: lacks {word}");
            }
        }
        let twice = json!({"name": "gpu", "replicas": 2});
        let twice = json!({"version": "v1",
            "sharing": {"timeSlicing": {"resources": [twice, twice]}}});
        let why = PluginSettings::read(&twice).expect_err("twice");
        assert!(
            why.contains("resources[1].name") && why.contains("each resource once"),
            "{why}"
        );
    }
}
