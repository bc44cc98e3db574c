//! `muster delete`.

use anyhow::Result;
use kube::api::{DeleteParams, PropagationPolicy};
use resources::registry::{self, Kind};

use super::connection::ServerConnection;
use super::outcome::CommandOutcome;
use super::{error_message, failure, kinds, manifests, output};
use crate::arguments;

/// Deletes the named objects or those in manifests, together with their dependents.
pub async fn delete(
    connection: &ServerConnection,
    arguments: arguments::Delete,
) -> Result<CommandOutcome> {
    let parameters = DeleteParams {
        grace_period_seconds: arguments.grace_period,
        propagation_policy: Some(if arguments.orphan {
            PropagationPolicy::Orphan
        } else {
            PropagationPolicy::Background
        }),
        ..DeleteParams::default()
    };
    let mut targets: Vec<(&'static Kind, String, String)> = Vec::new();
    if let Some(what) = &arguments.what {
        let (kind, names) = kinds::split(what, &arguments.names)?;
        if names.is_empty() {
            return Err(failure::usage(format!(
                "name the {} to delete",
                kind.plural
            )));
        }
        targets.extend(
            names
                .into_iter()
                .map(|name| (kind, connection.namespace.clone(), name)),
        );
    }
    if !arguments.files.is_empty() {
        for manifest in manifests::read(&arguments.files)? {
            let value = &manifest.value;
            let text = |pointer: &str| {
                value
                    .pointer(pointer)
                    .and_then(|v| v.as_str())
                    .unwrap_or("")
            };
            let api_version = text("/apiVersion");
            let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
            let Some(kind) = registry::by_kind(group, version, text("/kind")) else {
                return Err(failure::not_found(format!(
                    "{}: there is no kind {:?} in {api_version:?}",
                    manifest.origin,
                    text("/kind")
                )));
            };
            let namespace = match text("/metadata/namespace") {
                "" => connection.namespace.clone(),
                namespace => namespace.to_string(),
            };
            targets.push((kind, namespace, text("/metadata/name").to_string()));
        }
    }
    if targets.is_empty() {
        return Err(failure::usage(
            "say what to delete: KIND NAME..., KIND/NAME, or -f FILE",
        ));
    }
    let mut missing = None;
    for (kind, namespace, name) in targets {
        match connection
            .api_in(kind, &namespace)
            .delete(&name, &parameters)
            .await
        {
            Ok(_) => output::put_line(&format!("{} {name:?} deleted", kind.singular))?,
            Err(kube::Error::Api(status)) if status.is_not_found() => {
                let error = error_message::in_words(kube::Error::Api(status).into(), connection);
                if let Some(earlier) = missing.replace(error) {
                    eprintln!("muster: {earlier:#}");
                }
            }
            Err(error) => return Err(error.into()),
        }
    }
    missing.map_or(Ok(CommandOutcome::Yes), Err)
}
