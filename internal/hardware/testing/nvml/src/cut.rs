//! A GPU's partitioning: its GPU instances, and the compute instances in them. Programs see a compute instance as a
//! slice.

use hardware::mig::{MigProfile, Placed, profile};
use hardware::{Gpu, MigDevice};

use crate::answer::No;

/// The partitioning of one GPU.
#[derive(Clone, Debug, Default)]
pub struct GpuPartitioning {
    model: String,
    gpu: String,
    /// The slices in the description.
    pub described: Option<Vec<MigDevice>>,
    /// Whether it is in MIG mode.
    pub enabled: bool,
    /// The pending MIG mode, if it changes at a reset.
    pub pending: Option<bool>,
    /// Its instances, by number.
    pub instances: Vec<SimulatedGpuInstance>,
}

/// A GPU instance.
#[derive(Clone, Debug)]
pub struct SimulatedGpuInstance {
    /// Its number.
    pub id: u32,
    /// Its profile; none on products with unknown profiles.
    pub profile: Option<&'static MigProfile>,
    /// Its first memory slice.
    pub start: u32,
    /// Its compute instances, by number.
    pub computes: Vec<SimulatedComputeInstance>,
}

/// A compute instance.
#[derive(Clone, Debug)]
pub struct SimulatedComputeInstance {
    /// Its number.
    pub id: u32,
    /// Its slices of its GPU instance's.
    pub slices: u32,
    /// The slice that programs see.
    pub slice: MigDevice,
}

impl GpuPartitioning {
    /// The partitioning in the description: each slice is a whole GPU instance.
    pub fn of(gpu: &Gpu) -> GpuPartitioning {
        let mut cut = GpuPartitioning {
            model: gpu.model.clone(),
            gpu: gpu.id.clone(),
            described: gpu.slices.clone(),
            enabled: gpu.slices.is_some(),
            pending: None,
            instances: Vec::new(),
        };
        for slice in gpu.slices.iter().flatten() {
            let profile = profile(&cut.model, &slice.profile);
            let start = profile.and_then(|profile| profile.first(&cut.placed()));
            cut.instances.push(SimulatedGpuInstance {
                id: cut.unused(),
                profile,
                start: start.unwrap_or(0),
                computes: vec![SimulatedComputeInstance {
                    id: 0,
                    slices: profile.map_or(1, |profile| profile.slices),
                    slice: slice.clone(),
                }],
            });
        }
        cut
    }

