//! One GPU instance at one place: what makes it where nothing lies, and what ends it. Pure. Nothing
//! else in the GPU is touched, so that whoever has the rest goes on.

use super::fit::Span;
use super::{Instance, Layout, Profile, Step, engines, removal};

/// A place that an instance of a profile may have in a GPU.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The profile's name, `1g.10gb`.
    pub profile: String,
    /// The memory slice that it begins at.
    pub start: u32,
}

/// Why no instance can be made at a place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlaceError {
    /// The profile does not exist, or not at this place.
    #[error("its driver lists no {profile} at memory slice {start}")]
    Unlisted {
        /// The profile.
        profile: String,
        /// The memory slice.
        start: u32,
    },
    /// The instance is there, and not all of it computes as one.
    #[error(
        "GPU instance {instance} ({profile} at memory slice {start}) was split into several compute \
         instances by somebody else; remove these (nvidia-smi mig -dci -gi {instance})"
    )]
    Split {
        /// The instance.
        instance: u32,
        /// Its profile.
        profile: String,
        /// The memory slice that it begins at.
        start: u32,
    },
    /// Another instance lies there.
    #[error(
        "{profile} at memory slice {start} would lie in {other} at memory slice {other_start}, which \
         must be gone first"
    )]
    Occupied {
        /// The profile that is wanted.
        profile: String,
        /// The memory slice that it would begin at.
        start: u32,
        /// The other instance's profile.
        other: String,
        /// The memory slice that the other begins at.
        other_start: u32,
    },
    /// Other instances have the engines.
    #[error(
        "the engines that {profile} takes beside its slices are another instance's, which must be gone \
         first"
    )]
    NoEngines {
        /// The profile that is wanted.
        profile: String,
    },
}

/// Every place that instances may have, as the driver lists them.
pub fn all(profiles: &[Profile]) -> impl Iterator<Item = (&Profile, u32)> {
    (profiles.iter()).flat_map(|profile| profile.starts.iter().map(move |start| (profile, *start)))
}

/// The instance that lies at a place, if it is of that profile.
pub fn instance<'a>(
    profiles: &[Profile],
    layout: &'a Layout,
    place: &Place,
) -> Option<&'a Instance> {
    let profile = profiles.iter().find(|it| it.name == place.profile)?;
    let mut all = layout.instances.iter();
    all.find(|it| it.profile == profile.id && it.start == place.start)
}

/// The steps that make an instance at a place, all of which computes; none where it is there. MIG
/// mode is switched on where it is off.
///
/// # Errors
///
/// It can't lie there, or something lies in its way.
pub fn made(profiles: &[Profile], layout: &Layout, place: &Place) -> Result<Vec<Step>, PlaceError> {
    let Place { profile, start } = place;
    let known = profiles.iter().find(|it| it.name == *profile);
    let known = known.filter(|it| it.starts.contains(start));
    let known = known.ok_or_else(|| PlaceError::Unlisted {
        profile: profile.clone(),
        start: *start,
    })?;
    if let Some(there) = instance(profiles, layout, place) {
        return match there.computes.as_slice() {
            [] => Ok(vec![Step::MakeCompute { instance: there.id }]),
            [(_, slices)] if *slices == known.slices => Ok(Vec::new()),
            _ => Err(PlaceError::Split {
                instance: there.id,
                profile: profile.clone(),
                start: *start,
            }),
        };
    }
    let own = Span {
        profile: known,
        start: *start,
    };
    let mut used = known.engines;
    for it in &layout.instances {
        let Some(other) = profiles.iter().find(|other| other.id == it.profile) else {
            continue;
        };
        let span = Span {
            profile: other,
            start: it.start,
        };
        used += other.engines;
        if !own.beside(&span) {
            return Err(PlaceError::Occupied {
                profile: profile.clone(),
                start: *start,
                other: other.name.clone(),
                other_start: it.start,
            });
        }
    }
    if known.engines > 0 && used > engines(profiles) {
        let profile = profile.clone();
        return Err(PlaceError::NoEngines { profile });
    }
    let on = (!layout.enabled).then_some(Step::Switch { on: true });
    let make = Step::Make {
        profile: known.id,
        name: known.name.clone(),
        start: *start,
        size: known.size,
    };
    Ok(on.into_iter().chain([make]).collect())
}

/// The steps that end the instance at a place; none where there is none.
pub fn ended(profiles: &[Profile], layout: &Layout, place: &Place) -> Vec<Step> {
    let there = instance(profiles, layout, place);
    there.map(|it| removal(it).collect()).unwrap_or_default()
}
