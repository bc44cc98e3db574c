//! Allocation and fragmentation by the amount of arrived work, as the benchmark's description
//! defines them (its section 5).

/// Last bin that is kept; later arrivals are counted into it.
const LAST: usize = 131;

/// Means over the arrivals of each bin. A bin covers arrivals of 1 % of the cluster's GPUs.
#[derive(Clone, Debug)]
pub struct ArrivalBins {
    sums: Vec<[f64; 3]>,
    rows: Vec<f64>,
}

impl Default for ArrivalBins {
    fn default() -> ArrivalBins {
        ArrivalBins {
            sums: vec![[0.0; 3]; LAST + 1],
            rows: vec![0.0; LAST + 1],
        }
    }
}

/// The bin of an arrived percentage: rounded, half to even.
pub(super) fn bin_of(arrived: f64) -> usize {
    arrived.round_ties_even().max(0.0) as usize
}

impl ArrivalBins {
    /// Counts one arrival: the arrived and the allocated GPUs, the amount of fragmentation (all in
    /// % of the cluster's GPUs) and its ratio (% of the idle GPUs).
    pub fn add(&mut self, arrived: f64, allocated: f64, amount: f64, ratio: f64) {
        let round = |x: f64| (x * 100.0).round() / 100.0;
        let bin = bin_of(arrived).min(LAST);
        if let (Some(sums), Some(rows)) = (self.sums.get_mut(bin), self.rows.get_mut(bin)) {
            for (sum, value) in sums.iter_mut().zip([allocated, amount, ratio]) {
                *sum += round(value);
            }
            *rows += 1.0;
        }
    }

    /// Mean allocation in a bin, in %.
    #[must_use]
    pub fn allocation(&self, bin: usize) -> f64 {
        self.mean(bin, 0)
    }

    /// Mean amount of fragmentation in a bin, in % of the cluster's GPUs.
    #[must_use]
    pub fn fragmentation(&self, bin: usize) -> f64 {
        self.mean(bin, 1)
    }

    /// Mean fragmented part of the idle GPUs in a bin, in %.
    #[must_use]
    pub fn fragmentation_ratio(&self, bin: usize) -> f64 {
        self.mean(bin, 2)
    }

    /// A bin without arrivals takes those of its neighbours.
    fn mean(&self, bin: usize, metric: usize) -> f64 {
        let own = self.rows.get(bin).copied().unwrap_or(0.0);
        let span = if own > 0.0 {
            bin..=bin
        } else {
            bin.saturating_sub(1)..=bin + 1
        };
        let (mut sum, mut n) = (0.0, 0.0);
        for (sums, rows) in span.filter_map(|b| Some((self.sums.get(b)?, self.rows.get(b)?))) {
            sum += sums[metric];
            n += rows;
        }
        if n > 0.0 { sum / n } else { 0.0 }
    }
}

/// Mean and sample standard deviation; zero where there are too few values.
#[must_use]
pub fn mean_and_deviation(values: &[f64]) -> (f64, f64) {
    let n = values.len() as f64;
    if values.is_empty() {
        return (0.0, 0.0);
    }
    let mean = values.iter().sum::<f64>() / n;
    if values.len() < 2 {
        return (mean, 0.0);
    }
    let squares: f64 = values.iter().map(|x| (x - mean).powi(2)).sum();
    (mean, (squares / (n - 1.0)).sqrt())
}
