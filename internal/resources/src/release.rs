//! Versions of Muster, and which versions of agents a server accepts. Pure.
//!
//! Problem: a cluster is upgraded machine by machine, the server first, so for a while agents are
//! older than their server. Rule: an agent may be up to [`MINORS_BACK`] minor versions older than the
//! server, of the same major version, and not newer; patch versions do not count. Example: a server
//! 0.5.0 accepts agents 0.3.x, 0.4.x and 0.5.x.

use std::fmt;
use std::str::FromStr;

/// How many minor versions an agent may be older than its server.
pub const MINORS_BACK: u32 = 2;

/// A version of Muster, without pre-release and build parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Release {
    major: u32,
    minor: u32,
    patch: u32,
}

/// A text is not a version.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a version; a version reads MAJOR.MINOR.PATCH, such as 0.1.0")]
pub struct NotARelease(String);

impl FromStr for Release {
    type Err = NotARelease;

    /// Reads `0.1.0`, and `v0.1.0-rc.1+muster` like `0.1.0`.
    fn from_str(text: &str) -> Result<Release, NotARelease> {
        let refused = || NotARelease(text.chars().take(40).collect());
        let core = text.strip_prefix('v').unwrap_or(text);
        let core = core.split(['-', '+']).next().unwrap_or_default();
        let mut numbers = core.split('.').map(|number| {
            let digits = !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit());
            number.parse::<u32>().ok().filter(|_| digits)
        });
        match (
            numbers.next(),
            numbers.next(),
            numbers.next(),
            numbers.next(),
        ) {
            (Some(Some(major)), Some(Some(minor)), Some(Some(patch)), None) => Ok(Release {
                major,
                minor,
                patch,
            }),
            _ => Err(refused()),
        }
    }
}

impl fmt::Display for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

/// Why a server does not accept an agent's version.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SkewError {
    /// The agent is too old.
    #[error(
        "the agent has version {agent}, and a server {server} accepts agents up to {MINORS_BACK} minor versions older; \
         install muster {server} on the node and restart its agent (its pods keep running)"
    )]
    TooOld {
        /// The agent's version.
        agent: Release,
        /// The server's version.
        server: Release,
    },
    /// The agent is newer than the server.
    #[error(
        "the agent has version {agent}, which is newer than the server's {server}; upgrade the server first, or install \
         muster {server} on the node and restart its agent (its pods keep running)"
    )]
    Newer {
        /// The agent's version.
        agent: Release,
        /// The server's version.
        server: Release,
    },
    /// The agent's version cannot be read.
    #[error("the agent's version: {0}; install the server's version on the node")]
    Unreadable(#[from] NotARelease),
}

/// Checks that a server accepts an agent of the version that it reports.
///
/// # Errors
/// The reason, with the remedy.
pub fn check_agent(server: Release, agent: &str) -> Result<Release, SkewError> {
    let agent: Release = agent.parse()?;
    let minors = |release: Release| (release.major, release.minor);
    if minors(agent) > minors(server) {
        return Err(SkewError::Newer { agent, server });
    }
    if agent.major != server.major || server.minor - agent.minor > MINORS_BACK {
        return Err(SkewError::TooOld { agent, server });
    }
    Ok(agent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_reads_with_prefix_and_suffixes_and_other_texts_are_refused() {
        let read = |text: &str| text.parse::<Release>().map(|release| release.to_string());
        for (text, version) in [
            ("0.1.0", "0.1.0"),
            ("v0.1.0+muster", "0.1.0"),
            ("12.3.45-rc.1+build", "12.3.45"),
        ] {
            assert_eq!(read(text).as_deref(), Ok(version));
        }
        for bad in [
            "",
            "v",
            "1",
            "1.2",
            "1.2.3.4",
            "1..3",
            "+1.2.3",
            "a.b.c",
            "1.2.99999999999",
        ] {
            assert!(read(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn agents_up_to_two_minor_versions_back_are_accepted() {
        enum Verdict {
            Accepted,
            Old,
            New,
        }
        use Verdict::{Accepted, New, Old};
        for (server, agent, verdict) in [
            ("0.1.0", "v0.1.0+muster", Accepted),
            ("0.1.0", "0.1.7", Accepted),
            ("0.1.7", "0.1.0", Accepted),
            ("0.3.0", "0.1.0", Accepted),
            ("0.3.9", "0.0.9", Old),
            ("0.2.0", "0.3.0", New),
            ("0.2.9", "0.3.0", New),
            ("1.0.0", "0.9.0", Old),
            ("1.2.0", "1.0.4", Accepted),
            ("1.2.0", "2.2.0", New),
            ("1.4.0", "1.1.0", Old),
        ] {
            let checked = check_agent(server.parse().unwrap(), agent);
            let fits = match verdict {
                Accepted => checked.is_ok(),
                Old => matches!(checked, Err(SkewError::TooOld { .. })),
                New => matches!(checked, Err(SkewError::Newer { .. })),
            };
            assert!(fits, "server {server}, agent {agent}: {checked:?}");
        }
        let unreadable = check_agent("0.1.0".parse().unwrap(), "unknown");
        assert!(matches!(unreadable, Err(SkewError::Unreadable(_))));
    }
}
