//! Facts about processes from /proc. Owns the parsing; signals nothing.

use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// A process that cannot be mistaken for a later one with the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessId {
    /// The process number.
    pub pid: i32,
    /// Clock ticks between boot and its start (field 22 of `/proc/PID/stat`).
    pub start_ticks: u64,
}

impl ProcessId {
    /// The process `pid` as it is now; `None` if there is none.
    pub fn of(pid: i32) -> Option<ProcessId> {
        Some(ProcessId {
            pid,
            start_ticks: stat(pid)?.start_ticks,
        })
    }

    /// Whether it still exists (a zombie does not count).
    pub fn is_alive(self) -> bool {
        stat(self.pid)
            .is_some_and(|s| s.start_ticks == self.start_ticks && s.state != 'Z' && s.state != 'X')
    }
}

/// Some fields of `/proc/PID/stat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// R, S, D, Z, ...
    pub state: char,
    /// The parent.
    pub parent: i32,
    /// The process group.
    pub group: i32,
    /// The session.
    pub session: i32,
    /// CPU time in user and kernel mode, in clock ticks.
    pub cpu_ticks: u64,
    /// Start, in clock ticks since boot.
    pub start_ticks: u64,
    /// Resident pages.
    pub resident_pages: u64,
}

/// Reads `/proc/PID/stat`; `None` if the process is gone.
pub fn stat(pid: i32) -> Option<Stat> {
    parse_stat(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// Parses a line of `/proc/PID/stat`. The name in it may hold spaces and parentheses.
pub fn parse_stat(line: &str) -> Option<Stat> {
    let after_name = &line[line.rfind(')')? + 1..];
    let fields: Vec<&str> = after_name.split_ascii_whitespace().collect();
    // Field 3 of the manual page is fields[0] here.
    let number = |field: usize| fields.get(field - 3)?.parse::<i64>().ok();
    Some(Stat {
        state: fields.first()?.chars().next()?,
        parent: i32::try_from(number(4)?).ok()?,
        group: i32::try_from(number(5)?).ok()?,
        session: i32::try_from(number(6)?).ok()?,
        cpu_ticks: u64::try_from(number(14)? + number(15)?).ok()?,
        start_ticks: u64::try_from(number(22)?).ok()?,
        resident_pages: u64::try_from(number(24)?.max(0)).ok()?,
    })
}

/// Every process there is.
pub fn all() -> Vec<(i32, Stat)> {
    fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok())
        .filter_map(|pid| Some((pid, stat(pid)?)))
        .collect()
}

/// The kernel's id of this boot; empty where it has none.
pub fn boot_id() -> String {
    fs::read_to_string(Path::new("/proc/sys/kernel/random/boot_id"))
        .map(|id| id.trim().to_string())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_parentheses_and_spaces_does_not_shift_the_fields() {
        let line = "4242 (a) b (c) S 1 4242 4242 0 -1 4194560 1 0 0 0 7 3 0 0 20 0 1 0 98765 1000 12 18446744073709551615";
        let stat = parse_stat(line).unwrap();
        assert_eq!(
            stat,
            Stat {
                state: 'S',
                parent: 1,
                group: 4242,
                session: 4242,
                cpu_ticks: 10,
                start_ticks: 98765,
                resident_pages: 12
            }
        );
    }

    #[test]
    fn this_process_is_alive_and_a_later_one_with_its_number_is_another() {
        let me = ProcessId::of(std::process::id() as i32).unwrap();
        assert!(me.is_alive());
        assert!(
            !ProcessId {
                start_ticks: me.start_ticks + 1,
                ..me
            }
            .is_alive()
        );
    }

    #[test]
    fn rubbish_is_none() {
        for line in ["", "1", "1 (x)", "1 (x) S", "1 (x) S a b c"] {
            assert_eq!(parse_stat(line), None, "{line:?}");
        }
    }
}
