//! Printing: tables, JSON, YAML and names.

use std::io::{IsTerminal, Write};

use anyhow::Result;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::DynamicObject;
use resources::registry::Kind;
use resources::span::human_duration;
use serde_json::Value;

use crate::arguments::Output;

/// Writes text to standard output. A closed reader is an ordinary error, not the panic of
/// `print!`.
pub fn put(text: &str) -> Result<()> {
    put_bytes(text.as_bytes())
}

/// Writes raw bytes, such as a log's.
pub fn put_bytes(bytes: &[u8]) -> Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(bytes)?;
    Ok(out.flush()?)
}

/// Writes a line to standard output.
pub fn put_line(line: &str) -> Result<()> {
    put(&format!("{line}\n"))
}

/// Writes a message to standard error, apart from the output for programs.
pub fn tell(line: &str) -> Result<()> {
    eprintln!("{line}");
    Ok(())
}

/// Reports progress on standard error; prints a line only if it differs from the last one.
#[derive(Default)]
pub struct ProgressReporter {
    last: String,
}

impl ProgressReporter {
    /// Reports the current state.
    pub fn say(&mut self, line: &str) {
        if self.last != line && !line.is_empty() {
            eprintln!("{}", Paint::stderr().dim(line));
            self.last = line.to_string();
        }
    }
}

/// Rows of text under headings, each column as wide as its widest cell.
pub struct Table {
    headings: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these headings.
    pub fn new<S: Into<String>>(headings: impl IntoIterator<Item = S>) -> Self {
        Table {
            headings: headings.into_iter().map(Into::into).collect(),
            rows: Vec::new(),
        }
    }

    /// Adds a row.
    pub fn row<S: Into<String>>(&mut self, cells: impl IntoIterator<Item = S>) {
        self.rows.push(cells.into_iter().map(Into::into).collect());
    }

    /// The table as text; every line ends with a newline.
    pub fn render(&self) -> String {
        let widths = self.widths(&[]);
        let mut text = self.headings(&widths);
        text.push_str(&self.body(&widths));
        text
    }

    /// The width of each column, at least the given one.
    pub fn widths(&self, least: &[usize]) -> Vec<usize> {
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            let heading = self.headings.get(column);
            cells
                .chain(heading)
                .map(|cell| cell.chars().count())
                .max()
                .unwrap_or(0)
                .max(least.get(column).copied().unwrap_or(0))
        };
        (0..self.headings.len()).map(width).collect()
    }

    /// The line of headings.
    pub fn headings(&self, widths: &[usize]) -> String {
        lines(std::iter::once(&self.headings), widths)
    }

    /// The rows.
    pub fn body(&self, widths: &[usize]) -> String {
        lines(self.rows.iter(), widths)
    }

    /// Whether there is no row.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }
}

