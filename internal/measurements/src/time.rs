//! The units in which time is counted.

/// Seconds between two values of a series.
pub const TICK: i64 = 15;
/// Seconds of an hour.
pub const HOUR: i64 = 3600;
/// Values of a series in an hour.
pub const TICKS_PER_HOUR: usize = 240;
/// Hours of a day.
pub const HOURS_PER_DAY: i64 = 24;
