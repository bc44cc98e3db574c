//! From limits to the files of each version and their values, as Kubernetes computes them.
//! Pure.

use crate::spec::ResourceLimits;

/// A controller, one of its files, and what to write there.
pub(super) type Setting = (&'static str, &'static str, String);

/// The period of CPU quotas, microseconds (Kubernetes' own).
const CPU_PERIOD_US: u64 = 100_000;
/// The smallest quota that the kernel takes, microseconds.
const MIN_QUOTA_US: u64 = 1_000;

/// CPU shares for a request, as Kubernetes computes them.
fn shares(milli: u64) -> u64 {
    (milli.saturating_mul(1024) / 1000).clamp(2, 262_144)
}

fn quota(milli: u64) -> u64 {
    (milli.saturating_mul(CPU_PERIOD_US) / 1000).max(MIN_QUOTA_US)
}

pub(super) fn settings_v1(limits: &ResourceLimits) -> Vec<Setting> {
    let mut settings = Vec::new();
    if let Some(milli) = limits.cpu_request_milli {
        settings.push(("cpu", "cpu.shares", shares(milli).to_string()));
    }
    if let Some(milli) = limits.cpu_limit_milli {
        settings.push(("cpu", "cpu.cfs_period_us", CPU_PERIOD_US.to_string()));
        settings.push(("cpu", "cpu.cfs_quota_us", quota(milli).to_string()));
    }
    if let Some(bytes) = limits.memory_limit_bytes {
        settings.push(("memory", "memory.limit_in_bytes", bytes.to_string()));
    }
    if let Some(pids) = limits.pids_max {
        settings.push(("pids", "pids.max", pids.to_string()));
    }
    settings
}

pub(super) fn settings_v2(limits: &ResourceLimits) -> Vec<Setting> {
    let mut settings = Vec::new();
    if let Some(milli) = limits.cpu_request_milli {
        let weight = 1 + (shares(milli) - 2) * 9_999 / 262_142;
        settings.push(("cpu", "cpu.weight", weight.to_string()));
    }
    if let Some(milli) = limits.cpu_limit_milli {
        settings.push((
            "cpu",
            "cpu.max",
            format!("{} {CPU_PERIOD_US}", quota(milli)),
        ));
    }
    if let Some(bytes) = limits.memory_limit_bytes {
        settings.push(("memory", "memory.max", bytes.to_string()));
        // One process of a rank killed leaves the others waiting for ever.
        settings.push(("memory", "memory.oom.group", "1".into()));
    }
    if let Some(pids) = limits.pids_max {
        settings.push(("pids", "pids.max", pids.to_string()));
    }
    settings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tiny_limit_is_the_smallest_that_the_kernel_takes() {
        assert_eq!(quota(1), MIN_QUOTA_US);
        assert_eq!(shares(0), 2);
        assert_eq!(shares(u64::MAX), 262_144);
    }
}
