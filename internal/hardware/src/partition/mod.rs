//! Plans the steps from a GPU's current partitioning (MIG) to the wanted one, in an order that
//! succeeds, or says why there is none. Pure. The profiles are those that the GPU's own driver
//! lists, so that unknown products are supported too.

mod fit;
pub mod place;

use std::collections::{BTreeMap, BTreeSet};

use crate::mig;
use fit::{Span, fitting, fitting_with};

/// A GPU instance profile, as a GPU's driver lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstanceProfile {
    /// Its name, `1g.10gb`.
    pub name: String,
    /// The product's number for it.
    pub id: u32,
    /// Its compute slices.
    pub slices: u32,
    /// Its memory, MiB.
    pub memory_mib: u64,
    /// Its size in memory slices.
    pub size: u32,
    /// The memory slices at which it can begin.
    pub starts: Vec<u32>,
    /// The most instances of it in a GPU.
    pub most: u32,
    /// Its use of the GPU's few optical flow engines.
    pub engines: u32,
}

impl From<&mig::MigProfile> for InstanceProfile {
    fn from(known: &mig::MigProfile) -> InstanceProfile {
        InstanceProfile {
            name: known.name.to_owned(),
            id: known.id,
            slices: known.slices,
            memory_mib: known.memory_mib,
            size: known.size,
            starts: known.starts.to_vec(),
            most: known.most(),
            engines: known.media.into(),
        }
    }
}

/// An existing GPU instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuInstance {
    /// Its number.
    pub id: u32,
    /// Its profile's number.
    pub profile: u32,
    /// Its first memory slice.
    pub start: u32,
    /// Its compute instances: the number and the slices of each.
    pub computes: Vec<(u32, u32)>,
}

/// A GPU's current partitioning.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuLayout {
    /// Whether it is in MIG mode.
    pub enabled: bool,
    /// Its GPU instances.
    pub instances: Vec<GpuInstance>,
}

/// A GPU's wanted partitioning.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WantedLayout {
    /// Whether MIG mode is wanted.
    pub enabled: bool,
    /// Number of GPU instances of each profile, by name, each with one compute instance of the
    /// whole GPU instance.
    pub instances: BTreeMap<String, u32>,
}

impl WantedLayout {
    /// The current partitioning: the number of instances of each profile, regardless of position.
    pub fn of(profiles: &[InstanceProfile], layout: &GpuLayout) -> WantedLayout {
        let mut wanted = WantedLayout {
            enabled: layout.enabled,
            ..WantedLayout::default()
        };
        for instance in &layout.instances {
            let profile = profiles.iter().find(|it| it.id == instance.profile);
            if let Some(profile) = profile {
                *(wanted.instances.entry(profile.name.clone())).or_default() += 1;
            }
        }
        wanted
    }

    /// As text: `MIG mode off`, or `2 of 1g.10gb and 1 of 3g.40gb`.
    pub fn message(&self) -> String {
        let instances = self.instances.iter();
        match (self.enabled, self.instances.is_empty()) {
            (false, _) => "MIG mode off".to_owned(),
            (true, true) => "MIG mode on, and no instances".to_owned(),
            (true, false) => counted(instances.map(|(name, count)| (name.as_str(), *count))),
        }
    }
}

/// One change to a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PartitionStep {
    /// Removes a compute instance.
    RemoveCompute {
        /// Its GPU instance.
        instance: u32,
        /// Its number.
        compute: u32,
    },
    /// Removes a GPU instance without compute instances.
    Remove {
        /// Its number.
        instance: u32,
    },
    /// Switches MIG mode on, or off if there are no instances.
    Switch {
        /// Whether to switch it on.
        on: bool,
    },
    /// Creates a GPU instance, and a compute instance of the whole of it.
    Make {
        /// The profile's number.
        profile: u32,
        /// Its name.
        name: String,
        /// Its first memory slice.
        start: u32,
        /// Its size in memory slices.
        size: u32,
    },
    /// Creates a compute instance of a whole GPU instance that has none.
    MakeCompute {
        /// The GPU instance's number.
        instance: u32,
    },
}

