//! A series' values in an hour (each 15 seconds) and in a day (each 5 minutes), and their bytes in files.

use crate::time::{HOURS_PER_DAY, TICKS_PER_HOUR};

/// Seconds that are added up to one bucket of a day.
pub const BUCKET: i64 = 300;
/// Buckets of a day.
pub const BUCKETS_PER_DAY: usize = 288;
const TICKS_PER_BUCKET: usize = 20;
const BUCKETS_PER_HOUR: usize = TICKS_PER_HOUR / TICKS_PER_BUCKET;
/// Bytes of a bucket: mean, maximum and count.
const BUCKET_BYTES: usize = 9;

/// Why the bytes of a column cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a column of {bytes} bytes does not fit its hour or day")]
pub struct ColumnError {
    bytes: usize,
}

/// The values of one hour; NaN where nothing was measured.
#[derive(Clone, Debug)]
pub struct HourColumn(Vec<f32>);

impl Default for HourColumn {
    fn default() -> HourColumn {
        HourColumn(vec![f32::NAN; TICKS_PER_HOUR])
    }
}

impl HourColumn {
    /// Sets the value of a tick, from 0 to 239; the later of two values of one tick stays. A value that is not finite
    /// is no measurement.
    pub fn set(&mut self, tick: usize, value: f32) {
        if let Some(place) = self.0.get_mut(tick)
            && value.is_finite()
        {
            *place = value;
        }
    }

    /// The ticks with their values.
    pub fn values(&self) -> impl Iterator<Item = (usize, f32)> {
        let all = self.0.iter().copied().enumerate();
        all.filter(|(_, value)| value.is_finite())
    }

    /// Takes the values of another column for the ticks at which this one has none.
    pub fn fill_from(&mut self, other: &HourColumn) {
        for (tick, value) in other.values() {
            if self.0[tick].is_nan() {
                self.0[tick] = value;
            }
        }
    }

    /// The bytes: the first tick, and the values from there to the last.
    pub fn encode(&self) -> Vec<u8> {
        let first = self.values().map(|(tick, _)| tick).next().unwrap_or(0);
        let end = self.values().map(|(tick, _)| tick + 1).last().unwrap_or(0);
        let mut bytes = place(first);
        let values = self.0.get(first..end).unwrap_or_default();
        bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        bytes
    }

    /// Reads the bytes.
    ///
    /// # Errors
    /// They are no column of an hour.
    pub fn decode(bytes: &[u8]) -> Result<HourColumn, ColumnError> {
        let mut column = HourColumn::default();
        let wrong = ColumnError { bytes: bytes.len() };
        let (first, rest) = split_place(bytes).ok_or_else(|| wrong.clone())?;
        let (values, []) = rest.as_chunks::<4>() else {
            return Err(wrong);
        };
        if first + values.len() > TICKS_PER_HOUR {
            return Err(wrong);
        }
        for (at, value) in values.iter().enumerate() {
            column.set(first + at, f32::from_le_bytes(*value));
        }
        Ok(column)
    }

    /// The hour added up to its twelve buckets of 5 minutes.
    fn buckets(&self) -> [Bucket; BUCKETS_PER_HOUR] {
        let mut buckets = [Bucket::EMPTY; BUCKETS_PER_HOUR];
        for (number, ticks) in self.0.chunks(TICKS_PER_BUCKET).enumerate() {
            let (mut sum, mut max, mut count) = (0.0, f32::NEG_INFINITY, 0u8);
            for value in ticks.iter().filter(|value| value.is_finite()) {
                sum += f64::from(*value);
                max = max.max(*value);
                count += 1;
            }
            if count > 0 {
                buckets[number] = Bucket {
                    mean: (sum / f64::from(count)) as f32,
                    max,
                    count,
                };
            }
        }
        buckets
    }
}

/// Five minutes of a series.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bucket {
    /// The mean of the values.
    pub mean: f32,
    /// The largest of them.
    pub max: f32,
    /// How many there were, at most 20.
    pub count: u8,
}

impl Bucket {
    const EMPTY: Bucket = Bucket {
        mean: 0.0,
        max: 0.0,
        count: 0,
    };
}

/// The buckets of one day.
#[derive(Clone, Debug, PartialEq)]
pub struct DayColumn(Vec<Bucket>);

impl Default for DayColumn {
    fn default() -> DayColumn {
        DayColumn(vec![Bucket::EMPTY; BUCKETS_PER_DAY])
    }
}

impl DayColumn {
    /// Sets the buckets of an hour of the day, from 0 to 23, to the sums of its values. Setting the same hour again
    /// changes nothing.
    pub fn set_hour(&mut self, hour: usize, values: &HourColumn) {
        if hour >= HOURS_PER_DAY as usize {
            return;
        }
        let first = hour * BUCKETS_PER_HOUR;
        for (at, bucket) in values.buckets().into_iter().enumerate() {
            if bucket.count > 0 {
                self.0[first + at] = bucket;
            }
        }
    }

