//! CPUs, memory, NUMA nodes and names, from sysfs, proc and etc under a root. Owns the parsing;
//! GPUs are elsewhere.

use std::fs;
use std::path::{Path, PathBuf};

use crate::error::HardwareError;
use crate::inventory::{Inventory, NumaNode};
use crate::wiring::{Bandwidth, between_sockets};

/// The highest valid CPU number: a list beyond it is damaged.
const MAX_CPUS: u32 = 1 << 16;

/// A fault in a list of CPUs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CpuListError {
    /// A part of it is neither a CPU nor a range.
    #[error("{0:?} is not a CPU or a range of CPUs such as 0-3")]
    NotACpu(String),
    /// A range ends before it begins.
    #[error("{0:?} ends before it begins")]
    Reversed(String),
}

/// The inventory except GPUs.
pub fn look(root: &Path) -> Result<Inventory, HardwareError> {
    let memory_path = root.join("proc/meminfo");
    let memory_bytes =
        kib_of(&read(&memory_path)?, "MemTotal:").ok_or_else(|| HardwareError::Content {
            path: memory_path,
            detail: "it has no line 'MemTotal: N kB'".into(),
        })?;
    let cpus = cpus(root)?;
    let mut numa_nodes = numa_nodes(root)?;
    if numa_nodes.is_empty() {
        numa_nodes.push(NumaNode {
            id: 0,
            cpus: cpus.clone(),
            memory_bytes,
        });
    }
    let (cpu_model, between_sockets) = processor(root);
    Ok(Inventory {
        cpu_model,
        between_sockets,
        product: line(&root.join("sys/class/dmi/id/product_name")).unwrap_or_default(),
        hostname: line(&root.join("proc/sys/kernel/hostname")).unwrap_or_default(),
        kernel: line(&root.join("proc/sys/kernel/osrelease")).unwrap_or_default(),
        os: os_name(root).unwrap_or_else(|| "Linux".into()),
        cpus: u32::try_from(cpus.len()).unwrap_or(u32::MAX),
        memory_bytes,
        numa_nodes,
        ..Inventory::default()
    })
}

/// The first processor's model, and the bandwidth between two of its sockets.
fn processor(root: &Path) -> (String, Option<Bandwidth>) {
    let text = fs::read_to_string(root.join("proc/cpuinfo")).unwrap_or_default();
    let value = |key: &str| {
        let line = text.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            (name.trim() == key).then_some(value.trim())
        });
        line.unwrap_or_default()
    };
    let number = |key: &str| value(key).parse().unwrap_or(0);
    let carried = between_sockets(value("vendor_id"), number("cpu family"), number("model"));
    (value("model name").to_owned(), carried)
}

fn content(path: PathBuf, error: &CpuListError) -> HardwareError {
    let detail = error.to_string();
    HardwareError::Content { path, detail }
}

fn cpus(root: &Path) -> Result<Vec<u32>, HardwareError> {
    let path = root.join("sys/devices/system/cpu/online");
    cpu_list(read(&path)?.trim()).map_err(|error| content(path, &error))
}

fn numa_nodes(root: &Path) -> Result<Vec<NumaNode>, HardwareError> {
    let mut nodes = Vec::new();
    for (id, dir) in numbered(&root.join("sys/devices/system/node"), "node") {
        let list = dir.join("cpulist");
        let cpus = cpu_list(read(&list)?.trim()).map_err(|error| content(list, &error))?;
        let memory = fs::read_to_string(dir.join("meminfo")).unwrap_or_default();
        nodes.push(NumaNode {
            id,
            cpus,
            memory_bytes: kib_of(&memory, "MemTotal:").unwrap_or(0),
        });
    }
    nodes.sort_by_key(|node| node.id);
    Ok(nodes)
}

/// The NUMA node of a PCI device; `None` if the machine does not report it (-1).
pub fn numa_of_pci(root: &Path, address: &str) -> Option<u32> {
    line(
        &root
            .join("sys/bus/pci/devices")
            .join(address)
            .join("numa_node"),
    )?
    .parse()
    .ok()
}

/// Entries of `dir` that are `prefix` and a number.
fn numbered(dir: &Path, prefix: &str) -> Vec<(u32, PathBuf)> {
    fs::read_dir(dir)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let number = entry
                .file_name()
                .to_str()?
                .strip_prefix(prefix)?
                .parse()
                .ok()?;
            Some((number, entry.path()))
        })
        .collect()
}

/// Parses the kernel's form of a set of CPUs, `0-3,8,10-11`. Empty is the empty set.
pub fn cpu_list(text: &str) -> Result<Vec<u32>, CpuListError> {
    let mut cpus = Vec::new();
    for part in text
        .split(',')
        .map(str::trim)
        .filter(|part| !part.is_empty())
    {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let number = |text: &str| {
            text.parse::<u32>()
                .ok()
                .filter(|n| *n < MAX_CPUS)
                .ok_or_else(|| CpuListError::NotACpu(part.to_owned()))
        };
        let (first, last) = (number(first)?, number(last)?);
        if first > last {
            return Err(CpuListError::Reversed(part.to_owned()));
        }
        cpus.extend(first..=last);
    }
    cpus.sort_unstable();
    cpus.dedup();
    Ok(cpus)
}