impl PartitionStep {
    /// The instance that this step removes or makes unusable; none for a step that creates one.
    pub fn ends(&self) -> Option<u32> {
        match self {
            PartitionStep::RemoveCompute { instance, .. } | PartitionStep::Remove { instance } => {
                Some(*instance)
            }
            _ => None,
        }
    }
}

/// Why the wanted partitioning is impossible.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// The GPU's driver lists no profiles.
    #[error("it cannot be partitioned into {0}, because its driver lists no profiles")]
    NoProfiles(String),
    /// The GPU lacks this profile.
    #[error("it has no profile {name}; there are {known}")]
    UnknownProfile {
        /// The wanted profile.
        name: String,
        /// The existing profiles.
        known: String,
    },
    /// The instances do not fit.
    #[error("{wanted} do not fit in one GPU; {fitting} would")]
    NoRoom {
        /// The wanted instances.
        wanted: String,
        /// As many of them as fit.
        fitting: String,
    },
}

/// The steps to the wanted partitioning; none if it is reached. As many instances as possible are
/// kept, first of all those in use (`used`, by their numbers), and kept instances are not touched.
///
/// # Errors
///
/// The profile that the GPU lacks, or the instances that would fit.
pub fn steps(
    profiles: &[InstanceProfile],
    now: &GpuLayout,
    wanted: &WantedLayout,
    used: &BTreeSet<u32>,
) -> Result<Vec<PartitionStep>, LayoutError> {
    if !wanted.enabled {
        let ends = now.instances.iter().flat_map(removal);
        let switch = now.enabled.then_some(PartitionStep::Switch { on: false });
        return Ok(ends.chain(switch).collect());
    }
    let asked = wanted_profiles(profiles, wanted)?;
    let (kept, made) = arrange(profiles, now, &asked, used).ok_or_else(|| {
        let all = asked
            .iter()
            .flat_map(|(profile, count)| repeat(profile, *count));
        let mut most: BTreeMap<&str, u32> = BTreeMap::new();
        for profile in fitting(&all.collect::<Vec<_>>(), engines(profiles)) {
            *most.entry(&profile.name).or_default() += 1;
        }
        let asked = asked
            .iter()
            .map(|(profile, count)| (profile.name.as_str(), *count));
        LayoutError::NoRoom {
            wanted: counted(asked),
            fitting: counted(most.into_iter()),
        }
    })?;
    let gone = (now.instances.iter()).filter(|it| !kept.contains(&it.id));
    let mut steps: Vec<PartitionStep> = gone.flat_map(removal).collect();
    if !now.enabled {
        steps.push(PartitionStep::Switch { on: true });
    }
    let bare = |it: &&GpuInstance| kept.contains(&it.id) && it.computes.is_empty();
    let bare = now.instances.iter().filter(bare);
    steps.extend(bare.map(|it| PartitionStep::MakeCompute { instance: it.id }));
    steps.extend(made.into_iter().map(|span| PartitionStep::Make {
        profile: span.profile.id,
        name: span.profile.name.clone(),
        start: span.start,
        size: span.profile.size,
    }));
    Ok(steps)
}

/// The steps that remove an instance: its compute instances go first.
fn removal(instance: &GpuInstance) -> impl Iterator<Item = PartitionStep> {
    let id = instance.id;
    let computes = instance.computes.iter();
    let computes = computes.map(move |(compute, _)| PartitionStep::RemoveCompute {
        instance: id,
        compute: *compute,
    });
    computes.chain([PartitionStep::Remove { instance: id }])
}

