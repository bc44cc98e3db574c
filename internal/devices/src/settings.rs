//! The device plugin's configuration, in the format that NVIDIA's device plugin reads (`version:
//! v1`). Pure: `offer` applies it to devices. An invalid value is refused with its field, the value
//! and the accepted values; fields that Muster ignores are listed.

use serde_json::{Map, Value};

use crate::config_values::{ConfigValueError, fields, flag, join, present, wrong};
use crate::delivery::Delivery;
use crate::replicas;
use crate::sharing::{Sharing, SharingStrategy};

/// The strategies for MIG slices.
pub const MIG_STRATEGIES: [&str; 3] = ["none", "single", "mixed"];

/// Fields of `flags` that NVIDIA's plugin has and that have no effect here.
const FLAGS_UNUSED: [&str; 7] = [
    "deviceDiscoveryStrategy",
    "failOnInitError",
    "gdrcopyEnabled",
    "gdsEnabled",
    "gfd",
    "mofedEnabled",
    "useNodeFeatureAPI",
];

/// Fields of `flags.plugin` that NVIDIA's plugin has and that have no effect here.
const PLUGIN_UNUSED: [&str; 2] = ["cdiFeatureFlags", "nvidiaCTKPath"];

/// Fields for the ways in which devices reach a container.
const FLAGS_DELIVERY: [&str; 2] = ["nvidiaDevRoot", "nvidiaDriverRoot"];
const PLUGIN_DELIVERY: [&str; 3] = [
    "cdiAnnotationPrefix",
    "containerDriverRoot",
    "deviceListStrategy",
];

/// The parsed configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PluginSettings {
    /// How MIG slices are offered: one of [`MIG_STRATEGIES`]; `None` if not configured.
    pub mig_strategy: Option<String>,
    /// Whether containers get the device files directly. NVIDIA's default is false; here the
    /// default is true, because runtimes without NVIDIA's hook need them, unless devices are passed
    /// by the Container Device Interface.
    pub pass_device_specs: Option<bool>,
    /// The ways in which devices reach a container.
    pub delivery: Delivery,
    /// Which devices several containers share.
    pub sharing: Sharing,
    /// Whether GPUs are also offered in parts: as memory and percents of each, under Aliyun's
    /// resource names. Not part of NVIDIA's format.
    pub parts: bool,
    /// Fields that were read and have no effect here.
    pub unused: Vec<String>,
}

impl PluginSettings {
    /// Parses a document.
    ///
    /// # Errors
    ///
    /// The field, its value and the accepted values.
    pub fn read(document: &Value) -> Result<PluginSettings, ConfigValueError> {
        let root = fields("", document, &["version", "flags", "resources", "sharing"])?;
        match root.get("version") {
            Some(Value::String(version)) if version == "v1" => {}
            other => return Err(wrong("version", other, "\"v1\"")),
        }
        if let Some(given) = present(root, "resources") {
            return Err(wrong(
                "resources",
                Some(given),
                "nothing: resources cannot be renamed by product here",
            ));
        }
        let mut settings = PluginSettings::default();
        if let Some(flags) = present(root, "flags") {
            settings.read_flags(flags)?;
        }
        if let Some(sharing) = present(root, "sharing") {
            let kinds = fields("sharing", sharing, &["timeSlicing", "mps"])?;
            let slicing = present(kinds, "timeSlicing");
            settings.sharing = match (slicing, present(kinds, "mps")) {
                (None, None) => Sharing::default(),
                (Some(slicing), None) => replicas::read(SharingStrategy::TimeSlicing, slicing)?,
                (None, Some(mps)) => replicas::read(SharingStrategy::Mps, mps)?,
                (Some(_), given) => {
                    let right = "one of timeSlicing and mps: a GPU is shared by either";
                    return Err(wrong("sharing.mps", given, right));
                }
            };
        }
        Ok(settings)
    }

    fn read_flags(&mut self, flags: &Value) -> Result<(), ConfigValueError> {
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

fn names_of(at: &str, map: &Map<String, Value>, names: &[&str]) -> Vec<String> {
    let there = names.iter().filter(|name| present(map, name).is_some());
    there.map(|name| join(at, name)).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::sharing::{DeviceSelection, Replicated};

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
                devices: DeviceSelection::All,
            },
            Replicated {
                name: "nvidia.com/mig-1g.10gb".into(),
                rename: Some("nvidia.com/small".into()),
                replicas: 2,
                devices: DeviceSelection::These(these),
            },
        ];
        assert_eq!(read.sharing.resources, wanted);
        assert_eq!(read.sharing.strategy, SharingStrategy::TimeSlicing);
        let mps = json!({"version": "v1",
            "sharing": {"mps": {"resources": [{"name": "gpu", "replicas": 4, "devices": 2}]}}});
        let mps = PluginSettings::read(&mps).expect("a configuration").sharing;
        assert_eq!(
            (mps.strategy, mps.one_at_most),
            (SharingStrategy::Mps, true)
        );
        assert_eq!(mps.resources[0].devices, DeviceSelection::First(2));
        let least = PluginSettings::read(&json!({"version": "v1"}));
        assert_eq!(least, Ok(PluginSettings::default()));
    }

    #[test]
    fn errors_name_the_field_its_value_and_the_accepted_values() {
        let mps = |more: Value| json!({"version": "v1", "sharing": {"mps": more}});
        let cases: [(Value, &[&str]); 20] = [
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
                mps(json!({"resources": []})),
                &["sharing.mps.resources: []", "{name, replicas}"],
            ),
            (
                json!({"version": "v1", "sharing": {"mps": {}, "timeSlicing": {}}}),
                &["sharing.mps: {}", "one of timeSlicing and mps"],
            ),
            (
                mps(json!({"resources": [{"name": "mig-1g.10gb", "replicas": 2}]})),
                &[
                    "sharing.mps.resources[0].name: \"mig-1g.10gb\"",
                    "nvidia.com/gpu: slices",
                ],
            ),
            (
                mps(json!({"resources": [{"name": "gpu", "replicas": 49}]})),
                &["sharing.mps.resources[0].replicas: 49", "from 1 to 48"],
            ),
            (
                mps(json!({"failRequestsGreaterThanOne": false,
                    "resources": [{"name": "gpu", "replicas": 2}]})),
                &["sharing.mps.failRequestsGreaterThanOne: false", "true"],
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
            let why = PluginSettings::read(&document)
                .expect_err("it is refused")
                .to_string();
            for word in words {
                assert!(why.contains(word), "{why}: lacks {word}");
            }
        }
        let twice = json!({"name": "gpu", "replicas": 2});
        let twice = json!({"version": "v1",
            "sharing": {"timeSlicing": {"resources": [twice, twice]}}});
        let why = PluginSettings::read(&twice).expect_err("twice").to_string();
        assert!(
            why.contains("resources[1].name") && why.contains("each resource once"),
            "{why}"
        );
    }
}
