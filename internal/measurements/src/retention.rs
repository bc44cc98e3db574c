//! Which files are kept: those of the last hours with values each 15 seconds, those of the last days with 5 minutes, and
//! altogether no more than a number of bytes.

use crate::time::{HOUR, HOURS_PER_DAY};

/// How long values each 15 seconds are kept, in hours besides the present one.
pub const FINE_FOR_HOURS: i64 = 24;
/// How long 5 minutes' means and maxima are kept, in days besides the present one.
pub const COARSE_FOR_DAYS: i64 = 30;
/// The most bytes of all files: 1 GiB. Beyond it the files that end first go.
pub const BYTES_MAX: u64 = 1 << 30;

/// What time a file is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FileSpan {
    /// An hour since 1970, each 15 seconds.
    Hour(i64),
    /// A day since 1970, each 5 minutes.
    Day(i64),
}

impl FileSpan {
    /// The seconds since 1970 at its end.
    pub fn end(self) -> i64 {
        match self {
            FileSpan::Hour(hour) => hour.saturating_add(1).saturating_mul(HOUR),
            FileSpan::Day(day) => day.saturating_add(1).saturating_mul(HOUR * HOURS_PER_DAY),
        }
    }

    /// The file's name.
    pub fn file_name(self) -> String {
        match self {
            FileSpan::Hour(hour) => format!("hour-{hour}"),
            FileSpan::Day(day) => format!("day-{day}"),
        }
    }

    /// The span of a file of this name.
    pub fn of_name(name: &str) -> Option<FileSpan> {
        let (kind, number) = name.split_once('-')?;
        let number = number.parse().ok()?;
        match kind {
            "hour" => Some(FileSpan::Hour(number)),
            "day" => Some(FileSpan::Day(number)),
            _ => None,
        }
    }
}

/// A file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HistoryFile {
    /// What time it is about.
    pub span: FileSpan,
    /// Its bytes.
    pub bytes: u64,
}

/// The files that are to be removed at this time (seconds since 1970). A file more than a day ahead of the clock is a
/// mistake of an earlier clock, and goes too.
pub fn past_retention(files: &[HistoryFile], now: i64) -> Vec<FileSpan> {
    let day = HOUR * HOURS_PER_DAY;
    let kept_for = |span: FileSpan| match span {
        FileSpan::Hour(_) => FINE_FOR_HOURS * HOUR,
        FileSpan::Day(_) => COARSE_FOR_DAYS * day,
    };
    let lives = |file: &&HistoryFile| {
        let end = file.span.end();
        end > now.saturating_sub(kept_for(file.span)) && end <= now.saturating_add(2 * day)
    };
    let mut kept: Vec<&HistoryFile> = files.iter().filter(lives).collect();
    kept.sort_by_key(|file| (file.span.end(), file.span));
    let mut bytes: u64 = kept.iter().map(|file| file.bytes).sum();
    let mut first = 0;
    while bytes > BYTES_MAX && first < kept.len() {
        bytes -= kept[first].bytes;
        first += 1;
    }
    let stays = |file: &HistoryFile| kept[first..].iter().any(|kept| kept.span == file.span);
    let gone = files.iter().filter(|file| !stays(file));
    gone.map(|file| file.span).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_kept_is_within_both_bounds_and_the_newest(
            hours in proptest::collection::btree_map(0i64..2000, 0u64..200 << 20, 0..60),
            now in 0i64..2000,
        ) {
            let file = |(number, bytes): (&i64, &u64)| {
                let span = if number % 3 == 0 { FileSpan::Day(number / 24) } else { FileSpan::Hour(*number) };
                HistoryFile { span, bytes: *bytes }
            };
            let mut files: Vec<HistoryFile> = hours.iter().map(file).collect();
            files.dedup_by_key(|file| file.span);
            files.sort_by_key(|file| file.span);
            files.dedup_by_key(|file| file.span);
            let now = now * HOUR;
            let gone = past_retention(&files, now);
            let kept: Vec<&HistoryFile> = files.iter().filter(|file| !gone.contains(&file.span)).collect();
            prop_assert!(kept.iter().map(|file| file.bytes).sum::<u64>() <= BYTES_MAX);
            for file in kept {
                let days = now / (24 * HOUR);
                match file.span {
                    FileSpan::Hour(hour) => prop_assert!(hour >= now / HOUR - FINE_FOR_HOURS),
                    FileSpan::Day(day) => prop_assert!(day >= days - COARSE_FOR_DAYS),
                }
            }
            let small = files.iter().map(|file| file.bytes).sum::<u64>() <= BYTES_MAX;
            let present = FileSpan::Hour(now / HOUR);
            prop_assert!(!small || !gone.contains(&present));
        }
    }

    #[test]
    fn a_files_name_says_its_span() {
        for span in [FileSpan::Hour(492_000), FileSpan::Day(20_500)] {
            assert_eq!(FileSpan::of_name(&span.file_name()), Some(span));
        }
        assert_eq!(FileSpan::of_name("hour-x"), None);
        assert_eq!(FileSpan::of_name("present.log"), None);
    }
}
