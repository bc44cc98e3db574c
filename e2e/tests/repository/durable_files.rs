//! Which product code writes files without the crate `durable`, and why it may.

use e2e::repository;

use super::tracked;

/// Calls that write, create or rename a file, as far as their names tell.
const FILE_WRITES: [&str; 6] = [
    "fs::write(",
    "fs::rename(",
    "fs::copy(",
    "File::create",
    "OpenOptions::new()",
    "File::options()",
];

/// The product code outside of `durable` with such calls: how many there are, and why what they write need not survive
/// a power cut, or how it does.
const FILES_WRITTEN_WITHOUT_DURABLE: &[(&str, usize, &str)] = &[
    (
        "cmd/muster/src/manual.rs",
        1,
        "manual pages that a command of the build writes",
    ),
    (
        "cmd/muster/src/serve/alerting.rs",
        1,
        "puts a damaged file aside; after a power cut the next start does it again",
    ),
    (
        "cmd/muster/src/serve/doctor.rs",
        1,
        "a file that the command line names, for its user",
    ),
    (
        "cmd/muster/src/serve/history/files.rs",
        1,
        "appends to the log of the present hour, whose last seconds may be lost",
    ),
    (
        "cmd/muster/src/simulate.rs",
        2,
        "files that the command line names, for its user",
    ),
    (
        "internal/agent/src/disk.rs",
        1,
        "a container's termination message; the container does not outlive a power cut",
    ),
    (
        "internal/agent/src/upgrade/receive.rs",
        1,
        "a binary on its way, which `durable::publish` syncs and names",
    ),
    (
        "internal/agent/src/volumes.rs",
        3,
        "volumes of containers, which are written again before a container starts",
    ),
    (
        "internal/cli/src/login/files.rs",
        1,
        "the lock that kubectl takes too while it changes a kubeconfig; it is empty",
    ),
    (
        "internal/devices/src/mps/control.rs",
        1,
        "what an MPS daemon was told; the daemon does not outlive a power cut",
    ),
    (
        "internal/devices/src/nccl.rs",
        2,
        "written again at each start of the agent",
    ),
    (
        "internal/hardware/src/kmsg.rs",
        1,
        "reads the kernel's messages",
    ),
    (
        "internal/identity/src/audit/log.rs",
        5,
        "the audit log's own files: appended and synced, renamed with a sync of the directory",
    ),
    (
        "internal/network/src/namespace.rs",
        1,
        "a mount point in a directory that is in memory",
    ),
    (
        "internal/network/src/pod_networks.rs",
        1,
        "the kernel's settings",
    ),
    (
        "internal/runtime/src/cgroup.rs",
        1,
        "the kernel's control files",
    ),
    (
        "internal/runtime/src/cri/watch.rs",
        1,
        "rotates a container's log",
    ),
    (
        "internal/runtime/src/logs/write.rs",
        2,
        "a container's log, whose last lines may be lost",
    ),
    (
        "internal/runtime/src/mounts/apply.rs",
        2,
        "mount points of a container",
    ),
    ("internal/runtime/src/process.rs", 1, "a shim's log"),
    ("internal/runtime/src/process/watch.rs", 1, "a lock"),
    (
        "internal/runtime/src/shim/processes.rs",
        1,
        "opens /dev/null",
    ),
    (
        "internal/runtime/src/shim/start.rs",
        3,
        "the kernel's files, and a container's host name",
    ),
    ("internal/runtime/src/shim/supervise.rs", 1, "a lock"),
    (
        "internal/runtime/src/volumes.rs",
        2,
        "removes a container's volume; writes its hosts file in place, which is written again before it starts",
    ),
    (
        "internal/store/src/backup.rs",
        1,
        "a backup on its way, which `durable::publish` syncs and names",
    ),
    (
        "internal/store/src/disk.rs",
        2,
        "a lock, and the acknowledged revision, which is synced in place",
    ),
    (
        "internal/store/src/ledger.rs",
        1,
        "puts a damaged ledger aside; after a power cut the next start does it again",
    ),
    (
        "internal/store/src/quarantine.rs",
        1,
        "renames a record with a sync of the directory",
    ),
    (
        "internal/store/src/space.rs",
        1,
        "the reserve file, which holds nothing",
    ),
];

#[test]
fn what_must_survive_a_power_cut_is_written_by_durable() {
    let mut found = Vec::new();
    for file in tracked() {
        let crate_file = file.split_once("/src/").map(|(_, within)| within);
        let product = file.starts_with("internal/") || file.starts_with("cmd/");
        let Some(within) = crate_file.filter(|_| product && file.ends_with(".rs")) else {
            continue;
        };
        let test = file.contains("/testing/")
            || ["tests", "testing", "test_"]
                .iter()
                .any(|part| within.contains(part));
        let Ok(text) = std::fs::read_to_string(repository().join(&file)) else {
            continue;
        };
        if test || file.starts_with("internal/durable/") {
            continue;
        }
        let code = text.split("#[cfg(test)]").next().unwrap_or("");
        let code = code
            .lines()
            .filter(|line| !line.trim_start().starts_with("//"));
        let writes = code.map(|line| {
            let calls = FILE_WRITES.iter().map(|call| line.matches(call).count());
            calls.sum::<usize>()
        });
        match writes.sum() {
            0_usize => {}
            writes => found.push((file, writes)),
        }
    }
    let listed = FILES_WRITTEN_WITHOUT_DURABLE.iter();
    let listed: Vec<(String, usize)> = listed
        .map(|(file, writes, _)| ((*file).to_owned(), *writes))
        .collect();
    assert_eq!(
        found, listed,
        "write files by the crate durable (replace, publish), or say in the list why they need not survive a power cut"
    );
}
