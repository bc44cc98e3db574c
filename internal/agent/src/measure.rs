//! Measures the node and its pods for the server's history, each [`INTERVAL`] while a session lasts: CPU time and memory
//! from `/proc` and the containers' engines, when containers last wrote to their logs, and the GPUs' load at the last look
//! at the hardware. Judges nothing; what cannot be measured is absent from the message.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use devices::holders::DeviceHolder;
use rpc::agent::v1::{AgentMessage, ContainerMeasurement, Measurements, PodMeasurement};
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval_at, timeout};

use crate::config::AgentConfig;
use crate::node::AgentNode;
use crate::pods::Pods;

/// Between two messages; the server keeps a value for each.
const INTERVAL: Duration = Duration::from_secs(15);
/// From the beginning of a session to its first message. The GPUs are read at its beginning.
const FIRST: Duration = Duration::from_secs(4);
/// How long the engines may take for what all containers use. Containers that were not read in time have no values.
const PATIENCE: Duration = Duration::from_secs(5);
/// Ticks of a second in `/proc/stat`.
const TICKS_PER_SECOND: u64 = 100;

/// A counter of CPU time, and when it was read.
#[derive(Clone, Copy, Debug)]
struct CpuTime {
    nanos: u64,
    at: Instant,
}

impl CpuTime {
    /// Thousandths of a core since an earlier reading; none if the counter began anew.
    fn millicores_since(self, before: CpuTime) -> Option<u64> {
        let nanos = self.nanos.checked_sub(before.nanos)?;
        let elapsed = self.at.duration_since(before.at).as_nanos();
        let milli = u128::from(nanos).checked_mul(1000)?.checked_div(elapsed)?;
        u64::try_from(milli).ok()
    }
}

