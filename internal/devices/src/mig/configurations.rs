//! The MIG configurations that a node's label can name, in the format that NVIDIA's MIG manager
//! reads (`version: v1`, `mig-configs`), or derived from the GPUs' own profiles if there is no
//! file. Pure. An invalid value is refused with its field, the value and the accepted values.

use std::collections::{BTreeMap, BTreeSet};

use hardware::mig_partitioner::Card;
use hardware::partition::{GpuLayout, InstanceProfile, WantedLayout, steps};
use resources::mig::Possible;
use resources::names::{NVIDIA_GPU, NVIDIA_MIG};
use serde_json::{Map, Value};

use crate::config_values::{ConfigValueError, fields, join, present, refused, wrong};

/// The prefix of each configuration that is derived from the GPUs' own profiles.
const ALL: &str = "all-";

/// The configurations that labels can name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Configurations {
    /// Derived from the node's own profiles: `all-disabled`, `all-enabled`, `all-balanced`, and
    /// `all-` with each profile's name, with a dot for its `+`, which labels can't contain.
    #[default]
    OfProfiles,
    /// The configurations of a file.
    Given(BTreeMap<String, Vec<ConfigurationEntry>>),
}

/// Why a configuration can't be applied to a node's GPUs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigurationError {
    /// The file has no configuration of this name.
    #[error("there is no configuration {name}; the file has {known}")]
    Unknown {
        /// The name.
        name: String,
        /// The names that the file has.
        known: String,
    },
    /// The node has no GPUs.
    #[error("the node has no GPUs")]
    NoGpus,
    /// No GPU of the node can be partitioned.
    #[error("no GPU of the node can be partitioned ({models})")]
    NoneCapable {
        /// The GPUs' products.
        models: String,
    },
    /// The GPUs' profiles give no configuration of this name.
    #[error(
        "there is no configuration {name} for these GPUs; there are all-disabled, all-enabled, \
         all-balanced{profiles}"
    )]
    NoProfile {
        /// The name.
        name: String,
        /// The names for the profiles, each after a comma.
        profiles: String,
    },
    /// The node has no GPU of an index.
    #[error("{at}.devices: there is no GPU {index}; the node has {count}")]
    NoGpu {
        /// The entry.
        at: String,
        /// The index.
        index: u32,
        /// The number of the node's GPUs.
        count: usize,
    },
    /// An entry applies to a GPU that can't be partitioned.
    #[error(
        "{at}: GPU {index} ({model}) cannot be partitioned; leave it out by devices or device-filter"
    )]
    NotCapable {
        /// The entry.
        at: String,
        /// The GPU's index.
        index: u32,
        /// Its product.
        model: String,
    },
    /// Two entries with different layouts apply to one GPU.
    #[error("{at}: entry {other} partitions GPU {index} in another way; name the GPU in one entry")]
    Twice {
        /// The entry.
        at: String,
        /// The GPU's index.
        index: u32,
        /// The place of the other entry.
        other: usize,
    },
    /// The configuration applies to none of the node's GPUs.
    #[error("mig-configs.{name}: no entry names one of the node's GPUs: {products}")]
    NoneMeant {
        /// The configuration.
        name: String,
        /// The node's products.
        products: String,
    },
}

/// The configuration of some GPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigurationEntry {
    /// Only products with one of these PCI device numbers (`0x233010DE`); all if empty.
    products: BTreeSet<u32>,
    /// Only GPUs with these indices; all if `None`.
    devices: Option<BTreeSet<u32>>,
    wanted: WantedLayout,
}

