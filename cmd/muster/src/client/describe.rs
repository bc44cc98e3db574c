//! `muster describe`: an object as an indented outline, and its events.

use anyhow::{Result, bail};
use kube::api::ListParams;
use serde_json::Value;

use super::output::{Paint, Table};
use super::{Answer, Connection, kinds};
use crate::arguments::Target;

/// What is left out of the outline: bookkeeping that no reader looks for.
const HIDDEN: [&str; 3] = ["managedFields", "resourceVersion", "uid"];

/// Shows one resource with its events.
pub async fn describe(connection: &Connection, target: Target) -> Result<Answer> {
    let names: Vec<String> = target.name.into_iter().collect();
    let (kind, names) = kinds::split(&target.what, &names)?;
    let [name] = names.as_slice() else {
        bail!("name one {} to describe", kind.singular);
    };
    let object = connection.api(kind).get(name).await?;
    let mut value = serde_json::to_value(&object)?;
    if let Some(metadata) = value["metadata"].as_object_mut() {
        metadata.retain(|key, _| !HIDDEN.contains(&key.as_str()));
    }
    let mut text = String::new();
    outline(&value, 0, &mut text);
    print!("{text}");
    events(
        connection,
        kind.kind,
        name,
        object.metadata.namespace.as_deref(),
    )
    .await?;
    Ok(Answer::Yes)
}

fn outline(value: &Value, depth: usize, text: &mut String) {
    let indent = "  ".repeat(depth);
    match value {
        Value::Object(fields) => {
            for (name, field) in fields {
                field_line(&format!("{indent}{name}:"), field, depth, text);
            }
        }
        Value::Array(items) => {
            for item in items {
                field_line(&format!("{indent}-"), item, depth, text);
            }
        }
        scalar => text.push_str(&format!("{indent}{}\n", plain(scalar))),
    }
}

fn field_line(start: &str, value: &Value, depth: usize, text: &mut String) {
    let empty = match value {
        Value::Object(fields) => fields.is_empty(),
        Value::Array(items) => items.is_empty(),
        _ => false,
    };
    match value {
        Value::Object(_) | Value::Array(_) if !empty => {
            text.push_str(start);
            text.push('\n');
            outline(value, depth + 1, text);
        }
        Value::Object(_) | Value::Array(_) => text.push_str(&format!("{start} <none>\n")),
        Value::String(long) if long.contains('\n') => {
            text.push_str(start);
            text.push('\n');
            let indent = "  ".repeat(depth + 1);
            for line in long.lines() {
                text.push_str(&format!("{indent}{line}\n"));
            }
        }
        scalar => text.push_str(&format!("{start} {}\n", plain(scalar))),
    }
}

fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

async fn events(
    connection: &Connection,
    kind: &str,
    name: &str,
    namespace: Option<&str>,
) -> Result<()> {
    let events = kinds::kind("events")?;
    let selector = format!("involvedObject.kind={kind},involvedObject.name={name}");
    let parameters = ListParams::default().fields(&selector);
    let api = connection.api_in(events, namespace.unwrap_or("default"));
    let mut list = api.list(&parameters).await?.items;
    let stamp = |event: &kube::api::DynamicObject| {
        event.data["lastTimestamp"]
            .as_str()
            .unwrap_or("")
            .to_string()
    };
    list.sort_by_key(stamp);
    println!("{}", Paint::stdout().strong("Events:"));
    if list.is_empty() {
        println!("  <none>");
        return Ok(());
    }
    let mut table = Table::new(["LAST SEEN", "TYPE", "REASON", "COUNT", "MESSAGE"]);
    for event in &list {
        let text = |field: &str| event.data[field].as_str().unwrap_or("").to_string();
        let count = event.data["count"].as_i64().unwrap_or(1).to_string();
        table.row([
            text("lastTimestamp"),
            text("type"),
            text("reason"),
            count,
            text("message"),
        ]);
    }
    print!("{}", table.render());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outline_indents_what_is_inside_and_says_what_is_empty() {
        let value = serde_json::json!({"a": {"b": [1, {"c": "x"}], "d": {}}, "e": "two\nlines"});
        let mut text = String::new();
        outline(&value, 0, &mut text);
        assert_eq!(
            text,
            "a:\n  b:\n    - 1\n    -\n      c: x\n  d: <none>\ne:\n  two\n  lines\n"
        );
    }
}
