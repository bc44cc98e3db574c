//! The limits of a container on a GPU that it shares. Pure.

use k8s_openapi::api::core::v1::Pod;
use resources::amounts::pod_requests;
use resources::parts::{Asked, Part, Share, WHOLE};

/// The limits of a container on each of its GPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limit {
    /// GPU memory, MiB; all if absent.
    pub memory_mib: Option<u64>,
    /// Multiprocessors, percent; all if absent.
    pub percent: Option<u32>,
}

impl Limit {
    /// The limits of a share of GPUs with so much memory. A request for memory alone does not limit
    /// the multiprocessors; a request for a fraction limits both.
    pub fn of_share(share: &Share, memory_mib: u64) -> Limit {
        let memory = |mib: i64| u64::try_from(mib).unwrap_or(0).min(memory_mib);
        let part = |milli: i64| {
            let milli = u64::try_from(milli.clamp(0, WHOLE)).unwrap_or(0);
            let of_memory = memory_mib * milli / WHOLE.unsigned_abs();
            // A process needs at least one percent.
            let percent = u32::try_from(milli / 10).unwrap_or(100).max(1);
            (of_memory, percent)
        };
        match share.part {
            Part::Milli(WHOLE..) => Limit::default(),
            Part::Milli(milli) => {
                let (memory_mib, percent) = part(milli);
                Limit {
                    memory_mib: Some(memory_mib),
                    percent: Some(percent),
                }
            }
            Part::Memory(mib) => Limit {
                memory_mib: Some(memory(mib)),
                percent: None,
            },
            Part::Both(milli, mib) => Limit {
                memory_mib: Some(memory(mib)),
                percent: Some(part(milli).1),
            },
        }
    }

    /// The limits of one of `replicas` equal parts of a GPU with so much memory.
    pub fn of_replica(replicas: usize, memory_mib: u64) -> Limit {
        match u32::try_from(replicas) {
            Ok(0 | 1) => Limit::default(),
            count => {
                let count = count.unwrap_or(u32::MAX);
                Limit {
                    memory_mib: Some(memory_mib / u64::from(count)),
                    percent: Some((100 / count).max(1)),
                }
            }
        }
    }

    /// Whether any of these limits is higher than the other's.
    pub fn exceeds(&self, other: &Limit) -> bool {
        fn more<T: PartialOrd>(this: Option<T>, other: Option<T>) -> bool {
            match (this, other) {
                (_, None) => false,
                (None, Some(_)) => true,
                (Some(this), Some(other)) => this > other,
            }
        }
        more(self.memory_mib, other.memory_mib) || more(self.percent, other.percent)
    }

    /// The limits as a message.
    pub fn words(&self) -> String {
        let memory = self.memory_mib.map(|mib| format!("{mib} MiB"));
        let percent = (self.percent).map(|percent| format!("{percent}% of its multiprocessors"));
        match (memory, percent) {
            (Some(memory), Some(percent)) => format!("{memory} and {percent}"),
            (Some(one), None) | (None, Some(one)) => one,
            (None, None) => "all of it".to_owned(),
        }
    }
}

/// The part of each of its GPUs that a pod requests; `None` if it requests whole GPUs or the
/// request cannot be parsed.
pub fn share_of(pod: &Pod) -> Option<Share> {
    let spec = pod.spec.as_ref()?;
    let notes = pod.metadata.annotations.as_ref();
    let asked = Asked::read(notes, spec, &pod_requests(spec));
    asked.share.filter(|_| !asked.unreadable)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn limit(memory_mib: impl Into<Option<u64>>, percent: impl Into<Option<u32>>) -> Limit {
        Limit {
            memory_mib: memory_mib.into(),
            percent: percent.into(),
        }
    }

    #[test]
    fn a_share_is_as_much_of_the_gpu_as_was_asked_for() {
        let table = [
            (Part::Milli(500), limit(40_000, 50)),
            (Part::Milli(125), limit(10_000, 12)),
            (Part::Milli(1), limit(80, 1)),
            (Part::Milli(1000), Limit::default()),
            (Part::Memory(10_240), limit(10_240, None)),
            (Part::Memory(90_000), limit(80_000, None)),
            (Part::Both(300, 4096), limit(4096, 30)),
        ];
        for (part, wanted) in table {
            let share = Share { part, gpus: 1 };
            assert_eq!(Limit::of_share(&share, 80_000), wanted, "{part:?}");
        }
        assert_eq!(Limit::of_replica(4, 80_000), limit(20_000, 25));
        assert_eq!(Limit::of_replica(1, 80_000), Limit::default());
    }

    #[test]
    fn a_pods_request_is_read_as_the_scheduler_reads_it() {
        let pod = |notes: serde_json::Value, limits: serde_json::Value| -> Pod {
            serde_json::from_value(json!({
                "metadata": {"name": "p", "annotations": notes},
                "spec": {"containers": [{"name": "c", "resources": {"limits": limits}}]},
            }))
            .expect("a pod")
        };
        let none = || json!({});
        let part = |pod: &Pod| share_of(pod).map(|share| share.part);
        let fraction = json!({"muster.io/gpu-fraction": "0.25"});
        assert_eq!(part(&pod(fraction, none())), Some(Part::Milli(250)));
        let memory = json!({"aliyun.com/gpu-mem": "10"});
        assert_eq!(part(&pod(none(), memory)), Some(Part::Memory(10_240)));
        assert_eq!(part(&pod(none(), json!({"nvidia.com/gpu": "1"}))), None);
        let odd = json!({"muster.io/gpu-fraction": "half"});
        assert_eq!(part(&pod(odd, none())), None);
    }

    proptest! {
        #[test]
        fn shares_that_fit_on_a_gpu_never_come_to_more_than_it_has(
            memory in 1u64..200_000, parts in prop::collection::vec(1i64..=1000, 1..40)
        ) {
            let mut left = WHOLE;
            let mut sum = limit(0, 0);
            for milli in parts.into_iter().take_while(|milli| { left -= milli; left >= 0 }) {
                let one = Limit::of_share(&Share { part: Part::Milli(milli), gpus: 1 }, memory);
                let whole = milli == WHOLE;
                sum.memory_mib = Some(sum.memory_mib.unwrap_or(0)
                    + one.memory_mib.unwrap_or(if whole { memory } else { 0 }));
                sum.percent = Some(sum.percent.unwrap_or(0) + one.percent.filter(|_| milli >= 10).unwrap_or(0));
            }
            prop_assert!(!sum.exceeds(&limit(memory, 100)), "{sum:?} of {memory}");
        }

        #[test]
        fn replicas_together_are_no_more_than_the_gpu(count in 2usize..=48, memory in 1u64..200_000) {
            let one = Limit::of_replica(count, memory);
            prop_assert!(one.memory_mib.unwrap_or(u64::MAX) * count as u64 <= memory);
            prop_assert!(one.percent.unwrap_or(u32::MAX) as usize * count <= 100);
            prop_assert!(!one.exceeds(&Limit::default()) && Limit::default().exceeds(&one));
        }
    }
}
