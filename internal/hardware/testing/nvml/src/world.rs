//! The machine behind the library. Owns the reading of its description.

use std::collections::BTreeMap;
use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::SystemTime;

use hardware::description::{Card, Described, MachineDescription};
use hardware::{Gpu, Inventory, MigDevice};
use nvml_wrapper_sys::bindings::nvmlDevice_t;
use parking_lot::Mutex;

use crate::answer::{No, NvmlResult};
use crate::cut::GpuPartitioning;
use crate::events::Sets;
use crate::gpm::Samples;

/// The variable with the description's file.
const VARIABLE: &str = "MUSTER_NVML_MACHINE";
/// The variable with a file that stores the GPUs' partitioning, which outlasts the process that
/// made it, as with the driver.
const CUTS: &str = "MUSTER_NVML_CUTS";
/// The description beside the library, if the variable is not set.
const BESIDE: &str = "machine.toml";
/// The bit in the handles of slices. Below it are the GPU's place, the GPU instance's number and
/// the compute instance's number.
const SLICE: usize = 1 << 31;

static WORLD: Mutex<Option<World>> = Mutex::new(None);

/// The machine, as it was last read, and its event sets.
#[derive(Default)]
pub struct World {
    path: PathBuf,
    stamp: Option<(SystemTime, u64, u64)>,
    /// Whether a description has ever been read.
    read: bool,
    /// The described machine.
    pub machine: Described,
    /// The partitioning of each GPU, in their order.
    pub cuts: Vec<GpuPartitioning>,
    /// The event sets.
    pub sets: Sets,
    /// The samples of performance counters.
    pub samples: Samples,
    /// The compute modes that were set, by index; they outlast the process that set them, as with
    /// the driver.
    pub modes: BTreeMap<u32, u32>,
    /// The number of initialisations without a shutdown.
    users: u32,
}

/// The device behind a handle.
#[derive(Clone, Copy)]
pub enum HandleTarget<'a> {
    /// A GPU.
    Whole(&'a Gpu),
    /// A slice of one.
    Slice(&'a Gpu, &'a MigDevice),
}

/// Opens the library for one more user.
pub fn open() -> NvmlResult {
    let mut world = WORLD.lock();
    let world = world.get_or_insert_with(World::default);
    if world.users == 0 {
        world.path = std::env::var_os(VARIABLE)
            .map(PathBuf::from)
            .or_else(beside)
            .ok_or(No::NotFound)?;
        (world.stamp, world.read) = (None, false);
        world.refresh();
        if !world.read {
            // The answer without a driver.
            return Err(No::NotFound);
        }
        if world.machine.driver_gone {
            return Err(No::DriverNotLoaded);
        }
        world.sets = Sets::default();
        world.samples = Samples::default();
    }
    world.users += 1;
    Ok(())
}

/// Closes the library for one user.
pub fn close() -> NvmlResult {
    let mut world = WORLD.lock();
    let world = world.as_mut().filter(|world| world.users > 0);
    world.ok_or(No::Uninitialized)?.users -= 1;
    Ok(())
}

/// Answers from the machine as it is described now.
pub fn with(answer: impl FnOnce(&mut World) -> NvmlResult) -> NvmlResult {
    let mut world = WORLD.lock();
    let world = world.as_mut().filter(|world| world.users > 0);
    let world = world.ok_or(No::Uninitialized)?;
    world.refresh();
    if world.machine.driver_gone {
        return Err(No::DriverNotLoaded);
    }
    answer(world)
}

/// The description beside this library's own file.
fn beside() -> Option<PathBuf> {
    #[repr(C)]
    struct Found {
        file: *const c_char,
        base: *mut c_void,
        name: *const c_char,
        address: *mut c_void,
    }
    unsafe extern "C" {
        fn dladdr(address: *const c_void, found: *mut Found) -> c_int;
    }
    let mut found = Found {
        file: std::ptr::null(),
        base: std::ptr::null_mut(),
        name: std::ptr::null(),
        address: std::ptr::null_mut(),
    };
    // SAFETY: the address is one of this library's functions, and `found` may be written.
    let known = unsafe { dladdr(open as *const c_void, &raw mut found) };
    if known == 0 || found.file.is_null() {
        return None;
    }
    // SAFETY: the loader's text lives as long as the library is loaded.
    let file = unsafe { CStr::from_ptr(found.file) };
    let file = PathBuf::from(OsStr::from_bytes(file.to_bytes()));
    Some(file.parent()?.join(BESIDE))
}

impl World {
    /// Reads the description if it has changed.
    fn refresh(&mut self) {
        let facts = std::fs::metadata(&self.path);
        let stamp = facts.and_then(|facts| Ok((facts.modified()?, facts.len(), facts.ino())));
        let Ok(stamp) = stamp else { return };
        if self.stamp == Some(stamp) {
            return;
        }
        // An unreadable description is not tried again until it changes.
        self.stamp = Some(stamp);
        match MachineDescription::load(&self.path) {
            Ok(description) => {
                self.machine = description.machine(Inventory::default());
                self.cut_anew();
                if !self.read {
                    self.restore();
                }
                self.read = true;
            }
            Err(error) => eprintln!("the GPU driver's stand-in: {error}"),
        }
    }

