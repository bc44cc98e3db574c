//! Compares runs of the baselines with the published results, cell by cell and line by line.

use super::data::Arrivals;
use super::play::Played;
use crate::error::SimulatorError;
use crate::read::table::InputTable;

/// The tolerance for an allocation or an amount of fragmentation, which is published rounded to
/// 0.01.
const ROUNDING: f64 = 0.0101;

/// The tolerance for the ratio of fragmentation, which is published rounded to 0.1 of its divisor.
const RATIO_ROUNDING: f64 = 0.0501;

/// The first columns of the published results: the variant, the policy and the seed of a run.
const KEYS: usize = 3;

/// The published results of each variant, policy and seed; none for other arrivals than those.
pub struct PublishedResults<'a> {
    table: Option<InputTable<'a>>,
}

/// The result of a comparison.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Compared {
    /// Compared cells.
    pub cells: usize,
    /// The cells that differ, as messages.
    pub differences: Vec<String>,
}

impl<'a> PublishedResults<'a> {
    /// Reads the table; an empty text has no results.
    ///
    /// # Errors
    /// A line with more or fewer values than the header.
    pub fn read(file: &'a str, text: &str) -> Result<PublishedResults<'a>, SimulatorError> {
        let given = (!text.is_empty()).then(|| InputTable::of_commas(file, text));
        Ok(PublishedResults {
            table: given.transpose()?,
        })
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
        let mut out = Compared::default();
        let Some(table) = &self.table else {
            return Ok(out);
        };
        let seed = seed.to_string();
        let key: [&str; KEYS] = [variant, policy, seed.as_str()];
        let mut rows = table.rows();
        let row = rows.find(|row| {
            let mut columns = table.columns().zip(key);
            columns.all(|((_, column), wanted)| row.text(column) == wanted)
        });
        let Some(row) = row else {
            return Ok(out);
        };
        for (name, column) in table.columns().skip(KEYS) {
            let wanted: f64 = row.number(column)?;
            let (found, off) = cell(name, arrivals, run)
                .ok_or_else(|| SimulatorError::Nothing(format!("the column {name} is unknown")))?;
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
