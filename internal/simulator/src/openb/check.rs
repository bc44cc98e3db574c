//! Compares runs of the baselines with the published results, cell by cell and line by line.

use super::data::{Arrivals, Csv};
use super::play::Played;
use crate::error::SimulatorError;

/// The tolerance for an allocation or an amount of fragmentation, which is published rounded to
/// 0.01.
const ROUNDING: f64 = 0.0101;

/// The tolerance for the ratio of fragmentation, which is published rounded to 0.1 of its divisor.
const RATIO_ROUNDING: f64 = 0.0501;

/// The published results of each variant, policy and seed.
pub struct Expected<'a> {
    table: Csv<'a>,
}

/// The result of a comparison.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Compared {
    /// Compared cells.
    pub cells: usize,
    /// The cells that differ, as messages.
    pub differences: Vec<String>,
}

impl<'a> Expected<'a> {
    /// Reads the table.
    #[must_use]
    pub fn read(file: &'a str, text: &'a str) -> Expected<'a> {
        Expected {
            table: Csv::split(file, text),
        }
    }

    /// Compares a run. A run that the table lacks has no cells.
    ///
    /// # Errors
    /// A cell that is no number, or a column of an unknown name.
    pub fn compare(
        &self,
        (variant, policy, seed): (&str, &str, u64),
        arrivals: &Arrivals,
        run: &Played,
    ) -> Result<Compared, SimulatorError> {
        let seed = seed.to_string();
        let key = [variant, policy, seed.as_str()];
        let mut out = Compared::default();
        let Some(row) = self.table.rows().find(|(_, row)| row.starts_with(&key)) else {
            return Ok(out);
        };
        for (at, name) in self.table.header().iter().enumerate().skip(key.len()) {
            let wanted: f64 = self.table.number(row, at)?;
            let (found, off) = cell(name, arrivals, run).ok_or_else(|| {
                SimulatorError::Nothing(format!("a column {name} is not known here"))
            })?;
            out.cells += 1;
            if (found - wanted).abs() > off {
                out.differences.push(format!(
                    "{variant} {policy} {seed} {name}: {found:.3} and not {wanted}"
                ));
            }
        }
        Ok(out)
    }
}

/// A column's value in a run, and the tolerance for the published one.
fn cell(name: &str, arrivals: &Arrivals, run: &Played) -> Option<(f64, f64)> {
    match name {
        "n_arrivals" => return Some((arrivals.rows.len() as f64, 0.0)),
        "failed_100" => return Some((f64::from(run.failed_until_100()), 0.0)),
        "failed_end" => return Some((f64::from(run.failed_in_all), 0.0)),
        _ => {}
    }
    let (metric, bin) = name.rsplit_once('_')?;
    let bin: usize = bin.parse().ok()?;
    match metric {
        "alloc" => Some((run.bins.allocation(bin), ROUNDING)),
        "frag" => Some((run.bins.fragmentation(bin), ROUNDING)),
        "frag_ratio" => Some((run.bins.fragmentation_ratio(bin), RATIO_ROUNDING)),
        _ => None,
    }
}

/// The first line in which two lists of placements differ, from both lists.
#[must_use]
pub fn first_difference<'a>(wanted: &'a str, found: &'a str) -> Option<(&'a str, &'a str)> {
    let (mut wanted, mut found) = (wanted.lines(), found.lines());
    loop {
        match (wanted.next(), found.next()) {
            (None, None) => return None,
            (a, b) if a == b => {}
            (a, b) => return Some((a.unwrap_or_default(), b.unwrap_or_default())),
        }
    }
}
