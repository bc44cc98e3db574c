//! `muster apply`: server-side apply of every manifest, in the order given.

use anyhow::{Context, Result};
use kube::api::{DynamicObject, Patch, PatchParams, PostParams};
use resources::registry::{self, Kind};

use super::connection::ServerConnection;
use super::manifests::{self, Manifest};
use super::outcome::CommandOutcome;
use super::{failure, output};
use crate::arguments;

/// The field manager that this command applies as.
pub const FIELD_MANAGER: &str = "muster";

/// Applies the manifests in order. Stops at the first error, after printing the results so far.
pub async fn apply(
    connection: &ServerConnection,
    arguments: arguments::Apply,
) -> Result<CommandOutcome> {
    for manifest in manifests::read(&arguments.files)? {
        let (kind, object, word) = apply_one(connection, &manifest, &arguments)
            .await
            .with_context(|| manifest.origin.clone())?;
        match arguments.output {
            None => {
                let suffix = if arguments.dry_run { " (dry run)" } else { "" };
                output::put_line(&format!(
                    "{} {word}{suffix}",
                    output::name_of(&object, kind)
                ))?;
            }
            Some(form) => output::print_object(&object, kind, form)?,
        }
    }
    Ok(CommandOutcome::Yes)
}

fn kind_of(manifest: &Manifest) -> Result<&'static Kind> {
    let api_version = manifest.value["apiVersion"].as_str().unwrap_or("");
    let word = manifest.value["kind"].as_str().unwrap_or("");
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    registry::by_kind(group, version, word).ok_or_else(|| {
        let known: Vec<String> = registry::all()
            .iter()
            .filter(|kind| kind.kind.eq_ignore_ascii_case(word))
            .map(|kind| format!("{} is in apiVersion {}", kind.kind, kind.api_version()))
            .collect();
        let advice = match known.as_slice() {
            [] => {
                "`muster get KIND` lists the kinds there are when it does not know one".to_string()
            }
            known => known.join(", "),
        };
        failure::not_found(format!(
            "there is no kind {word:?} in apiVersion {api_version:?}\n  {advice}"
        ))
    })
}

async fn apply_one(
    connection: &ServerConnection,
    manifest: &Manifest,
    arguments: &arguments::Apply,
) -> Result<(&'static Kind, DynamicObject, &'static str)> {
    let kind = kind_of(manifest)?;
    let namespace = manifest.value["metadata"]["namespace"]
        .as_str()
        .unwrap_or(&connection.namespace);
    let api = connection.api_in(kind, namespace);
    let Some(name) = manifest.value["metadata"]["name"].as_str() else {
        // Each object with generateName is new, so that it is created, not applied.
        let object: DynamicObject = serde_json::from_value(manifest.value.clone())?;
        let parameters = PostParams {
            dry_run: arguments.dry_run,
            field_manager: Some(FIELD_MANAGER.to_string()),
        };
        return Ok((kind, api.create(&parameters, &object).await?, "created"));
    };
    let before = api.get_opt(name).await?;
    // An unknown field is an error here, not a warning that is easily overlooked.
    let mut parameters = PatchParams::apply(FIELD_MANAGER).validation_strict();
    parameters.dry_run = arguments.dry_run;
    parameters.force = arguments.force_conflicts;
    let after = api
        .patch(name, &parameters, &Patch::Apply(&manifest.value))
        .await?;
    let word = match before {
        None => "created",
        Some(before) if before.metadata.resource_version == after.metadata.resource_version => {
            "unchanged"
        }
        Some(_) => "configured",
    };
    Ok((kind, after, word))
}
