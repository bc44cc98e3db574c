//! The limits of a container on a GPU that it shares. Pure.

use k8s_openapi::api::core::v1::Pod;
use resources::amounts::pod_requests;
use resources::parts::{GpuPart, PartRequest, SharedPart, WHOLE};

/// The limits of a container on each of its GPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShareLimit {
    /// GPU memory, MiB; all if absent.
    pub memory_mib: Option<u64>,
    /// Multiprocessors, percent; all if absent.
    pub percent: Option<u32>,
}

impl ShareLimit {
    /// The limits of a share of GPUs with so much memory. A request for memory alone does not limit
    /// the multiprocessors; a request for a fraction limits both.
    pub fn of_share(share: &SharedPart, memory_mib: u64) -> ShareLimit {
        let memory = |mib: i64| u64::try_from(mib).unwrap_or(0).min(memory_mib);
        let part = |milli: i64| {
            let milli = u64::try_from(milli.clamp(0, WHOLE)).unwrap_or(0);
            let of_memory = memory_mib * milli / WHOLE.unsigned_abs();
            // A process needs at least one percent.
            let percent = u32::try_from(milli / 10).unwrap_or(100).max(1);
            (of_memory, percent)
        };
        match share.part {
            GpuPart::Milli(WHOLE..) => ShareLimit::default(),
            GpuPart::Milli(milli) => {
                let (memory_mib, percent) = part(milli);
                ShareLimit {
                    memory_mib: Some(memory_mib),
                    percent: Some(percent),
                }
            }
            GpuPart::Memory(mib) => ShareLimit {
                memory_mib: Some(memory(mib)),
                percent: None,
            },
            GpuPart::Both(milli, mib) => ShareLimit {
                memory_mib: Some(memory(mib)),
                percent: Some(part(milli).1),
            },
        }
    }

    /// The limits of one of `replicas` equal parts of a GPU with so much memory.
    pub fn of_replica(replicas: usize, memory_mib: u64) -> ShareLimit {
        match u32::try_from(replicas) {
            Ok(0 | 1) => ShareLimit::default(),
            count => {
                let count = count.unwrap_or(u32::MAX);
                ShareLimit {
                    memory_mib: Some(memory_mib / u64::from(count)),
                    percent: Some((100 / count).max(1)),
                }
            }
        }
    }

    /// Whether any of these limits is higher than the other's.
    pub fn exceeds(&self, other: &ShareLimit) -> bool {
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
    pub fn message(&self) -> String {
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
pub fn share_of(pod: &Pod) -> Option<SharedPart> {
    let spec = pod.spec.as_ref()?;
    let notes = pod.metadata.annotations.as_ref();
    let asked = PartRequest::read(notes, spec, &pod_requests(spec));
    asked.share.filter(|_| !asked.unreadable)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn limit(memory_mib: impl Into<Option<u64>>, percent: impl Into<Option<u32>>) -> ShareLimit {
        ShareLimit {
            memory_mib: memory_mib.into(),
            percent: percent.into(),
        }
    }

    #[test]
    fn a_share_is_as_much_of_the_gpu_as_was_asked_for() {
        let table = [
            (GpuPart::Milli(500), limit(40_000, 50)),
            (GpuPart::Milli(125), limit(10_000, 12)),
            (GpuPart::Milli(1), limit(80, 1)),
            (GpuPart::Milli(1000), ShareLimit::default()),
            (GpuPart::Memory(10_240), limit(10_240, None)),
            (GpuPart::Memory(90_000), limit(80_000, None)),
            (GpuPart::Both(300, 4096), limit(4096, 30)),
        ];
        for (part, wanted) in table {
            let share = SharedPart { part, gpus: 1 };
            assert_eq!(ShareLimit::of_share(&share, 80_000), wanted, "{part:?}");
        }
        assert_eq!(ShareLimit::of_replica(4, 80_000), limit(20_000, 25));
        assert_eq!(ShareLimit::of_replica(1, 80_000), ShareLimit::default());
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
        assert_eq!(part(&pod(fraction, none())), Some(GpuPart::Milli(250)));
        let memory = json!({"aliyun.com/gpu-mem": "10"});
        assert_eq!(part(&pod(none(), memory)), Some(GpuPart::Memory(10_240)));
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
                let one = ShareLimit::of_share(&SharedPart { part: GpuPart::Milli(milli), gpus: 1 }, memory);
                let whole = milli == WHOLE;
                sum.memory_mib = Some(sum.memory_mib.unwrap_or(0)
                    + one.memory_mib.unwrap_or(if whole { memory } else { 0 }));
                sum.percent = Some(sum.percent.unwrap_or(0) + one.percent.filter(|_| milli >= 10).unwrap_or(0));
            }
            prop_assert!(!sum.exceeds(&limit(memory, 100)), "{sum:?} of {memory}");
        }

        #[test]
        fn replicas_together_are_no_more_than_the_gpu(count in 2usize..=48, memory in 1u64..200_000) {
            let one = ShareLimit::of_replica(count, memory);
            prop_assert!(one.memory_mib.unwrap_or(u64::MAX) * count as u64 <= memory);
            prop_assert!(one.percent.unwrap_or(u32::MAX) as usize * count <= 100);
            prop_assert!(!one.exceeds(&ShareLimit::default()) && ShareLimit::default().exceeds(&one));
        }
    }
}