/// Sends measurements for as long as the session lasts.
pub async fn report(
    config: &AgentConfig,
    node: &AgentNode,
    pods: &Pods,
    outbound: &mpsc::Sender<AgentMessage>,
) {
    let mut ticks = interval_at(Instant::now() + FIRST, INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let root = config.hardware().sysfs_root;
    let mut before_node = cpu_time(&root);
    let mut before_pods = BTreeMap::new();
    loop {
        ticks.tick().await;
        let now = cpu_time(&root);
        let cpu_millicores = now
            .zip(before_node)
            .and_then(|(now, before)| now.millicores_since(before));
        before_node = now;
        let mut used = usage_of_pods(node, &mut before_pods).await;
        let gpus = node.loads.lock().at(Instant::now(), config.look);
        let resources = pods.held_as();
        for (holder, id) in held_alone(pods) {
            let measured = gpus.iter().any(|gpu| gpu.id == id);
            let mut same = used.iter_mut();
            let pod = same.find(|pod| pod.namespace == holder.namespace && pod.name == holder.pod);
            if let Some(pod) = pod.filter(|_| measured) {
                let mut containers = pod.containers.iter_mut();
                let container = containers.find(|one| one.name == holder.container);
                if let (Some(container), Some(resource)) = (container, resources.get(&id)) {
                    container.gpus.insert(id.clone(), resource.clone());
                }
                pod.gpus.push(id);
            }
        }
        let measured = Measurements {
            cpu_millicores,
            memory_bytes: memory_in_use(&root),
            gpus,
            pods: used,
        };
        if outbound.send(measured.into()).await.is_err() {
            return;
        }
    }
}

/// What the pods with running containers use.
async fn usage_of_pods(
    node: &AgentNode,
    before: &mut BTreeMap<String, CpuTime>,
) -> Vec<PodMeasurement> {
    let mut pods: BTreeMap<String, PodMeasurement> = BTreeMap::new();
    let mut read = BTreeMap::new();
    let reading = async {
        for engine in node.engines() {
            for status in engine.list().into_iter().filter(|one| one.is_running()) {
                let pod = pods.entry(status.pod.uid.clone());
                let pod = pod.or_insert_with(|| PodMeasurement {
                    namespace: status.pod.namespace.clone(),
                    name: status.pod.name.clone(),
                    uid: status.pod.uid.clone(),
                    ..PodMeasurement::default()
                });
                let Some(used) = engine.usage(&status.id).await else {
                    continue;
                };
                let id = status.id.as_str().to_owned();
                let now = CpuTime {
                    nanos: used.cpu_nanos,
                    at: Instant::now(),
                };
                let earlier = before.get(&id).copied();
                let cpu = earlier.and_then(|earlier| now.millicores_since(earlier));
                add(&mut pod.cpu_millicores, cpu);
                add(&mut pod.memory_bytes, Some(used.memory_working_set));
                pod.containers.push(ContainerMeasurement {
                    name: status.name.clone(),
                    cpu_millicores: cpu,
                    memory_bytes: Some(used.memory_working_set),
                    log_modified_nanos: modified_nanos(&status.log_path),
                    run: status.attempt,
                    ..ContainerMeasurement::default()
                });
                read.insert(id, now);
            }
        }
    };
    if timeout(PATIENCE, reading).await.is_err() {
        tracing::debug!("the containers' engines do not say in time what containers use");
    }
    *before = read;
    pods.into_values().collect()
}

/// When a file was last written, in nanoseconds since 1970.
fn modified_nanos(path: &Path) -> Option<i64> {
    let modified = std::fs::metadata(path).ok()?.modified().ok()?;
    let since = modified.duration_since(UNIX_EPOCH).ok()?;
    i64::try_from(since.as_nanos()).ok()
}

fn add(sum: &mut Option<u64>, more: Option<u64>) {
    if let Some(more) = more {
        *sum = Some(sum.unwrap_or(0).saturating_add(more));
    }
}

/// The devices that the containers of one pod hold, and no other pod's, each with the first container that holds it.
fn held_alone(pods: &Pods) -> Vec<(DeviceHolder, String)> {
    let mut holders: BTreeMap<String, Vec<DeviceHolder>> = BTreeMap::new();
    for (holder, devices) in pods.holders() {
        for device in devices {
            let of_device = holders.entry(device).or_default();
            let pod = |one: &DeviceHolder| (one.namespace.clone(), one.pod.clone());
            if !of_device.iter().any(|one| pod(one) == pod(&holder)) {
                of_device.push(holder.clone());
            }
        }
    }
    let alone = holders.into_iter().filter_map(|(device, mut pods)| {
        let holder = pods.pop()?;
        pods.is_empty().then_some((holder, device))
    });
    alone.collect()
}

/// The CPU time that the machine's processes used since it started.
fn cpu_time(root: &Path) -> Option<CpuTime> {
    let text = std::fs::read_to_string(root.join("proc/stat")).ok()?;
    let ticks = busy_ticks(&text)?;
    Some(CpuTime {
        nanos: ticks.checked_mul(1_000_000_000 / TICKS_PER_SECOND)?,
        at: Instant::now(),
    })
}

/// The ticks of all CPUs that were neither idle nor waiting for a disk. The last two columns, guests, are part of the
/// first two.
fn busy_ticks(stat: &str) -> Option<u64> {
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let columns: Option<Vec<u64>> = (line.split_ascii_whitespace().take(8))
        .map(|word| word.parse().ok())
        .collect();
    let columns = columns?;
    let waits = columns.get(3)?.saturating_add(*columns.get(4)?);
    let all = columns
        .iter()
        .fold(0u64, |sum, one| sum.saturating_add(*one));
    Some(all.saturating_sub(waits))
}

/// The machine's memory less what further processes could have, in bytes.
fn memory_in_use(root: &Path) -> Option<u64> {
    in_use(&std::fs::read_to_string(root.join("proc/meminfo")).ok()?)
}

fn in_use(meminfo: &str) -> Option<u64> {
    let kib = |key: &str| -> Option<u64> {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(key))?;
        line.split_ascii_whitespace().next()?.parse().ok()
    };
    let used = kib("MemTotal:")?.saturating_sub(kib("MemAvailable:")?);
    used.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machines_cpu_time_leaves_out_idle_and_waiting_and_counts_guests_once() {
        let stat = "cpu  100 1 50 1000 200 3 4 2 90 0\ncpu0 1 1 1 1 1 1 1 1 1 1\n";
        assert_eq!(busy_ticks(stat), Some(160));
        assert_eq!(busy_ticks("cpu  100 1 x 1000 200"), None);
        assert_eq!(busy_ticks(""), None);
        let meminfo = "MemTotal:       1000 kB\nMemFree:  1 kB\nMemAvailable:    400 kB\n";
        assert_eq!(in_use(meminfo), Some(600 * 1024));
    }

    #[test]
    fn each_line_of_a_log_changes_when_it_was_written() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("0.log");
        assert_eq!(modified_nanos(&path), None);
        let file = std::fs::File::create(&path).unwrap();
        let set = |nanos: u64| file.set_modified(UNIX_EPOCH + Duration::from_nanos(nanos));
        set(1_700_000_000_000_000_001).unwrap();
        assert_eq!(modified_nanos(&path), Some(1_700_000_000_000_000_001));
        std::fs::write(&path, "a line\n").unwrap();
        assert!(modified_nanos(&path) > Some(1_700_000_000_000_000_001));
    }

    #[test]
    fn cores_are_time_by_time_and_a_counter_that_begins_anew_gives_none() {
        let start = Instant::now();
        let at = |second: u64, nanos: u64| CpuTime {
            nanos,
            at: start + Duration::from_secs(second),
        };
        assert_eq!(
            at(10, 15_000_000_000).millicores_since(at(0, 0)),
            Some(1500)
        );
        assert_eq!(at(10, 1).millicores_since(at(0, 2)), None);
        assert_eq!(at(0, 1).millicores_since(at(0, 0)), None);
    }
}
