//! An indented outline of any object, for kinds without a page.

use serde_json::Value;

/// Metadata that the outline omits.
const HIDDEN: [&str; 3] = ["managedFields", "resourceVersion", "uid"];

/// An object's outline, without the hidden metadata.
pub fn of(mut value: Value) -> String {
    if let Some(metadata) = value["metadata"].as_object_mut() {
        metadata.retain(|key, _| !HIDDEN.contains(&key.as_str()));
    }
    let mut text = String::new();
    outline(&value, 0, &mut text);
    text
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
                let mut inner = String::new();
                match item {
                    Value::Object(fields) if !fields.is_empty() => {
                        outline(item, depth + 1, &mut inner);
                        // The first field of a list entry stands on the line of the dash.
                        inner.replace_range(indent.len()..indent.len() + 1, "-");
                    }
                    _ => field_line(&format!("{indent}-"), item, depth, &mut inner),
                }
                text.push_str(&inner);
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
            "a:\n  b:\n    - 1\n    - c: x\n  d: <none>\ne:\n  two\n  lines\n"
        );
    }
}
