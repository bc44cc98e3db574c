//! XIDs as they happen, from NVML or from a described machine whose lists of them grow. Owns an
//! opened library of its own and what it listens to. All calls but the opening are raw: the
//! wrapper's lose what was registered before on any refusal, and drop the number of the slice.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use nvml_wrapper::Nvml;
use nvml_wrapper_sys::bindings::{nvmlDevice_t, nvmlEventData_t, nvmlEventSet_t};

use crate::Source;
use crate::description::Description;
use crate::gpus::open;
use crate::inventory::Inventory;

/// NVML's bit for XIDs (`nvmlEventTypeXidCriticalError`).
const XIDS: u64 = 8;
/// NVML's answer where nothing happened in time.
const TIMEOUT: u32 = 10;
/// What NVML writes where an event is no slice's.
const NO_INSTANCE: u32 = u32::MAX;
/// How often a description is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// An error that the driver reported of a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Xid {
    /// The GPU's UUID.
    pub gpu: String,
    /// Its number in NVIDIA's list of XIDs.
    pub number: u64,
    /// The GPU instance that it is of, where it is a slice's.
    pub instance: Option<u32>,
}

/// Nothing more will be heard: the driver was unloaded, or a GPU is lost. Listen anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deaf;

/// Listens to a machine's GPUs. What happened before is not told.
pub enum Events {
    /// Through the driver.
    Driver(Box<Listener>),
    /// By reading a description again and again: how many XIDs of each GPU were told.
    Described(PathBuf, BTreeMap<String, usize>),
}

/// A set of events of the driver's.
pub struct Listener {
    nvml: Nvml,
    set: nvmlEventSet_t,
    /// Each GPU that is listened to, by its handle.
    ids: BTreeMap<usize, String>,
    /// GPUs that there are.
    count: u32,
}

// SAFETY: NVML may be called from any thread; the set is used by one at a time, as waiting takes
// `&mut self`, and freed once.
unsafe impl Send for Listener {}

impl Events {
    /// Listens to the GPUs that answer; nothing where there are none to listen to.
    pub fn listen(source: &Source) -> Option<Events> {
        if let Some(path) = &source.description {
            let told = described(path)?.into_iter();
            let told = told.map(|(id, xids)| (id, xids.len())).collect();
            return Some(Events::Described(path.clone(), told));
        }
        if !source.nvml {
            return None;
        }
        let nvml = open(source.library.as_deref()).ok()?;
        let listener = Listener::new(nvml)?;
        Some(Events::Driver(Box::new(listener)))
    }

    /// Whether every GPU is listened to that there was at the beginning.
    pub fn complete(&self) -> bool {
        match self {
            Events::Driver(listener) => listener.ids.len() as u64 == u64::from(listener.count),
            Events::Described(..) => true,
        }
    }

    /// The next XID, waited for not longer than this.
    pub fn wait(&mut self, limit: Duration) -> Result<Option<Xid>, Deaf> {
        match self {
            Events::Driver(listener) => listener.wait(limit),
            Events::Described(path, told) => {
                let found = described(path).and_then(|machine| next(machine, told));
                if found.is_none() {
                    std::thread::sleep(limit.min(LOOK_EVERY));
                }
                Ok(found)
            }
        }
    }
}

/// Each described GPU's XIDs; nothing while the description can't be read.
fn described(path: &std::path::Path) -> Option<Vec<(String, Vec<u64>)>> {
    let machine = Description::load(path).ok()?.machine(Inventory::default());
    let gpus = machine.inventory.gpus.into_iter().zip(machine.cards);
    Some(gpus.map(|(gpu, card)| (gpu.id, card.state.xids)).collect())
}

fn next(machine: Vec<(String, Vec<u64>)>, told: &mut BTreeMap<String, usize>) -> Option<Xid> {
    for (gpu, xids) in machine {
        let told = told.entry(gpu.clone()).or_insert(0);
        // A list that became shorter is a driver that was loaded anew.
        *told = (*told).min(xids.len());
        if let Some(number) = xids.get(*told) {
            *told += 1;
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
        // SAFETY: `set` may be written.
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
        // Where nobody can be listened to, there is nothing to wait for.
        (!listener.ids.is_empty()).then_some(listener)
    }

    /// Listens to one GPU; one that refuses costs the others nothing.
    fn register(&self, index: u32) -> Option<(nvmlDevice_t, String)> {
        let device = self.nvml.device_by_index(index).ok()?;
        let id = device.uuid().ok()?;
        let call = self.nvml.lib().nvmlDeviceRegisterEvents.as_ref().ok()?;
        // SAFETY: handle and set are the library's own, which is open.
        let handle = unsafe { device.handle() };
        let answer = unsafe { call(handle, XIDS, self.set) };
        (answer == 0).then_some((handle, id))
    }

    fn wait(&mut self, limit: Duration) -> Result<Option<Xid>, Deaf> {
        let call = self.nvml.lib().nvmlEventSetWait_v2.as_ref();
        let call = call.map_err(|_| Deaf)?;
        let mut event = nvmlEventData_t {
            device: std::ptr::null_mut(),
            eventType: 0,
            eventData: 0,
            gpuInstanceId: NO_INSTANCE,
            computeInstanceId: NO_INSTANCE,
        };
        let limit = u32::try_from(limit.as_millis()).unwrap_or(u32::MAX);
        // SAFETY: the set is the library's own and not freed; the event may be written.
        match unsafe { call(self.set, &raw mut event, limit) } {
            0 => {}
            TIMEOUT => return Ok(None),
            _ => return Err(Deaf),
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
            // SAFETY: the library's own, and freed here only.
            let _ = unsafe { free(self.set) };
        }
    }
}
