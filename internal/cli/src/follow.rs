//! `muster get --watch`: the current objects, then each change. Independent of kinds: the server
//! makes the tables.

use anyhow::{Result, bail};
use futures::{AsyncBufReadExt, TryStreamExt};
use kube::api::DynamicObject;
use resources::registry::Kind;
use serde_json::Value;

use super::connection::ServerConnection;
use super::listing::{dress, http, none_found, table};
use super::outcome::CommandOutcome;
use super::platform::escape;
use super::ranks::{MOST_ERRORS, REST};
use super::{failure, output};
use crate::arguments::{Get, Output};

/// A watched collection and its output format.
struct Watched<'a> {
    connection: &'a ServerConnection,
    kind: &'a Kind,
    arguments: &'a Get,
    path: String,
    /// The server sends columns with a watch's first table only.
    columns: Value,
    /// Column widths, so that later rows stay aligned with the headings.
    widths: Vec<usize>,
    version: String,
}

/// Prints the current objects and every change, until interrupted.
pub async fn get(
    connection: &ServerConnection,
    kind: &Kind,
    names: &[String],
    arguments: &Get,
) -> Result<CommandOutcome> {
    let namespace = (!arguments.all_namespaces).then_some(connection.namespace.as_str());
    let mut path = format!("{}?", connection.collection(kind, namespace));
    match names {
        [] => {}
        [name] => path.push_str(&format!(
            "fieldSelector={}&",
            escape(&format!("metadata.name={name}"))
        )),
        _ => return Err(failure::usage("watch one resource, or all of a kind")),
    }
    if let Some(selector) = &arguments.selector {
        path.push_str(&format!("labelSelector={}&", escape(selector)));
    }
    let mut watched = Watched {
        connection,
        kind,
        arguments,
        path,
        columns: Value::Null,
        widths: Vec::new(),
        version: String::new(),
    };
    if !watched.list().await? {
        none_found(connection, kind, namespace).await;
    }
    let mut errors = 0;
    loop {
        match watched.changes().await {
            Ok(()) => errors = 0,
            Err(error) if failure::closed_pipe(&error) || failure::lasts(&error) => {
                return Err(error);
            }
            Err(error) => {
                errors += 1;
                if errors > MOST_ERRORS {
                    return Err(error);
                }
                tokio::time::sleep(REST).await;
            }
        }
    }
}

impl Watched<'_> {
    fn form(&self) -> Option<Output> {
        self.arguments.output.filter(|form| *form != Output::Wide)
    }

    /// Prints the current objects; returns whether there are any.
    async fn list(&mut self) -> Result<bool> {
        let listed = table(self.connection, &self.path).await?;
        self.version = version_of(&listed);
        let some = listed["rows"]
            .as_array()
            .is_some_and(|rows| !rows.is_empty());
        match self.form() {
            // Tables carry only metadata. The objects come from the watch: without a version, it
            // begins with the existing ones.
            Some(_) => self.version.clear(),
            None => self.rows(listed)?,
        }
        Ok(some)
    }

    fn rows(&mut self, mut table: Value) -> Result<()> {
        let first = self.columns.is_null();
        match table["columnDefinitions"].as_array() {
            Some(columns) if !columns.is_empty() => {
                self.columns = table["columnDefinitions"].clone();
            }
            _ => table["columnDefinitions"] = self.columns.clone(),
        }
        let wide = self.arguments.output == Some(Output::Wide);
        let spaces = self.arguments.all_namespaces && self.kind.namespaced;
        let shown = output::server_table(&table, wide, spaces);
        if shown.is_empty() {
            self.columns = Value::Null;
            return Ok(());
        }
        self.widths = shown.widths(&self.widths);
        if first {
            output::put(&shown.headings(&self.widths))?;
        }
        output::put(&shown.body(&self.widths))
    }

    /// Follows one watch to its end; the next watch continues from the last version.
    async fn changes(&mut self) -> Result<()> {
        let path = format!(
            "{}watch=true&allowWatchBookmarks=true&resourceVersion={}",
            self.path, self.version
        );
        let mut request = http(&path)?;
        if self.form().is_some() {
            let json = http::HeaderValue::from_static("application/json");
            request.headers_mut().insert("accept", json);
        }
        let stream = self.connection.client.request_stream(request).await?;
        let mut lines = Box::pin(stream).lines();
        while let Some(line) = lines.try_next().await? {
            let mut event: Value = serde_json::from_str(&line)?;
            let object = event["object"].take();
            match event["type"].as_str() {
                Some("ERROR") => {
                    // The history has expired: begin again with the current objects.
                    self.version.clear();
                    bail!(
                        "{}",
                        object["message"].as_str().unwrap_or("the watch ended")
                    );
                }
                Some("BOOKMARK") => self.remember(&object),
                _ => {
                    self.remember(&object);
                    self.show(object)?;
                }
            }
        }
        Ok(())
    }

    fn remember(&mut self, object: &Value) {
        let version = version_of(object);
        if !version.is_empty() {
            self.version = version;
        }
    }

    fn show(&mut self, object: Value) -> Result<()> {
        let Some(form) = self.form() else {
            return self.rows(object);
        };
        let mut object: DynamicObject = serde_json::from_value(object)?;
        dress(&mut object, self.kind, self.arguments);
        if form == Output::Yaml {
            output::put_line("---")?;
        }
        output::print_object(&object, self.kind, form)
    }
}

/// The version of a list, an object or a table of one row.
fn version_of(value: &Value) -> String {
    let of = |value: &Value| {
        let version = value["metadata"]["resourceVersion"].as_str();
        version
            .filter(|version| !version.is_empty())
            .map(String::from)
    };
    of(value)
        .or_else(|| of(&value["rows"][0]["object"]))
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tables_version_is_its_own_or_its_rows() {
        let list = serde_json::json!({"metadata": {"resourceVersion": "7"}, "rows": []});
        let row = serde_json::json!({"metadata": {"resourceVersion": ""},
            "rows": [{"object": {"metadata": {"resourceVersion": "9"}}}]});
        assert_eq!(version_of(&list), "7");
        assert_eq!(version_of(&row), "9");
        assert_eq!(version_of(&serde_json::json!({})), "");
    }
}
