//! The configuration of shared cards and their resource names, in the format of
//! k8s-rdma-shared-dev-plugin. Pure. An invalid value is refused with its field, the value and the
//! accepted values; fields that Muster ignores are listed.

use serde_json::{Map, Value};

use super::{Selectors, SharedCards};
use crate::config_values::{ConfigValueError, fields, is_resource, present, wrong};

/// The default resource of all cards: the name in the sample configurations of
/// k8s-rdma-shared-dev-plugin.
const RESOURCE: &str = "hca_shared_devices_a";
const PREFIX: &str = "rdma";
/// How many containers share cards by default, as in those configurations.
const CONTAINERS: usize = 1000;
/// The maximum: the kubelet keeps each share as a device.
const CONTAINERS_MAX: u64 = 10_000;

/// Fields that have no effect here: the machine is read every other second, and --kubelet-dir gives
/// the kubelet's directory.
const UNUSED: [&str; 2] = ["kubeletRootDir", "periodicUpdateInterval"];

/// The parsed configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RdmaSettings {
    /// The resources, with distinct names.
    pub resources: Vec<SharedCards>,
    /// Fields that were read and have no effect here.
    pub unused: Vec<String>,
}

impl RdmaSettings {
    /// All cards as one resource, `rdma/hca_shared_devices_a`.
    pub fn usual() -> RdmaSettings {
        let all = SharedCards {
            resource: format!("{PREFIX}/{RESOURCE}"),
            containers: CONTAINERS,
            selectors: Selectors::default(),
        };
        RdmaSettings {
            resources: vec![all],
            unused: Vec::new(),
        }
    }

    /// Parses a document.
    ///
    /// # Errors
    ///
    /// The field, its value and the accepted values.
    pub fn read(document: &Value) -> Result<RdmaSettings, ConfigValueError> {
        let known = [&["configList"][..], &UNUSED].concat();
        let root = fields("", document, &known)?;
        let list = match root.get("configList") {
            Some(Value::Array(list)) if !list.is_empty() => list,
            other => {
                let right = "a list of {resourceName, rdmaHcaMax, selectors}";
                return Err(wrong("configList", other, right));
            }
        };
        let mut settings = RdmaSettings::default();
        for (place, value) in list.iter().enumerate() {
            let at = format!("configList[{place}]");
            let one = shared(&at, value)?;
            if (settings.resources.iter()).any(|other| other.resource == one.resource) {
                let at = format!("{at}.resourceName");
                return Err(wrong(&at, value.get("resourceName"), "each resource once"));
            }
            settings.resources.push(one);
        }
        let unused = UNUSED.iter().filter(|name| present(root, name).is_some());
        settings.unused = unused.map(ToString::to_string).collect();
        Ok(settings)
    }
}

fn shared(at: &str, value: &Value) -> Result<SharedCards, ConfigValueError> {
    let known = [
        "resourceName",
        "resourcePrefix",
        "rdmaHcaMax",
        "devices",
        "selectors",
    ];
    let one = fields(at, value, &known)?;
    let text = |name: &str| present(one, name).map(Value::as_str);
    let prefix = text("resourcePrefix").unwrap_or(Some(PREFIX));
    let name = prefix.zip(text("resourceName").flatten());
    let resource = name.map(|(prefix, name)| format!("{prefix}/{name}"));
    let gpus = |name: &str| {
        name == resources::names::NVIDIA_GPU || name.starts_with(resources::names::NVIDIA_MIG)
    };
    let resource = resource.filter(|name| is_resource(name) && !gpus(name));
    let resource = resource.ok_or_else(|| {
        let (field, right) = match prefix {
            None => ("resourcePrefix", "a domain, like rdma"),
            Some(_) => (
                "resourceName",
                "a name like hca_shared_devices_a, which with resourcePrefix is a resource's",
            ),
        };
        wrong(&format!("{at}.{field}"), one.get(field), right)
    })?;
    let containers = match present(one, "rdmaHcaMax") {
        None => CONTAINERS,
        given => (given.and_then(Value::as_u64))
            .filter(|count| (1..=CONTAINERS_MAX).contains(count))
            .and_then(|count| usize::try_from(count).ok())
            .ok_or_else(|| {
                let right = format!(
                    "how many containers may share the cards, a number from 1 to {CONTAINERS_MAX}"
                );
                wrong(&format!("{at}.rdmaHcaMax"), given, &right)
            })?,
    };
    Ok(SharedCards {
        resource,
        containers,
        selectors: selectors(at, one)?,
    })
}

fn selectors(at: &str, one: &Map<String, Value>) -> Result<Selectors, ConfigValueError> {
    let inside = format!("{at}.selectors");
    let known = ["vendors", "deviceIDs", "drivers", "ifNames", "linkTypes"];
    let none = Map::new();
    let given = match present(one, "selectors") {
        None => &none,
        Some(value) => fields(&inside, value, &known)?,
    };
    let list = |name: &str| words(&format!("{inside}.{name}"), present(given, name));
    let mut selectors = Selectors {
        vendors: numbers(list("vendors")?),
        models: numbers(list("deviceIDs")?),
        drivers: list("drivers")?,
        interfaces: list("ifNames")?,
        link_types: list("linkTypes")?,
    };
    let known = |word: &String| ["infiniband", "ether"].contains(&word.as_str());
    if !selectors.link_types.iter().all(known) {
        let at = format!("{inside}.linkTypes");
        return Err(wrong(
            &at,
            given.get("linkTypes"),
            "infiniband and ether only",
        ));
    }
    // The older form.
    let devices = words(&format!("{at}.devices"), present(one, "devices"))?;
    if !devices.is_empty() {
        if selectors != Selectors::default() {
            let right = "nothing beside selectors: move the interfaces to selectors.ifNames";
            return Err(wrong(&format!("{at}.devices"), one.get("devices"), right));
        }
        selectors.interfaces = devices;
    }
    Ok(selectors)
}

/// PCI ids in the form of sysfs.
fn numbers(words: Vec<String>) -> Vec<String> {
    let plain = |word: String| word.trim_start_matches("0x").to_ascii_lowercase();
    words.into_iter().map(plain).collect()
}

fn words(at: &str, value: Option<&Value>) -> Result<Vec<String>, ConfigValueError> {
    let fault = || wrong(at, value, "a list of words in quotes");
    match value {
        None => Ok(Vec::new()),
        Some(Value::Array(all)) => (all.iter())
            .map(|word| word.as_str().map(str::to_owned).ok_or_else(fault))
            .collect(),
        Some(_) => Err(fault()),
    }
}