/// The value, in bytes, of a line `... KEY N kB`.
fn kib_of(text: &str, key: &str) -> Option<u64> {
    let (_, rest) = text.lines().find_map(|line| line.split_once(key))?;
    rest.trim()
        .strip_suffix("kB")?
        .trim()
        .parse::<u64>()
        .ok()?
        .checked_mul(1024)
}

fn os_name(root: &Path) -> Option<String> {
    let text = fs::read_to_string(root.join("etc/os-release")).ok()?;
    let value = text
        .lines()
        .find_map(|line| line.strip_prefix("PRETTY_NAME="))?;
    Some(value.trim().trim_matches(['"', '\'']).to_string())
}

/// A file's text without its final newline.
pub(crate) fn line(path: &Path) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_string())
}

fn read(path: &Path) -> Result<String, HardwareError> {
    fs::read_to_string(path).map_err(|source| HardwareError::Read {
        path: path.into(),
        source,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    #[test]
    fn a_machine_of_two_sockets_is_read() {
        let root = tree(&[
            (
                "proc/meminfo",
                "MemTotal:       1056268 kB\nMemFree:  1 kB\n",
            ),
            ("proc/sys/kernel/hostname", "gpu-1\n"),
            ("proc/sys/kernel/osrelease", "6.1.0-31-amd64\n"),
            (
                "etc/os-release",
                "NAME=\"Debian\"\nPRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\n",
            ),
            (
                "proc/cpuinfo",
                "vendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 143\n\
                 model name\t: Intel(R) Xeon(R) Platinum 8480C\n",
            ),
            ("sys/devices/system/cpu/online", "0-7\n"),
            ("sys/devices/system/node/node1/cpulist", "1,3,5,7\n"),
            (
                "sys/devices/system/node/node1/meminfo",
                "Node 1 MemTotal:       528134 kB\n",
            ),
            ("sys/devices/system/node/node0/cpulist", "0,2,4,6\n"),
            (
                "sys/devices/system/node/node0/meminfo",
                "Node 0 MemTotal:       528134 kB\n",
            ),
            ("sys/devices/system/node/possible", "0-1\n"),
            ("sys/bus/pci/devices/0000:1b:00.0/numa_node", "1\n"),
            ("sys/bus/pci/devices/0000:1c:00.0/numa_node", "-1\n"),
        ]);
        let inventory = look(root.path()).unwrap();
        assert_eq!(inventory.hostname, "gpu-1");
        assert_eq!(inventory.kernel, "6.1.0-31-amd64");
        assert_eq!(inventory.os, "Debian GNU/Linux 12 (bookworm)");
        assert_eq!(inventory.cpus, 8);
        assert_eq!(inventory.cpu_model, "Intel(R) Xeon(R) Platinum 8480C");
        assert_eq!(inventory.between_sockets, Some(Bandwidth(22_000)));
        assert_eq!(inventory.memory_bytes, 1_056_268 * 1024);
        let node = |id, cpus: [u32; 4]| NumaNode {
            id,
            cpus: cpus.into(),
            memory_bytes: 528_134 * 1024,
        };
        assert_eq!(
            inventory.numa_nodes,
            [node(0, [0, 2, 4, 6]), node(1, [1, 3, 5, 7])]
        );
        assert_eq!(numa_of_pci(root.path(), "0000:1b:00.0"), Some(1));
        assert_eq!(numa_of_pci(root.path(), "0000:1c:00.0"), None);
        assert_eq!(numa_of_pci(root.path(), "0000:1d:00.0"), None);
    }

    #[test]
    fn a_machine_without_numa_is_one_node() {
        let root = tree(&[
            ("proc/meminfo", "MemTotal: 1024 kB\n"),
            ("sys/devices/system/cpu/online", "0-1\n"),
        ]);
        let inventory = look(root.path()).unwrap();
        assert_eq!(
            inventory.numa_nodes,
            [NumaNode {
                id: 0,
                cpus: vec![0, 1],
                memory_bytes: 1 << 20
            }]
        );
        assert_eq!(inventory.os, "Linux");
    }

    #[test]
    fn a_damaged_file_is_named() {
        let root = tree(&[
            ("proc/meminfo", "MemTotal: 1024 kB\n"),
            ("sys/devices/system/cpu/online", "0-x\n"),
        ]);
        let error = look(root.path()).unwrap_err().to_string();
        assert!(
            error.contains("cpu/online") && error.contains("\"0-x\""),
            "{error}"
        );
        let root = tree(&[("proc/meminfo", "nothing\n")]);
        assert!(
            look(root.path())
                .unwrap_err()
                .to_string()
                .contains("MemTotal")
        );
        assert!(
            look(Path::new("/nowhere"))
                .unwrap_err()
                .to_string()
                .contains("/nowhere/proc/meminfo")
        );
    }

    #[test]
    fn cpu_lists() {
        for (text, expected) in [
            ("", vec![]),
            ("3", vec![3]),
            ("0-2,7", vec![0, 1, 2, 7]),
            ("1,0-1", vec![0, 1]),
        ] {
            assert_eq!(cpu_list(text), Ok(expected), "{text}");
        }
        for text in ["a", "3-1", "-1", "0-99999999", "1-2-3"] {
            assert!(cpu_list(text).is_err(), "{text}");
        }
    }

    #[test]
    fn this_machine_can_be_read() {
        let inventory = look(Path::new("/")).unwrap();
        assert!(
            inventory.cpus > 0 && inventory.memory_bytes > 0 && !inventory.numa_nodes.is_empty()
        );
    }
}
