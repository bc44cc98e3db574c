//! Partitions GPUs for claims and removes the slices, through the same partitioner thread as the MIG
//! manager. Owns the order: reads the GPU's present layout first, leaves the parts of other holders
//! alone, and waits until the inventory shows the new slice.

use std::time::Duration;

use hardware::InventorySources;
use hardware::mig_partitioner::{Card, ChangeEffect, MigPartitioner, PartitionerError};
use hardware::partition::place::{self, InstancePosition, PlaceError};
use hardware::partition::{PartitionStep, WantedLayout};
use resources::devices::GpuDevice;
use tokio::sync::watch;
use tokio::time::timeout;

use super::partitions::{CardError, GpuLayouts, foreign_slices, waits};
use super::prepared::CreatedPartition;
use crate::inventory::NodeHardware;
use crate::mig_executor::{AskError, Executor};

/// How long the inventory may take to show a new slice: several looks, and less than the kubelet
/// waits for an answer (45 seconds).
const SHOWN_WITHIN: Duration = Duration::from_secs(15);

/// How long the driver may take to report the layout of GPUs, before it counts as unknown.
const ANSWERS_WITHIN: Duration = Duration::from_secs(20);

/// The advice for a claim whose GPU can't be partitioned now.
const AGAIN: &str = "the kubelet tries again; delete the pod to have it scheduled again";

/// Why a GPU was not partitioned for a claim, or a slice not removed. The pod's events show it.
#[derive(Debug, thiserror::Error)]
pub enum ClaimPartitionError {
    /// The GPU's layout can't be read.
    #[error(transparent)]
    Unread(PartitionerError),
    /// The partitioner's thread failed.
    #[error("the thread that partitions GPUs failed; restart the agent")]
    Thread,
    /// The inventory does not show the new layout yet.
    #[error("{gpu} is {what} now, and the driver does not show it as such yet; {again}", again = AGAIN)]
    NotShown {
        /// The GPU.
        gpu: String,
        /// What it is now.
        what: String,
    },
    /// Processes use a GPU whose mode is to change.
    #[error(
        "MIG mode of GPU {index} cannot be changed while processes use it ({processes}); end these: {again}",
        again = AGAIN
    )]
    InUse {
        /// The GPU's index.
        index: u32,
        /// The processes' ids.
        processes: String,
    },
    /// The driver refused a step.
    #[error("GPU {index} cannot be partitioned as requested: {error}; {again}", again = AGAIN)]
    Refused {
        /// The GPU's index.
        index: u32,
        /// The driver's error.
        error: PartitionerError,
    },
    /// The GPU's mode changes only with a reset.
    #[error("{0}")]
    AwaitsReset(String),
    /// The GPU has slices that were not created for claims.
    #[error(
        "GPU {index} has partitions that Muster did not create ({now}), so the agent does not change it; delete the \
         pod so that it is scheduled again"
    )]
    Strangers {
        /// The GPU's index.
        index: u32,
        /// Its layout.
        now: String,
    },
    /// The slice has no room at its place.
    #[error("GPU {index}: {error}; {again}", again = AGAIN)]
    NoRoom {
        /// The GPU's index.
        index: u32,
        /// The reason.
        error: PlaceError,
    },
    /// The driver shows no slice after it created one.
    #[error(
        "GPU {index}: its driver made {profile} at memory slice {start} and shows no slice there; {again}",
        again = AGAIN
    )]
    NoSlice {
        /// The GPU's index.
        index: u32,
        /// The slice's profile.
        profile: String,
        /// Its place.
        start: u32,
    },
    /// A GPU that is needed as a whole has slices.
    #[error("GPU {index} is partitioned ({now}), and available as a whole when its slices are removed; {again}", again = AGAIN)]
    InParts {
        /// The GPU's index.
        index: u32,
        /// Its layout.
        now: String,
    },
    /// The driver did not remove a slice.
    #[error(
        "{profile} at memory slice {start} of GPU {index} cannot be removed: {error}; processes that use it must \
         end: the kubelet tries again"
    )]
    NotRemoved {
        /// The slice's profile.
        profile: String,
        /// Its place.
        start: u32,
        /// The GPU's index.
        index: u32,
        /// The driver's error.
        error: Box<PartitionerError>,
    },
}