impl Configurations {
    /// Parses a document.
    ///
    /// # Errors
    ///
    /// The field, its value and the accepted values.
    pub fn read(document: &Value) -> Result<Configurations, ConfigValueError> {
        let root = fields("", document, &["version", "mig-configs"])?;
        match root.get("version") {
            Some(Value::String(version)) if version == "v1" => {}
            other => return Err(wrong("version", other, "\"v1\"")),
        }
        let all = match root.get("mig-configs") {
            Some(Value::Object(all)) if !all.is_empty() => all,
            other => {
                let right = "a mapping of names to lists of {devices, mig-enabled, mig-devices}";
                return Err(wrong("mig-configs", other, right));
            }
        };
        let all = all.iter().map(|(name, entries)| {
            let at = format!("mig-configs.{name}");
            if !is_label(name) {
                let right = "letters, digits, '-', '_' and '.', at most 63, as in a label's value";
                return Err(refused(&at, "no label can name it", right));
            }
            let Value::Array(entries) = entries else {
                let right = "a list of {devices, mig-enabled, mig-devices}";
                return Err(wrong(&at, Some(entries), right));
            };
            let entries = entries.iter().enumerate();
            let entries = entries.map(|(place, value)| entry(&format!("{at}[{place}]"), value));
            Ok((
                name.clone(),
                entries.collect::<Result<_, ConfigValueError>>()?,
            ))
        });
        Ok(Configurations::Given(
            all.collect::<Result<_, ConfigValueError>>()?,
        ))
    }

    /// The layout of each GPU under this name, by its UUID. GPUs that aren't named stay unchanged.
    ///
    /// # Errors
    ///
    /// There is no such name, or these GPUs don't support the layout.
    pub fn wanted(
        &self,
        name: &str,
        cards: &[Card],
    ) -> Result<BTreeMap<String, WantedLayout>, ConfigurationError> {
        match self {
            Configurations::OfProfiles => of_profiles(name, cards),
            Configurations::Given(all) => {
                let entries = all.get(name).ok_or_else(|| {
                    let names: Vec<&str> = all.keys().map(String::as_str).collect();
                    ConfigurationError::Unknown {
                        name: name.to_owned(),
                        known: names.join(", "),
                    }
                })?;
                given(name, entries, cards)
            }
        }
    }
}

/// How many devices of each resource the node would offer under each name that fits these GPUs.
/// GPUs that a configuration leaves unchanged count as they are.
pub fn possible(configurations: &Configurations, cards: &[Card]) -> Possible {
    let names: BTreeSet<String> = match configurations {
        Configurations::Given(all) => all.keys().cloned().collect(),
        Configurations::OfProfiles => {
            let profiles = cards.iter().flat_map(|card| &card.profiles);
            let profiles = profiles.map(|it| format!("{ALL}{}", label(&it.name)));
            let more = ["all-disabled", "all-balanced"].map(str::to_owned);
            profiles.chain(more).collect()
        }
    };
    if !cards.iter().any(|card| card.capable) {
        return Possible::new();
    }
    let all = names.into_iter().filter_map(|name| {
        let wanted = configurations.wanted(&name, cards).ok()?;
        let mut devices: BTreeMap<String, u32> = BTreeMap::new();
        for card in cards {
            let wanted = wanted.get(&card.id).cloned();
            let wanted = wanted.unwrap_or_else(|| WantedLayout::of(&card.profiles, &card.layout));
            if !wanted.enabled {
                *devices.entry(NVIDIA_GPU.to_owned()).or_default() += 1;
                continue;
            }
            // A configuration that doesn't fit is not possible.
            steps(
                &card.profiles,
                &GpuLayout::default(),
                &wanted,
                &BTreeSet::new(),
            )
            .ok()?;
            for (profile, count) in wanted.instances {
                let resource = format!("{NVIDIA_MIG}{}", label(&profile));
                *devices.entry(resource).or_default() += count;
            }
        }
        Some((name, devices))
    });
    all.collect()
}

