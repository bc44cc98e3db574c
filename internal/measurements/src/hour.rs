//! The present hour: the values of all series, and what goes to the log.

use std::collections::BTreeMap;

use crate::columns::{BUCKET, Bucket, DayColumn, HourColumn};
use crate::log::LogFrame;
use crate::resample::Sample;
use crate::series::Series;
use crate::time::{HOUR, HOURS_PER_DAY, TICK, TICKS_PER_HOUR};

/// The most series that one hour, and one day, has: 200 nodes with 8 GPUs each have 7,200, their pods some thousands.
/// An hour of so many takes 22 MB of memory. Values of further series are counted and dropped.
pub const SERIES_MAX: usize = 20_000;

/// The values of one hour.
#[derive(Debug)]
pub struct HourBlock {
    /// Hours since 1970.
    hour: i64,
    columns: BTreeMap<Series, (u32, HourColumn)>,
    /// The number of the next series in the log.
    next: u32,
    /// Series that have no place.
    refused: u64,
}

impl HourBlock {
    /// An hour without values.
    pub fn new(hour: i64) -> HourBlock {
        HourBlock {
            hour,
            columns: BTreeMap::new(),
            next: 0,
            refused: 0,
        }
    }

    /// The hour that a time (seconds since 1970) is in.
    pub fn hour_of(at: i64) -> i64 {
        at.div_euclid(HOUR)
    }

    /// The hour, counted from 1970.
    pub fn hour(&self) -> i64 {
        self.hour
    }

    /// How many values had no place since the hour began, because there were [`SERIES_MAX`] series.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// Records values that were measured at a time of this hour, and returns the frame that says so for the log. None if
    /// nothing is new, or the time is in another hour.
    pub fn record(
        &mut self,
        at: i64,
        values: impl IntoIterator<Item = (Series, f64)>,
    ) -> Option<LogFrame> {
        if HourBlock::hour_of(at) != self.hour {
            return None;
        }
        let tick = tick_of(at);
        let mut frame = LogFrame {
            tick: u16::try_from(tick).unwrap_or(0),
            ..LogFrame::default()
        };
        for (series, value) in values {
            let value = value as f32;
            if !value.is_finite() {
                continue;
            }
            let number = self.next;
            if !self.columns.contains_key(&series) {
                if self.columns.len() >= SERIES_MAX {
                    self.refused += 1;
                    continue;
                }
                self.next = self.next.saturating_add(1);
                frame.names.push((number, series.clone()));
            }
            let (id, column) = self
                .columns
                .entry(series)
                .or_insert_with(|| (number, HourColumn::default()));
            column.set(tick, value);
            frame.values.push((*id, value));
        }
        (!frame.values.is_empty()).then_some(frame)
    }

    /// Takes in a frame of this hour's log.
    pub fn replay(&mut self, frame: &LogFrame, names: &mut BTreeMap<u32, Series>) {
        for (id, series) in &frame.names {
            names.insert(*id, series.clone());
            self.next = self.next.max(id.saturating_add(1));
            if self.columns.len() < SERIES_MAX {
                let column = (*id, HourColumn::default());
                self.columns.entry(series.clone()).or_insert(column);
            }
        }
        for (id, value) in &frame.values {
            // Also numbers of series that only a later version knows are taken.
            self.next = self.next.max(id.saturating_add(1));
            let column = names.get(id).and_then(|name| self.columns.get_mut(name));
            if let Some((_, column)) = column {
                column.set(usize::from(frame.tick), *value);
            }
        }
    }

    /// The values of a series as samples.
    pub fn samples(&self, series: &Series) -> Vec<Sample> {
        let column = self.columns.get(series);
        column.map_or_else(Vec::new, |(_, column)| of_hour(self.hour, column))
    }

