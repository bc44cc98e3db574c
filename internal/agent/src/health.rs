//! The state of the node's GPUs and its problems, and when a change is worth a message: a nearly
//! equal state is sent once, and again only before it becomes stale.

use std::time::Duration;

use devices::inventory::suspicion;
use resources::alerts::{Alert, GpuSample};
use resources::load::{GpuLoad, GpuLoads, counts, worth_telling};
use rpc::agent::v1::Health;
use tokio::time::Instant;

/// Interval of messages while a GPU is busy: half of the time for which a scheduler uses a message
/// by default.
const AGAIN: Duration = Duration::from_secs(60);

/// The result of one look.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HealthObservation {
    /// The load of the GPUs.
    pub loads: GpuLoads,
    suspect: String,
    fabric: String,
    disk: String,
    /// The active alerts.
    pub alerts: Vec<Alert>,
}

impl HealthObservation {
    /// The result of an inventory and the alerts after it.
    pub fn of(found: &hardware::Inventory, alerts: Vec<Alert>) -> HealthObservation {
        let loads = found.gpus.iter().map(|gpu| (gpu.id.clone(), load(gpu)));
        HealthObservation {
            loads: loads.collect(),
            suspect: suspicion(found),
            fabric: found.fabric.clone(),
            disk: String::new(),
            alerts,
        }
    }

    /// Adds the message about a full disk, empty without one.
    pub fn with_disk(mut self, disk: String) -> HealthObservation {
        self.disk = disk;
        self
    }

    /// The message to the server.
    pub fn message(&self) -> Health {
        Health {
            load_json: serde_json::to_string(&self.loads)
                .expect("loads are plain data and always JSON"),
            suspect: self.suspect.clone(),
            fabric: self.fabric.clone(),
            disk: self.disk.clone(),
            alerts_json: serde_json::to_string(&self.alerts)
                .expect("alerts are plain data and always JSON"),
        }
    }
}

/// The input of the alerts. A GPU that does not answer has no known values; its use of memory or
/// power without the total is not known either.
pub fn looks(found: &hardware::Inventory, held: impl Fn(&str) -> bool) -> Vec<GpuSample> {
    let part = |part: f64, whole: f64| (whole > 0.0).then_some(part / whole);
    let look = |gpu: &hardware::Gpu| {
        let known = &gpu.load;
        let power = known.milliwatts.zip(known.milliwatts_limit);
        GpuSample {
            id: gpu.id.clone(),
            gpu: gpu.index,
            percent: known.percent.map(f64::from),
            memory: known
                .memory_mib
                .and_then(|used| part(used as f64, gpu.memory_mib as f64)),
            celsius: known.celsius.map(f64::from),
            power: power.and_then(|(drawn, limit)| part(drawn.into(), limit.into())),
            corrected: gpu.ecc.filter(|ecc| ecc.enabled).map(|ecc| ecc.corrected),
            held: held(&gpu.id),
        }
    };
    found
        .gpus
        .iter()
        .filter(|gpu| !gpu.failed)
        .map(look)
        .collect()
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

/// The last message to the server.
#[derive(Debug, Default)]
pub struct SentHealth(Option<(HealthObservation, Instant)>);

impl SentHealth {
    /// Returns the result if it is worth a message.
    pub fn news(
        &mut self,
        observation: HealthObservation,
        now: Instant,
    ) -> Option<HealthObservation> {
        self.worth(&observation, now).then(|| {
            self.0 = Some((observation.clone(), now));
            observation
        })
    }

    /// Whether the result is worth a message.
    fn worth(&self, observation: &HealthObservation, now: Instant) -> bool {
        let Some((last, at)) = &self.0 else {
            return true;
        };
        let old = counts(&observation.loads) && now.duration_since(*at) >= AGAIN;
        let same = observation.suspect == last.suspect
            && observation.fabric == last.fabric
            && observation.disk == last.disk
            && observation.alerts == last.alerts
            && !worth_telling(&observation.loads, &last.loads);
        old || !same
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hardware::{DriverLoad, Gpu, Inventory};

    fn machine(percent: u32, healthy: bool) -> Inventory {
        let gpu = Gpu {
            id: "GPU-0".to_owned(),
            memory_mib: 80_000,
            healthy,
            problem: "it does not answer".to_owned(),
            load: DriverLoad {
                percent: Some(percent),
                memory_mib: Some(20_000),
                milliwatts: Some(350_500),
                ..DriverLoad::default()
            },
            ..Gpu::default()
        };
        Inventory {
            gpus: vec![gpu],
            ..Inventory::default()
        }
    }

    #[test]
    fn the_health_message_equals_the_annotation() {
        let message = HealthObservation::of(&machine(93, true), Vec::new()).message();
        assert_eq!(
            message.load_json,
            r#"{"GPU-0":{"utilisation":93.0,"memory":0.25,"watts":350.5}}"#
        );
        assert_eq!(message.suspect, "");
        let message = HealthObservation::of(&machine(0, false), Vec::new()).message();
        assert_eq!(message.suspect, "GPU 0 is unhealthy: it does not answer");
    }

    #[test]
    fn an_equal_state_is_sent_once_and_again_only_while_busy_and_before_it_is_stale() {
        let mut sent = SentHealth::default();
        let start = Instant::now();
        let mut news = |percent: u32, healthy: bool, second: u64| {
            let observation = HealthObservation::of(&machine(percent, healthy), Vec::new());
            sent.news(observation, start + Duration::from_secs(second))
                .is_some()
        };
        assert!(news(90, true, 0));
        assert!(!news(85, true, 15));
        assert!(!news(95, true, 59));
        assert!(news(90, true, 60));
        assert!(news(40, true, 75));
        assert!(news(40, false, 90));
        // Idle, but its used memory still counts.
        assert!(news(1, false, 105));
        assert!(!news(1, false, 120));
        assert!(news(1, false, 165));
    }
}