fn of_profiles(
    name: &str,
    cards: &[Card],
) -> Result<BTreeMap<String, WantedLayout>, ConfigurationError> {
    let capable: Vec<&Card> = cards.iter().filter(|card| card.capable).collect();
    let each = |wanted: &dyn Fn(&Card) -> Option<WantedLayout>| -> BTreeMap<String, WantedLayout> {
        let wanted = |card: &&Card| Some((card.id.clone(), wanted(card)?));
        capable.iter().filter_map(wanted).collect()
    };
    let cut = |instances: BTreeMap<String, u32>| WantedLayout {
        enabled: true,
        instances,
    };
    if name == "all-disabled" {
        return Ok(each(&|_| Some(WantedLayout::default())));
    }
    if capable.is_empty() {
        let models: BTreeSet<&str> = cards.iter().map(|card| card.model.as_str()).collect();
        let models: Vec<&str> = models.into_iter().collect();
        return Err(match models.is_empty() {
            true => ConfigurationError::NoGpus,
            false => ConfigurationError::NoneCapable {
                models: models.join(", "),
            },
        });
    }
    let found = match name.strip_prefix(ALL) {
        Some("enabled") => each(&|_| Some(cut(BTreeMap::new()))),
        Some("balanced") => each(&|card| balanced(&card.profiles).map(cut)),
        Some(profile) => each(&|card| {
            let profiles = card.profiles.iter();
            let mut same = profiles.filter(|known| label(&known.name) == profile);
            let found = same.next()?;
            Some(cut(BTreeMap::from([(found.name.clone(), found.most)])))
        }),
        None => BTreeMap::new(),
    };
    if found.is_empty() {
        let profiles = capable.iter().flat_map(|card| &card.profiles);
        let profiles: BTreeSet<String> = profiles.map(|it| label(&it.name)).collect();
        let names = profiles.iter().map(|it| format!(", {ALL}{it}"));
        return Err(ConfigurationError::NoProfile {
            name: name.to_owned(),
            profiles: names.collect(),
        });
    }
    Ok(found)
}

/// Whether this can be a label's value.
fn is_label(name: &str) -> bool {
    let inner = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let ends = [name.chars().next(), name.chars().next_back()];
    let ends = ends
        .iter()
        .all(|c| c.is_some_and(|c| c.is_ascii_alphanumeric()));
    name.len() <= 63 && ends && name.chars().all(inner)
}

/// A profile's name as a label's value.
fn label(profile: &str) -> String {
    profile.replace('+', ".")
}

/// One large instance and smaller ones beside it: of seven slices three, two and twice one, of four
/// two and twice one.
fn balanced(profiles: &[InstanceProfile]) -> Option<BTreeMap<String, u32>> {
    // Of several profiles with as many slices, the standard one is the one with the most instances.
    let plain = |slices: u32| {
        let of_size = profiles.iter().filter(|profile| profile.slices == slices);
        of_size.max_by_key(|profile| (profile.most, std::cmp::Reverse(profile.name.len())))
    };
    let (one, two) = (plain(1)?, plain(2)?);
    let mut balanced = BTreeMap::from([(one.name.clone(), 2), (two.name.clone(), 1)]);
    if let Some(three) = plain(3) {
        balanced.insert(three.name.clone(), 1);
    }
    Some(balanced)
}

fn given(
    name: &str,
    entries: &[ConfigurationEntry],
    cards: &[Card],
) -> Result<BTreeMap<String, WantedLayout>, ConfigurationError> {
    let mut all: BTreeMap<String, (usize, WantedLayout)> = BTreeMap::new();
    for (place, entry) in entries.iter().enumerate() {
        let at = format!("mig-configs.{name}[{place}]");
        let named = entry.devices.iter().flatten();
        let mut missing = named.filter(|index| !cards.iter().any(|card| card.index == **index));
        if let Some(index) = missing.next() {
            return Err(ConfigurationError::NoGpu {
                at,
                index: *index,
                count: cards.len(),
            });
        }
        let meant = cards.iter().filter(|card| {
            let product = entry.products.is_empty() || entry.products.contains(&card.device);
            let devices = entry.devices.as_ref();
            product && devices.is_none_or(|devices| devices.contains(&card.index))
        });
        for card in meant {
            if !card.capable {
                if entry.wanted.enabled {
                    return Err(ConfigurationError::NotCapable {
                        at,
                        index: card.index,
                        model: card.model.clone(),
                    });
                }
                continue;
            }
            let before = all.insert(card.id.clone(), (place, entry.wanted.clone()));
            if let Some((other, _)) = before.filter(|(_, wanted)| *wanted != entry.wanted) {
                return Err(ConfigurationError::Twice {
                    at,
                    index: card.index,
                    other,
                });
            }
        }
    }
    let wants_none = |entry: &ConfigurationEntry| !entry.wanted.enabled;
    if all.is_empty() && !entries.iter().all(wants_none) {
        let products: BTreeSet<String> = (cards.iter())
            .map(|card| format!("{} (0x{:08X})", card.model, card.device))
            .collect();
        let products: Vec<String> = products.into_iter().collect();
        return Err(ConfigurationError::NoneMeant {
            name: name.to_owned(),
            products: products.join(", "),
        });
    }
    let all = all.into_iter();
    Ok(all.map(|(gpu, (_, wanted))| (gpu, wanted)).collect())
}

