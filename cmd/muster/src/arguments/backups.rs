//! Options of the backups that the server takes by itself.

use std::path::PathBuf;

use clap::Args;

use super::option_error::ServerOptionError;
use super::serving::count_within;

/// The shortest and the longest time between two backups, in seconds: a minute, and 30 days.
const EVERY: std::ops::RangeInclusive<i64> = 60..=2_592_000;

/// Options of the server's own backups.
#[derive(Args, Debug, Clone)]
pub struct BackupFlags {
    /// Directory of the backups that the server takes by itself; best on another disk than --data [default: backups under
    /// --data]
    #[arg(long, env = "MUSTER_BACKUP_DIR", value_name = "DIR")]
    pub backup_dir: Option<PathBuf>,
    /// Time between two of them, from 1m to 30d
    #[arg(long, value_name = "SPAN", default_value = "24h", value_parser = every)]
    pub backup_every: jiff::SignedDuration,
    /// Number of them to keep; 0: the server takes none
    #[arg(long, value_name = "FILES", default_value_t = 3, value_parser = kept)]
    pub backup_keep: usize,
    /// File whose first line encrypts them; without it they hold every Secret and key in plain, as --data does
    #[arg(long, env = "MUSTER_BACKUP_PASSPHRASE_FILE", value_name = "FILE")]
    pub backup_passphrase_file: Option<PathBuf>,
}

fn every(text: &str) -> Result<jiff::SignedDuration, ServerOptionError> {
    resources::span::seconds(text)
        .filter(|seconds| EVERY.contains(seconds))
        .map(jiff::SignedDuration::from_secs)
        .ok_or_else(|| ServerOptionError::Span {
            value: text.to_owned(),
        })
}

fn kept(text: &str) -> Result<usize, ServerOptionError> {
    count_within(text, 0, 1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_between_backups_is_bounded() {
        let table = [
            ("24h", Some(86_400)),
            ("1m", Some(60)),
            ("90", Some(90)),
            ("30d", Some(2_592_000)),
            ("59s", None),
            ("31d", None),
            ("often", None),
        ];
        for (text, want) in table {
            let got = every(text).ok().map(|span| span.as_secs());
            assert_eq!(got, want, "{text}");
        }
        assert_eq!(kept("0").ok(), Some(0));
        assert!(kept("1001").is_err());
    }
}
