//! Cuts GPUs by NVML (MIG), and says how they are cut. Owns an opened library of its own; what is to
//! be done is [`partition`](crate::partition)'s. Most calls are raw: the wrapper has none for
//! instances, and its own for placements answers an empty list.

use std::collections::BTreeMap;
use std::mem::zeroed;
use std::path::PathBuf;
use std::ptr::null_mut;

use nvml_wrapper::Nvml;
use nvml_wrapper::device::Device;
use nvml_wrapper::error::{NvmlError, nvml_sym, nvml_try};
use nvml_wrapper_sys::bindings::{
    NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED, NVML_COMPUTE_INSTANCE_PROFILE_COUNT,
    NVML_GPU_INSTANCE_PROFILE_COUNT, nvmlComputeInstance_t, nvmlComputeInstanceInfo_t,
    nvmlComputeInstanceProfileInfo_t, nvmlGpuInstance_t, nvmlGpuInstanceInfo_t,
    nvmlGpuInstancePlacement_t, nvmlGpuInstanceProfileInfo_v2_t,
};

use crate::Source;
use crate::gpus::open;
use crate::mig;
use crate::partition::{Instance, Layout, Profile, Step, Wanted, steps};

/// The second version of the driver's structure for profiles: its size, and the version above.
const PROFILE_INFO_V2: u32 = size_of::<nvmlGpuInstanceProfileInfo_v2_t>() as u32 | 2 << 24;
/// Room for what a GPU has of one kind: it has at most eight slices.
const ROOM: usize = 16;

