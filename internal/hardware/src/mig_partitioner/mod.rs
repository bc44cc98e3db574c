//! Partitions GPUs through NVML (MIG), and reads their partitioning. Owns its own open library, and restores a GPU if
//! a step fails; [`partition`](crate::partition) plans the steps.

mod calls;

use std::collections::BTreeMap;
use std::path::PathBuf;

use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;

use crate::gpus::open;
use crate::partition::{
    GpuLayout, InstanceProfile, LayoutError, PartitionStep, WantedLayout, steps,
};
use crate::sources::InventorySources;

/// A GPU and its MIG state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Card {
    /// Its UUID.
    pub id: String,
    /// Its place in the driver's order now.
    pub index: u32,
    /// Its product name.
    pub model: String,
    /// Its PCI device and vendor in one number, as NVML has them: 0x233010DE.
    pub device: u32,
    /// Whether it can be in MIG mode at all.
    pub capable: bool,
    /// Whether its MIG mode changes at its next reset or at the machine's next restart.
    pub waits: bool,
    /// Its profiles. If the driver lists placements in MIG mode only, and the product is not known, the profiles have
    /// no placements until MIG mode is on.
    pub profiles: Vec<InstanceProfile>,
    /// Its current partitioning.
    pub layout: GpuLayout,
    /// The UUID of each slice that programs can use, with its GPU instance's number.
    pub slices: BTreeMap<String, u32>,
    /// Its compute processes, each with its GPU instance's number if the driver reports it.
    pub processes: Vec<(u32, Option<u32>)>,
}

impl Card {
    /// Whether the placements of its profiles are known.
    pub fn is_known(&self) -> bool {
        self.profiles.iter().all(|it| !it.starts.is_empty())
    }
}

/// Why a GPU cannot be partitioned, or its partitioning cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum PartitionerError {
    /// There is no GPU to partition.
    #[error(
        "the machine is described in a file (--machine), so its GPUs cannot be repartitioned; describe their \
         partitions in the file"
    )]
    Described,
    /// There is no driver, or it does not answer.
    #[error("the NVIDIA driver does not answer: {0}")]
    NoDriver(NvmlError),
    /// The driver does not report the GPU's partitioning.
    #[error("the MIG partitions of {gpu} cannot be read: {error}")]
    Unread {
        /// The GPU: its UUID, or its index.
        gpu: String,
        /// The driver's error.
        error: NvmlError,
    },
    /// A step failed; the GPU was left in the given state.
    #[error("{step}: {error}; {left}")]
    Step {
        /// The failed step.
        step: String,
        /// The driver's error.
        error: NvmlError,
        /// The GPU's current state.
        left: String,
    },
    /// A step of the restoration failed.
    #[error("{step}: {error}")]
    PutBack {
        /// The failed step.
        step: String,
        /// The driver's error.
        error: NvmlError,
    },
    /// The earlier partitioning cannot be restored.
    #[error(transparent)]
    Layout(#[from] LayoutError),
}

/// When an executed change takes effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeEffect {
    /// At once.
    Now,
    /// The mode changes when the GPU is reset or the machine restarted; the later steps were not executed.
    AfterReset,
}

/// Partitions a machine's GPUs. Holds no resources until the first call.
#[derive(Debug, Default)]
pub struct MigPartitioner {
    nvml: Option<Nvml>,
    library: Option<PathBuf>,
    described: bool,
}

impl MigPartitioner {
    /// Opens nothing yet.
    pub fn new(source: &InventorySources) -> MigPartitioner {
        MigPartitioner {
            nvml: None,
            library: source.library.clone(),
            described: source.description.is_some() || !source.nvml,
        }
    }

    /// The GPUs and their partitioning.
    ///
    /// # Errors
    ///
    /// The driver doesn't answer, or there is none.
    pub fn observe(&mut self) -> Result<Vec<Card>, PartitionerError> {
        self.must_be_real()?;
        let asked = self.ask(|nvml| {
            let count = nvml.device_count()?;
            let one = |index| {
                let device = nvml.device_by_index(index)?;
                calls::card(nvml, &device, index)
            };
            Ok((0..count)
                .map(|index| (index, one(index)))
                .collect::<Vec<_>>())
        });
        let all = asked.map_err(PartitionerError::NoDriver)?;
        let all = all.into_iter().map(|(index, found)| {
            found.map_err(|error| PartitionerError::Unread {
                gpu: format!("GPU {index}"),
                error,
            })
        });
        all.collect()
    }