    /// The values of a series as 5-minute sums.
    pub fn coarse_samples(&self, series: &Series) -> Vec<Sample> {
        let Some((_, column)) = self.columns.get(series) else {
            return Vec::new();
        };
        let mut day = DayColumn::default();
        let of_day = usize::try_from(self.hour.rem_euclid(HOURS_PER_DAY)).unwrap_or(0);
        day.set_hour(of_day, column);
        of_day_column(self.hour.div_euclid(HOURS_PER_DAY), &day)
    }

    /// All values as frames of a log that begins anew. The series get new numbers.
    pub fn frames(&mut self) -> Vec<LogFrame> {
        self.next = 0;
        let mut frames: BTreeMap<usize, LogFrame> = BTreeMap::new();
        for (series, (id, column)) in &mut self.columns {
            *id = self.next;
            self.next = self.next.saturating_add(1);
            for (place, (tick, value)) in column.values().enumerate() {
                let frame = frames.entry(tick).or_insert_with(|| LogFrame {
                    tick: u16::try_from(tick).unwrap_or(0),
                    ..LogFrame::default()
                });
                if place == 0 {
                    frame.names.push((*id, series.clone()));
                }
                frame.values.push((*id, value));
            }
        }
        frames.into_values().collect()
    }

    /// Whether it has no values.
    pub fn is_empty(&self) -> bool {
        self.columns.is_empty()
    }

    /// The columns of the hour's file, by name. Values of an existing file of the hour stay where this block has none.
    pub fn sealed(&self, existing: &BTreeMap<String, HourColumn>) -> BTreeMap<String, HourColumn> {
        let mut all: BTreeMap<String, HourColumn> = (self.columns.iter())
            .map(|(series, (_, column))| (series.to_string(), column.clone()))
            .collect();
        for (name, old) in existing {
            if let Some(column) = all.get_mut(name) {
                column.fill_from(old);
            } else if all.len() < SERIES_MAX {
                all.insert(name.clone(), old.clone());
            }
        }
        all
    }
}

/// Adds an hour's columns to those of its day.
pub fn add_to_day(
    day: &mut BTreeMap<String, DayColumn>,
    hour: i64,
    columns: &BTreeMap<String, HourColumn>,
) {
    let of_day = usize::try_from(hour.rem_euclid(HOURS_PER_DAY)).unwrap_or(0);
    for (name, column) in columns {
        if day.contains_key(name) || day.len() < SERIES_MAX {
            day.entry(name.clone())
                .or_default()
                .set_hour(of_day, column);
        }
    }
}

/// The values of an hour as samples.
pub fn of_hour(hour: i64, column: &HourColumn) -> Vec<Sample> {
    let sample = |(tick, value): (usize, f32)| Sample {
        at: hour * HOUR + i64::try_from(tick).unwrap_or(0) * TICK,
        mean: f64::from(value),
        max: f64::from(value),
        count: 1,
    };
    column.values().map(sample).collect()
}

/// The 5 minutes of a day, counted from 1970, as samples.
pub fn of_day_column(day: i64, column: &DayColumn) -> Vec<Sample> {
    let start = day * HOURS_PER_DAY * HOUR;
    let sample = |(at, bucket): (usize, Bucket)| Sample {
        at: start + i64::try_from(at).unwrap_or(0) * BUCKET,
        mean: f64::from(bucket.mean),
        max: f64::from(bucket.max),
        count: u32::from(bucket.count),
    };
    column.buckets().map(sample).collect()
}

