//! The ways in which devices reach a container: the fields of the device plugin's configuration for
//! them, and the file that container runtimes read for the Container Device Interface (CDI).

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use serde_json::{Map, Value};

use crate::cdi::gpus::{self, Roots};
use crate::cdi::{CdiSpec, file};
use crate::config_values::{ConfigValueError, join, present, wrong};
use crate::inventory::NodeHardware;

/// The prefix of annotations from which runtimes read devices.
const ANNOTATION_PREFIX: &str = "cdi.k8s.io/";

/// A way to pass devices to a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DeliveryMethod {
    /// By the variable `NVIDIA_VISIBLE_DEVICES`, which NVIDIA's container runtime reads.
    Envvar,
    /// By an annotation that CDI-aware runtimes read, also with kubelets that do not support CDI.
    CdiAnnotations,
    /// By the CDI field of the kubelet's request to its runtime.
    CdiCri,
}

impl DeliveryMethod {
    /// All ways, with the names that NVIDIA's device plugin has for them.
    pub const NAMES: [(&'static str, DeliveryMethod); 3] = [
        ("envvar", DeliveryMethod::Envvar),
        ("cdi-annotations", DeliveryMethod::CdiAnnotations),
        ("cdi-cri", DeliveryMethod::CdiCri),
    ];

    /// The way with this name.
    pub fn named(name: &str) -> Option<DeliveryMethod> {
        let found = DeliveryMethod::NAMES
            .iter()
            .find(|(known, _)| *known == name);
        found.map(|(_, way)| *way)
    }
}

/// How devices reach containers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// The ways; at least one.
    pub ways: BTreeSet<DeliveryMethod>,
    /// The prefix of annotations.
    pub annotation_prefix: String,
    /// The root directory of the driver's files, as a container runtime sees it.
    pub driver_root: PathBuf,
    /// The same directory as the agent sees it from its own container; if absent, the same path.
    pub driver_root_seen: Option<PathBuf>,
    /// The root whose `dev` has the device files, as a container runtime sees it; if absent, the
    /// driver's.
    pub dev_root: Option<PathBuf>,
}

impl Default for Delivery {
    fn default() -> Delivery {
        Delivery {
            ways: BTreeSet::from([DeliveryMethod::Envvar]),
            annotation_prefix: ANNOTATION_PREFIX.to_owned(),
            driver_root: "/".into(),
            driver_root_seen: None,
            dev_root: None,
        }
    }
}

impl Delivery {
    /// Reads the fields of `flags` and `flags.plugin` for this.
    ///
    /// # Errors
    ///
    /// The field, its value and the accepted values.
    pub fn read(
        &mut self,
        flags: &Map<String, Value>,
        plugin: Option<&Map<String, Value>>,
    ) -> Result<(), ConfigValueError> {
        if let Some(root) = directory("flags", flags, "nvidiaDriverRoot")? {
            self.driver_root = root;
        }
        self.dev_root = directory("flags", flags, "nvidiaDevRoot")?;
        let Some(plugin) = plugin else {
            return Ok(());
        };
        let at = "flags.plugin";
        self.driver_root_seen = directory(at, plugin, "containerDriverRoot")?;
        if let Some(given) = present(plugin, "cdiAnnotationPrefix") {
            let good = given.as_str().filter(|text| text.ends_with('/'));
            let right = || {
                let field = join(at, "cdiAnnotationPrefix");
                wrong(
                    &field,
                    Some(given),
                    "a domain with a slash, like cdi.k8s.io/",
                )
            };
            self.annotation_prefix = good.ok_or_else(right)?.to_owned();
        }
        let Some(given) = present(plugin, "deviceListStrategy") else {
            return Ok(());
        };
        let names: Vec<&Value> = match given {
            Value::Array(all) => all.iter().collect(),
            one => vec![one],
        };
        let ways = names
            .iter()
            .map(|name| DeliveryMethod::named(name.as_str()?));
        self.ways = (ways.collect::<Option<BTreeSet<DeliveryMethod>>>())
            .filter(|ways| !ways.is_empty())
            .ok_or_else(|| {
                let right = "envvar, cdi-annotations, cdi-cri, or a list of these";
                wrong(&join(at, "deviceListStrategy"), Some(given), right)
            })?;
        Ok(())
    }

    /// Whether runtimes read a CDI specification.
    pub fn by_cdi(&self) -> bool {
        self.ways.iter().any(|way| *way != DeliveryMethod::Envvar)
    }

    /// The roots of devices and driver.
    pub fn roots(&self) -> Roots {
        let driver_seen = self.driver_root_seen.as_ref().unwrap_or(&self.driver_root);
        let dev = self.dev_root.as_ref().unwrap_or(&self.driver_root);
        let same = *dev == self.driver_root;
        Roots {
            dev: dev.clone(),
            dev_seen: if same { driver_seen } else { dev }.clone(),
            driver: self.driver_root.clone(),
            driver_seen: driver_seen.clone(),
        }
    }
}

