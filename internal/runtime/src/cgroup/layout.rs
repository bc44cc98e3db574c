//! Which cgroup hierarchies a machine has, from its mount table. Owns the parsing.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::CONTROLLERS;

/// Which hierarchies this machine has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum HierarchyLayout {
    /// Version 1: where each controller is mounted.
    V1(BTreeMap<String, PathBuf>),
    /// Version 2: where it is mounted.
    V2(PathBuf),
    /// None, and why.
    Absent(String),
}

impl HierarchyLayout {
    /// Reads the mount table of this process.
    pub fn detect() -> HierarchyLayout {
        match fs::read_to_string("/proc/self/mountinfo") {
            Ok(table) => HierarchyLayout::from_mountinfo(&table),
            Err(e) => HierarchyLayout::Absent(format!("cannot read /proc/self/mountinfo: {e}")),
        }
    }

    /// Reads a mount table. Where both versions are mounted, version 1 wins if it has the
    /// memory controller: a controller serves one version at a time.
    pub fn from_mountinfo(table: &str) -> HierarchyLayout {
        let mut first = BTreeMap::new();
        let mut second = None;
        for line in table.lines() {
            let Some((left, right)) = line.split_once(" - ") else {
                continue;
            };
            let Some(point) = left.split(' ').nth(4) else {
                continue;
            };
            let mut right = right.split(' ');
            let kind = right.next().unwrap_or_default();
            let options = right.nth(1).unwrap_or_default();
            if kind == "cgroup2" && second.is_none() {
                second = Some(PathBuf::from(point));
            } else if kind == "cgroup" {
                for option in options.split(',').filter(|o| CONTROLLERS.contains(o)) {
                    first
                        .entry(option.to_string())
                        .or_insert_with(|| PathBuf::from(point));
                }
            }
        }
        match second {
            _ if first.contains_key("memory") => HierarchyLayout::V1(first),
            Some(root) => HierarchyLayout::V2(root),
            None if !first.is_empty() => HierarchyLayout::V1(first),
            None => HierarchyLayout::Absent("no cgroup file system is mounted".into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_tables_of_both_versions_are_told_apart() {
        let v1 = "30 1 0:25 / /sys/fs/cgroup/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct\n\
                  31 1 0:26 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
                  32 1 0:27 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw";
        let cpu = PathBuf::from("/sys/fs/cgroup/cpu,cpuacct");
        let expected = [
            ("cpu".to_string(), cpu.clone()),
            ("cpuacct".to_string(), cpu),
            ("memory".to_string(), "/sys/fs/cgroup/memory".into()),
        ];
        assert_eq!(
            HierarchyLayout::from_mountinfo(v1),
            HierarchyLayout::V1(expected.into())
        );
        let v2 = "30 1 0:25 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate";
        assert_eq!(
            HierarchyLayout::from_mountinfo(v2),
            HierarchyLayout::V2("/sys/fs/cgroup".into())
        );
        assert!(matches!(
            HierarchyLayout::from_mountinfo("1 1 0:1 / / rw - ext4 /dev/sda rw"),
            HierarchyLayout::Absent(_)
        ));
    }
}