fn lines<'a>(rows: impl Iterator<Item = &'a Vec<String>>, widths: &[usize]) -> String {
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(widths) {
            let padding = width + 3 - cell.chars().count().min(*width);
            line.push_str(cell);
            line.extend(std::iter::repeat_n(' ', padding));
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// The age since a time, as kubectl prints ages; a dash if the time is unknown.
pub fn age(since: Option<&Time>) -> String {
    since.map_or_else(
        || "-".to_string(),
        |time| human_duration(Timestamp::now().duration_since(time.0).as_secs()),
    )
}

/// Converts the server's Table; `wide` keeps the columns of low priority.
pub fn server_table(table: &Value, wide: bool, with_namespace: bool) -> Table {
    let none = Vec::new();
    let columns = table["columnDefinitions"].as_array().unwrap_or(&none);
    let shown: Vec<usize> = columns
        .iter()
        .enumerate()
        .filter(|(_, column)| wide || column["priority"].as_i64().unwrap_or(0) == 0)
        .map(|(i, _)| i)
        .collect();
    let namespace_heading = with_namespace.then(|| "NAMESPACE".to_string());
    let headings = shown
        .iter()
        .map(|&i| columns[i]["name"].as_str().unwrap_or("").to_uppercase());
    let mut out = Table::new(namespace_heading.into_iter().chain(headings));
    for row in table["rows"].as_array().unwrap_or(&none) {
        let namespace = with_namespace.then(|| {
            row["object"]["metadata"]["namespace"]
                .as_str()
                .unwrap_or("")
                .to_string()
        });
        let cells = shown.iter().map(|&i| cell(&row["cells"][i]));
        out.row(namespace.into_iter().chain(cells));
    }
    out
}

fn cell(value: &Value) -> String {
    match value {
        Value::Null => "<none>".to_string(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Prints one object in a format other than a table.
pub fn print_object(object: &DynamicObject, kind: &Kind, output: Output) -> Result<()> {
    match output {
        Output::Json | Output::Yaml => print_value(&serde_json::to_value(object)?, output),
        Output::Name | Output::Wide => put_line(&name_of(object, kind)),
    }
}

/// Prints several objects of one kind as one List.
pub fn print_list(objects: &[DynamicObject], kind: &Kind, output: Output) -> Result<()> {
    if output == Output::Name {
        let mut text = String::new();
        for object in objects {
            text.push_str(&format!("{}\n", name_of(object, kind)));
        }
        return put(&text);
    }
    let list = serde_json::json!({"apiVersion": "v1", "kind": "List", "items": objects});
    print_value(&list, output)
}

/// Prints any value as JSON or YAML.
pub fn print_value(value: &Value, output: Output) -> Result<()> {
    match output {
        Output::Yaml => put(&serde_norway::to_string(value)?),
        _ => put_line(&serde_json::to_string_pretty(value)?),
    }
}

/// `kind.group/name`, as kubectl prints names.
pub fn name_of(object: &DynamicObject, kind: &Kind) -> String {
    let name = object.metadata.name.as_deref().unwrap_or("");
    if kind.group.is_empty() {
        format!("{}/{name}", kind.singular)
    } else {
        format!("{}.{}/{name}", kind.singular, kind.group)
    }
}

/// Colours, used only on a terminal and never when NO_COLOR is set.
#[derive(Clone, Copy)]
pub struct Paint(bool);

/// Use colours on a terminal that supports them, unless NO_COLOR (https://no-color.org) is set to
/// a non-empty value.
fn wanted(terminal: bool) -> bool {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    terminal && set("NO_COLOR").is_none() && set("TERM").is_none_or(|term| term != "dumb")
}

impl Paint {
    /// For standard output.
    pub fn stdout() -> Self {
        Paint(wanted(std::io::stdout().is_terminal()))
    }

    /// For standard error.
    pub fn stderr() -> Self {
        Paint(wanted(std::io::stderr().is_terminal()))
    }

    fn with(self, code: &str, text: &str) -> String {
        if self.0 {
            format!("\x1b[{code}m{text}\x1b[0m")
        } else {
            text.to_string()
        }
    }

    /// Something that went well.
    pub fn good(self, text: &str) -> String {
        self.with("32", text)
    }

    /// Something that went wrong.
    pub fn bad(self, text: &str) -> String {
        self.with("31", text)
    }

    /// Something to read after the rest.
    pub fn dim(self, text: &str) -> String {
        self.with("2", text)
    }

    /// A heading.
    pub fn strong(self, text: &str) -> String {
        self.with("1", text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_and_lines_have_no_trailing_space() {
        let mut table = Table::new(["NAME", "AGE"]);
        table.row(["a-long-name", "1d"]);
        table.row(["b", ""]);
        assert_eq!(table.render(), "NAME          AGE\na-long-name   1d\nb\n");
    }

    #[test]
    fn a_servers_table_loses_its_wide_columns_unless_they_are_asked_for() {
        let table = serde_json::json!({
            "columnDefinitions": [{"name": "Name", "priority": 0}, {"name": "Node", "priority": 1}],
            "rows": [{"cells": ["p", null], "object": {"metadata": {"namespace": "x"}}}],
        });
        assert_eq!(server_table(&table, false, false).render(), "NAME\np\n");
        assert_eq!(
            server_table(&table, true, true).render(),
            "NAMESPACE   NAME   NODE\nx           p      <none>\n"
        );
    }
}
