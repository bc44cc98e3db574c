//! The device files of a container: which it is given, and which are hidden from it.

use std::path::PathBuf;

use devices::allocation::Allocation;
use runtime::DevicePolicy;

use super::Parts;

/// Which device files the container sees.
pub(super) fn policy(parts: &Parts, allocation: &Allocation) -> DevicePolicy {
    let minors = &allocation.gpus().minors;
    let mut policy = DevicePolicy::nvidia_except(parts.dev, minors);
    let others = allocation.others();
    let there = |file: &&PathBuf| file.exists();
    let denied = others.denied.iter().filter(there);
    policy.denied.extend(denied.cloned());
    // Processes of the node see them at their own paths.
    if parts.in_image {
        policy.given = allocation.card_files(parts.dev);
        let own = others.files.iter().filter(there);
        policy.given.extend(own.cloned());
    }
    policy
}