    /// One GPU, by its UUID, and its partitioning: errors of other GPUs do not matter.
    ///
    /// # Errors
    ///
    /// The GPU doesn't answer, or there is no driver.
    pub fn inspect(&mut self, gpu: &str) -> Result<Card, PartitionerError> {
        self.must_be_real()?;
        self.card(gpu)
    }

    fn must_be_real(&self) -> Result<(), PartitionerError> {
        if self.described {
            return Err(PartitionerError::Described);
        }
        Ok(())
    }

    /// Executes these steps on a GPU. If one fails, the GPU's earlier partitioning is restored as far as possible:
    /// its slices then have other UUIDs.
    ///
    /// # Errors
    ///
    /// The failed step, the driver's error, and the GPU's state afterwards.
    pub fn take(
        &mut self,
        gpu: &str,
        steps: &[PartitionStep],
    ) -> Result<ChangeEffect, PartitionerError> {
        let before = self.card(gpu)?;
        let (step, error) = match self.try_all(gpu, steps) {
            Ok(done) => return Ok(done),
            Err(failed) => failed,
        };
        let left = self.put_back(&before);
        Err(PartitionerError::Step { step, error, left })
    }

    /// Executes the steps in order; the error names the failed step, with the driver's error.
    fn try_all(
        &mut self,
        gpu: &str,
        steps: &[PartitionStep],
    ) -> Result<ChangeEffect, (String, NvmlError)> {
        for step in steps {
            tracing::info!(gpu, "{}", words(step));
            let done = self.ask(|nvml| calls::take(nvml, &nvml.device_by_uuid(gpu)?, step));
            if done.map_err(|error| (words(step), error))? == ChangeEffect::AfterReset {
                return Ok(ChangeEffect::AfterReset);
            }
        }
        Ok(ChangeEffect::Now)
    }

    /// Restores a GPU's partitioning, and describes the result.
    fn put_back(&mut self, before: &Card) -> String {
        let wanted = WantedLayout::of(&before.profiles, &before.layout);
        // Instances that still exist are kept: another program may use them.
        let was = before.layout.instances.iter().map(|it| it.id).collect();
        let tried = self.card(&before.id).and_then(|now| {
            let back = steps(&now.profiles, &now.layout, &wanted, &was)?;
            let tried = self.try_all(&before.id, &back);
            tried.map_err(|(step, error)| PartitionerError::PutBack { step, error })
        });
        match tried {
            Ok(_) => format!("it was put back to what it was: {}", wanted.message()),
            Err(error) => {
                let now = self
                    .card(&before.id)
                    .map(|now| WantedLayout::of(&now.profiles, &now.layout));
                let now = now.map_or_else(|_| "unknown".to_owned(), |now| now.message());
                format!(
                    "it could not be put back to what it was, {} ({error}), and is now: {now}",
                    wanted.message()
                )
            }
        }
    }

    fn card(&mut self, gpu: &str) -> Result<Card, PartitionerError> {
        let found = self.ask(|nvml| {
            let device = nvml.device_by_uuid(gpu)?;
            calls::card(nvml, &device, device.index()?)
        });
        found.map_err(|error| PartitionerError::Unread {
            gpu: gpu.to_owned(),
            error,
        })
    }

    /// Calls the driver. Opens its library when first needed, and again after it was gone.
    fn ask<T>(&mut self, ask: impl FnOnce(&Nvml) -> Result<T, NvmlError>) -> Result<T, NvmlError> {
        let nvml = match self.nvml.take() {
            Some(nvml) => nvml,
            None => open(self.library.as_deref())?,
        };
        let answer = ask(&nvml);
        let gone = |error: &NvmlError| {
            matches!(error, NvmlError::Uninitialized | NvmlError::DriverNotLoaded)
        };
        if !answer.as_ref().is_err_and(gone) {
            self.nvml = Some(nvml);
        }
        answer
    }
}

/// A step as text, for the start of an error message.
fn words(step: &PartitionStep) -> String {
    match step {
        PartitionStep::RemoveCompute { instance, compute } => {
            format!("removing compute instance {compute} of GPU instance {instance}")
        }
        PartitionStep::Remove { instance } => format!("removing GPU instance {instance}"),
        PartitionStep::Switch { on: true } => "switching MIG mode on".to_owned(),
        PartitionStep::Switch { on: false } => "switching MIG mode off".to_owned(),
        PartitionStep::Make { name, start, .. } => format!("making {name} at memory slice {start}"),
        PartitionStep::MakeCompute { instance } => {
            format!("making the compute instance of GPU instance {instance}")
        }
    }
}
