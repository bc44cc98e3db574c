//! Devices of any vendor, by a description: the files of a device, the files and variables that a
//! container with it gets, and its health check. Owns the description and its parsing; pure but for
//! [`watch`], whose thread reads the machine, and [`DeviceStock`], which receives the results.

mod check;
mod discovery;
mod stock;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Map, Value};

pub use discovery::{VendorDevice, VendorDeviceState, below, watch};
pub use stock::{ContainerDevices, DeviceStock, Stock, VendorAllocationError, equipment, offered};

use crate::config_values::{ConfigValueError, fields, flag, is_resource, join, present, wrong};

/// Placeholder for a device's number in paths, variables and commands.
const NUMBER: &str = "{number}";
/// Placeholder for the numbers of all of a container's devices, with commas, in variables.
const NUMBERS: &str = "{numbers}";
/// The same for their files.
const FILES: &str = "{files}";

/// Default timeout and interval of a check, in seconds.
const TIMEOUT: u64 = 5;
const EVERY: u64 = 30;
/// Maximum of either, in seconds.
const SECONDS_MAX: u64 = 3600;

/// A vendor's devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vendor {
    /// The resource as which they are offered: `amd.com/gpu`.
    pub resource: String,
    /// The file of a device.
    pub device: Pattern,
    /// A condition for a device, beyond the existence of its file.
    pub only: Option<FileCondition>,
    /// Further files of a device, if they exist.
    pub with: Vec<Pattern>,
    /// Files that a container with any of them gets, if the machine has them.
    pub always: Vec<PathBuf>,
    /// Variables of a container.
    pub environment: BTreeMap<String, String>,
    /// Files and directories of the machine that a container gets, if the machine has them.
    pub mounts: Vec<HostMount>,
    /// The file with a device's NUMA node.
    pub numa: Option<Pattern>,
    /// The health check; without one a device is healthy as long as its file exists.
    pub health: Option<HealthCommand>,
}

/// An absolute path with one placeholder for a device's number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    before: String,
    after: String,
}

/// The required content of a file about a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileCondition {
    /// The file.
    pub file: Pattern,
    /// The content, without surrounding space.
    pub is: String,
}

/// A file or directory of the machine that is mounted in a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostMount {
    /// The path on the machine.
    pub from: PathBuf,
    /// The path in the container.
    pub to: PathBuf,
    /// Whether the container has it read-only.
    pub read_only: bool,
}

/// A command that exits with 0 if a device is healthy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthCommand {
    /// The program and its arguments.
    pub command: Vec<String>,
    /// The timeout; a device whose check takes longer is unhealthy.
    pub timeout: Duration,
    /// The interval.
    pub every: Duration,
}

impl Pattern {
    fn read(text: &str) -> Option<Pattern> {
        let (before, after) = text.split_once(NUMBER)?;
        let good = before.starts_with('/') && !after.contains(NUMBER);
        good.then(|| Pattern {
            before: before.to_owned(),
            after: after.to_owned(),
        })
    }

    /// The path of a device.
    pub fn of(&self, number: u32) -> PathBuf {
        format!("{}{number}{}", self.before, self.after).into()
    }

    /// The directory whose entries have the number in their names, and the prefix and suffix of the
    /// number there; [`Pattern::of`] adds the path below those entries.
    fn entries(&self) -> (&Path, &str, &str) {
        let (directory, before) = self.before.rsplit_once('/').unwrap_or(("", &self.before));
        let after = self.after.split('/').next().unwrap_or_default();
        let directory = if directory.is_empty() { "/" } else { directory };
        (Path::new(directory), before, after)
    }

    /// A device's name: the name of the entry with its number.
    fn name(&self, number: u32) -> String {
        let (_, before, after) = self.entries();
        format!("{before}{number}{after}")
    }

    /// The number in an entry's name, without sign and leading zeros.
    fn number(&self, entry: &str) -> Option<u32> {
        let (_, before, after) = self.entries();
        let digits = entry.strip_prefix(before)?.strip_suffix(after)?;
        let number: u32 = digits.parse().ok()?;
        (number.to_string() == digits).then_some(number)
    }
}

impl Vendor {
    /// Parses a description.
    ///
    /// # Errors
    ///
    /// The field, its value and the accepted values.
    pub fn read(document: &Value) -> Result<Vendor, ConfigValueError> {
        let known = [
            "resource",
            "device",
            "only",
            "with",
            "always",
            "environment",
            "mounts",
            "numa",
            "health",
        ];
        let root = fields("", document, &known)?;
        let given = present(root, "resource");
        let right = "a resource's name of another vendor than NVIDIA, like amd.com/gpu";
        let resource = (given.and_then(Value::as_str))
            .filter(|name| is_resource(name) && !name.starts_with("nvidia.com/"))
            .ok_or_else(|| wrong("resource", given, right))?;
        let only = match present(root, "only") {
            None => None,
            Some(value) => {
                let only = fields("only", value, &["file", "is"])?;
                Some(FileCondition {
                    file: pattern("only.file", only.get("file"))?,
                    is: text("only.is", only.get("is"), "what the file says")?,
                })
            }
        };
        let numa = present(root, "numa").map(|value| pattern("numa", Some(value)));
        Ok(Vendor {
            resource: resource.to_owned(),
            device: pattern("device", root.get("device"))?,
            only,
            with: list("with", root, |at, value| pattern(at, Some(value)))?,
            always: list("always", root, |at, value| absolute(at, Some(value)))?,
            environment: environment(root)?,
            mounts: list("mounts", root, shown)?,
            numa: numa.transpose()?,
            health: present(root, "health").map(health).transpose()?,
        })
    }

