//! Plans one GPU instance at one position: the steps that create it on free memory slices, and
//! those that remove it. Pure. The rest of the GPU is untouched, so that its users go on.

use super::fit::Span;
use super::{GpuInstance, GpuLayout, InstanceProfile, PartitionStep, engines, removal};

/// A possible position of a profile's instance in a GPU.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct InstancePosition {
    /// The profile's name, `1g.10gb`.
    pub profile: String,
    /// The first memory slice.
    pub start: u32,
}

/// Why no instance can be created at a position.
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
    /// The instance exists, but not with a single compute instance of the whole.
    #[error(
        "another program split GPU instance {instance} ({profile} at memory slice {start}) into several compute \
         instances; remove these (nvidia-smi mig -dci -gi {instance})"
    )]
    Split {
        /// The instance.
        instance: u32,
        /// Its profile.
        profile: String,
        /// Its first memory slice.
        start: u32,
    },
    /// Another instance occupies the position.
    #[error(
        "{profile} at memory slice {start} would overlap {other} at memory slice {other_start}, which must be removed \
         first"
    )]
    Occupied {
        /// The wanted profile.
        profile: String,
        /// The wanted first memory slice.
        start: u32,
        /// The other instance's profile.
        other: String,
        /// The other instance's first memory slice.
        other_start: u32,
    },
    /// Other instances use the engines.
    #[error(
        "another instance has the engines that {profile} takes beside its slices and must be removed first"
    )]
    NoEngines {
        /// The wanted profile.
        profile: String,
    },
}

/// All possible positions of instances, as the driver lists them.
pub fn all(profiles: &[InstanceProfile]) -> impl Iterator<Item = (&InstanceProfile, u32)> {
    (profiles.iter()).flat_map(|profile| profile.starts.iter().map(move |start| (profile, *start)))
}

/// The instance at a position, if it has that profile.
pub fn instance<'a>(
    profiles: &[InstanceProfile],
    layout: &'a GpuLayout,
    place: &InstancePosition,
) -> Option<&'a GpuInstance> {
    let profile = profiles.iter().find(|it| it.name == place.profile)?;
    let mut all = layout.instances.iter();
    all.find(|it| it.profile == profile.id && it.start == place.start)
}

/// The steps that create an instance at a position, with a compute instance of the whole; none if
/// it exists. Switches MIG mode on if it is off.
///
/// # Errors
///
/// The position is impossible, or another instance is in the way.
pub fn made(
    profiles: &[InstanceProfile],
    layout: &GpuLayout,
    place: &InstancePosition,
) -> Result<Vec<PartitionStep>, PlaceError> {
    let InstancePosition { profile, start } = place;
    let known = profiles.iter().find(|it| it.name == *profile);
    let known = known.filter(|it| it.starts.contains(start));
    let known = known.ok_or_else(|| PlaceError::Unlisted {
        profile: profile.clone(),
        start: *start,
    })?;
    if let Some(there) = instance(profiles, layout, place) {
        return match there.computes.as_slice() {
            [] => Ok(vec![PartitionStep::MakeCompute { instance: there.id }]),
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
        if !own.is_disjoint_from(&span) {
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
    let on = (!layout.enabled).then_some(PartitionStep::Switch { on: true });
    let make = PartitionStep::Make {
        profile: known.id,
        name: known.name.clone(),
        start: *start,
        size: known.size,
    };
    Ok(on.into_iter().chain([make]).collect())
}

/// The steps that remove the instance at a position; none if there is none.
pub fn ended(
    profiles: &[InstanceProfile],
    layout: &GpuLayout,
    place: &InstancePosition,
) -> Vec<PartitionStep> {
    let there = instance(profiles, layout, place);
    there.map(|it| removal(it).collect()).unwrap_or_default()
}
