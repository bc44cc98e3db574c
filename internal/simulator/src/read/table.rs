//! Tables in text: a header, one record a line, values separated by one character, perhaps quoted.
//! Finds columns by their names and reports where a value is wrong. The traces and the openb
//! benchmark are read through it.

use std::collections::BTreeMap;
use std::str::FromStr;

use crate::error::{InputLocation, SimulatorError};
use crate::read::duration::{self, TraceMoment};
use crate::scenario::Seconds;

/// The meaning of a column, and the header words for it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ColumnMeaning {
    pub(crate) name: &'static str,
    pub(crate) accepted: &'static [&'static str],
}

/// A table.
pub(crate) struct InputTable<'a> {
    file: &'a str,
    header: Vec<String>,
    lines: Vec<(usize, Vec<String>)>,
    given: &'a BTreeMap<String, String>,
}

/// One record.
#[derive(Clone, Copy)]
pub(crate) struct TableRecord<'a> {
    table: &'a InputTable<'a>,
    number: usize,
    values: &'a [String],
}

/// A column that was found.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FoundColumn {
    at: usize,
}

/// No column is chosen by the user.
static NONE_GIVEN: BTreeMap<String, String> = BTreeMap::new();

impl<'a> InputTable<'a> {
    /// Splits a text with commas, whose columns have fixed names.
    pub(crate) fn of_commas(file: &'a str, text: &str) -> Result<InputTable<'a>, SimulatorError> {
        InputTable::split(file, text, ',', &NONE_GIVEN)
    }

    /// Splits a text. `given` maps meanings to the columns that the user chose.
    pub(crate) fn split(
        file: &'a str,
        text: &str,
        separator: char,
        given: &'a BTreeMap<String, String>,
    ) -> Result<InputTable<'a>, SimulatorError> {
        let mut numbered = text
            .lines()
            .enumerate()
            .map(|(at, line)| (at + 1, line.trim_end_matches('\r')));
        let header = numbered.by_ref().find(|(_, line)| !line.trim().is_empty());
        let Some((_, header)) = header else {
            return Err(SimulatorError::Nothing(format!("{file} is empty")));
        };
        let header = header.trim_start_matches('\u{feff}');
        let header: Vec<String> = split_line(header, separator)
            .unwrap_or_default()
            .iter()
            .map(|word| word.trim().to_owned())
            .collect();
        let mut lines = Vec::new();
        for (number, line) in numbered.filter(|(_, line)| !line.trim().is_empty()) {
            let place = || InputLocation::line(file, number);
            let mut values = split_line(line, separator).ok_or_else(|| SimulatorError::Form {
                place: place(),
                what: "a quoted value has no closing quote".to_owned(),
                wanted: "write the closing quote in the same line".to_owned(),
            })?;
            // A separator after the last value, as `sacct -p` writes it.
            if values.len() == header.len() + 1 && values.last().is_some_and(String::is_empty) {
                values.pop();
            }
            if values.len() != header.len() {
                return Err(SimulatorError::Form {
                    place: place(),
                    what: format!(
                        "the line has {} values, and the header has {}",
                        values.len(),
                        header.len()
                    ),
                    wanted: format!("write one value for each of {}", header.join(", ")),
                });
            }
            lines.push((number, values));
        }
        Ok(InputTable {
            file,
            header,
            lines,
            given,
        })
    }

