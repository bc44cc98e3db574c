//! From how a GPU is cut (MIG) to how it is to be: the steps in an order that succeeds, or why there
//! are none. Pure. The profiles are those that the GPU's own driver lists, so a product that nobody
//! described is cut as well as one that is.

mod fit;
pub mod place;

use std::collections::{BTreeMap, BTreeSet};

use crate::mig;
use fit::{Span, fitting, fitting_beside};

/// A profile of GPU instances, as a GPU's driver lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    /// Its name, `1g.10gb`.
    pub name: String,
    /// The product's number for it.
    pub id: u32,
    /// Its slices of the GPU's computing.
    pub slices: u32,
    /// Its memory, MiB.
    pub memory_mib: u64,
    /// How many memory slices it takes.
    pub size: u32,
    /// The memory slices that it can begin at.
    pub starts: Vec<u32>,
    /// How many of it a GPU can have.
    pub most: u32,
    /// How many of the GPU's few engines for optical flow it takes.
    pub engines: u32,
}

impl From<&mig::Profile> for Profile {
    fn from(known: &mig::Profile) -> Profile {
        Profile {
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

/// A GPU instance that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instance {
    /// Its number.
    pub id: u32,
    /// Its profile's number.
    pub profile: u32,
    /// The memory slice that it begins at.
    pub start: u32,
    /// Its compute instances: the number of each, and its slices.
    pub computes: Vec<(u32, u32)>,
}

/// How a GPU is cut.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// Whether it is in MIG mode.
    pub enabled: bool,
    /// Its GPU instances.
    pub instances: Vec<Instance>,
}

/// How a GPU is to be cut.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Whether it is to be in MIG mode.
    pub enabled: bool,
    /// How many GPU instances of each profile, by name, each with one compute instance that is all
    /// of it.
    pub instances: BTreeMap<String, u32>,
}

impl Wanted {
    /// What is there: as many instances of each profile, wherever they lie.
    pub fn of(profiles: &[Profile], layout: &Layout) -> Wanted {
        let mut wanted = Wanted {
            enabled: layout.enabled,
            ..Wanted::default()
        };
        for instance in &layout.instances {
            let profile = profiles.iter().find(|it| it.id == instance.profile);
            if let Some(profile) = profile {
                *(wanted.instances.entry(profile.name.clone())).or_default() += 1;
            }
        }
        wanted
    }

    /// In words: `MIG mode off`, or `2 of 1g.10gb and 1 of 3g.40gb`.
    pub fn words(&self) -> String {
        let instances = self.instances.iter();
        match (self.enabled, self.instances.is_empty()) {
            (false, _) => "MIG mode off".to_owned(),
            (true, true) => "MIG mode on, and no instances".to_owned(),
            (true, false) => counted(instances.map(|(name, count)| (name.as_str(), *count))),
        }
    }
}

/// One thing to do to a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Removes a compute instance.
    RemoveCompute {
        /// The GPU instance that it is in.
        instance: u32,
        /// Its number.
        compute: u32,
    },
    /// Removes a GPU instance, which has no compute instance any more.
    Remove {
        /// Its number.
        instance: u32,
    },
    /// Switches MIG mode on, or off when nothing is left.
    Switch {
        /// Whether it is to be on.
        on: bool,
    },
    /// Makes a GPU instance, and a compute instance that is all of it.
    Make {
        /// The profile's number.
        profile: u32,
        /// Its name.
        name: String,
        /// The memory slice that it begins at.
        start: u32,
        /// How many memory slices it takes.
        size: u32,
    },
    /// Makes a compute instance that is all of a GPU instance which has none.
    MakeCompute {
        /// The GPU instance's number.
        instance: u32,
    },
}

impl Step {
    /// The instance that this ends or switches off; none where it makes something.
    pub fn ends(&self) -> Option<u32> {
        match self {
            Step::RemoveCompute { instance, .. } | Step::Remove { instance } => Some(*instance),
            _ => None,
        }
    }
}

/// Why a GPU can't be cut as wanted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// The GPU's driver lists no profiles.
    #[error("no {0} can be made of it, as its driver lists no profiles")]
    NoProfiles(String),
    /// The GPU has no such profile.
    #[error("it has no profile {name}; there are {known}")]
    UnknownProfile {
        /// The profile that is wanted.
        name: String,
        /// Those that there are.
        known: String,
    },
    /// The instances do not fit.
    #[error("{wanted} do not fit in one GPU; {fitting} would")]
    NoRoom {
        /// The instances that are wanted.
        wanted: String,
        /// As many of them as fit.
        fitting: String,
    },
}

/// The steps that make a GPU be cut as wanted; none where it is. As many instances as can be are
/// kept, first of all those in use (`used`, by their numbers), and what is kept is not touched.
///
/// # Errors
///
/// The profile that the GPU doesn't have, or what would fit.
pub fn steps(
    profiles: &[Profile],
    now: &Layout,
    wanted: &Wanted,
    used: &BTreeSet<u32>,
) -> Result<Vec<Step>, LayoutError> {
    if !wanted.enabled {
        let ends = now.instances.iter().flat_map(removal);
        let switch = now.enabled.then_some(Step::Switch { on: false });
        return Ok(ends.chain(switch).collect());
    }
    let asked = asked(profiles, wanted)?;
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
    let mut steps: Vec<Step> = gone.flat_map(removal).collect();
    if !now.enabled {
        steps.push(Step::Switch { on: true });
    }
    let bare = |it: &&Instance| kept.contains(&it.id) && it.computes.is_empty();
    let bare = now.instances.iter().filter(bare);
    steps.extend(bare.map(|it| Step::MakeCompute { instance: it.id }));
    steps.extend(made.into_iter().map(|span| Step::Make {
        profile: span.profile.id,
        name: span.profile.name.clone(),
        start: span.start,
        size: span.profile.size,
    }));
    Ok(steps)
}

/// How an instance is ended: what computes in it goes first.
fn removal(instance: &Instance) -> impl Iterator<Item = Step> {
    let id = instance.id;
    let computes = instance.computes.iter();
    let computes = computes.map(move |(compute, _)| Step::RemoveCompute {
        instance: id,
        compute: *compute,
    });
    computes.chain([Step::Remove { instance: id }])
}

/// The profiles that are asked for, each with how many.
fn asked<'a>(
    profiles: &'a [Profile],
    wanted: &Wanted,
) -> Result<Vec<(&'a Profile, u32)>, LayoutError> {
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

/// Which instances stay, by their numbers, and what is made beside them: of all choices that can
/// be, the one that keeps the most that are used, and then the most.
fn arrange<'a>(
    profiles: &'a [Profile],
    now: &Layout,
    asked: &[(&'a Profile, u32)],
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
    let candidates: Vec<(&Instance, &Profile)> = candidates.collect();
    let mut choices: Vec<Vec<(&Instance, &Profile)>> = vec![Vec::new()];
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
    // Stable, so that of equal choices it is always the same one.
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
        let made = fitting_beside(&kept, &rest.collect::<Vec<_>>(), engines(profiles))?;
        Some((choice.iter().map(|(it, _)| it.id).collect(), made))
    })
}

/// How many engines for optical flow a GPU has: as many as it gives away.
pub fn engines(profiles: &[Profile]) -> u32 {
    let most = profiles.iter().map(|it| it.engines.saturating_mul(it.most));
    most.max().unwrap_or(0)
}

fn repeat(profile: &Profile, count: u32) -> impl Iterator<Item = &Profile> {
    // More than a GPU can hold of anything is as much too many as any number.
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