impl From<AskError<ClaimPartitionError>> for ClaimPartitionError {
    fn from(error: AskError<ClaimPartitionError>) -> ClaimPartitionError {
        match error {
            AskError::Refused(error) => error,
            AskError::Thread => ClaimPartitionError::Thread,
        }
    }
}

/// Partitions GPUs for claims.
pub struct ClaimPartitioner {
    executor: Executor,
    machine: watch::Receiver<NodeHardware>,
}

impl ClaimPartitioner {
    /// Opens no driver yet.
    pub fn new(
        source: &InventorySources,
        machine: watch::Receiver<NodeHardware>,
    ) -> ClaimPartitioner {
        ClaimPartitioner {
            executor: Executor::new(source),
            machine,
        }
    }

    /// The layout of these GPUs, by UUID.
    pub async fn cards(&self, gpus: Vec<String>) -> GpuLayouts {
        let asked = gpus.clone();
        let look = move |partitioner: &mut MigPartitioner| {
            let one = |gpu: String| {
                let card = partitioner.inspect(&gpu);
                (
                    gpu,
                    card.map_err(|error| CardError::Unread(error.to_string())),
                )
            };
            Ok::<GpuLayouts, PartitionerError>(asked.into_iter().map(one).collect())
        };
        let error = match timeout(ANSWERS_WITHIN, self.executor.ask(look)).await {
            Ok(Ok(cards)) => return cards,
            Ok(Err(error)) => CardError::Unread(error.to_string()),
            Err(_) => CardError::Silent,
        };
        let gpus = gpus.into_iter();
        gpus.map(|gpu| (gpu, Err(error.clone()))).collect()
    }

    /// Creates a slice at a place, if it doesn't exist, and returns its UUID once the inventory
    /// shows it. `own`: all slices created for claims so far, including this one.
    ///
    /// # Errors
    ///
    /// Why not. Then no slice was created, or it exists and is not shown yet.
    pub async fn make(
        &self,
        gpu: &str,
        place: &InstancePosition,
        own: Vec<CreatedPartition>,
    ) -> Result<String, ClaimPartitionError> {
        let (of, at) = (gpu.to_owned(), place.clone());
        let make = move |partitioner: &mut MigPartitioner| make(partitioner, &of, &at, &own);
        let slice = self.executor.ask(make).await?;
        let has = |one: &GpuDevice| {
            let mut slices = one.slices.iter().flatten();
            slices.any(|known| known.id == slice)
        };
        self.shown(gpu, &format!("slice {slice}"), has).await?;
        Ok(slice)
    }

    /// Ensures that a GPU is not partitioned.
    ///
    /// # Errors
    ///
    /// Why not.
    pub async fn unite(&self, gpu: &str) -> Result<(), ClaimPartitionError> {
        let of = gpu.to_owned();
        self.executor
            .ask(move |partitioner| unite(partitioner, &of))
            .await?;
        let whole = |one: &GpuDevice| one.slices.is_none();
        self.shown(gpu, "a whole GPU", whole).await
    }

    /// Removes a slice that was created for a claim, if it exists.
    ///
    /// # Errors
    ///
    /// Why not: the slice still exists.
    pub async fn end(&self, cut: &CreatedPartition) -> Result<(), ClaimPartitionError> {
        let cut = cut.clone();
        Ok(self
            .executor
            .ask(move |partitioner| end(partitioner, &cut))
            .await?)
    }

    /// Waits until the inventory shows a GPU in this state.
    async fn shown(
        &self,
        gpu: &str,
        what: &str,
        is: impl Fn(&GpuDevice) -> bool,
    ) -> Result<(), ClaimPartitionError> {
        let mut machine = self.machine.clone();
        let shows = |machine: &NodeHardware| {
            let mut gpus = machine.inventory.gpus.iter();
            gpus.any(|one| one.id == gpu && is(one))
        };
        match timeout(SHOWN_WITHIN, machine.wait_for(shows)).await {
            Ok(Ok(_)) => Ok(()),
            _ => Err(ClaimPartitionError::NotShown {
                gpu: gpu.to_owned(),
                what: what.to_owned(),
            }),
        }
    }
}

