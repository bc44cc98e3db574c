//! Finds defects of GPUs that do not stop them: memory rows that wait to be remapped, growing error
//! counts, reduced clocks, degraded links. Pure. A defect that comes and goes is reported for a
//! while, so that a node's condition doesn't flap.

use std::collections::BTreeMap;
use std::time::Duration;

use hardware::{Gpu, Inventory, LinkKind};
use resources::alerts::{CORRECTED, CORRECTED_WITHIN};
use tokio::time::Instant;

/// How long a passing sign is reported: as long as the alert on corrected errors looks back.
const LATELY: Duration = CORRECTED_WITHIN;
/// The GPU load in percent from which a link must not be in a power-saving state.
const BUSY: u32 = 10;
/// NVML's bits for clocks reduced by heat, by the machine's power supply, and by either where the
/// card doesn't tell them apart.
const HOT: u64 = 0x20 | 0x40;
const BRAKE: u64 = 0x80;
const SLOWED: u64 = 0x08;

/// Observations of the node's GPUs.
#[derive(Debug, Default)]
pub struct GpuWatch {
    gpus: BTreeMap<String, GpuObservations>,
}

/// Observations of one GPU.
#[derive(Debug, Default)]
struct GpuObservations {
    uncorrected: Option<u64>,
    recoveries: Option<u64>,
    /// Corrected errors at the start of the current period.
    corrected: Option<(Instant, u64)>,
    /// The signs seen, each with the time it was seen last.
    lately: BTreeMap<&'static str, Instant>,
}

impl GpuWatch {
    /// Adds the defects of healthy GPUs to the inventory.
    pub fn assess(&mut self, found: &mut Inventory, now: Instant) {
        let links = missing_links(found);
        for (gpu, missing) in found.gpus.iter_mut().zip(links) {
            let past = self.gpus.entry(gpu.id.clone()).or_default();
            for sign in past.signs(gpu, now) {
                past.lately.insert(sign, now);
            }
            (past.lately).retain(|_, at| now.duration_since(*at) < LATELY);
            if !gpu.healthy {
                continue;
            }
            gpu.concerns.extend(lasting(gpu));
            gpu.concerns.extend(missing);
            (gpu.concerns).extend(past.lately.keys().map(|sign| (*sign).to_owned()));
        }
    }
}

impl GpuObservations {
    /// Passing signs, in words that stay the same.
    fn signs(&mut self, gpu: &Gpu, now: Instant) -> Vec<&'static str> {
        let mut signs = Vec::new();
        let mut say = |is: bool, words| signs.extend(is.then_some(words));
        let ecc = gpu.ecc.filter(|ecc| ecc.enabled && gpu.healthy);
        if let Some(ecc) = ecc {
            let before = self.uncorrected.replace(ecc.uncorrected);
            let grew = before.is_some_and(|before| ecc.uncorrected > before);
            say(grew, "its memory has had errors that it could not correct");
            let (since, base) = *self.corrected.get_or_insert((now, ecc.corrected));
            let many = ecc.corrected.saturating_sub(base) > CORRECTED;
            say(
                many,
                "its memory corrects more and more errors; those that it cannot correct come next",
            );
            if many || now.duration_since(since) >= LATELY {
                self.corrected = Some((now, ecc.corrected));
            }
        }
        if let Some(errors) = gpu.signs.nvlink_errors {
            let before = self.recoveries.replace(errors.recoveries);
            let grew = before.is_some_and(|before| errors.recoveries > before);
            say(grew, "its NVLinks fail now and then and are trained again");
        }
        let throttle = gpu.signs.throttle;
        say(
            throttle & HOT != 0,
            "its clocks are held down for its heat; look at fans, inlet temperature and dust",
        );
        say(
            throttle & BRAKE != 0,
            "its clocks are held down by the machine's power supply (power brake)",
        );
        say(
            throttle & (HOT | BRAKE | SLOWED) == SLOWED,
            "its clocks are held down by its hardware, for heat or power",
        );
        let busy = gpu.load.percent.is_some_and(|percent| percent >= BUSY);
        say(
            busy && gpu.pcie.generation > 0 && gpu.pcie.generation < gpu.pcie.max_generation,
            "its PCIe link runs slower than it and its slot can, though it is busy",
        );
        signs
    }
}

/// Defects that last until an administrator acts.
fn lasting(gpu: &Gpu) -> Vec<String> {
    let mut found = Vec::new();
    if gpu.signs.rows_pending {
        found.push(
            "rows of its memory wait to be replaced; reset it when its work has ended \
             (nvidia-smi --gpu-reset)"
                .to_owned(),
        );
    }
    let link = gpu.pcie;
    if link.width > 0 && link.width < link.max_width {
        found.push(format!(
            "its PCIe link has {} of {} lanes; reseat it and its riser",
            link.width, link.max_width
        ));
    }
    found
}

