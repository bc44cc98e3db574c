//! Judges whether containers stay within their shares of GPU memory: compares each container's use
//! with its limit over several looks before it reports or ends the container. Pure.

use std::collections::{BTreeMap, BTreeSet};

use hardware::GpuReading;

use crate::holders::DeviceHolder;

/// A container counts as over its share after so many looks in a row, because processes allocate
/// and free memory all the time.
pub const LOOKS: u32 = 3;
/// Memory that a container may use beyond its share because programs do not account for it: a CUDA
/// context and the code of its libraries, in MiB, or for large shares a percentage of the share.
const SPARE_MIB: u64 = 512;
const SPARE_PERCENT: u64 = 5;

/// The action for a container over its share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OverShare {
    /// The agent reports it.
    #[default]
    Report,
    /// The agent reports it and ends the container.
    End,
}

/// A container's share of one GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuShare {
    /// The container.
    pub holder: DeviceHolder,
    /// Its pod's uid.
    pub uid: String,
    /// The GPU's UUID.
    pub gpu: String,
    /// The container's limit of the GPU's memory, MiB.
    pub may_mib: u64,
}

/// A container's use of its share.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShareUse {
    /// The share.
    pub held: GpuShare,
    /// The GPU memory that the container's processes use together, MiB.
    pub used_mib: u64,
}

impl ShareUse {
    /// Whether the use exceeds the limit.
    fn is_over(&self) -> bool {
        let may = self.held.may_mib;
        self.used_mib > may + SPARE_MIB.max(may * SPARE_PERCENT / 100)
    }

    /// The use as a message.
    pub fn message(&self) -> String {
        let GpuShare {
            holder,
            gpu,
            may_mib,
            ..
        } = &self.held;
        format!(
            "container {} has {} MiB of the memory of GPU {gpu}, of which it asked for {may_mib} MiB",
            holder.container, self.used_mib
        )
    }
}

/// The result of one look.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShareObservation {
    /// The use of each share.
    pub uses: Vec<ShareUse>,
    /// The number of processes on each shared GPU whose container or memory use is unknown: whether
    /// shares are kept there is unknown.
    pub unknown: BTreeMap<String, usize>,
    /// Containers that were over their share for long enough, by pod uid, container and GPU.
    pub over: BTreeSet<ContainerGpu>,
}

type ContainerGpu = (String, String, String);

fn key(held: &GpuShare) -> ContainerGpu {
    let container = held.holder.container.clone();
    (held.uid.clone(), container, held.gpu.clone())
}

impl ShareObservation {
    /// Builds the result from the GPUs' processes and their owners: `Ok(None)` for a process of no
    /// container with a share, an error for a process whose owner is unknown.
    pub fn of(
        held: Vec<GpuShare>,
        readings: &[GpuReading],
        whose: impl Fn(u32) -> Result<Option<DeviceHolder>, Unknown>,
    ) -> ShareObservation {
        let mut used: BTreeMap<(DeviceHolder, &str), u64> = BTreeMap::new();
        let mut unknown = BTreeMap::new();
        let shared: BTreeSet<&str> = held.iter().map(|held| &*held.gpu).collect();
        for gpu in readings.iter().filter(|gpu| shared.contains(&*gpu.id)) {
            for process in &gpu.processes {
                match (whose(process.pid), process.memory_mib) {
                    (Ok(Some(holder)), Some(mib)) => {
                        *used.entry((holder, &*gpu.id)).or_default() += mib;
                    }
                    (Ok(None), _) => {}
                    _ => *unknown.entry(gpu.id.clone()).or_default() += 1,
                }
            }
        }
        let uses = held.into_iter().map(|held| ShareUse {
            used_mib: used
                .get(&(held.holder.clone(), &*held.gpu))
                .copied()
                .unwrap_or(0),
            held,
        });
        ShareObservation {
            uses: uses.collect(),
            unknown,
            over: BTreeSet::new(),
        }
    }

    /// Whether a share's container was over its limit for long enough.
    pub fn is_over(&self, held: &GpuShare) -> bool {
        self.over.contains(&key(held))
    }
}

/// The owner of a process is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unknown;

/// A container that was over its share for long enough.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShareExcess {
    /// The use.
    pub has: ShareUse,
    /// Whether this is the first look that found it.
    pub new: bool,
    /// Whether the container must be ended.
    pub end: bool,
}

/// Judges a series of looks.
#[derive(Debug, Default)]
pub struct ShareJudge {
    policy: OverShare,
    looks: BTreeMap<ContainerGpu, u32>,
}

impl ShareJudge {
    /// Creates a judge with this policy.
    pub fn new(policy: OverShare) -> ShareJudge {
        ShareJudge {
            policy,
            looks: BTreeMap::new(),
        }
    }

    /// Returns the containers that were over their shares for long enough, and records them in the
    /// sight. A container that must be ended is returned at each look until it is gone.
    pub fn observe(&mut self, sight: &mut ShareObservation) -> Vec<ShareExcess> {
        let before = std::mem::take(&mut self.looks);
        let mut findings = Vec::new();
        for has in sight.uses.iter().filter(|has| has.is_over()) {
            let key = key(&has.held);
            let looks = before.get(&key).copied().unwrap_or(0).saturating_add(1);
            self.looks.insert(key.clone(), looks);
            if looks < LOOKS {
                continue;
            }
            sight.over.insert(key);
            let (new, end) = (looks == LOOKS, self.policy == OverShare::End);
            if new || end {
                findings.push(ShareExcess {
                    has: has.clone(),
                    new,
                    end,
                });
            }
        }
        findings
    }
}

