//! What the node's GPUs are doing and what is wrong with it, and when that is worth a message:
//! what is much the same is told once, and again only before it is too old to go by.

use std::time::Duration;

use resources::load::{GpuLoad, GpuLoads, counts, worth_telling};
use rpc::agent::v1::Health;
use tokio::time::Instant;

/// While any GPU does anything that counts it is told this often: half of the time for which a
/// scheduler goes by it unless configured otherwise.
const AGAIN: Duration = Duration::from_secs(60);

/// What was seen at one look.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Seen {
    loads: GpuLoads,
    suspect: String,
    fabric: String,
}

impl Seen {
    /// Takes what was found.
    pub fn of(found: &hardware::Inventory) -> Seen {
        let loads = found.gpus.iter().map(|gpu| (gpu.id.clone(), load(gpu)));
        Seen {
            loads: loads.collect(),
            suspect: suspicion(found),
            fabric: found.fabric.clone(),
        }
    }

    fn message(&self) -> Health {
        Health {
            load_json: serde_json::to_string(&self.loads)
                .expect("loads are plain data and always JSON"),
            suspect: self.suspect.clone(),
            fabric: self.fabric.clone(),
        }
    }
}

fn load(gpu: &hardware::Gpu) -> GpuLoad {
    let known = &gpu.load;
    let watts = |milli: u32| f64::from(milli) / 1000.0;
    let memory = known.memory_mib.filter(|_| gpu.memory_mib > 0);
    GpuLoad {
        utilisation: known.percent.map(f64::from),
        // Two digits suffice, and are short.
        memory: memory.map(|used| (100.0 * used as f64 / gpu.memory_mib as f64).round() / 100.0),
        celsius: known.celsius.map(f64::from),
        watts: known.milliwatts.map(watts),
        watts_limit: known.milliwatts_limit.map(watts),
    }
}

/// What is wrong and does not stop the node: a GPU that is not well, or what seems to be there and
/// can't be found out.
pub fn suspicion(found: &hardware::Inventory) -> String {
    let unwell = found.gpus.iter().filter(|gpu| !gpu.healthy);
    let unwell = unwell.map(|gpu| format!("GPU {} is not well: {}", gpu.index, gpu.problem));
    let concerned = found.gpus.iter().flat_map(|gpu| {
        let concerns = gpu.concerns.iter();
        concerns.map(|concern| format!("GPU {}: {concern}", gpu.index))
    });
    let machine = found.concerns.iter().chain(&found.warnings).cloned();
    let all: Vec<String> = unwell.chain(concerned).chain(machine).collect();
    match &all[..] {
        [] => String::new(),
        [one] => one.clone(),
        [first, rest @ ..] => format!("{first} (and {} more)", rest.len()),
    }
}

/// What the server was told last.
#[derive(Debug, Default)]
pub struct Told(Option<(Seen, Instant)>);

impl Told {
    /// The message for what was seen, if it is worth one.
    pub fn news(&mut self, seen: Seen, now: Instant) -> Option<Health> {
        if let Some((last, at)) = &self.0 {
            let old = counts(&seen.loads) && now.duration_since(*at) >= AGAIN;
            let said = |seen: &Seen| (seen.suspect.clone(), seen.fabric.clone());
            let same = said(&seen) == said(last) && !worth_telling(&seen.loads, &last.loads);
            if same && !old {
                return None;
            }
        }
        let message = seen.message();
        self.0 = Some((seen, now));
        Some(message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hardware::{Gpu, Inventory, Load};

    fn machine(percent: u32, healthy: bool) -> Inventory {
        let gpu = Gpu {
            id: "GPU-0".to_owned(),
            memory_mib: 80_000,
            healthy,
            problem: "it does not answer".to_owned(),
            load: Load {
                percent: Some(percent),
                memory_mib: Some(20_000),
                milliwatts: Some(350_500),
                ..Load::default()
            },
            ..Gpu::default()
        };
        Inventory {
            gpus: vec![gpu],
            ..Inventory::default()
        }
    }

    #[test]
    fn what_is_seen_is_said_as_the_annotation_has_it() {
        let message = Seen::of(&machine(93, true)).message();
        assert_eq!(
            message.load_json,
            r#"{"GPU-0":{"utilisation":93.0,"memory":0.25,"watts":350.5}}"#
        );
        assert_eq!(message.suspect, "");
        let message = Seen::of(&machine(0, false)).message();
        assert_eq!(message.suspect, "GPU 0 is not well: it does not answer");
    }

    #[test]
    fn the_same_is_told_once_and_again_only_while_it_counts_and_grows_old() {
        let mut told = Told::default();
        let start = Instant::now();
        let mut news = |percent: u32, healthy: bool, second: u64| {
            let seen = Seen::of(&machine(percent, healthy));
            told.news(seen, start + Duration::from_secs(second))
                .is_some()
        };
        assert!(news(90, true, 0));
        assert!(!news(85, true, 15));
        assert!(!news(95, true, 59));
        assert!(news(90, true, 60));
        assert!(news(40, true, 75));
        assert!(news(40, false, 90));
        // Idle, with its memory in use it still counts.
        assert!(news(1, false, 105));
        assert!(!news(1, false, 120));
        assert!(news(1, false, 165));
    }
}