/// An absolute directory.
fn directory(
    at: &str,
    map: &Map<String, Value>,
    name: &str,
) -> Result<Option<PathBuf>, ConfigValueError> {
    let Some(given) = present(map, name) else {
        return Ok(None);
    };
    let path = given.as_str().map(Path::new);
    let good = path.filter(|path| path.is_absolute());
    let fault = || wrong(&join(at, name), Some(given), "an absolute path, like /");
    good.map(|path| Some(path.to_owned())).ok_or_else(fault)
}

/// Why the CDI specification doesn't name a device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CdiFileError {
    /// The file can't be written or removed.
    #[error("the CDI file {} cannot be written: {error}; --cdi-dir says where it is", path.display())]
    NotWritten {
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        error: String,
    },
    /// The device has no device files.
    #[error(
        "{device} has no device files in {}, so the CDI file {} cannot name it; load the driver, or let \
         devices be told by NVIDIA_VISIBLE_DEVICES (envvar)",
        dev.display(),
        path.display()
    )]
    NoFiles {
        /// The device.
        device: String,
        /// The directory of device files.
        dev: PathBuf,
        /// The CDI file.
        path: PathBuf,
    },
}

/// The CDI specification of the machine's GPUs, kept up to date with the machine.
pub struct CdiFile {
    path: PathBuf,
    roots: Roots,
    hidden: bool,
    /// The file's content, `None` without a file, or the error that prevented it.
    content: Mutex<Result<Option<CdiSpec>, CdiFileError>>,
}

impl CdiFile {
    /// The file in `directory`, if any way needs it; otherwise removes the file of an earlier
    /// agent.
    pub fn new(directory: &Path, delivery: &Delivery) -> Option<CdiFile> {
        let path = file::path(directory, gpus::KIND, None);
        if !delivery.by_cdi() {
            if let Err(error) = file::remove(&path) {
                tracing::warn!(%error, file = %path.display(), "the unused CDI file cannot be removed");
            }
            return None;
        }
        Some(CdiFile {
            path,
            roots: delivery.roots(),
            hidden: !delivery.ways.contains(&DeliveryMethod::Envvar),
            content: Mutex::new(Ok(None)),
        })
    }

    /// Writes the file if the machine has changed or the file is missing. It stays when the agent
    /// ends, because restarted containers need it.
    pub fn renew(&self, machine: &NodeHardware) {
        let spec = gpus::spec(machine, &self.roots, self.hidden);
        let spec = Some(spec).filter(|spec| !spec.devices.is_empty());
        let mut content = self.content.lock();
        if *content == Ok(spec.clone()) && self.path.exists() == spec.is_some() {
            return;
        }
        let done = match &spec {
            Some(spec) => file::write(&self.path, spec),
            None => file::remove(&self.path),
        };
        let now = done.map(|()| spec).map_err(|error| {
            let (path, error) = (self.path.clone(), error.to_string());
            CdiFileError::NotWritten { path, error }
        });
        match &now {
            Err(why) if content.as_ref() != Err(why) => tracing::warn!("{why}"),
            Ok(_) => tracing::info!(file = %self.path.display(), "the CDI file was written"),
            Err(_) => {}
        }
        *content = now;
    }

    /// The CDI names of these devices.
    ///
    /// # Errors
    ///
    /// The specification lacks one of them, or could not be written.
    pub fn names(&self, devices: &[String]) -> Result<Vec<String>, CdiFileError> {
        let content = self.content.lock();
        let spec = content.as_ref().map_err(Clone::clone)?.as_ref();
        let one = |device: &String| {
            let known = spec.filter(|spec| spec.has(device));
            let name = known.map(|spec| spec.qualified(device));
            name.ok_or_else(|| CdiFileError::NoFiles {
                device: device.clone(),
                dev: self.roots.dev_seen.join("dev"),
                path: self.path.clone(),
            })
        };
        devices.iter().map(one).collect()
    }
}

