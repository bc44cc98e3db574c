//! `muster suspend`, `muster resume`, `muster cancel`.

use administration::cancellation::suspension;
use anyhow::Result;
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use resources::registry::Kind;
use resources::volcano;

use super::connection::ServerConnection;
use super::outcome::CommandOutcome;
use super::{failure, kinds, output};
use crate::arguments::JobTarget;

/// Suspends or resumes a job; answers no if the job has ended.
pub async fn suspend(
    connection: &ServerConnection,
    target: JobTarget,
    suspend: bool,
) -> Result<CommandOutcome> {
    let (kind, job) = kinds::find_job(connection, &target.name).await?;
    if let Some(end) = kinds::ended(&job) {
        let name = output::name_of(&job, kind);
        eprintln!("muster: {name} is {end}: there is nothing left to suspend or resume");
        return Ok(CommandOutcome::No);
    }
    if kind.is_volcano_job() {
        return order(connection, kind, &job, &target, suspend).await;
    }
    let suspends = match (kind.group, kind.kind) {
        ("batch", "Job") | ("ray.io", "RayCluster" | "RayJob" | "RayService") => true,
        _ => kind.training().is_some() || kinds::is_job_set(kind),
    };
    if !suspends {
        let message = format!("a {} cannot be suspended", kind.kind);
        return Err(failure::usage(message));
    }
    let patch = suspension(kind, suspend, None);
    let name = job.metadata.name.as_deref().unwrap_or_default();
    let patched = connection
        .api(kind)
        .patch(name, &PatchParams::default(), &Patch::Merge(&patch))
        .await?;
    let word = if suspend { "suspended" } else { "resumed" };
    say(&patched, kind, &target, word)
}

/// Suspends or resumes a Volcano Job by a Command, which its controller carries out.
async fn order(
    connection: &ServerConnection,
    kind: &Kind,
    job: &DynamicObject,
    target: &JobTarget,
    suspend: bool,
) -> Result<CommandOutcome> {
    let (action, word) = match suspend {
        true => ("AbortJob", "suspended"),
        false => ("ResumeJob", "resumed"),
    };
    let name = job.metadata.name.as_deref().unwrap_or_default();
    let uid = job.metadata.uid.as_deref().unwrap_or_default();
    let command = volcano::command(name, uid, action, &format!("muster: the job is {word}"));
    let commands = connection.api(kinds::kind("commands.bus.volcano.sh")?);
    let command: DynamicObject = serde_json::from_value(command)?;
    commands.create(&PostParams::default(), &command).await?;
    say(job, kind, target, word)
}

/// Deletes a job with its pods.
pub async fn cancel(connection: &ServerConnection, target: JobTarget) -> Result<CommandOutcome> {
    let (kind, job) = kinds::find_job(connection, &target.name).await?;
    let name = job.metadata.name.as_deref().unwrap_or_default();
    connection
        .api(kind)
        .delete(name, &DeleteParams::background())
        .await?;
    say(&job, kind, &target, "cancelled")
}

fn say(job: &DynamicObject, kind: &Kind, target: &JobTarget, word: &str) -> Result<CommandOutcome> {
    match target.output {
        Some(form) => output::print_object(job, kind, form)?,
        None => output::put_line(&format!("{} {word}", output::name_of(job, kind)))?,
    }
    Ok(CommandOutcome::Yes)
}
