//! Arguments about whom pods run as on this machine, and how many processes they may have.

use std::ops::RangeInclusive;
use std::path::PathBuf;

use clap::Args;

#[derive(Args, Debug, Clone)]
pub struct TenancyOptions {
    /// Which Unix accounts pods run as, in YAML: users: {NAME: ACCOUNT} by the user that a pod runs
    /// for (muster.io/user), namespaces: {NAME: ACCOUNT} for pods of users that are not listed, and
    /// labels: {VALUE: ACCOUNT} by the namespace's label muster.io/unix-account where neither is. Root
    /// is refused; packaging/examples/accounts.yaml is one to start from [default: every namespace
    /// gets an id of --pod-ids]
    #[arg(long, value_name = "FILE")]
    pub accounts: Option<PathBuf>,
    /// The user ids that namespaces without an account get on this node, one each and for good, as
    /// FIRST-LAST; ids of the machine's accounts are skipped [default: 2000000000-2000065535]
    #[arg(long, value_name = "RANGE", value_parser = ids)]
    pub pod_ids: Option<RangeInclusive<u32>>,
    /// The most processes and threads of one container; never more than a quarter of the kernel's
    /// process numbers (kernel.pid_max)
    #[arg(
        long,
        value_name = "COUNT",
        default_value_t = agent::POD_PROCESSES,
        value_parser = clap::value_parser!(u64).range(16..)
    )]
    pub pod_pids_limit: u64,
}

/// The least id that a pod may have: those below are the system's own.
const LEAST_ID: u32 = 1000;
/// The greatest: the last two numbers mean nobody and no change.
const GREATEST_ID: u32 = u32::MAX - 2;

fn ids(text: &str) -> Result<RangeInclusive<u32>, String> {
    let wrong = || {
        format!("use FIRST-LAST, both from {LEAST_ID} to {GREATEST_ID}, like 2000000000-2000065535")
    };
    let (first, last) = text.split_once('-').ok_or_else(wrong)?;
    let id = |text: &str| text.parse::<u32>().map_err(|_| wrong());
    let range = id(first)?..=id(last)?;
    let fine = !range.is_empty() && *range.start() >= LEAST_ID && *range.end() <= GREATEST_ID;
    if fine { Ok(range) } else { Err(wrong()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_of_ids_has_two_ends_above_the_systems_own() {
        assert_eq!(ids("1000-1000"), Ok(1000..=1000));
        assert_eq!(ids("1000-4294967293"), Ok(1000..=4_294_967_293));
        for bad in [
            "",
            "1000",
            "0-5",
            "999-2000",
            "2000-1999",
            "1000-4294967294",
            "1000-99999999999",
            "-1-5",
            "a-b",
        ] {
            assert!(ids(bad).unwrap_err().contains("FIRST-LAST"), "{bad}");
        }
    }
}