/// The annotation that gives a container of a resource these devices. One annotation for each
/// resource, because the kubelet merges those of all its plugins.
pub fn annotation(prefix: &str, resource: &str, names: &[String]) -> (String, String) {
    let resource = resource.replace('/', "_");
    (format!("{prefix}muster_{resource}"), names.join(","))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(flags: Value) -> Result<Delivery, ConfigValueError> {
        let flags = flags.as_object().expect("a mapping");
        let mut delivery = Delivery::default();
        delivery.read(flags, flags.get("plugin").and_then(Value::as_object))?;
        Ok(delivery)
    }

    #[test]
    fn ways_and_roots_are_the_incumbents() {
        let plain = read(json!({})).expect("all of it may be left out");
        assert_eq!(plain, Delivery::default());
        assert!(!plain.by_cdi());
        let all = read(json!({"nvidiaDriverRoot": "/run/nvidia/driver", "plugin": {
            "deviceListStrategy": ["cdi-cri", "envvar"], "containerDriverRoot": "/driver-root",
            "cdiAnnotationPrefix": "nvidia.cdi.k8s.io/"}}))
        .expect("a configuration");
        assert_eq!(
            all.ways,
            BTreeSet::from([DeliveryMethod::Envvar, DeliveryMethod::CdiCri])
        );
        assert!(all.by_cdi());
        let path = PathBuf::from;
        let wanted = Roots {
            dev: path("/run/nvidia/driver"),
            dev_seen: path("/driver-root"),
            driver: path("/run/nvidia/driver"),
            driver_seen: path("/driver-root"),
        };
        assert_eq!(all.roots(), wanted);
        let apart = read(json!({"nvidiaDriverRoot": "/d", "nvidiaDevRoot": "/",
            "plugin": {"containerDriverRoot": "/seen", "deviceListStrategy": "cdi-annotations"}}));
        let apart = apart.expect("a configuration");
        let wanted = Roots {
            dev: path("/"),
            dev_seen: path("/"),
            driver: path("/d"),
            driver_seen: path("/seen"),
        };
        assert_eq!(apart.roots(), wanted);
        let names = ["muster.io/gpu=a".to_owned(), "muster.io/gpu=b".to_owned()];
        assert_eq!(
            annotation(&apart.annotation_prefix, "nvidia.com/gpu", &names),
            (
                "cdi.k8s.io/muster_nvidia.com_gpu".to_owned(),
                "muster.io/gpu=a,muster.io/gpu=b".to_owned()
            )
        );
    }

    #[test]
    fn errors_name_the_field_its_value_and_the_accepted_values() {
        let strategy = "flags.plugin.deviceListStrategy";
        for (flags, words) in [
            (
                json!({"plugin": {"deviceListStrategy": "volume-mounts"}}),
                [strategy, "\"volume-mounts\"", "cdi-cri"],
            ),
            (
                json!({"plugin": {"deviceListStrategy": []}}),
                [strategy, "[]", "envvar"],
            ),
            (
                json!({"plugin": {"deviceListStrategy": ["envvar", 1]}}),
                [strategy, "[\"envvar\",1]", "cdi-annotations"],
            ),
            (
                json!({"nvidiaDriverRoot": "usr"}),
                ["flags.nvidiaDriverRoot", "\"usr\"", "an absolute path"],
            ),
            (
                json!({"plugin": {"cdiAnnotationPrefix": "cdi"}}),
                ["flags.plugin.cdiAnnotationPrefix", "\"cdi\"", "cdi.k8s.io/"],
            ),
        ] {
            let why = read(flags).expect_err("it is refused").to_string();
            for word in words {
                assert!(why.contains(word), "{why}: lacks {word}");
            }
        }
    }

    #[test]
    fn the_file_follows_the_machine_and_is_removed_when_unused() {
        let root = tempfile::tempdir().expect("a directory");
        std::fs::create_dir(root.path().join("dev")).expect("it is made");
        std::fs::write(root.path().join("dev/nvidia0"), "").expect("it is written");
        let mut delivery = Delivery {
            ways: BTreeSet::from([DeliveryMethod::CdiCri]),
            driver_root: root.path().to_owned(),
            ..Delivery::default()
        };
        let directory = root.path().join("cdi");
        let file = CdiFile::new(&directory, &delivery).expect("it is needed");
        let id = "GPU-0".to_owned();
        let gpu = resources::devices::GpuDevice {
            id: id.clone(),
            ..Default::default()
        };
        let mut machine = NodeHardware::default();
        machine.inventory.gpus.push(gpu);
        machine.minors.insert(id.clone(), 0);
        let path = directory.join("muster.io-gpu.json");
        let given = [id.clone()];
        file.renew(&NodeHardware::default());
        assert!(!path.exists());
        assert!(
            (file.names(&given))
                .is_err_and(|why| why.to_string().contains("GPU-0 has no device files"))
        );
        file.renew(&machine);
        assert_eq!(file.names(&given), Ok(vec!["muster.io/gpu=GPU-0".into()]));
        // The file is removed from outside.
        std::fs::remove_file(&path).expect("it is there");
        file.renew(&machine);
        assert!(path.exists());
        file.renew(&NodeHardware::default());
        assert!(!path.exists());
        file.renew(&machine);
        drop(file);
        assert!(path.exists(), "containers are started again by it");
        delivery.ways = BTreeSet::from([DeliveryMethod::Envvar]);
        assert!(CdiFile::new(&directory, &delivery).is_none());
        assert!(!path.exists());

        std::fs::write(root.path().join("odd"), "").expect("it is written");
        delivery.ways = BTreeSet::from([DeliveryMethod::CdiCri]);
        let odd = CdiFile::new(&root.path().join("odd"), &delivery).expect("it is needed");
        odd.renew(&machine);
        assert!(
            (odd.names(&given)).is_err_and(|why| why.to_string().contains("cannot be written"))
        );
    }
}