    /// All compute instances with their GPU instances.
    pub fn all(&self) -> impl Iterator<Item = (&SimulatedGpuInstance, &SimulatedComputeInstance)> {
        let computes = |instance: &'_ SimulatedGpuInstance| -> Vec<usize> {
            (0..instance.computes.len()).collect()
        };
        (self.instances.iter()).flat_map(move |instance| {
            let places = computes(instance).into_iter();
            places.map(move |place| (instance, &instance.computes[place]))
        })
    }

    /// The slices that programs see, if the GPU is in MIG mode.
    pub fn slices(&self) -> Option<Vec<MigDevice>> {
        let slices = self.all().map(|(_, compute)| compute.slice.clone());
        self.enabled.then(|| slices.collect())
    }

    /// The positions of instances with known profiles.
    pub fn placed(&self) -> Placed {
        let known = |instance: &SimulatedGpuInstance| Some((instance.profile?, instance.start));
        self.instances.iter().filter_map(known).collect()
    }

    /// The instance of this number.
    pub fn instance(&self, id: u32) -> Result<&SimulatedGpuInstance, No> {
        let mut instances = self.instances.iter();
        instances
            .find(|instance| instance.id == id)
            .ok_or(No::NotFound)
    }

    /// The compute instance of this number in that instance.
    pub fn compute(&self, instance: u32, id: u32) -> Result<&SimulatedComputeInstance, No> {
        let mut computes = self.instance(instance)?.computes.iter();
        computes
            .find(|compute| compute.id == id)
            .ok_or(No::NotFound)
    }

    /// Switches MIG mode; a GPU with instances cannot leave it.
    pub fn switch(&mut self, on: bool) -> Result<(), No> {
        if !on && !self.instances.is_empty() {
            return Err(No::InUse);
        }
        (self.enabled, self.pending) = (on, None);
        Ok(())
    }

    /// Switches MIG mode at the next reset.
    pub fn switch_later(&mut self, on: bool) -> Result<(), No> {
        self.pending = Some(on).filter(|on| *on != self.enabled);
        Ok(())
    }

    /// Resets the GPU: the pending mode takes effect, and instances are removed.
    pub fn reset(&mut self) {
        if let Some(on) = self.pending.take() {
            (self.enabled, self.instances) = (on, Vec::new());
        }
    }

    /// Creates an instance at the given or the first free position; returns its number.
    pub fn make(&mut self, profile: &'static MigProfile, start: Option<u32>) -> Result<u32, No> {
        if !self.enabled {
            return Err(No::NotSupported);
        }
        let placed = self.placed();
        let start = match start {
            Some(start) => Some(start).filter(|start| profile.fits(*start, &placed)),
            None => profile.first(&placed),
        };
        let start = start.ok_or(No::InsufficientResources)?;
        let id = self.unused();
        self.instances.push(SimulatedGpuInstance {
            id,
            profile: Some(profile),
            start,
            computes: Vec::new(),
        });
        self.instances.sort_by_key(|instance| instance.id);
        Ok(id)
    }

    /// Creates a compute instance with this number of slices; returns its number.
    pub fn make_compute(&mut self, instance: u32, slices: u32) -> Result<u32, No> {
        let name = self.gpu.clone();
        let found = (self.instances.iter_mut()).find(|found| found.id == instance);
        let instance = found.ok_or(No::NotFound)?;
        let profile = instance.profile.ok_or(No::NotSupported)?;
        let used: u32 = instance.computes.iter().map(|compute| compute.slices).sum();
        if slices == 0 || used + slices > profile.slices {
            return Err(No::InsufficientResources);
        }
        let free = |id: &u32| instance.computes.iter().all(|compute| compute.id != *id);
        let id = (0..).find(free).ok_or(No::InsufficientResources)?;
        let whole = slices == profile.slices;
        let part = if whole {
            String::new()
        } else {
            format!("{slices}c.")
        };
        instance.computes.push(SimulatedComputeInstance {
            id,
            slices,
            slice: MigDevice {
                id: uuid(&name, instance.id, id),
                profile: format!("{part}{}", profile.name),
                memory_mib: profile.memory_mib,
                capabilities: Vec::new(),
            },
        });
        instance.computes.sort_by_key(|compute| compute.id);
        Ok(id)
    }

    /// Removes an instance, which must have no compute instances.
    pub fn remove(&mut self, id: u32) -> Result<(), No> {
        if !self.instance(id)?.computes.is_empty() {
            return Err(No::InUse);
        }
        self.instances.retain(|instance| instance.id != id);
        Ok(())
    }

    /// Removes a compute instance.
    pub fn remove_compute(&mut self, instance: u32, id: u32) -> Result<(), No> {
        self.compute(instance, id)?;
        for found in &mut self.instances {
            if found.id == instance {
                found.computes.retain(|compute| compute.id != id);
            }
        }
        Ok(())
    }

    /// The partitioning as text lines: the mode, then every instance with its number, profile, position and the
    /// slices of its compute instances.
    pub fn lines(&self) -> Vec<String> {
        let mode = if self.enabled { "on" } else { "off" }.to_owned();
        let known = self.instances.iter().filter_map(|it| {
            let computes = it.computes.iter().map(|it| it.slices.to_string());
            let computes = computes.collect::<Vec<_>>().join(",");
            Some(format!(
                "{} {} {} {computes}",
                it.id, it.profile?.name, it.start
            ))
        });
        std::iter::once(mode).chain(known).collect()
    }

    /// Restores a partitioning from such lines.
    pub fn restore<'a>(&mut self, lines: impl Iterator<Item = &'a str>) -> Option<()> {
        (self.enabled, self.instances) = (false, Vec::new());
        for line in lines {
            let mut words = line.split(' ');
            let first = words.next()?;
            let Ok(id) = first.parse() else {
                self.enabled = first == "on";
                continue;
            };
            self.instances.push(SimulatedGpuInstance {
                id,
                profile: Some(profile(&self.model, words.next()?)?),
                start: words.next()?.parse().ok()?,
                computes: Vec::new(),
            });
            for slices in words.next()?.split(',').filter(|it| !it.is_empty()) {
                self.make_compute(id, slices.parse().ok()?).ok()?;
            }
        }
        Some(())
    }

    /// The lowest unused instance number; numbers begin with 1.
    fn unused(&self) -> u32 {
        let free = |id: &u32| self.instances.iter().all(|instance| instance.id != *id);
        (1..).find(free).unwrap_or(u32::MAX)
    }
}

/// A slice's id, derived from the numbers of the GPU and of its instances.
fn uuid(gpu: &str, instance: u32, compute: u32) -> String {
    let rest = gpu.strip_prefix("GPU-").unwrap_or(gpu);
    let (head, _) = rest.rsplit_once('-').unwrap_or((rest, ""));
    format!(
        "MIG-{head}-{:012x}",
        0x00a5_0000_0000_u64 | u64::from(instance << 8 | compute)
    )
}