    /// The GPUs.
    pub fn gpus(&self) -> &[Gpu] {
        &self.machine.inventory.gpus
    }

    /// The device behind a handle.
    pub fn target(&self, handle: nvmlDevice_t) -> Result<HandleTarget<'_>, No> {
        let number = handle as usize;
        let bad = || No::InvalidArgument;
        if number & SLICE == 0 {
            let place = number.checked_sub(1).ok_or_else(bad)?;
            self.present(place)?;
            return Ok(HandleTarget::Whole(&self.gpus()[place]));
        }
        let (place, instance, compute) = parts(number & !SLICE);
        self.present(place)?;
        let cut = self.cuts.get(place).ok_or_else(bad)?;
        let slice = &cut.compute(instance, compute)?.slice;
        Ok(HandleTarget::Slice(&self.gpus()[place], slice))
    }

    /// Takes over the described partitioning of GPUs if it has changed.
    fn cut_anew(&mut self) {
        let gpus = self.machine.inventory.gpus.iter_mut();
        let mut before = std::mem::take(&mut self.cuts).into_iter();
        for gpu in gpus {
            let kept = before.next().filter(|cut| cut.described == gpu.slices);
            let mut cut = kept.unwrap_or_else(|| GpuPartitioning::of(gpu));
            let card = self.machine.cards.get(gpu.index as usize);
            if !card.is_some_and(|card| card.state.mig_waits) {
                cut.reset();
            }
            gpu.slices = cut.slices();
            self.cuts.push(cut);
        }
    }

    /// Changes a GPU's partitioning, also in the inventory.
    pub fn recut<T>(
        &mut self,
        place: usize,
        change: impl FnOnce(&mut GpuPartitioning) -> Result<T, No>,
    ) -> Result<T, No> {
        self.present(place)?;
        let cut = self.cuts.get_mut(place).ok_or(No::InvalidArgument)?;
        let changed = change(cut)?;
        self.machine.inventory.gpus[place].slices = cut.slices();
        self.keep();
        Ok(changed)
    }

    /// Stores the GPUs' partitioning, if a file is configured.
    fn keep(&self) {
        let Some(path) = std::env::var_os(CUTS) else {
            return;
        };
        let cuts = self.cuts.iter().zip(0..);
        let lines = cuts.flat_map(|(cut, place): (&GpuPartitioning, usize)| {
            let lines = cut.lines().into_iter();
            lines.map(move |line| format!("{place} {line}\n"))
        });
        if let Err(error) = std::fs::write(&path, lines.collect::<String>()) {
            eprintln!("the GPU driver's stand-in: {CUTS}: {error}");
        }
    }

    /// Loads the GPUs' partitioning, if a file is configured.
    fn restore(&mut self) {
        let text = std::env::var_os(CUTS).and_then(|path| std::fs::read_to_string(path).ok());
        let Some(text) = text else { return };
        for (cut, place) in self.cuts.iter_mut().zip(0..) {
            let of = |line: &'_ str| -> Option<usize> { line.split(' ').next()?.parse().ok() };
            let mut lines = text
                .lines()
                .filter(|line| of(line) == Some(place))
                .peekable();
            if lines.peek().is_none() {
                continue;
            }
            let rest = lines.filter_map(|line| Some(line.split_once(' ')?.1));
            if cut.restore(rest).is_none() {
                eprintln!("the GPU driver's stand-in: {CUTS}: GPU {place} cannot be so");
            }
            self.machine.inventory.gpus[place].slices = cut.slices();
        }
    }

    /// The GPU behind a handle; fails for slices, which lack the requested value.
    pub fn whole(&self, handle: nvmlDevice_t) -> Result<&Gpu, No> {
        match self.target(handle)? {
            HandleTarget::Whole(gpu) => Ok(gpu),
            HandleTarget::Slice(..) => Err(No::NotSupported),
        }
    }

    /// Like `whole`, with the description's data that the inventory lacks.
    pub fn card(&self, handle: nvmlDevice_t) -> Result<(&Gpu, &Card), No> {
        let gpu = self.whole(handle)?;
        let card = self.machine.cards.get(gpu.index as usize);
        Ok((gpu, card.ok_or(No::NotFound)?))
    }

    /// Whether the GPU at this place is on the bus.
    pub fn present(&self, place: usize) -> NvmlResult {
        let card = self.machine.cards.get(place).ok_or(No::InvalidArgument)?;
        if card.state.lost {
            return Err(No::GpuIsLost);
        }
        Ok(())
    }
}

/// The handle of the GPU at this place.
pub fn handle(place: usize) -> nvmlDevice_t {
    (place + 1) as nvmlDevice_t
}

/// The handle of a slice.
pub fn slice_handle(place: usize, instance: u32, compute: u32) -> nvmlDevice_t {
    (SLICE | number(place, instance, compute)) as nvmlDevice_t
}

/// A GPU's place and its instances' numbers in one number; instances' numbers are below 256.
pub fn number(place: usize, instance: u32, compute: u32) -> usize {
    place << 16 | (instance as usize & 0xff) << 8 | (compute as usize & 0xff)
}

/// The parts of such a number.
pub fn parts(number: usize) -> (usize, u32, u32) {
    let byte = |shift: usize| (number >> shift & 0xff) as u32;
    (number >> 16, byte(8), byte(0))
}