    pub(crate) fn rows(&'a self) -> impl Iterator<Item = TableRecord<'a>> {
        self.lines.iter().map(|(number, values)| TableRecord {
            table: self,
            number: *number,
            values,
        })
    }

    /// The column with this meaning, if there is one.
    pub(crate) fn column(
        &self,
        meaning: ColumnMeaning,
    ) -> Result<Option<FoundColumn>, SimulatorError> {
        let find = |word: &str| {
            self.header
                .iter()
                .position(|name| name.eq_ignore_ascii_case(word))
        };
        if let Some(name) = self.given.get(meaning.name) {
            return match find(name) {
                Some(at) => Ok(Some(FoundColumn { at })),
                None => {
                    let columns = self.header.join(", ");
                    let valid = format!("one of the columns of {}: {columns}", self.file);
                    let option = format!("--column {}", meaning.name);
                    Err(SimulatorError::option(option, name, valid))
                }
            };
        }
        Ok(meaning
            .accepted
            .iter()
            .find_map(|word| find(word))
            .map(|at| FoundColumn { at }))
    }

    /// All columns with their names, in the order of the header.
    pub(crate) fn columns(&self) -> impl Iterator<Item = (&str, FoundColumn)> {
        let names = self.header.iter().enumerate();
        names.map(|(at, name)| (name.as_str(), FoundColumn { at }))
    }

    /// The column of this name, which must exist.
    pub(crate) fn named(&self, name: &str) -> Result<FoundColumn, SimulatorError> {
        let found = self.columns().find(|(known, _)| *known == name);
        found
            .map(|(_, column)| column)
            .ok_or_else(|| SimulatorError::Column {
                file: self.file.to_owned(),
                meaning: name.to_owned(),
                accepted: name.to_owned(),
                found: self.header.join(", "),
            })
    }

    /// The column with this meaning, which must exist.
    pub(crate) fn needed(&self, meaning: ColumnMeaning) -> Result<FoundColumn, SimulatorError> {
        self.column(meaning)?.ok_or_else(|| SimulatorError::Column {
            file: self.file.to_owned(),
            meaning: meaning.name.to_owned(),
            accepted: meaning.accepted.join(", "),
            found: self.header.join(", "),
        })
    }
}

impl<'a> TableRecord<'a> {
    pub(crate) fn text(&self, column: FoundColumn) -> &'a str {
        self.values[column.at].trim()
    }

    pub(crate) fn maybe(&self, column: Option<FoundColumn>) -> Option<&'a str> {
        column
            .map(|column| self.text(column))
            .filter(|text| !absent(text))
    }

    /// Parses the value of a column, if both the column and the value are present.
    pub(crate) fn given<T>(
        self,
        column: Option<FoundColumn>,
        read: impl FnOnce(Self, FoundColumn) -> Result<T, SimulatorError>,
    ) -> Result<Option<T>, SimulatorError> {
        column
            .filter(|_| self.maybe(column).is_some())
            .map(|column| read(self, column))
            .transpose()
    }

    pub(crate) fn wrong(&self, column: FoundColumn, valid: &str) -> SimulatorError {
        let field = &self.table.header[column.at];
        SimulatorError::value(self.place(), field, self.text(column), valid)
    }

    pub(crate) fn place(&self) -> InputLocation {
        InputLocation::line(self.table.file, self.number)
    }

    /// A whole number that is not negative; `12.0` counts as one.
    pub(crate) fn count(&self, column: FoundColumn) -> Result<i64, SimulatorError> {
        let text = self.text(column);
        let whole = text.parse::<i64>().ok().or_else(|| {
            let number = text.parse::<f64>().ok()?;
            (number.fract() == 0.0 && number.abs() < 1e15).then_some(number as i64)
        });
        whole
            .filter(|n| *n >= 0)
            .ok_or_else(|| self.wrong(column, "a whole number, 0 or more"))
    }

    /// A number of the caller's type.
    pub(crate) fn number<T: FromStr>(&self, column: FoundColumn) -> Result<T, SimulatorError> {
        let parsed = self.text(column).parse();
        parsed.map_err(|_| self.wrong(column, "a number"))
    }

    pub(crate) fn span(&self, column: FoundColumn) -> Result<Seconds, SimulatorError> {
        duration::seconds(self.text(column)).map_err(|()| self.wrong(column, duration::SPAN))
    }

    pub(crate) fn moment(&self, column: FoundColumn) -> Result<TraceMoment, SimulatorError> {
        duration::moment(self.text(column)).map_err(|()| self.wrong(column, duration::MOMENT))
    }
}

/// Words that clusters write for an absent value.
fn absent(text: &str) -> bool {
    text.is_empty()
        || ["none", "null", "nan", "unknown", "n/a", "-"]
            .iter()
            .any(|word| text.eq_ignore_ascii_case(word))
}

fn split_line(line: &str, separator: char) -> Option<Vec<String>> {
    if !line.contains('"') || separator == '|' {
        return Some(line.split(separator).map(str::to_owned).collect());
    }
    let mut values = vec![String::new()];
    let mut quoted = false;
    let mut letters = line.chars().peekable();
    while let Some(letter) = letters.next() {
        let value = values.last_mut()?;
        match letter {
            '"' if quoted && letters.peek() == Some(&'"') => {
                value.push('"');
                letters.next();
            }
            '"' => quoted = !quoted,
            letter if letter == separator && !quoted => values.push(String::new()),
            letter => value.push(letter),
        }
    }
    (!quoted).then_some(values)
}
