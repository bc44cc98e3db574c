//! `muster suspend`, `muster resume`, `muster cancel`.

use anyhow::{Result, bail};
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::json;

use super::{Answer, Connection, kinds, output};
use crate::arguments::JobTarget;

/// Suspends a job, or resumes it.
pub async fn suspend(connection: &Connection, target: JobTarget, suspend: bool) -> Result<Answer> {
    let (kind, job) = kinds::find_job(connection, &target.name).await?;
    let patch = match kind.kind {
        "PyTorchJob" => json!({"spec": {"runPolicy": {"suspend": suspend}}}),
        "Job" => json!({"spec": {"suspend": suspend}}),
        other => bail!("a {other} can't be suspended"),
    };
    let name = job.metadata.name.as_deref().unwrap_or_default();
    let patched = connection
        .api(kind)
        .patch(name, &PatchParams::default(), &Patch::Merge(&patch))
        .await?;
    match target.output {
        Some(form) => output::print_object(&patched, kind, form)?,
        None => {
            let word = if suspend { "suspended" } else { "resumed" };
            println!("{} {word}", output::name_of(&patched, kind));
        }
    }
    Ok(Answer::Yes)
}

/// Deletes a job with its pods.
pub async fn cancel(connection: &Connection, target: JobTarget) -> Result<Answer> {
    let (kind, job) = kinds::find_job(connection, &target.name).await?;
    let name = job.metadata.name.as_deref().unwrap_or_default();
    connection
        .api(kind)
        .delete(name, &DeleteParams::background())
        .await?;
    println!("{} cancelled", output::name_of(&job, kind));
    Ok(Answer::Yes)
}