    /// The variables of a container with these devices.
    pub fn variables(&self, devices: &[VendorDevice]) -> BTreeMap<String, String> {
        let joined = |words: Vec<String>| words.join(",");
        let numbers = joined(devices.iter().map(|d| d.number.to_string()).collect());
        let files = devices.iter().map(|device| self.device.of(device.number));
        let files = joined(files.map(|file| file.display().to_string()).collect());
        let filled = self.environment.iter().map(|(name, value)| {
            let value = value.replace(NUMBERS, &numbers).replace(FILES, &files);
            (name.clone(), value)
        });
        filled.collect()
    }

    /// The files of a container with these devices; some may not exist.
    pub fn files(&self, devices: &[VendorDevice]) -> Vec<PathBuf> {
        let own = devices.iter().flat_map(|device| self.own(device.number));
        own.chain(self.always.iter().cloned()).collect()
    }

    /// The files of one device alone; some may not exist.
    fn own(&self, number: u32) -> Vec<PathBuf> {
        let patterns = std::iter::once(&self.device).chain(&self.with);
        patterns.map(|pattern| pattern.of(number)).collect()
    }
}

fn pattern(at: &str, value: Option<&Value>) -> Result<Pattern, ConfigValueError> {
    let read = value.and_then(|value| Pattern::read(value.as_str()?));
    read.ok_or_else(|| {
        let right = "an absolute path with {number} in one place, like /dev/dri/renderD{number}";
        wrong(at, value, right)
    })
}

fn absolute(at: &str, value: Option<&Value>) -> Result<PathBuf, ConfigValueError> {
    let path = value.and_then(|value| Some(PathBuf::from(value.as_str()?)));
    path.filter(|path| path.is_absolute())
        .ok_or_else(|| wrong(at, value, "an absolute path, like /dev/kfd"))
}

fn text(at: &str, value: Option<&Value>, right: &str) -> Result<String, ConfigValueError> {
    let text = value
        .and_then(Value::as_str)
        .filter(|text| !text.is_empty());
    text.map(str::to_owned)
        .ok_or_else(|| wrong(at, value, right))
}

/// A list's entries, empty if there is no list.
fn list<T>(
    name: &str,
    map: &Map<String, Value>,
    read: impl Fn(&str, &Value) -> Result<T, ConfigValueError>,
) -> Result<Vec<T>, ConfigValueError> {
    match present(map, name) {
        None => Ok(Vec::new()),
        Some(Value::Array(all)) => (all.iter().enumerate())
            .map(|(place, value)| read(&format!("{name}[{place}]"), value))
            .collect(),
        other => Err(wrong(name, other, "a list")),
    }
}

fn environment(root: &Map<String, Value>) -> Result<BTreeMap<String, String>, ConfigValueError> {
    let given = present(root, "environment");
    let all = match given {
        None => return Ok(BTreeMap::new()),
        Some(Value::Object(all)) => all,
        other => return Err(wrong("environment", other, "a mapping of NAME: VALUE")),
    };
    let one = |(name, value): (&String, &Value)| {
        let at = join("environment", name);
        let named = !name.is_empty() && !name.contains('=');
        let value = (value.as_str()).filter(|text| named && !text.contains(NUMBER));
        let right = "NAME: text, in which {numbers} and {files} stand for the container's devices";
        let value = value.ok_or_else(|| wrong(&at, all.get(name), right))?;
        Ok((name.clone(), value.to_owned()))
    };
    all.iter().map(one).collect()
}

fn shown(at: &str, value: &Value) -> Result<HostMount, ConfigValueError> {
    let mount = fields(at, value, &["from", "to", "readOnly"])?;
    let from = absolute(&join(at, "from"), mount.get("from"))?;
    let to = match present(mount, "to") {
        None => from.clone(),
        given => absolute(&join(at, "to"), given)?,
    };
    Ok(HostMount {
        from,
        to,
        read_only: flag(at, mount, "readOnly")?.unwrap_or(true),
    })
}

fn health(value: &Value) -> Result<HealthCommand, ConfigValueError> {
    let known = ["command", "timeoutSeconds", "everySeconds"];
    let health = fields("health", value, &known)?;
    let word = |at: &str, value: &Value| text(at, Some(value), "a word of the command");
    let command = list("command", health, word).map_err(|error| error.within("health"))?;
    if command.is_empty() {
        let right = "a program and its arguments, like [grep, -q, ok, /sys/x{number}/state]";
        return Err(wrong("health.command", health.get("command"), right));
    }
    let seconds = |name: &str, usual: u64| match present(health, name) {
        None => Ok(Duration::from_secs(usual)),
        given => (given.and_then(Value::as_u64))
            .filter(|seconds| (1..=SECONDS_MAX).contains(seconds))
            .map(Duration::from_secs)
            .ok_or_else(|| {
                let right = format!("seconds, from 1 to {SECONDS_MAX}");
                wrong(&join("health", name), given, &right)
            }),
    };
    let (timeout, every) = (
        seconds("timeoutSeconds", TIMEOUT)?,
        seconds("everySeconds", EVERY)?,
    );
    if timeout > every {
        let given = health.get("timeoutSeconds");
        let right = format!("at most everySeconds, {}", every.as_secs());
        return Err(wrong("health.timeoutSeconds", given, &right));
    }
    Ok(HealthCommand {
        command,
        timeout,
        every,
    })
}

#[cfg(test)]
mod tests;
