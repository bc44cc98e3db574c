//! Values of a series brought to the steps of a chart: the mean and the largest value of each step.
//!
//! Example: 15-second values 10, 20, 30, 40 and steps of 30 seconds give the means 15 and 35 and the maxima 20 and 40. A
//! step without values has no point: a gap stays a gap. Cost: one pass. The mean of a step weights each 5 minutes by the
//! number of its values, so that it is the mean of the 15-second values although those are gone.

/// A value, or the sum of several.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// When it begins, in seconds since 1970.
    pub at: i64,
    /// The mean of the values.
    pub mean: f64,
    /// The largest.
    pub max: f64,
    /// How many values it stands for.
    pub count: u32,
}

/// A step of an answer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// When the step begins, in seconds since 1970.
    pub at: i64,
    /// The mean of its values.
    pub mean: f64,
    /// The largest of its values.
    pub max: f64,
}

/// The points of the samples that begin from `from` until before `until`, in steps of `step` seconds that begin at
/// multiples of it. Samples may come in any order; ones of the same step are added up.
pub fn resample(
    samples: impl IntoIterator<Item = Sample>,
    from: i64,
    until: i64,
    step: i64,
) -> Vec<Point> {
    let step = step.max(1);
    let mut steps: std::collections::BTreeMap<i64, (f64, f64, u32)> = Default::default();
    for sample in samples {
        if sample.at < from || sample.at >= until || sample.count == 0 {
            continue;
        }
        let at = sample.at.div_euclid(step) * step;
        let sum = steps.entry(at).or_insert((0.0, f64::NEG_INFINITY, 0));
        sum.0 += sample.mean * f64::from(sample.count);
        sum.1 = sum.1.max(sample.max);
        sum.2 = sum.2.saturating_add(sample.count);
    }
    let point = |(at, (sum, max, count)): (i64, (f64, f64, u32))| Point {
        at,
        mean: sum / f64::from(count),
        max,
    };
    steps.into_iter().map(point).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{DayColumn, HourColumn, TICK};

    fn value(at: i64, value: f64) -> Sample {
        Sample {
            at,
            mean: value,
            max: value,
            count: 1,
        }
    }

    #[test]
    fn the_example_of_the_header() {
        let samples = [10.0, 20.0, 30.0, 40.0].into_iter().enumerate();
        let samples = samples.map(|(at, of)| value(at as i64 * TICK, of));
        let points = resample(samples, 0, 60, 30);
        let shown: Vec<_> = points.iter().map(|p| (p.at, p.mean, p.max)).collect();
        assert_eq!(shown, [(0, 15.0, 20.0), (30, 35.0, 40.0)]);
    }

    #[test]
    fn a_step_without_values_has_no_point_and_the_ends_are_kept() {
        let samples = [value(0, 1.0), value(90, 2.0), value(120, 3.0)];
        let points = resample(samples, 15, 120, 30);
        assert_eq!(points.len(), 1);
        assert_eq!(points[0].at, 90);
    }

    proptest! {
        /// The mean over days read from 5-minute buckets is the mean of the 15-second values.
        #[test]
        fn means_and_maxima_are_the_same_from_hours_and_from_days(
            ticks in proptest::collection::btree_map(0usize..240, 0f32..1e5, 1..200),
            step in prop::sample::select(vec![300i64, 900, 3600]),
        ) {
            let mut hour = HourColumn::default();
            ticks.iter().for_each(|(tick, of)| hour.set(*tick, *of));
            let mut day = DayColumn::default();
            day.set_hour(0, &hour);
            let fine = hour.values().map(|(tick, of)| value(tick as i64 * TICK, f64::from(of)));
            let coarse = day.buckets().map(|(at, bucket)| Sample {
                at: at as i64 * crate::BUCKET,
                mean: f64::from(bucket.mean),
                max: f64::from(bucket.max),
                count: u32::from(bucket.count),
            });
            let (fine, coarse) = (resample(fine, 0, 3600, step), resample(coarse, 0, 3600, step));
            prop_assert_eq!(fine.len(), coarse.len());
            for (a, b) in fine.iter().zip(&coarse) {
                prop_assert_eq!((a.at, a.max), (b.at, b.max));
                prop_assert!((a.mean - b.mean).abs() <= 1e-6 * a.mean.abs() + 1e-6, "{} {}", a.mean, b.mean);
            }
        }
    }
}
