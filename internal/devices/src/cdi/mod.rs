//! The Container Device Interface (CDI): files that define for container runtimes how to add a device to
//! a container. Owns the part of the format that is used here, and how a file is written. Pure but
//! for [`file`]. `gpus` has the edits for GPUs, `driver` those for their driver.

pub mod driver;
pub mod file;
pub mod gpus;

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize, Serializer};

/// The directory for files that don't outlive a reboot.
pub const DIRECTORY: &str = "/var/run/cdi";

/// One kind of devices, and the edits for each. Source: CNCF's container-device-interface, SPEC.md.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct CdiSpec {
    /// Vendor and class: `muster.io/gpu`.
    pub kind: String,
    /// Annotations, which runtimes ignore.
    #[serde(default)]
    pub annotations: BTreeMap<String, String>,
    /// The devices; runtimes refuse a file without any.
    pub devices: Vec<CdiDevice>,
    /// The edits for a container with any of them, applied once.
    #[serde(rename = "containerEdits", default)]
    pub edits: Edits,
}

/// A device of a kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CdiDevice {
    /// Its name within the kind: letters, digits and `_-.:`, a letter or digit at both ends.
    pub name: String,
    /// Annotations, which runtimes ignore.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// The edits for a container with it; runtimes refuse a device without edits.
    #[serde(rename = "containerEdits")]
    pub edits: Edits,
}

/// Edits to a container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Edits {
    /// Variables, `NAME=VALUE`; they take precedence over the container's own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<String>,
    /// Device files.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub device_nodes: Vec<DeviceNode>,
    /// Files and directories.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mounts: Vec<CdiMount>,
}

/// A device file. The runtime reads its type and numbers from the machine's file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DeviceNode {
    /// The path in the container.
    pub path: PathBuf,
    /// The path on the machine, if different.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host_path: Option<PathBuf>,
    /// Any of `r`, `w` and `m` (mknod).
    pub permissions: String,
}

/// A file or directory of the machine that is mounted in the container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CdiMount {
    /// The path on the machine.
    pub host_path: PathBuf,
    /// The path in the container.
    pub container_path: PathBuf,
    /// Mount options, as in mount(8).
    pub options: Vec<String>,
}

impl Edits {
    /// Whether there are no edits.
    pub fn is_empty(&self) -> bool {
        *self == Edits::default()
    }
}

impl CdiSpec {
    /// The fully qualified name of a device: `muster.io/gpu=GPU-...`.
    pub fn qualified(&self, device: &str) -> String {
        format!("{}={device}", self.kind)
    }

    /// Whether it has this device.
    pub fn has(&self, device: &str) -> bool {
        self.devices.iter().any(|known| known.name == device)
    }

    /// The lowest version of the format that has the features used, so that old runtimes read it:
    /// 0.5.0 allows names that begin with a digit, and another path for device files on the
    /// machine; 0.6.0 has annotations.
    fn version(&self) -> &'static str {
        let mut annotated = self.devices.iter().map(|device| &device.annotations);
        if !self.annotations.is_empty() || annotated.any(|notes| !notes.is_empty()) {
            return "0.6.0";
        }
        let digit = |device: &CdiDevice| device.name.starts_with(|c: char| c.is_ascii_digit());
        let elsewhere = |edits: &Edits| edits.device_nodes.iter().any(|n| n.host_path.is_some());
        let newer = (self.devices.iter()).any(|d| digit(d) || elsewhere(&d.edits));
        if newer || elsewhere(&self.edits) {
            "0.5.0"
        } else {
            "0.3.0"
        }
    }
}

impl Serialize for CdiSpec {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct Document<'a> {
            cdi_version: &'static str,
            kind: &'a str,
            #[serde(skip_serializing_if = "BTreeMap::is_empty")]
            annotations: &'a BTreeMap<String, String>,
            devices: &'a [CdiDevice],
            #[serde(skip_serializing_if = "Edits::is_empty")]
            container_edits: &'a Edits,
        }
        let document = Document {
            cdi_version: self.version(),
            kind: &self.kind,
            annotations: &self.annotations,
            devices: &self.devices,
            container_edits: &self.edits,
        };
        document.serialize(to)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn node(path: &str, host_path: Option<&str>) -> DeviceNode {
        DeviceNode {
            path: path.into(),
            host_path: host_path.map(PathBuf::from),
            permissions: "rw".into(),
        }
    }

    fn spec(name: &str, own: DeviceNode, common: Vec<DeviceNode>) -> CdiSpec {
        CdiSpec {
            kind: "muster.io/gpu".into(),
            devices: vec![CdiDevice {
                name: name.into(),
                edits: Edits {
                    device_nodes: vec![own],
                    ..Edits::default()
                },
                ..CdiDevice::default()
            }],
            edits: Edits {
                device_nodes: common,
                ..Edits::default()
            },
            ..CdiSpec::default()
        }
    }

    #[test]
    fn a_spec_is_written_as_runtimes_read_it() {
        let mut spec = spec("GPU-1", node("/dev/nvidia0", None), Vec::new());
        assert_eq!(
            serde_json::to_value(&spec).expect("JSON"),
            json!({"cdiVersion": "0.3.0", "kind": "muster.io/gpu", "devices": [{"name": "GPU-1",
                "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia0", "permissions": "rw"}]}}]})
        );
        spec.edits.env.push("A=b".into());
        spec.edits.mounts.push(CdiMount {
            host_path: "/x".into(),
            container_path: "/y".into(),
            options: vec!["ro".into()],
        });
        assert_eq!(
            serde_json::to_value(&spec).expect("JSON")["containerEdits"],
            json!({"env": ["A=b"], "mounts":
                [{"hostPath": "/x", "containerPath": "/y", "options": ["ro"]}]})
        );
        assert_eq!(spec.qualified("GPU-1"), "muster.io/gpu=GPU-1");
        assert!(spec.has("GPU-1") && !spec.has("GPU-2"));
    }

    #[test]
    fn the_version_is_the_lowest_with_the_used_features() {
        let plain = || node("/dev/a", None);
        let moved = || node("/dev/a", Some("/root/dev/a"));
        for (spec, version) in [
            (spec("GPU-1", plain(), vec![plain()]), "0.3.0"),
            (spec("0", plain(), Vec::new()), "0.5.0"),
            (spec("all", moved(), Vec::new()), "0.5.0"),
            (spec("all", plain(), vec![moved()]), "0.5.0"),
        ] {
            assert_eq!(spec.version(), version, "{spec:?}");
        }
        let mut annotated = spec("all", plain(), Vec::new());
        let notes = BTreeMap::from([("muster.io/a".to_owned(), "b".to_owned())]);
        annotated.devices[0].annotations = notes;
        assert_eq!(annotated.version(), "0.6.0");
    }
}