    /// The buckets with values, each with its number in the day.
    pub fn buckets(&self) -> impl Iterator<Item = (usize, Bucket)> {
        let all = self.0.iter().copied().enumerate();
        all.filter(|(_, bucket)| bucket.count > 0)
    }

    /// The bytes: the first bucket's number, and the buckets from there to the last.
    pub fn encode(&self) -> Vec<u8> {
        let first = self.buckets().map(|(at, _)| at).next().unwrap_or(0);
        let end = self.buckets().map(|(at, _)| at + 1).last().unwrap_or(0);
        let mut bytes = place(first);
        for bucket in self.0.get(first..end).unwrap_or_default() {
            bytes.extend(bucket.mean.to_le_bytes());
            bytes.extend(bucket.max.to_le_bytes());
            bytes.push(bucket.count);
        }
        bytes
    }

    /// Reads the bytes.
    ///
    /// # Errors
    /// They are no column of a day.
    pub fn decode(bytes: &[u8]) -> Result<DayColumn, ColumnError> {
        let mut column = DayColumn::default();
        let wrong = ColumnError { bytes: bytes.len() };
        let (first, rest) = split_place(bytes).ok_or_else(|| wrong.clone())?;
        let (buckets, []) = rest.as_chunks::<BUCKET_BYTES>() else {
            return Err(wrong);
        };
        if first + buckets.len() > BUCKETS_PER_DAY {
            return Err(wrong);
        }
        for (at, [a, b, c, d, e, f, g, h, count]) in buckets.iter().enumerate() {
            let bucket = Bucket {
                mean: f32::from_le_bytes([*a, *b, *c, *d]),
                max: f32::from_le_bytes([*e, *f, *g, *h]),
                count: *count,
            };
            let fits = usize::from(bucket.count) <= TICKS_PER_BUCKET;
            if !fits || !bucket.mean.is_finite() || !bucket.max.is_finite() {
                return Err(wrong);
            }
            column.0[first + at] = bucket;
        }
        Ok(column)
    }
}

fn place(first: usize) -> Vec<u8> {
    u16::try_from(first).unwrap_or(0).to_le_bytes().to_vec()
}

fn split_place(bytes: &[u8]) -> Option<(usize, &[u8])> {
    let (first, rest) = bytes.split_first_chunk::<2>()?;
    Some((usize::from(u16::from_le_bytes(*first)), rest))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn column(values: &[(usize, f32)]) -> HourColumn {
        let mut column = HourColumn::default();
        for (tick, value) in values {
            column.set(*tick, *value);
        }
        column
    }

    fn some_values() -> impl Strategy<Value = Vec<(usize, f32)>> {
        proptest::collection::vec((0..TICKS_PER_HOUR, -1e6f32..1e12), 0..300)
    }

    proptest! {
        #[test]
        fn columns_are_read_as_they_were_written(values in some_values(), hour in 0usize..24) {
            let of_hour = column(&values);
            let read = HourColumn::decode(&of_hour.encode()).unwrap();
            prop_assert!(read.values().eq(of_hour.values()));
            let mut of_day = DayColumn::default();
            of_day.set_hour(hour, &of_hour);
            prop_assert_eq!(&DayColumn::decode(&of_day.encode()).unwrap(), &of_day);
            let before = of_day.clone();
            of_day.set_hour(hour, &of_hour);
            prop_assert_eq!(before, of_day);
        }

        #[test]
        fn the_buckets_keep_mean_and_maximum_of_the_hour(values in some_values()) {
            let of_hour = column(&values);
            let mut of_day = DayColumn::default();
            of_day.set_hour(3, &of_hour);
            let all: Vec<f64> = of_hour.values().map(|(_, value)| f64::from(value)).collect();
            let counted: usize = of_day.buckets().map(|(_, bucket)| usize::from(bucket.count)).sum();
            prop_assert_eq!(counted, all.len());
            let sum: f64 = of_day.buckets().map(|(_, bucket)| f64::from(bucket.mean) * f64::from(bucket.count)).sum();
            let magnitude: f64 = all.iter().map(|value| value.abs()).sum();
            prop_assert!((sum - all.iter().sum::<f64>()).abs() <= 1e-6 * magnitude + 1e-6);
            let max = of_day.buckets().map(|(_, bucket)| f64::from(bucket.max)).fold(f64::MIN, f64::max);
            prop_assert_eq!(max, all.iter().copied().fold(f64::MIN, f64::max));
        }

        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..3000)) {
            let _ = HourColumn::decode(&bytes);
            let _ = DayColumn::decode(&bytes);
        }
    }

    #[test]
    fn the_later_value_of_a_tick_stays_and_gaps_are_filled() {
        let mut first = column(&[(1, 1.0), (1, 2.0), (2, f32::NAN)]);
        assert!(first.values().eq([(1, 2.0)]));
        first.fill_from(&column(&[(1, 9.0), (5, 5.0)]));
        assert!(first.values().eq([(1, 2.0), (5, 5.0)]));
    }
}