/// The wanted profiles, each with its number.
fn wanted_profiles<'a>(
    profiles: &'a [InstanceProfile],
    wanted: &WantedLayout,
) -> Result<Vec<(&'a InstanceProfile, u32)>, LayoutError> {
    let wanted = wanted.instances.iter().filter(|(_, count)| **count > 0);
    let found = wanted.map(|(name, count)| {
        let profile = profiles.iter().find(|profile| profile.name == *name);
        let known = || {
            let names: Vec<&str> = profiles.iter().map(|it| it.name.as_str()).collect();
            names.join(", ")
        };
        match profile {
            Some(profile) => Ok((profile, *count)),
            None if profiles.is_empty() => Err(LayoutError::NoProfiles(name.clone())),
            None => Err(LayoutError::UnknownProfile {
                name: name.clone(),
                known: known(),
            }),
        }
    });
    found.collect()
}

/// Chooses the instances to keep, by their numbers, and the new ones beside them: of all possible
/// choices the one that keeps the most used instances, and then the most instances.
fn arrange<'a>(
    profiles: &'a [InstanceProfile],
    now: &GpuLayout,
    asked: &[(&'a InstanceProfile, u32)],
    used: &BTreeSet<u32>,
) -> Option<(BTreeSet<u32>, Vec<Span<'a>>)> {
    let candidates = (now.instances.iter()).filter_map(|it| {
        let profile = profiles.iter().find(|profile| profile.id == it.profile)?;
        let whole = match it.computes.as_slice() {
            [] => true,
            [(_, slices)] => *slices == profile.slices,
            _ => false,
        };
        let wanted = asked.iter().any(|(other, _)| other.id == profile.id);
        (whole && wanted).then_some((it, profile))
    });
    let candidates: Vec<(&GpuInstance, &InstanceProfile)> = candidates.collect();
    let mut choices: Vec<Vec<(&GpuInstance, &InstanceProfile)>> = vec![Vec::new()];
    for one in candidates {
        let with: Vec<_> = (choices.iter())
            .filter(|choice| {
                let same = choice.iter().filter(|(_, it)| it.id == one.1.id).count();
                let most = asked.iter().find(|(it, _)| it.id == one.1.id);
                most.is_some_and(|(_, most)| same < *most as usize)
            })
            .map(|choice| [choice.as_slice(), &[one]].concat())
            .collect();
        choices.extend(with);
    }
    // A stable sort, so that ties always resolve alike.
    choices.sort_by_key(|choice| {
        let in_use = choice
            .iter()
            .filter(|(it, _)| used.contains(&it.id))
            .count();
        std::cmp::Reverse((in_use, choice.len()))
    });
    choices.into_iter().find_map(|choice| {
        let kept: Vec<Span<'a>> = (choice.iter())
            .map(|(it, profile)| Span {
                profile,
                start: it.start,
            })
            .collect();
        let rest = asked.iter().flat_map(|(profile, count)| {
            let here = choice.iter().filter(|(_, it)| it.id == profile.id).count();
            repeat(
                profile,
                count.saturating_sub(u32::try_from(here).unwrap_or(u32::MAX)),
            )
        });
        let made = fitting_with(&kept, &rest.collect::<Vec<_>>(), engines(profiles))?;
        Some((choice.iter().map(|(it, _)| it.id).collect(), made))
    })
}

/// The number of a GPU's optical flow engines: the total that its profiles can take.
pub fn engines(profiles: &[InstanceProfile]) -> u32 {
    let most = profiles.iter().map(|it| it.engines.saturating_mul(it.most));
    most.max().unwrap_or(0)
}

fn repeat(profile: &InstanceProfile, count: u32) -> impl Iterator<Item = &InstanceProfile> {
    // More instances than a GPU can hold fail like any larger number.
    (0..count.min(fit::MOST)).map(move |_| profile)
}

/// `2 of 1g.10gb and 1 of 3g.40gb`.
fn counted<'a>(counts: impl Iterator<Item = (&'a str, u32)>) -> String {
    let all: Vec<String> = counts
        .map(|(name, count)| format!("{count} of {name}"))
        .collect();
    all.join(" and ")
}

#[cfg(test)]
mod tests;