fn tick_of(at: i64) -> usize {
    let tick = usize::try_from(at.rem_euclid(HOUR) / TICK).unwrap_or(0);
    tick.min(TICKS_PER_HOUR - 1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::log::{self, LogRead};
    use crate::series::{Metric, Subject};

    fn series(node: u8) -> Series {
        Subject::Node(format!("n{node}")).series(Metric::Cpu)
    }

    fn shown(block: &HourBlock) -> Vec<(String, Vec<(i64, f64)>)> {
        let columns = block.sealed(&BTreeMap::new());
        let column = |(name, column): (String, HourColumn)| {
            let samples = of_hour(block.hour, &column).into_iter();
            (name, samples.map(|one| (one.at, one.mean)).collect())
        };
        columns.into_iter().map(column).collect()
    }

    proptest! {
        /// Whatever a kill cuts off the log, what is read is what was recorded until there, once.
        #[test]
        fn a_log_that_is_cut_anywhere_gives_a_prefix_and_never_panics(
            values in proptest::collection::vec((0i64..3600, 0u8..5, 0f64..100.0), 1..40),
            cut in 0usize..3000,
        ) {
            let mut block = HourBlock::new(7);
            let mut bytes = log::begin(7);
            let mut states = vec![(bytes.len(), shown(&block))];
            for (at, node, value) in values {
                let frame = block.record(7 * HOUR + at, [(series(node), value)]).unwrap();
                bytes.extend(log::encode(&frame));
                states.push((bytes.len(), shown(&block)));
            }
            let cut = cut.min(bytes.len());
            let read = log::read(&bytes[..cut]);
            if cut < log::BEGIN_BYTES {
                prop_assert!(read.is_err());
                return Ok(());
            }
            let LogRead { hour, frames, valid, .. } = read.unwrap();
            let mut again = HourBlock::new(hour);
            let mut names = BTreeMap::new();
            frames.iter().for_each(|frame| again.replay(frame, &mut names));
            let (length, expected) = states.iter().rev().find(|(length, _)| *length <= cut).unwrap();
            prop_assert_eq!(valid, *length);
            prop_assert_eq!(&shown(&again), expected);
            // Taking the same frames in a second time, as a restart that crashed does, counts nothing twice.
            frames.iter().for_each(|frame| again.replay(frame, &mut names));
            prop_assert_eq!(&shown(&again), expected);
            // So does a log that is written anew.
            let mut renewed = HourBlock::new(hour);
            let mut renewed_names = BTreeMap::new();
            again.frames().iter().for_each(|frame| renewed.replay(frame, &mut renewed_names));
            prop_assert_eq!(&shown(&renewed), expected);
            let (mut again, names) = (renewed, renewed_names);
            // New values go on with numbers that name the same series.
            let frame = again.record(7 * HOUR + 30, [(series(200), 1.0)]).unwrap();
            prop_assert!(names.keys().all(|id| *id != frame.names[0].0));
        }
    }

    #[test]
    fn no_hour_has_more_series_than_its_bound() {
        let mut block = HourBlock::new(0);
        let many = (0..SERIES_MAX + 5).map(|number| {
            let node = Subject::Node(number.to_string());
            (node.series(Metric::Cpu), 1.0)
        });
        let frame = block.record(0, many).unwrap();
        assert_eq!(frame.values.len(), SERIES_MAX);
        assert_eq!(block.refused(), 5);
        assert_eq!(block.sealed(&BTreeMap::new()).len(), SERIES_MAX);
        let old = BTreeMap::from([("node/old/cpu".to_owned(), HourColumn::default())]);
        assert_eq!(block.sealed(&old).len(), SERIES_MAX);
    }

    #[test]
    fn sealing_the_same_hour_again_changes_nothing() {
        let mut block = HourBlock::new(25);
        block.record(25 * HOUR, [(series(1), 4.0)]);
        block.record(25 * HOUR + 15, [(series(1), 8.0)]);
        assert!(block.record(26 * HOUR, [(series(1), 8.0)]).is_none());
        let first = block.sealed(&BTreeMap::new());
        let mut day = BTreeMap::new();
        add_to_day(&mut day, 25, &first);
        let before = day.clone();
        add_to_day(&mut day, 25, &block.sealed(&first));
        assert_eq!(day, before);
        let (at, bucket) = day["node/n1/cpu"].buckets().next().unwrap();
        assert_eq!(
            (at, bucket.mean, bucket.max, bucket.count),
            (12, 6.0, 8.0, 2)
        );
    }
}
