//! `muster describe`: a page for a job, an outline for every other object, each with its events.

mod events;
mod job;
mod outline;
mod texts;

use anyhow::Result;

use super::connection::ServerConnection;
use super::outcome::CommandOutcome;
use super::output;
use super::{failure, kinds};
use crate::arguments::Target;

/// Shows one resource with its events.
pub async fn describe(connection: &ServerConnection, target: Target) -> Result<CommandOutcome> {
    let names: Vec<String> = target.name.into_iter().collect();
    let (kind, names) = kinds::split(&target.what, &names)?;
    let [name] = names.as_slice() else {
        return Err(failure::usage(format!(
            "name one {} to describe; `muster get {}` lists those there are",
            kind.singular, kind.plural
        )));
    };
    let object = connection.api(kind).get(name).await?;
    let namespace = object.metadata.namespace.clone();
    let mut subjects = vec![(kind.kind.to_string(), name.clone())];
    let text = if kinds::job_kinds().iter().any(|job| job.is(kind)) {
        let page = job::JobDescription::read(connection, kind, object).await?;
        subjects.extend(page.related());
        page.render()
    } else {
        outline::of(serde_json::to_value(&object)?)
    };
    output::put(&text)?;
    let events = events::of(connection, namespace.as_deref(), &subjects).await?;
    output::put(&events)?;
    Ok(CommandOutcome::Yes)
}
