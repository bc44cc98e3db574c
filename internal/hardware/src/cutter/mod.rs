//! Cuts GPUs by NVML (MIG), and says how they are cut. Owns an opened library of its own, and the
//! putting back where a step fails; what is to be done is [`partition`](crate::partition)'s.

mod calls;

use std::collections::BTreeMap;
use std::path::PathBuf;

use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;

use crate::Source;
use crate::gpus::open;
use crate::partition::{Layout, LayoutError, Profile, Step, Wanted, steps};

/// A GPU, as far as it can be cut.
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
    /// Whether its MIG mode is to change at its next reset, or when the machine is restarted.
    pub waits: bool,
    /// Its profiles. Of products whose driver says where they may lie only in MIG mode, and of which
    /// nobody else knows it, none may lie anywhere until then.
    pub profiles: Vec<Profile>,
    /// How it is cut.
    pub layout: Layout,
    /// The UUID of each slice that programs can use, with its GPU instance's number.
    pub slices: BTreeMap<String, u32>,
    /// Who computes on it: each process, with its GPU instance's number where the driver says it.
    pub processes: Vec<(u32, Option<u32>)>,
}

impl Card {
    /// Whether it is known where its profiles may lie.
    pub fn is_known(&self) -> bool {
        self.profiles.iter().all(|it| !it.starts.is_empty())
    }
}

/// Why a GPU is not cut, or does not say how it is.
#[derive(Debug, thiserror::Error)]
pub enum CutterError {
    /// There is no GPU to cut.
    #[error(
        "the machine is described in a file (--machine), and what isn't there can't be cut; describe its \
         GPUs as cut there"
    )]
    Described,
    /// There is no driver, or it does not answer.
    #[error("the NVIDIA driver does not answer: {0}")]
    NoDriver(NvmlError),
    /// The driver does not say how the GPU is cut.
    #[error("{gpu} does not say how it is cut: {error}")]
    Unread {
        /// The GPU: its UUID, or its index.
        gpu: String,
        /// What the driver says.
        error: NvmlError,
    },
    /// A step failed; the GPU is left so.
    #[error("{step}: {error}; {left}")]
    Step {
        /// What was tried.
        step: String,
        /// What the driver says.
        error: NvmlError,
        /// How the GPU is now.
        left: String,
    },
    /// A step of putting it back failed.
    #[error("{step}: {error}")]
    PutBack {
        /// What was tried.
        step: String,
        /// What the driver says.
        error: NvmlError,
    },
    /// It can't be cut as it was.
    #[error(transparent)]
    Layout(#[from] LayoutError),
}

/// Whether what was done holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Done {
    /// It does.
    Now,
    /// The mode changes when the GPU is reset, or the machine restarted; nothing after that was done.
    AfterReset,
}

/// Cuts a machine's GPUs. One that nobody asks holds nothing.
#[derive(Debug, Default)]
pub struct Cutter {
    nvml: Option<Nvml>,
    library: Option<PathBuf>,
    described: bool,
}

impl Cutter {
    /// Opens nothing yet.
    pub fn new(source: &Source) -> Cutter {
        Cutter {
            nvml: None,
            library: source.library.clone(),
            described: source.description.is_some() || !source.nvml,
        }
    }

    /// The GPUs, and how each is cut.
    ///
    /// # Errors
    ///
    /// The driver doesn't answer, or there is none to ask.
    pub fn look(&mut self) -> Result<Vec<Card>, CutterError> {
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
        let all = asked.map_err(CutterError::NoDriver)?;
        let all = all.into_iter().map(|(index, found)| {
            found.map_err(|error| CutterError::Unread {
                gpu: format!("GPU {index}"),
                error,
            })
        });
        all.collect()
    }

    /// One GPU, by its UUID, and how it is cut: what another one doesn't say is no hindrance.
    ///
    /// # Errors
    ///
    /// It doesn't answer, or there is no driver to ask.
    pub fn look_at(&mut self, gpu: &str) -> Result<Card, CutterError> {
        self.must_be_real()?;
        self.card(gpu)
    }

    fn must_be_real(&self) -> Result<(), CutterError> {
        if self.described {
            return Err(CutterError::Described);
        }
        Ok(())
    }

    /// Takes these steps on a GPU. Where one fails, the GPU is cut again as it was, as far as that
    /// goes: its slices have other UUIDs then.
    ///
    /// # Errors
    ///
    /// The step that failed, what the driver said, and how the GPU was left.
    pub fn take(&mut self, gpu: &str, steps: &[Step]) -> Result<Done, CutterError> {
        let before = self.card(gpu)?;
        let (step, error) = match self.try_all(gpu, steps) {
            Ok(done) => return Ok(done),
            Err(failed) => failed,
        };
        let left = self.put_back(&before);
        Err(CutterError::Step { step, error, left })
    }

    /// The steps one after the other; the one that failed, in words, and why.
    fn try_all(&mut self, gpu: &str, steps: &[Step]) -> Result<Done, (String, NvmlError)> {
        for step in steps {
            tracing::info!(gpu, "{}", words(step));
            let done = self.ask(|nvml| calls::take(nvml, &nvml.device_by_uuid(gpu)?, step));
            if done.map_err(|error| (words(step), error))? == Done::AfterReset {
                return Ok(Done::AfterReset);
            }
        }
        Ok(Done::Now)
    }

    /// Cuts a GPU as it was, and says how it is.
    fn put_back(&mut self, before: &Card) -> String {
        let wanted = Wanted::of(&before.profiles, &before.layout);
        // What was there before and still is stays: somebody may have it.
        let was = before.layout.instances.iter().map(|it| it.id).collect();
        let tried = self.card(&before.id).and_then(|now| {
            let back = steps(&now.profiles, &now.layout, &wanted, &was)?;
            let tried = self.try_all(&before.id, &back);
            tried.map_err(|(step, error)| CutterError::PutBack { step, error })
        });
        match tried {
            Ok(_) => format!("it was put back to what it was: {}", wanted.words()),
            Err(error) => {
                let now = self
                    .card(&before.id)
                    .map(|now| Wanted::of(&now.profiles, &now.layout));
                let now = now.map_or_else(|_| "unknown".to_owned(), |now| now.words());
                format!(
                    "it could not be put back to what it was, {} ({error}), and is now: {now}",
                    wanted.words()
                )
            }
        }
    }

    fn card(&mut self, gpu: &str) -> Result<Card, CutterError> {
        let found = self.ask(|nvml| {
            let device = nvml.device_by_uuid(gpu)?;
            calls::card(nvml, &device, device.index()?)
        });
        found.map_err(|error| CutterError::Unread {
            gpu: gpu.to_owned(),
            error,
        })
    }

    /// Asks the driver, whose library is opened when first needed, and anew after it was gone.
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

/// A step in words that go before what was said to it.
fn words(step: &Step) -> String {
    match step {
        Step::RemoveCompute { instance, compute } => {
            format!("removing compute instance {compute} of GPU instance {instance}")
        }
        Step::Remove { instance } => format!("removing GPU instance {instance}"),
        Step::Switch { on: true } => "switching MIG mode on".to_owned(),
        Step::Switch { on: false } => "switching MIG mode off".to_owned(),
        Step::Make { name, start, .. } => format!("making {name} at memory slice {start}"),
        Step::MakeCompute { instance } => {
            format!("making the compute instance of GPU instance {instance}")
        }
    }
}
