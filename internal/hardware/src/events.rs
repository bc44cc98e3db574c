//! XIDs as they happen, from NVML or from a described machine whose XID lists grow. Owns its own
//! open library and its event set. All calls except the opening are raw: the wrapper's calls lose
//! earlier registrations on any error, and drop the number of the slice.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use nvml_wrapper::Nvml;
use nvml_wrapper_sys::bindings::{nvmlDevice_t, nvmlEventData_t, nvmlEventSet_t};

use crate::description::MachineDescription;
use crate::gpus::open;
use crate::inventory::Inventory;
use crate::sources::InventorySources;

/// NVML's bit for XIDs (`nvmlEventTypeXidCriticalError`).
const XIDS: u64 = 8;
/// NVML's code for no event within the time limit.
const TIMEOUT: u32 = 10;
/// NVML's value for an event without a slice.
const NO_INSTANCE: u32 = u32::MAX;
/// Interval at which a description is read.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// An error that the driver reported for a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Xid {
    /// The GPU's UUID.
    pub gpu: String,
    /// Its number in NVIDIA's list of XIDs.
    pub number: u64,
    /// The GPU instance, if the error belongs to a slice.
    pub instance: Option<u32>,
}

/// No more events will arrive: the driver was unloaded, or a GPU is lost. Open a new event set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventsEnded;

/// Listens to a machine's GPUs. Reports no events from before its start.
pub enum GpuEvents {
    /// Through the driver.
    Driver(Box<Listener>),
    /// By reading a description repeatedly: the number of reported XIDs of each GPU.
    Described(PathBuf, BTreeMap<String, usize>),
}

/// An event set of the driver.
pub struct Listener {
    nvml: Nvml,
    set: nvmlEventSet_t,
    /// Each registered GPU, by its handle.
    ids: BTreeMap<usize, String>,
    /// The number of GPUs.
    count: u32,
}

// SAFETY: NVML may be called from any thread; one thread uses the set at a time, because waiting
// takes `&mut self`, and it is freed once.
unsafe impl Send for Listener {}

impl GpuEvents {
    /// Listens to the GPUs that answer; none if there are none.
    pub fn listen(source: &InventorySources) -> Option<GpuEvents> {
        if let Some(path) = &source.description {
            let counts = described(path)?.into_iter();
            let counts = counts.map(|(id, xids)| (id, xids.len())).collect();
            return Some(GpuEvents::Described(path.clone(), counts));
        }
        if !source.nvml {
            return None;
        }
        let nvml = open(source.library.as_deref()).ok()?;
        let listener = Listener::new(nvml)?;
        Some(GpuEvents::Driver(Box::new(listener)))
    }

    /// Whether every GPU present at the start is registered.
    pub fn complete(&self) -> bool {
        match self {
            GpuEvents::Driver(listener) => listener.ids.len() as u64 == u64::from(listener.count),
            GpuEvents::Described(..) => true,
        }
    }

    /// The next XID, within this time limit.
    pub fn wait(&mut self, limit: Duration) -> Result<Option<Xid>, EventsEnded> {
        match self {
            GpuEvents::Driver(listener) => listener.wait(limit),
            GpuEvents::Described(path, counts) => {
                let found = described(path).and_then(|machine| next(machine, counts));
                if found.is_none() {
                    std::thread::sleep(limit.min(LOOK_EVERY));
                }
                Ok(found)
            }
        }
    }
}

/// Each described GPU's XIDs; none while the description is unreadable.
fn described(path: &std::path::Path) -> Option<Vec<(String, Vec<u64>)>> {
    let machine = MachineDescription::load(path)
        .ok()?
        .machine(Inventory::default());
    let gpus = machine.inventory.gpus.into_iter().zip(machine.cards);
    Some(gpus.map(|(gpu, card)| (gpu.id, card.state.xids)).collect())
}

fn next(machine: Vec<(String, Vec<u64>)>, counts: &mut BTreeMap<String, usize>) -> Option<Xid> {
    for (gpu, xids) in machine {
        let count = counts.entry(gpu.clone()).or_insert(0);
        // A list that became shorter means that the driver was reloaded.
        *count = (*count).min(xids.len());
        if let Some(number) = xids.get(*count) {
            *count += 1;
            return Some(Xid {
                gpu,
                number: *number,
                instance: None,
            });
        }
    }
    None
}

impl Listener {
    fn new(nvml: Nvml) -> Option<Listener> {
        let count = nvml.device_count().ok()?;
        let mut set: nvmlEventSet_t = std::ptr::null_mut();
        let create = nvml.lib().nvmlEventSetCreate.as_ref().ok()?;
        // SAFETY: `set` is writable.
        if unsafe { create(&raw mut set) } != 0 {
            return None;
        }
        let mut listener = Listener {
            nvml,
            set,
            ids: BTreeMap::new(),
            count,
        };
        for index in 0..count {
            if let Some((handle, id)) = listener.register(index) {
                listener.ids.insert(handle as usize, id);
            }
        }
        // Without a registered GPU there is nothing to wait for.
        (!listener.ids.is_empty()).then_some(listener)
    }

    /// Registers one GPU; an error does not affect the others.
    fn register(&self, index: u32) -> Option<(nvmlDevice_t, String)> {
        let device = self.nvml.device_by_index(index).ok()?;
        let id = device.uuid().ok()?;
        let call = self.nvml.lib().nvmlDeviceRegisterEvents.as_ref().ok()?;
        // SAFETY: handle and set belong to the library, which is open.
        let handle = unsafe { device.handle() };
        let answer = unsafe { call(handle, XIDS, self.set) };
        (answer == 0).then_some((handle, id))
    }

    fn wait(&mut self, limit: Duration) -> Result<Option<Xid>, EventsEnded> {
        let call = self.nvml.lib().nvmlEventSetWait_v2.as_ref();
        let call = call.map_err(|_| EventsEnded)?;
        let mut event = nvmlEventData_t {
            device: std::ptr::null_mut(),
            eventType: 0,
            eventData: 0,
            gpuInstanceId: NO_INSTANCE,
            computeInstanceId: NO_INSTANCE,
        };
        let limit = u32::try_from(limit.as_millis()).unwrap_or(u32::MAX);
        // SAFETY: the set belongs to the library and is not freed; the event is writable.
        match unsafe { call(self.set, &raw mut event, limit) } {
            0 => {}
            TIMEOUT => return Ok(None),
            _ => return Err(EventsEnded),
        }
        let gpu = self.ids.get(&(event.device as usize));
        Ok(gpu.filter(|_| event.eventType & XIDS != 0).map(|gpu| Xid {
            gpu: gpu.clone(),
            number: event.eventData,
            instance: Some(event.gpuInstanceId).filter(|it| *it != NO_INSTANCE),
        }))
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Ok(free) = self.nvml.lib().nvmlEventSetFree.as_ref() {
            // SAFETY: the set belongs to the library, and is freed here only.
            let _ = unsafe { free(self.set) };
        }
    }
}