/// Calls a function of the driver's that the wrapper has none for.
macro_rules! call {
    ($lib:expr, $name:ident($($argument:expr),*)) => {{
        let function = nvml_sym($lib.$name.as_ref())?;
        // SAFETY: handles are the driver's own and used while its library is open; what is written
        // to is there, as large as the call wants it, and no longer used when it returns.
        nvml_try(unsafe { function($($argument),*) })?;
    }};
}

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
    /// A sentence: the driver doesn't answer, or there is none to ask.
    pub fn look(&mut self) -> Result<Vec<Card>, String> {
        if self.described {
            let why = "the machine is described in a file (--machine), and what isn't there can't be \
                       cut; describe its GPUs as cut there";
            return Err(why.to_owned());
        }
        let asked = self.ask(|nvml| {
            let count = nvml.device_count()?;
            let one = |index| {
                let device = nvml.device_by_index(index)?;
                card(nvml, &device, index)
            };
            Ok((0..count)
                .map(|index| (index, one(index)))
                .collect::<Vec<_>>())
        });
        let all = asked.map_err(|error| format!("the NVIDIA driver does not answer: {error}"))?;
        let all = all.into_iter().map(|(index, found)| {
            found.map_err(|error| format!("GPU {index} does not say how it is cut: {error}"))
        });
        all.collect()
    }

    /// Takes these steps on a GPU. Where one fails, the GPU is cut again as it was, as far as that
    /// goes: its slices have other UUIDs then.
    ///
    /// # Errors
    ///
    /// A sentence with the step, what the driver said, and how the GPU was left.
    pub fn take(&mut self, gpu: &str, steps: &[Step]) -> Result<Done, String> {
        let before = self.card(gpu)?;
        let (what, error) = match self.try_all(gpu, steps) {
            Ok(done) => return Ok(done),
            Err(failed) => failed,
        };
        let left = self.put_back(&before);
        Err(format!("{what}: {error}; {left}"))
    }

    /// The steps one after the other; the one that failed, in words, and why.
    fn try_all(&mut self, gpu: &str, steps: &[Step]) -> Result<Done, (String, NvmlError)> {
        for step in steps {
            tracing::info!(gpu, "{}", words(step));
            let done = self.ask(|nvml| one_step(nvml, &nvml.device_by_uuid(gpu)?, step));
            if done.map_err(|error| (words(step), error))? == Done::AfterReset {
                return Ok(Done::AfterReset);
            }
        }
        Ok(Done::Now)
    }

    /// Cuts a GPU as it was, and says how it is.
    fn put_back(&mut self, before: &Card) -> String {
        let wanted = Wanted::of(&before.profiles, &before.layout);
        let tried = self.card(&before.id).and_then(|now| {
            let back = steps(&now.profiles, &now.layout, &wanted, &Default::default())?;
            let tried = self.try_all(&before.id, &back);
            tried.map_err(|(what, error)| format!("{what}: {error}"))
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

    fn card(&mut self, gpu: &str) -> Result<Card, String> {
        let found = self.ask(|nvml| {
            let device = nvml.device_by_uuid(gpu)?;
            card(nvml, &device, device.index()?)
        });
        found.map_err(|error| format!("{gpu} does not say how it is cut: {error}"))
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

fn card(nvml: &Nvml, device: &Device<'_>, index: u32) -> Result<Card, NvmlError> {
    let mut card = Card {
        id: device.uuid()?,
        index,
        model: device.name()?,
        device: device.pci_info()?.pci_device_id,
        ..Card::default()
    };
    let processes = device.running_compute_processes()?.into_iter();
    card.processes = processes.map(|it| (it.pid, it.gpu_instance_id)).collect();
    let mode = match device.mig_mode() {
        Ok(mode) => mode,
        // It is of those that can't be cut, or the driver is from before there were others.
        Err(NvmlError::NotSupported | NvmlError::FailedToLoadSymbol(_)) => return Ok(card),
        Err(error) => return Err(error),
    };
    card.capable = true;
    card.layout.enabled = mode.current == 1;
    card.waits = mode.current != mode.pending;
    card.profiles = profiles(nvml, device, &card.model)?;
    if card.layout.enabled {
        for profile in &card.profiles {
            (card.layout.instances).extend(instances(nvml, device, profile.id)?);
        }
        card.layout.instances.sort_by_key(|instance| instance.id);
        for place in 0..device.mig_device_count()? {
            // There are fewer than there could be: the others' places do not answer.
            let Ok(slice) = device.mig_device_by_index(place) else {
                continue;
            };
            let mut instance = 0;
            call!(
                nvml.lib(),
                nvmlDeviceGetGpuInstanceId(slice.handle(), &raw mut instance)
            );
            card.slices.insert(slice.uuid()?, instance);
        }
    }
    Ok(card)
}

/// A product's profiles. The driver numbers them by shapes, of which a product has some.
fn profiles(nvml: &Nvml, device: &Device<'_>, model: &str) -> Result<Vec<Profile>, NvmlError> {
    let mut all = Vec::new();
    for shape in 0..NVML_GPU_INSTANCE_PROFILE_COUNT {
        let info = match profile_info(nvml, device, shape) {
            Ok(info) => info,
            Err(NvmlError::NotSupported | NvmlError::InvalidArg) => continue,
            Err(error) => return Err(error),
        };
        let characters = info.name.iter().map(|it| it.cast_unsigned());
        let name: Vec<u8> = characters.take_while(|byte| *byte != 0).collect();
        let name = String::from_utf8_lossy(&name);
        let name = name.strip_prefix("MIG ").unwrap_or(&name);
        let (starts, size) = match (placements(nvml, device, info.id), mig::profile(model, name)) {
            (Ok(told), _) if !told.0.is_empty() => told,
            (_, Some(known)) => (known.starts.to_vec(), known.size),
            _ => (Vec::new(), 0),
        };
        all.push(Profile {
            name: name.to_owned(),
            id: info.id,
            slices: info.sliceCount,
            size,
            starts,
            most: info.instanceCount,
            engines: info.ofaCount,
        });
    }
    Ok(all)
}

fn profile_info(
    nvml: &Nvml,
    device: &Device<'_>,
    shape: u32,
) -> Result<nvmlGpuInstanceProfileInfo_v2_t, NvmlError> {
    // SAFETY: plain numbers and characters, for which zero is a value.
    let mut info: nvmlGpuInstanceProfileInfo_v2_t = unsafe { zeroed() };
    info.version = PROFILE_INFO_V2;
    call!(
        nvml.lib(),
        nvmlDeviceGetGpuInstanceProfileInfoV(device.handle(), shape, &raw mut info)
    );
    Ok(info)
}

/// Where instances of a profile may begin, and how many memory slices each takes.
fn placements(
    nvml: &Nvml,
    device: &Device<'_>,
    profile: u32,
) -> Result<(Vec<u32>, u32), NvmlError> {
    let mut places = [nvmlGpuInstancePlacement_t { start: 0, size: 0 }; ROOM];
    let mut count = ROOM as u32;
    call!(
        nvml.lib(),
        nvmlDeviceGetGpuInstancePossiblePlacements_v2(
            device.handle(),
            profile,
            places.as_mut_ptr(),
            &raw mut count
        )
    );
    let places = &places[..ROOM.min(count as usize)];
    let mut starts: Vec<u32> = places.iter().map(|place| place.start).collect();
    starts.sort_unstable();
    Ok((starts, places.first().map_or(0, |place| place.size)))
}

/// The GPU instances of a profile.
fn instances(nvml: &Nvml, device: &Device<'_>, profile: u32) -> Result<Vec<Instance>, NvmlError> {
    let mut handles: [nvmlGpuInstance_t; ROOM] = [null_mut(); ROOM];
    let mut count = ROOM as u32;
    call!(
        nvml.lib(),
        nvmlDeviceGetGpuInstances(
            device.handle(),
            profile,
            handles.as_mut_ptr(),
            &raw mut count
        )
    );
    let handles = &handles[..ROOM.min(count as usize)];
    let one = |handle: &nvmlGpuInstance_t| {
        // SAFETY: plain numbers and a handle that may be null.
        let mut info: nvmlGpuInstanceInfo_t = unsafe { zeroed() };
        call!(nvml.lib(), nvmlGpuInstanceGetInfo(*handle, &raw mut info));
        let computes = computes(nvml, *handle)?;
        Ok(Instance {
            id: info.id,
            profile,
            start: info.placement.start,
            computes: computes.iter().map(|it| (it.id, it.slices)).collect(),
        })
    };
    handles.iter().map(one).collect()
}

/// A compute instance.
struct Compute {
    handle: nvmlComputeInstance_t,
    id: u32,
    slices: u32,
}

/// The compute instances of a GPU instance.
fn computes(nvml: &Nvml, instance: nvmlGpuInstance_t) -> Result<Vec<Compute>, NvmlError> {
    let mut all = Vec::new();
    for profile in compute_profiles(nvml, instance)? {
        let mut handles: [nvmlComputeInstance_t; ROOM] = [null_mut(); ROOM];
        let mut count = ROOM as u32;
        call!(
            nvml.lib(),
            nvmlGpuInstanceGetComputeInstances(
                instance,
                profile.id,
                handles.as_mut_ptr(),
                &raw mut count
            )
        );
        for handle in &handles[..ROOM.min(count as usize)] {
            // SAFETY: plain numbers and handles that may be null.
            let mut info: nvmlComputeInstanceInfo_t = unsafe { zeroed() };
            call!(
                nvml.lib(),
                nvmlComputeInstanceGetInfo_v2(*handle, &raw mut info)
            );
            all.push(Compute {
                handle: *handle,
                id: info.id,
                slices: profile.sliceCount,
            });
        }
    }
    all.sort_by_key(|compute| compute.id);
    Ok(all)
}

/// The profiles of compute instances that a GPU instance may have.
fn compute_profiles(
    nvml: &Nvml,
    instance: nvmlGpuInstance_t,
) -> Result<Vec<nvmlComputeInstanceProfileInfo_t>, NvmlError> {
    let one = |shape| {
        // SAFETY: plain numbers, for which zero is a value.
        let mut info: nvmlComputeInstanceProfileInfo_t = unsafe { zeroed() };
        call!(
            nvml.lib(),
            nvmlGpuInstanceGetComputeInstanceProfileInfo(
                instance,
                shape,
                NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED,
                &raw mut info
            )
        );
        Ok(info)
    };
    let all = (0..NVML_COMPUTE_INSTANCE_PROFILE_COUNT).map(one);
    let there =
        all.filter(|found| !matches!(found, Err(NvmlError::NotSupported | NvmlError::InvalidArg)));
    there.collect()
}

fn instance(nvml: &Nvml, device: &Device<'_>, id: u32) -> Result<nvmlGpuInstance_t, NvmlError> {
    let mut handle: nvmlGpuInstance_t = null_mut();
    call!(
        nvml.lib(),
        nvmlDeviceGetGpuInstanceById(device.handle(), id, &raw mut handle)
    );
    Ok(handle)
}

fn one_step(nvml: &Nvml, device: &Device<'_>, step: &Step) -> Result<Done, NvmlError> {
    match step {
        Step::RemoveCompute {
            instance: id,
            compute,
        } => {
            let all = computes(nvml, instance(nvml, device, *id)?)?;
            let found = all.iter().find(|it| it.id == *compute);
            let handle = found.ok_or(NvmlError::NotFound)?.handle;
            call!(nvml.lib(), nvmlComputeInstanceDestroy(handle));
        }
        Step::Remove { instance: id } => {
            let handle = instance(nvml, device, *id)?;
            call!(nvml.lib(), nvmlGpuInstanceDestroy(handle));
        }
        Step::Switch { on } => {
            device.set_mig_mode(*on)?;
            // Who else has the GPU open holds up the change, and the driver says so only here.
            if device.mig_mode()?.current != u32::from(*on) {
                return Ok(Done::AfterReset);
            }
        }
        Step::Make {
            profile,
            start,
            size,
            ..
        } => {
            let place = nvmlGpuInstancePlacement_t {
                start: *start,
                size: *size,
            };
            let mut handle: nvmlGpuInstance_t = null_mut();
            call!(
                nvml.lib(),
                nvmlDeviceCreateGpuInstanceWithPlacement(
                    device.handle(),
                    *profile,
                    &raw const place,
                    &raw mut handle
                )
            );
            fill(nvml, handle)?;
        }
        Step::MakeCompute { instance: id } => fill(nvml, instance(nvml, device, *id)?)?,
    }
    Ok(Done::Now)
}

/// Makes a compute instance that is all of a GPU instance: the largest that it may have.
fn fill(nvml: &Nvml, instance: nvmlGpuInstance_t) -> Result<(), NvmlError> {
    let all = compute_profiles(nvml, instance)?;
    // Of several that are all of it the first is the plain one.
    let whole = all.iter().rev().max_by_key(|it| it.sliceCount);
    let whole = whole.ok_or(NvmlError::NotSupported)?;
    let mut handle: nvmlComputeInstance_t = null_mut();
    call!(
        nvml.lib(),
        nvmlGpuInstanceCreateComputeInstance(instance, whole.id, &raw mut handle)
    );
    Ok(())
}
