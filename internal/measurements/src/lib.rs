//! What agents and the server measured, over time: which series there are, their values each 15 seconds for a day and
//! each 5 minutes for 30 days, how both are written to files, and the answers to questions about them. Pure: the server
//! reads and writes the files.
//!
//! The problem: charts need a month of values of thousands of series, on a disk and in a memory of bounded size, and a
//! killed server may neither lose the hour nor count a value twice. The method: values go to numbered places of 15
//! seconds ([`HourBlock`]), so that a value that arrives twice is one value. The present hour is in memory and, frame by
//! frame, in a log ([`log`]) with checksums: what a kill left incomplete at its end is dropped. When the hour is over it is
//! sealed to a file with a directory ([`segment`]), and added up to the 5 minutes of a day's file; sealing the same log
//! again writes the same bytes.
//!
//! Example: 200 nodes with 8 GPUs have 7,200 series; an hour takes 7 MB in memory and on the disk, a day's file 18 MB, all
//! together 700 MB. Cost of a question: one directory and one column of each file that it covers.
//! The tests that hold it: `resample::tests`, `hour::tests` and `segment::tests`.

mod columns;
mod hour;
mod latest;
pub mod log;
mod query;
mod quiet;
mod resample;
mod retention;
pub mod segment;
mod series;
mod time;

pub use columns::{BUCKET, BUCKETS_PER_DAY, Bucket, ColumnError, DayColumn, HourColumn};
pub use hour::{HourBlock, SERIES_MAX, add_to_day, of_day_column, of_hour};
pub use latest::{LatestUsage, PodName, PodUsed, Used};
pub use query::{HistoryQuery, HistoryQueryError, POINTS_MAX, QUERY_SERIES_MAX};
pub use quiet::{CPU_QUIET_MILLICORES, ContainerSign, GPU_QUIET_PERCENT, PodSigns, QuietPods};
pub use resample::{Point, Sample, resample};
pub use retention::{
    BYTES_MAX, COARSE_FOR_DAYS, FINE_FOR_HOURS, FileSpan, HistoryFile, past_retention,
};
pub use series::{Metric, Series, SeriesError, Subject, Unit};
pub use time::{HOUR, HOURS_PER_DAY, TICK, TICKS_PER_HOUR};
