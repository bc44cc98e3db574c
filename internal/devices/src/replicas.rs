//! Parses the device plugin's configuration for replicas of devices: `sharing.timeSlicing` or
//! `sharing.mps`, in NVIDIA's format. Pure.

use resources::names::{NVIDIA_GPU, NVIDIA_MIG};
use serde_json::Value;

use crate::config_values::{ConfigValueError, fields, flag, is_resource, join, present, wrong};
use crate::mps::CLIENTS;
use crate::sharing::{DeviceSelection, Replicated, Sharing, SharingStrategy};

/// Maximum number of replicas of a device.
const REPLICAS_MAX: u64 = 1024;

/// Parses the configuration of one strategy.
///
/// # Errors
///
/// The field, its value and the accepted values.
pub fn read(strategy: SharingStrategy, value: &Value) -> Result<Sharing, ConfigValueError> {
    let mps = strategy == SharingStrategy::Mps;
    let at = if mps {
        "sharing.mps"
    } else {
        "sharing.timeSlicing"
    };
    let known = ["renameByDefault", "failRequestsGreaterThanOne", "resources"];
    let slicing = fields(at, value, &known)?;
    let list = format!("{at}.resources");
    let resources = match slicing.get("resources") {
        Some(Value::Array(resources)) if !resources.is_empty() => resources,
        other => return Err(wrong(&list, other, "a list of {name, replicas}")),
    };
    let one_at_most = flag(at, slicing, "failRequestsGreaterThanOne")?;
    if mps && one_at_most == Some(false) {
        let field = join(at, "failRequestsGreaterThanOne");
        let right = "true: by MPS a container has a part of one GPU";
        let given = slicing.get("failRequestsGreaterThanOne");
        return Err(wrong(&field, given, right));
    }
    let mut sharing = Sharing {
        strategy,
        rename_by_default: flag(at, slicing, "renameByDefault")?.unwrap_or(false),
        one_at_most: one_at_most.unwrap_or(mps),
        resources: Vec::new(),
    };
    for (place, value) in resources.iter().enumerate() {
        let at = format!("{list}[{place}]");
        let one = replicated(&at, value, mps)?;
        if sharing.resources.iter().any(|other| other.name == one.name) {
            let right = "each resource once";
            return Err(wrong(&format!("{at}.name"), value.get("name"), right));
        }
        sharing.resources.push(one);
    }
    Ok(sharing)
}

fn replicated(at: &str, value: &Value, mps: bool) -> Result<Replicated, ConfigValueError> {
    let one = fields(at, value, &["name", "rename", "devices", "replicas"])?;
    let offered = |name: &String| name == NVIDIA_GPU || !mps && name.starts_with(NVIDIA_MIG);
    let (right, most) = if mps {
        (
            "nvidia.com/gpu: slices of GPUs (MIG) are not shared by MPS",
            CLIENTS as u64,
        )
    } else {
        (
            "nvidia.com/gpu, or nvidia.com/mig- and a profile",
            REPLICAS_MAX,
        )
    };
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
        .filter(|replicas| (1..=most).contains(replicas))
        .and_then(|replicas| usize::try_from(replicas).ok());
    let replicas = replicas.ok_or_else(|| {
        let right = format!("a number from 1 to {most}");
        wrong(&format!("{at}.replicas"), one.get("replicas"), &right)
    })?;
    Ok(Replicated {
        name,
        rename,
        replicas,
        devices: selection(&format!("{at}.devices"), present(one, "devices"))?,
    })
}

fn selection(at: &str, value: Option<&Value>) -> Result<DeviceSelection, ConfigValueError> {
    let right = "all, a number of devices, or a list of UUIDs and indices (0, or 0:1 for a slice)";
    let fault = || wrong(at, value, right);
    let one = |value: &Value| match value {
        Value::Number(index) => index.as_u64().map(|index| index.to_string()),
        Value::String(text) => is_device(text).then(|| text.clone()),
        _ => None,
    };
    match value {
        None => Ok(DeviceSelection::All),
        Some(Value::String(all)) if all == "all" => Ok(DeviceSelection::All),
        Some(Value::Number(count)) => (count.as_u64())
            .filter(|count| *count > 0)
            .and_then(|count| usize::try_from(count).ok())
            .map(DeviceSelection::First)
            .ok_or_else(fault),
        Some(Value::Array(list)) if !list.is_empty() => {
            let these: Option<_> = list.iter().map(one).collect();
            these.map(DeviceSelection::These).ok_or_else(fault)
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

/// A resource's name; a name without a domain is NVIDIA's.
fn named(value: Option<&Value>) -> Option<String> {
    let text = value?.as_str()?;
    let name = if text.contains('/') {
        text.to_owned()
    } else {
        format!("nvidia.com/{text}")
    };
    is_resource(&name).then_some(name)
}
