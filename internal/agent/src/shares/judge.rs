//! Whether containers keep to their shares of GPUs' memory: what each has is held against what it may
//! have, at several looks before anything is said or done. Pure.

use std::collections::{BTreeMap, BTreeSet};

use hardware::Reading;

use crate::metrics::Holder;

/// At so many looks in a row a container has more than it may before that counts: memory is taken
/// and given back all the time.
pub const LOOKS: u32 = 3;
/// What a container may have beyond its share, of which no program knows that it has it: a CUDA
/// context and its libraries' code, MiB, or for large shares so many percent of them.
const SPARE_MIB: u64 = 512;
const SPARE_PERCENT: u64 = 5;

/// What is done about a container that has more than its share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OverShare {
    /// It is said.
    #[default]
    Report,
    /// It is said, and the container ended.
    End,
}

/// A container's share of one GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// The container.
    pub holder: Holder,
    /// Its pod's uid.
    pub uid: String,
    /// The GPU's UUID.
    pub gpu: String,
    /// What it may have of its memory, MiB.
    pub may_mib: u64,
}

/// What a container has of its share.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Use {
    /// The share.
    pub held: Held,
    /// What its processes have of the GPU's memory together, MiB.
    pub used_mib: u64,
}

impl Use {
    /// Whether that is more than it may have.
    fn is_over(&self) -> bool {
        let may = self.held.may_mib;
        self.used_mib > may + SPARE_MIB.max(may * SPARE_PERCENT / 100)
    }

    /// In words.
    pub fn words(&self) -> String {
        let Held {
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

/// What one look found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sight {
    /// What each share's container has.
    pub uses: Vec<Use>,
    /// The processes on shared GPUs of which it isn't known whose they are or what they have, by the
    /// GPU: whether shares are kept there is unknown.
    pub unknown: BTreeMap<String, usize>,
    /// Who has had too much for long enough, by pod's uid, container and GPU.
    pub over: BTreeSet<Key>,
}

type Key = (String, String, String);

fn key(held: &Held) -> Key {
    let container = held.holder.container.clone();
    (held.uid.clone(), container, held.gpu.clone())
}

impl Sight {
    /// From what the GPUs say of their processes, and whose these are: `Ok(None)` where a process is
    /// nobody's that has a share, an error where that isn't known.
    pub fn of(
        held: Vec<Held>,
        readings: &[Reading],
        whose: impl Fn(u32) -> Result<Option<Holder>, Unknown>,
    ) -> Sight {
        let mut used: BTreeMap<(Holder, &str), u64> = BTreeMap::new();
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
        let uses = held.into_iter().map(|held| Use {
            used_mib: used
                .get(&(held.holder.clone(), &*held.gpu))
                .copied()
                .unwrap_or(0),
            held,
        });
        Sight {
            uses: uses.collect(),
            unknown,
            over: BTreeSet::new(),
        }
    }

    /// Whether a share's container has had too much for long enough.
    pub fn is_over(&self, held: &Held) -> bool {
        self.over.contains(&key(held))
    }
}

/// It is not known whose a process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unknown;

/// A container that has had too much for long enough.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What it has.
    pub has: Use,
    /// It is news.
    pub new: bool,
    /// It is to be ended.
    pub end: bool,
}

/// Judges one look after another.
#[derive(Debug, Default)]
pub struct Judge {
    policy: OverShare,
    looks: BTreeMap<Key, u32>,
}

impl Judge {
    /// By this policy.
    pub fn new(policy: OverShare) -> Judge {
        Judge {
            policy,
            looks: BTreeMap::new(),
        }
    }

    /// Who has had too much for long enough, which the sight is told, too. Who is to be ended is found
    /// again at each look until he is gone.
    pub fn look(&mut self, sight: &mut Sight) -> Vec<Finding> {
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
                findings.push(Finding {
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

    fn holder(container: &str) -> Holder {
        Holder {
            namespace: "n".into(),
            pod: "p".into(),
            container: container.into(),
        }
    }

    fn held(container: &str, may_mib: u64) -> Held {
        Held {
            holder: holder(container),
            uid: "u".into(),
            gpu: "GPU-1".into(),
            may_mib,
        }
    }

    fn sight(may_mib: u64, used_mib: u64) -> Sight {
        let has = Use {
            held: held("c", may_mib),
            used_mib,
        };
        Sight {
            uses: vec![has],
            ..Sight::default()
        }
    }

    #[test]
    fn what_a_containers_processes_have_of_its_gpu_is_added_up() {
        let process = |pid, memory_mib| ProcessReading {
            pid,
            memory_mib,
            ..ProcessReading::default()
        };
        let gpu = |id: &str, processes| Reading {
            id: id.into(),
            processes,
            ..Reading::default()
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
        let found = Sight::of(all, &readings, whose);
        let used: Vec<u64> = found.uses.iter().map(|has| has.used_mib).collect();
        assert_eq!(used, [120, 7, 0]);
        // One of whom nobody knows, and one of which the driver doesn't say what it has.
        assert_eq!(found.unknown, BTreeMap::from([("GPU-1".to_owned(), 2)]));
    }

    #[test]
    fn more_than_a_share_counts_after_several_looks_in_a_row_and_is_told_once() {
        // What a share is; what is had at one look after another; at which looks it is told.
        let table: [(u64, &[u64], &[usize]); 6] = [
            (1000, &[1512, 1512, 1512, 1512], &[]),
            (1000, &[1513, 1513, 1513, 1513], &[2]),
            (1000, &[2000, 2000, 900, 2000, 2000], &[]),
            (1000, &[2000, 2000, 2000, 900, 2000, 2000, 2000], &[2, 6]),
            (40_000, &[42_000, 42_000, 42_000], &[]),
            (40_000, &[42_001, 42_001, 42_001], &[2]),
        ];
        for (may, used, wanted) in table {
            let mut judge = Judge::new(OverShare::Report);
            let told = used.iter().enumerate().filter_map(|(look, used)| {
                let findings = judge.look(&mut sight(may, *used));
                assert!(findings.iter().all(|finding| !finding.end));
                (!findings.is_empty()).then_some(look)
            });
            assert_eq!(told.collect::<Vec<_>>(), wanted, "{may}: {used:?}");
        }
    }

    #[test]
    fn who_is_to_be_ended_is_found_until_he_is_gone() {
        let mut judge = Judge::new(OverShare::End);
        let mut look = || {
            let mut sight = sight(1000, 5000);
            let found = judge.look(&mut sight);
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
        assert!(judge.look(&mut Sight::default()).is_empty());
        assert!(
            judge.look(&mut sight(1000, 5000)).is_empty(),
            "it begins anew"
        );
    }

    proptest! {
        #[test]
        fn nobody_within_his_share_is_found_and_nobody_beyond_it_goes_unseen(
            may in 1u64..100_000, used in prop::collection::vec(0u64..200_000, 3..20)
        ) {
            let mut judge = Judge::new(OverShare::End);
            let over = |used: u64| used > may + (may / 20).max(512);
            for (at, now) in used.iter().enumerate() {
                let found = !judge.look(&mut sight(may, *now)).is_empty();
                let last = &used[at.saturating_sub(2)..=at];
                let wanted = last.len() == 3 && last.iter().all(|used| over(*used));
                prop_assert_eq!(found, wanted, "{:?} of {}", last, may);
            }
        }
    }
}
