//! Devices of any vendor, by a description: which files are one, what goes with it into a container,
//! and how it is known to be well. Owns the description and its reading; pure but for [`watch`],
//! whose thread looks at the machine, and [`Described`], who listens to it.

mod check;
mod look;
mod stock;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Map, Value};

pub use look::{Device, State, below, watch};
pub use stock::{Described, Equipment, Stock, equipment, offered};

use crate::reading::{fields, is_resource, join, present, wrong};

/// What stands for a device's number in paths, variables and commands.
const NUMBER: &str = "{number}";
/// What stands for the numbers of all of a container's devices, with commas, in variables.
const NUMBERS: &str = "{numbers}";
/// The same of their files.
const FILES: &str = "{files}";

/// How long a check may take, and how often it is made, unless the description says otherwise.
const TIMEOUT: u64 = 5;
const EVERY: u64 = 30;
/// The most seconds that either may be.
const SECONDS_MAX: u64 = 3600;

/// A vendor's devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vendor {
    /// The resource that they are offered as: `amd.com/gpu`.
    pub resource: String,
    /// The file that a device is.
    pub device: Pattern,
    /// What a device must be, beyond having the file.
    pub only: Option<Only>,
    /// Further files of a device, where it has them.
    pub with: Vec<Pattern>,
    /// Files that a container with any of them has, where the machine does.
    pub always: Vec<PathBuf>,
    /// Variables of a container.
    pub environment: BTreeMap<String, String>,
    /// Files and directories of the machine that a container has, where the machine does.
    pub mounts: Vec<Shown>,
    /// The file that says on which NUMA node a device is.
    pub numa: Option<Pattern>,
    /// How a device is known to be well; else it is as long as its file is there.
    pub health: Option<Health>,
}

/// An absolute path in which one place stands for a device's number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    before: String,
    after: String,
}

/// What a file about a device must say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Only {
    /// The file.
    pub file: Pattern,
    /// What it says, but for space around it.
    pub is: String,
}

/// A file or directory of the machine in a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown {
    /// Where the machine has it.
    pub from: PathBuf,
    /// Where the container has it.
    pub to: PathBuf,
    /// Whether the container may not write it.
    pub read_only: bool,
}

/// A command that ends with 0 where a device is well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Health {
    /// The program and its arguments.
    pub command: Vec<String>,
    /// How long it may take; a device whose check takes longer is not known to be well.
    pub timeout: Duration,
    /// How often it is run.
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

    /// The directory whose entries have the number in their names, and what is around it there; what
    /// follows below those entries is [`Pattern::of`]'s.
    fn entries(&self) -> (&Path, &str, &str) {
        let (directory, before) = self.before.rsplit_once('/').unwrap_or(("", &self.before));
        let after = self.after.split('/').next().unwrap_or_default();
        let directory = if directory.is_empty() { "/" } else { directory };
        (Path::new(directory), before, after)
    }

    /// What a device is called: the entry's name that has its number.
    fn name(&self, number: u32) -> String {
        let (_, before, after) = self.entries();
        format!("{before}{number}{after}")
    }

    /// The number in an entry's name, as it is written: neither signs nor leading zeros.
    fn number(&self, entry: &str) -> Option<u32> {
        let (_, before, after) = self.entries();
        let digits = entry.strip_prefix(before)?.strip_suffix(after)?;
        let number: u32 = digits.parse().ok()?;
        (number.to_string() == digits).then_some(number)
    }
}

impl Vendor {
    /// Reads a description.
    ///
    /// # Errors
    ///
    /// A sentence with the field, its value and what would be right.
    pub fn read(document: &Value) -> Result<Vendor, String> {
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
                Some(Only {
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
    pub fn variables(&self, devices: &[Device]) -> BTreeMap<String, String> {
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

    /// The files that a container with these devices has; some may not be there.
    pub fn files(&self, devices: &[Device]) -> Vec<PathBuf> {
        let own = devices.iter().flat_map(|device| self.own(device.number));
        own.chain(self.always.iter().cloned()).collect()
    }

    /// The files of one device alone; some may not be there.
    fn own(&self, number: u32) -> Vec<PathBuf> {
        let patterns = std::iter::once(&self.device).chain(&self.with);
        patterns.map(|pattern| pattern.of(number)).collect()
    }
}

fn pattern(at: &str, value: Option<&Value>) -> Result<Pattern, String> {
    let read = value.and_then(|value| Pattern::read(value.as_str()?));
    read.ok_or_else(|| {
        let right = "an absolute path with {number} in one place, like /dev/dri/renderD{number}";
        wrong(at, value, right)
    })
}

fn absolute(at: &str, value: Option<&Value>) -> Result<PathBuf, String> {
    let path = value.and_then(|value| Some(PathBuf::from(value.as_str()?)));
    path.filter(|path| path.is_absolute())
        .ok_or_else(|| wrong(at, value, "an absolute path, like /dev/kfd"))
}

fn text(at: &str, value: Option<&Value>, right: &str) -> Result<String, String> {
    let text = value
        .and_then(Value::as_str)
        .filter(|text| !text.is_empty());
    text.map(str::to_owned)
        .ok_or_else(|| wrong(at, value, right))
}

/// A list's entries, none where there is no list.
fn list<T>(
    name: &str,
    map: &Map<String, Value>,
    read: impl Fn(&str, &Value) -> Result<T, String>,
) -> Result<Vec<T>, String> {
    match present(map, name) {
        None => Ok(Vec::new()),
        Some(Value::Array(all)) => (all.iter().enumerate())
            .map(|(place, value)| read(&format!("{name}[{place}]"), value))
            .collect(),
        other => Err(wrong(name, other, "a list")),
    }
}

fn environment(root: &Map<String, Value>) -> Result<BTreeMap<String, String>, String> {
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

fn shown(at: &str, value: &Value) -> Result<Shown, String> {
    let mount = fields(at, value, &["from", "to", "readOnly"])?;
    let from = absolute(&join(at, "from"), mount.get("from"))?;
    let to = match present(mount, "to") {
        None => from.clone(),
        given => absolute(&join(at, "to"), given)?,
    };
    Ok(Shown {
        from,
        to,
        read_only: crate::reading::flag(at, mount, "readOnly")?.unwrap_or(true),
    })
}

fn health(value: &Value) -> Result<Health, String> {
    let known = ["command", "timeoutSeconds", "everySeconds"];
    let health = fields("health", value, &known)?;
    let word = |at: &str, value: &Value| text(at, Some(value), "a word of the command");
    let command = list("command", health, word).map_err(|why| format!("health.{why}"))?;
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
    Ok(Health {
        command,
        timeout,
        every,
    })
}

#[cfg(test)]
mod tests;
