//! Printing: tables, JSON, YAML and names.

use std::io::IsTerminal;

use anyhow::Result;
use kube::api::DynamicObject;
use resources::registry::Kind;
use serde_json::Value;

use crate::arguments::Output;

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

    /// The text, every line ended.
    pub fn render(&self) -> String {
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            let heading = self.headings.get(column);
            cells
                .chain(heading)
                .map(|cell| cell.chars().count())
                .max()
                .unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.headings.len()).map(width).collect();
        let mut text = String::new();
        for row in std::iter::once(&self.headings).chain(&self.rows) {
            let mut line = String::new();
            for (cell, width) in row.iter().zip(&widths) {
                let padding = width + 3 - cell.chars().count().min(*width);
                line.push_str(cell);
                line.extend(std::iter::repeat_n(' ', padding));
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }
}

/// Reads the server's Table into one of ours; `wide` keeps the columns of low priority.
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
        Output::Json => println!("{}", serde_json::to_string_pretty(object)?),
        Output::Yaml => print!("{}", serde_norway::to_string(object)?),
        Output::Name | Output::Wide => println!("{}", name_of(object, kind)),
    }
    Ok(())
}

/// Prints several objects as one List.
pub fn print_list(objects: &[DynamicObject], kind: &Kind, output: Output) -> Result<()> {
    if output == Output::Name {
        for object in objects {
            println!("{}", name_of(object, kind));
        }
        return Ok(());
    }
    let list = serde_json::json!({"apiVersion": "v1", "kind": "List", "items": objects});
    print_value(&list, output)
}

/// Prints any value as JSON or YAML.
pub fn print_value(value: &Value, output: Output) -> Result<()> {
    match output {
        Output::Yaml => print!("{}", serde_norway::to_string(value)?),
        _ => println!("{}", serde_json::to_string_pretty(value)?),
    }
    Ok(())
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

impl Paint {
    /// For standard output.
    pub fn stdout() -> Self {
        Paint(std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none())
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