/// Checks that no process uses a GPU whose mode is to change.
fn idle(card: &Card) -> Result<(), ClaimPartitionError> {
    if card.processes.is_empty() {
        return Ok(());
    }
    let all: Vec<String> = (card.processes.iter())
        .map(|(pid, _)| pid.to_string())
        .collect();
    Err(ClaimPartitionError::InUse {
        index: card.index,
        processes: all.join(", "),
    })
}

fn look_at(partitioner: &mut MigPartitioner, gpu: &str) -> Result<Card, ClaimPartitionError> {
    partitioner
        .inspect(gpu)
        .map_err(ClaimPartitionError::Unread)
}

fn take(
    partitioner: &mut MigPartitioner,
    card: &Card,
    steps: &[PartitionStep],
) -> Result<(), ClaimPartitionError> {
    let index = card.index;
    let taken = partitioner.take(&card.id, steps);
    match taken.map_err(|error| ClaimPartitionError::Refused { index, error })? {
        ChangeEffect::Now => Ok(()),
        ChangeEffect::AfterReset => Err(ClaimPartitionError::AwaitsReset(waits(card))),
    }
}

fn make(
    partitioner: &mut MigPartitioner,
    gpu: &str,
    place: &InstancePosition,
    own: &[CreatedPartition],
) -> Result<String, ClaimPartitionError> {
    let card = look_at(partitioner, gpu)?;
    let index = card.index;
    let here = place::instance(&card.profiles, &card.layout, place);
    let foreign = foreign_slices(&card, own.iter());
    let has = here.is_some_and(|here| foreign.iter().all(|other| other.id != here.id));
    if !has && !foreign.is_empty() {
        let now = WantedLayout::of(&card.profiles, &card.layout).message();
        return Err(ClaimPartitionError::Strangers { index, now });
    }
    if !has && card.waits {
        return Err(ClaimPartitionError::AwaitsReset(waits(&card)));
    }
    if !card.layout.enabled {
        idle(&card)?;
    }
    let steps = place::made(&card.profiles, &card.layout, place);
    let steps = steps.map_err(|error| ClaimPartitionError::NoRoom { index, error })?;
    if !steps.is_empty() {
        take(partitioner, &card, &steps)?;
    }
    let card = look_at(partitioner, gpu)?;
    let made = place::instance(&card.profiles, &card.layout, place);
    let slice = made.and_then(|made| card.slices.iter().find(|(_, of)| **of == made.id));
    let slice = slice.map(|(id, _)| id.clone());
    slice.ok_or_else(|| ClaimPartitionError::NoSlice {
        index,
        profile: place.profile.clone(),
        start: place.start,
    })
}

fn unite(partitioner: &mut MigPartitioner, gpu: &str) -> Result<(), ClaimPartitionError> {
    let card = look_at(partitioner, gpu)?;
    if !card.layout.enabled {
        return Ok(());
    }
    if !card.layout.instances.is_empty() {
        let now = WantedLayout::of(&card.profiles, &card.layout).message();
        let index = card.index;
        return Err(ClaimPartitionError::InParts { index, now });
    }
    idle(&card)?;
    take(partitioner, &card, &[PartitionStep::Switch { on: false }])
}

fn end(
    partitioner: &mut MigPartitioner,
    cut: &CreatedPartition,
) -> Result<(), ClaimPartitionError> {
    let card = look_at(partitioner, &cut.gpu)?;
    let there = place::instance(&card.profiles, &card.layout, &cut.place);
    let foreign = foreign_slices(&card, std::iter::once(cut));
    // Another owner's slice at the same place, for instance after a reset.
    if there.is_none_or(|there| foreign.iter().any(|other| other.id == there.id)) {
        return Ok(());
    }
    let steps = place::ended(&card.profiles, &card.layout, &cut.place);
    let taken = partitioner.take(&card.id, &steps).map(drop);
    taken.map_err(|error| ClaimPartitionError::NotRemoved {
        profile: cut.place.profile.clone(),
        start: cut.place.start,
        index: card.index,
        error: Box::new(error),
    })
}