#[cfg(test)]
mod tests {
    use hardware::reading::ProcessReading;
    use proptest::prelude::*;

    use super::*;

    fn holder(container: &str) -> DeviceHolder {
        DeviceHolder {
            namespace: "n".into(),
            pod: "p".into(),
            container: container.into(),
        }
    }

    fn held(container: &str, may_mib: u64) -> GpuShare {
        GpuShare {
            holder: holder(container),
            uid: "u".into(),
            gpu: "GPU-1".into(),
            may_mib,
        }
    }

    fn sight(may_mib: u64, used_mib: u64) -> ShareObservation {
        let has = ShareUse {
            held: held("c", may_mib),
            used_mib,
        };
        ShareObservation {
            uses: vec![has],
            ..ShareObservation::default()
        }
    }

    #[test]
    fn the_use_of_a_containers_processes_is_added_up() {
        let process = |pid, memory_mib| ProcessReading {
            pid,
            memory_mib,
            ..ProcessReading::default()
        };
        let gpu = |id: &str, processes| GpuReading {
            id: id.into(),
            processes,
            ..GpuReading::default()
        };
        let readings = [
            gpu(
                "GPU-1",
                vec![
                    process(1, Some(100)),
                    process(2, Some(20)),
                    process(3, Some(7)),
                    process(4, None),
                    process(5, Some(9)),
                    process(9, Some(1)),
                ],
            ),
            gpu("GPU-2", vec![process(1, Some(5000)), process(9, Some(1))]),
        ];
        let whose = |pid| match pid {
            1 | 2 => Ok(Some(holder("a"))),
            3 | 4 => Ok(Some(holder("b"))),
            5 => Ok(None),
            _ => Err(Unknown),
        };
        let all = vec![held("a", 1), held("b", 1), held("idle", 1)];
        let found = ShareObservation::of(all, &readings, whose);
        let used: Vec<u64> = found.uses.iter().map(|has| has.used_mib).collect();
        assert_eq!(used, [120, 7, 0]);
        // One process has no known owner; of the other the driver does not report the memory use.
        assert_eq!(found.unknown, BTreeMap::from([("GPU-1".to_owned(), 2)]));
    }

    #[test]
    fn excess_counts_after_several_looks_in_a_row_and_is_reported_once() {
        // The share; the use at each look; the looks that report it.
        let table: [(u64, &[u64], &[usize]); 6] = [
            (1000, &[1512, 1512, 1512, 1512], &[]),
            (1000, &[1513, 1513, 1513, 1513], &[2]),
            (1000, &[2000, 2000, 900, 2000, 2000], &[]),
            (1000, &[2000, 2000, 2000, 900, 2000, 2000, 2000], &[2, 6]),
            (40_000, &[42_000, 42_000, 42_000], &[]),
            (40_000, &[42_001, 42_001, 42_001], &[2]),
        ];
        for (may, used, wanted) in table {
            let mut judge = ShareJudge::new(OverShare::Report);
            let told = used.iter().enumerate().filter_map(|(look, used)| {
                let findings = judge.observe(&mut sight(may, *used));
                assert!(findings.iter().all(|finding| !finding.end));
                (!findings.is_empty()).then_some(look)
            });
            assert_eq!(told.collect::<Vec<_>>(), wanted, "{may}: {used:?}");
        }
    }

    #[test]
    fn a_container_to_be_ended_is_found_until_it_is_gone() {
        let mut judge = ShareJudge::new(OverShare::End);
        let mut look = || {
            let mut sight = sight(1000, 5000);
            let found = judge.observe(&mut sight);
            let over = sight.is_over(&held("c", 1000));
            (
                found.iter().map(|it| (it.new, it.end)).collect::<Vec<_>>(),
                over,
            )
        };
        assert_eq!(look(), (vec![], false));
        assert_eq!(look(), (vec![], false));
        assert_eq!(look(), (vec![(true, true)], true));
        assert_eq!(look(), (vec![(false, true)], true));
        assert!(judge.observe(&mut ShareObservation::default()).is_empty());
        assert!(
            judge.observe(&mut sight(1000, 5000)).is_empty(),
            "it begins anew"
        );
    }

    proptest! {
        #[test]
        fn nobody_within_his_share_is_found_and_nobody_beyond_it_goes_unseen(
            may in 1u64..100_000, used in prop::collection::vec(0u64..200_000, 3..20)
        ) {
            let mut judge = ShareJudge::new(OverShare::End);
            let over = |used: u64| used > may + (may / 20).max(512);
            for (at, now) in used.iter().enumerate() {
                let found = !judge.observe(&mut sight(may, *now)).is_empty();
                let last = &used[at.saturating_sub(2)..=at];
                let wanted = last.len() == 3 && last.iter().all(|used| over(*used));
                prop_assert_eq!(found, wanted, "{:?} of {}", last, may);
            }
        }
    }
}
