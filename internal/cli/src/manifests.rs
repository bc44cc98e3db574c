//! Reads manifests: YAML or JSON, several documents, files, directories, standard input.

use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::Deserialize;
use serde_json::Value;

use super::exit::ExitCause;
use super::failure;

/// A manifest and its origin, for messages.
pub struct Manifest {
    /// The object.
    pub value: Value,
    /// The file and the document's number in it.
    pub origin: String,
}

/// Reads every document of these files.
pub fn read(files: &[PathBuf]) -> Result<Vec<Manifest>> {
    let mut manifests = Vec::new();
    for file in files {
        if file == Path::new("-") {
            let mut text = String::new();
            std::io::stdin()
                .read_to_string(&mut text)
                .context("standard input cannot be read")?;
            parse(&text, "standard input", &mut manifests)?;
        } else if file.is_dir() {
            for path in manifests_in(file)? {
                read_file(&path, &mut manifests)?;
            }
        } else {
            read_file(file, &mut manifests)?;
        }
    }
    if manifests.is_empty() {
        return Err(failure::usage("no manifest was found in what was named"));
    }
    Ok(manifests)
}

fn manifests_in(directory: &Path) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(directory)
        .with_context(|| format!("{} cannot be read", directory.display()))?;
    let mut paths = Vec::new();
    for entry in entries {
        let path = entry?.path();
        let manifest = path
            .extension()
            .is_some_and(|e| e == "yaml" || e == "yml" || e == "json");
        if manifest {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

fn read_file(path: &Path, into: &mut Vec<Manifest>) -> Result<()> {
    let text = std::fs::read_to_string(path).map_err(|error| {
        let exit = match error.kind() {
            std::io::ErrorKind::NotFound => ExitCause::NotFound,
            _ => ExitCause::Failed,
        };
        failure::with(exit, format!("{} cannot be read: {error}", path.display()))
    })?;
    parse(&text, &path.display().to_string(), into)
}

fn parse(text: &str, origin: &str, into: &mut Vec<Manifest>) -> Result<()> {
    for (i, document) in serde_norway::Deserializer::from_str(text).enumerate() {
        let origin = format!("{origin}, document {}", i + 1);
        let value = Value::deserialize(document)
            .map_err(|error| failure::usage(format!("{origin} is not YAML: {error}")))?;
        flatten(value, &origin, into)?;
    }
    Ok(())
}

/// Unpacks Lists and drops empty documents.
fn flatten(mut value: Value, origin: &str, into: &mut Vec<Manifest>) -> Result<()> {
    if value.is_null() {
        return Ok(());
    }
    for field in ["apiVersion", "kind"] {
        if !value[field].is_string() {
            return Err(failure::usage(format!(
                "{origin}: {field}: Required value: a manifest says what it is"
            )));
        }
    }
    let listed = value["kind"]
        .as_str()
        .is_some_and(|kind| kind.ends_with("List"));
    match value.get_mut("items").map(Value::take) {
        Some(Value::Array(items)) if listed => items
            .into_iter()
            .try_for_each(|item| flatten(item, origin, into)),
        Some(other) => {
            value["items"] = other;
            into.push(Manifest {
                value,
                origin: origin.to_string(),
            });
            Ok(())
        }
        None => {
            into.push(Manifest {
                value,
                origin: origin.to_string(),
            });
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(text: &str) -> Result<Vec<Manifest>> {
        let mut manifests = Vec::new();
        parse(text, "f", &mut manifests)?;
        Ok(manifests)
    }

    #[test]
    fn documents_lists_and_anchors_are_read_and_empty_documents_dropped() {
        let text = "---\n---\napiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: A}\n- {apiVersion: v1, kind: B}\n---\napiVersion: v1\nkind: C\nx: &x {y: 1}\nz: *x\n";
        let read = all(text).unwrap();
        let kinds: Vec<_> = read
            .iter()
            .map(|m| m.value["kind"].as_str().unwrap())
            .collect();
        assert_eq!(kinds, ["A", "B", "C"]);
        assert_eq!(read[2].value["z"]["y"], 1);
    }

    #[test]
    fn a_document_without_a_kind_is_refused_with_its_place() {
        let error = all("apiVersion: v1\nkind: A\n---\nx: 1\n")
            .err()
            .unwrap()
            .to_string();
        assert!(error.starts_with("f, document 2: apiVersion"), "{error}");
    }
}