fn entry(at: &str, value: &Value) -> Result<ConfigurationEntry, ConfigValueError> {
    let known = ["device-filter", "devices", "mig-enabled", "mig-devices"];
    let entry = fields(at, value, &known)?;
    let enabled = match entry.get("mig-enabled") {
        Some(Value::Bool(enabled)) => *enabled,
        other => return Err(wrong(&join(at, "mig-enabled"), other, "true or false")),
    };
    let instances = instances(&join(at, "mig-devices"), entry)?;
    if !enabled && !instances.is_empty() {
        let right = "nothing, as mig-enabled is false";
        let given = entry.get("mig-devices");
        return Err(wrong(&join(at, "mig-devices"), given, right));
    }
    Ok(ConfigurationEntry {
        products: products(&join(at, "device-filter"), present(entry, "device-filter"))?,
        devices: devices(&join(at, "devices"), entry.get("devices"))?,
        wanted: WantedLayout { enabled, instances },
    })
}

/// The number of instances of each profile.
fn instances(
    at: &str,
    entry: &Map<String, Value>,
) -> Result<BTreeMap<String, u32>, ConfigValueError> {
    let given = match present(entry, "mig-devices") {
        None => return Ok(BTreeMap::new()),
        Some(Value::Object(given)) => given,
        other => return Err(wrong(at, other, "a mapping of profiles to numbers")),
    };
    let one = |(profile, count): (&String, &Value)| {
        let at = join(at, profile);
        if profile.contains("c.") {
            let right = "a profile of whole instances, like 1g.10gb";
            let why = "instances that several compute in are not made here";
            return Err(refused(&at, why, right));
        }
        let number = count.as_u64().and_then(|count| u32::try_from(count).ok());
        let number = number.filter(|number| *number > 0);
        let right = "a number, at least 1";
        Ok((
            profile.clone(),
            number.ok_or_else(|| wrong(&at, Some(count), right))?,
        ))
    };
    given.iter().map(one).collect()
}

fn products(at: &str, value: Option<&Value>) -> Result<BTreeSet<u32>, ConfigValueError> {
    let right = "PCI device numbers as NVIDIA's tools have them, like \"0x233010DE\"";
    let one = |given: &Value| {
        let digits = given.as_str().and_then(|text| {
            let small = text.strip_prefix("0x");
            small.or_else(|| text.strip_prefix("0X"))
        });
        let number = digits.and_then(|digits| u32::from_str_radix(digits, 16).ok());
        number.ok_or_else(|| wrong(at, Some(given), right))
    };
    match value {
        None => Ok(BTreeSet::new()),
        Some(Value::Array(all)) => all.iter().map(one).collect(),
        Some(value) => Ok(BTreeSet::from([one(value)?])),
    }
}

fn devices(at: &str, value: Option<&Value>) -> Result<Option<BTreeSet<u32>>, ConfigValueError> {
    let right = "all, or a list of indices, like [0, 1]";
    let one = |given: &Value| {
        let number = given.as_u64().and_then(|index| u32::try_from(index).ok());
        number.ok_or_else(|| wrong(at, Some(given), right))
    };
    match value {
        Some(Value::String(all)) if all == "all" => Ok(None),
        Some(Value::Array(all)) => Ok(Some(all.iter().map(one).collect::<Result<_, _>>()?)),
        other => Err(wrong(at, other, right)),
    }
}

#[cfg(test)]
#[path = "configurations_tests.rs"]
mod tests;