/// For each GPU, how many NVLinks it lacks compared with others of its kind. If a GPU does not
/// answer, its neighbours' links to it are also down; these do not count as theirs.
fn missing_links(found: &Inventory) -> Vec<Option<String>> {
    let silent = found.gpus.iter().any(|gpu| !gpu.healthy);
    let missing = |gpu: &Gpu| {
        let kin = found.gpus.iter().filter(|other| other.model == gpu.model);
        let most = kin.map(|other| other.signs.nvlinks).max()?;
        let switched = |gpu: &Gpu| gpu.links.iter().any(|link| link.kind == LinkKind::Nvs);
        let have = gpu.signs.nvlinks;
        // Bridges may join only some cards of a kind; the others have no links at all.
        let fewer = have < most && (have > 0 || found.gpus.iter().any(switched));
        (fewer && !silent)
            .then(|| format!("{have} of its NVLinks are up, where others of its kind have {most}"))
    };
    found.gpus.iter().map(missing).collect()
}

#[cfg(test)]
mod tests {
    use hardware::{DriverLoad, Ecc, NvlinkErrors, PcieLink};

    use super::*;

    fn gpu(id: &str) -> Gpu {
        let mut gpu = Gpu {
            id: id.to_owned(),
            healthy: true,
            ecc: Some(Ecc {
                enabled: true,
                ..Ecc::default()
            }),
            pcie: PcieLink {
                generation: 5,
                width: 16,
                max_generation: 5,
                max_width: 16,
            },
            load: DriverLoad {
                percent: Some(90),
                ..DriverLoad::default()
            },
            ..Gpu::default()
        };
        gpu.signs.nvlinks = 18;
        gpu.signs.nvlink_errors = Some(NvlinkErrors::default());
        gpu
    }

    /// The messages for the first of two GPUs after this change.
    fn said(watch: &mut GpuWatch, now: Instant, change: impl FnOnce(&mut Gpu)) -> Vec<String> {
        let mut found = Inventory {
            gpus: vec![gpu("a"), gpu("b")],
            ..Inventory::default()
        };
        change(&mut found.gpus[0]);
        watch.assess(&mut found, now);
        assert!(found.gpus[1].concerns.is_empty());
        found.gpus.remove(0).concerns
    }

    #[test]
    fn each_sign_has_its_own_message() {
        type Sign = (fn(&mut Gpu), &'static str);
        let signs: [Sign; 9] = [
            (|gpu| gpu.signs.rows_pending = true, "wait to be replaced"),
            (|gpu| gpu.pcie.width = 8, "8 of 16 lanes"),
            (|gpu| gpu.pcie.generation = 3, "though it is busy"),
            (|gpu| gpu.signs.throttle = 0x40, "its heat"),
            (|gpu| gpu.signs.throttle = 0x88, "power brake"),
            (|gpu| gpu.signs.throttle = 0x08, "by its hardware"),
            (|gpu| gpu.signs.nvlinks = 17, "17 of its NVLinks"),
            (
                |gpu| {
                    let errors = gpu.signs.nvlink_errors.get_or_insert_default();
                    errors.recoveries = 1;
                },
                "trained again",
            ),
            (
                |gpu| {
                    let ecc = gpu.ecc.get_or_insert_default();
                    (ecc.uncorrected, ecc.corrected) = (1, 3);
                },
                "could not correct",
            ),
        ];
        for (change, words) in signs {
            let (mut watch, now) = (GpuWatch::default(), Instant::now());
            assert!(said(&mut watch, now, |_| {}).is_empty());
            let said = said(&mut watch, now, change);
            assert!(said.len() == 1 && said[0].contains(words), "{said:?}");
        }
    }

    #[test]
    fn ordinary_values_are_not_reported() {
        let (mut watch, now) = (GpuWatch::default(), Instant::now());
        let ordinary: [fn(&mut Gpu); 4] = [
            // A power cap, and requested clocks.
            |gpu| gpu.signs.throttle = 0x01 | 0x02 | 0x04 | 0x10,
            // Idle.
            |gpu| (gpu.pcie.generation, gpu.load.percent) = (1, Some(0)),
            |gpu| gpu.ecc.get_or_insert_default().corrected = CORRECTED,
            // Unhealthy: only its problem is reported.
            |gpu| (gpu.healthy, gpu.pcie.width) = (false, 1),
        ];
        for change in ordinary {
            assert_eq!(said(&mut watch, now, change), Vec::<String>::new());
        }
    }

    #[test]
    fn a_passing_sign_is_reported_for_a_while_and_growth_counts_within_a_period() {
        let (mut watch, start) = (GpuWatch::default(), Instant::now());
        let corrected =
            |count: u64| move |gpu: &mut Gpu| gpu.ecc.get_or_insert_default().corrected = count;
        assert!(said(&mut watch, start, corrected(0)).is_empty());
        let later = start + LATELY;
        assert!(said(&mut watch, later, corrected(10)).is_empty());
        assert!(said(&mut watch, later, corrected(20)).is_empty());
        assert_eq!(said(&mut watch, later, corrected(21)).len(), 1);
        let still = later + LATELY / 2;
        assert_eq!(said(&mut watch, still, corrected(21)).len(), 1);
        assert!(said(&mut watch, later + LATELY, corrected(21)).is_empty());
    }

    #[test]
    fn links_to_a_silent_gpu_are_not_its_neighbours_fault() {
        let mut found = Inventory {
            gpus: vec![gpu("a"), gpu("b"), gpu("c")],
            ..Inventory::default()
        };
        found.gpus[0].signs.nvlinks = 12;
        found.gpus[1].healthy = false;
        GpuWatch::default().assess(&mut found, Instant::now());
        assert!(found.gpus.iter().all(|gpu| gpu.concerns.is_empty()));
    }
}
