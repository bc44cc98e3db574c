//! The GPUs' load at the last look at the hardware, for the measurements. Reads nothing itself.

use std::time::Duration;

use hardware::Inventory;
use rpc::agent::v1::GpuMeasurement;
use tokio::time::Instant;

/// The GPUs' load at the last look, with its time.
#[derive(Debug, Default)]
pub struct LatestLoads(Option<(Instant, Vec<GpuMeasurement>)>);

impl LatestLoads {
    /// Keeps the loads of GPUs that answer.
    pub fn note(&mut self, found: &Inventory, at: Instant) {
        let measured = |gpu: &hardware::Gpu| GpuMeasurement {
            id: gpu.id.clone(),
            index: gpu.index,
            utilisation: gpu.load.percent.map(f64::from),
            memory_bytes: gpu.load.memory_mib.map(|mib| mib << 20),
            watts: gpu.load.milliwatts.map(|milli| f64::from(milli) / 1000.0),
            celsius: gpu.load.celsius.map(f64::from),
        };
        let answering = found.gpus.iter().filter(|gpu| gpu.healthy && !gpu.failed);
        self.0 = Some((at, answering.map(measured).collect()));
    }

    /// The loads, unless they are older than two looks.
    pub fn at(&self, now: Instant, look: Duration) -> Vec<GpuMeasurement> {
        match &self.0 {
            Some((at, loads)) if now.duration_since(*at) <= 2 * look => loads.clone(),
            _ => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_loads_and_those_of_failed_gpus_are_not_sent() {
        let gpu = |id: &str, healthy: bool| hardware::Gpu {
            id: id.to_owned(),
            healthy,
            ..hardware::Gpu::default()
        };
        let found = Inventory {
            gpus: vec![gpu("a", true), gpu("b", false)],
            ..Inventory::default()
        };
        let (mut loads, now) = (LatestLoads::default(), Instant::now());
        let look = Duration::from_secs(15);
        assert!(loads.at(now, look).is_empty());
        loads.note(&found, now);
        let sent = loads.at(now + Duration::from_secs(30), look);
        assert_eq!(sent.len(), 1);
        assert_eq!((sent[0].id.as_str(), sent[0].utilisation), ("a", None));
        assert!(loads.at(now + Duration::from_secs(31), look).is_empty());
    }
}
