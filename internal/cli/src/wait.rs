//! `muster wait`: waits until a condition is true, or until an object is deleted.

use std::time::Duration;

use anyhow::Result;
use kube::api::DynamicObject;
use kube::runtime::watcher::watch_object;
use resources::registry::Kind;

use super::connection::ServerConnection;
use super::exit::ExitCause;
use super::outcome::CommandOutcome;
use super::output::{self, Paint, ProgressReporter};
use super::{failure, kinds, ranks};
use crate::arguments::Wait;
use crate::wait_events::{SUCCEEDED, WaitEvent};

/// Prints the result of a wait.
type WaitReporter = fn(&str) -> Result<()>;

/// Waits. Answers yes if the event happened, no if it cannot happen any more.
pub async fn wait(connection: &ServerConnection, arguments: Wait) -> Result<CommandOutcome> {
    let until = &arguments.until;
    let found = find(connection, &arguments.target).await;
    let (kind, name) = match found {
        Ok(found) => found,
        Err(error) if matches!(until, WaitEvent::Gone) && is_missing(&error) => {
            output::put_line(&format!("{} is gone", arguments.target))?;
            return Ok(CommandOutcome::Yes);
        }
        Err(error) => return Err(error),
    };
    let waiting = follow(connection, kind, &name, until, output::put_line);
    let seconds = Duration::from_secs(arguments.timeout);
    match tokio::time::timeout(seconds, waiting).await {
        Ok(answer) => answer,
        Err(_) => {
            let waits = ["pods", "podgroups"].contains(&kind.plural)
                || kinds::waiting_kinds().iter().any(|one| one.is(kind));
            let word = kinds::word(kind);
            let command = if waits { "explain" } else { "describe" };
            eprintln!(
                "{word}/{name}: {until} was not reached within {} s\n  `muster {command} {word}/{name}` shows the state",
                arguments.timeout
            );
            Ok(CommandOutcome::TimedOut)
        }
    }
}

/// Waits for a job's end without a limit and reports it on standard error; answers yes if the job
/// succeeded.
pub async fn until_success(
    connection: &ServerConnection,
    kind: &Kind,
    name: &str,
) -> Result<CommandOutcome> {
    let success = WaitEvent::Condition(SUCCEEDED.to_string());
    follow(connection, kind, name, &success, output::tell).await
}

/// Finds the object, which must exist when the wait begins; a bare name is a job's.
async fn find(connection: &ServerConnection, target: &str) -> Result<(&'static Kind, String)> {
    let Some((word, name)) = target.split_once('/') else {
        let (kind, _) = kinds::find_job(connection, target).await?;
        return Ok((kind, target.to_string()));
    };
    let kind = kinds::kind(word)?;
    connection.api(kind).get(name).await?;
    Ok((kind, name.to_string()))
}

fn is_missing(error: &anyhow::Error) -> bool {
    failure::exit_of(error) == ExitCause::NotFound
}

async fn follow(
    connection: &ServerConnection,
    kind: &Kind,
    name: &str,
    until: &WaitEvent,
    say: WaitReporter,
) -> Result<CommandOutcome> {
    let mut changes = std::pin::pin!(watch_object(connection.api(kind), name));
    let mut progress = ProgressReporter::default();
    let word = kinds::word(kind);
    loop {
        match (until, ranks::next(&mut changes).await?) {
            (WaitEvent::Gone, None) => {
                say(&format!("{word}/{name} is gone"))?;
                return Ok(CommandOutcome::Yes);
            }
            (WaitEvent::Gone, Some(object)) => {
                let (state, _) = kinds::state(&object);
                progress.say(&format!("{word}/{name} is {state}"));
            }
            (WaitEvent::Condition(_), None) => {
                eprintln!("{word}/{name} was deleted");
                return Ok(CommandOutcome::No);
            }
            (WaitEvent::Condition(condition), Some(object)) => {
                if let Some(answer) = judge(&object, kind, condition, say)? {
                    return Ok(answer);
                }
                let (state, message) = kinds::state(&object);
                progress.say(format!("{word}/{name} is {state}  {message}").trim());
            }
        }
    }
}

fn judge(
    object: &DynamicObject,
    kind: &Kind,
    wanted: &str,
    say: WaitReporter,
) -> Result<Option<CommandOutcome>> {
    let paint = Paint::stdout();
    let name = output::name_of(object, kind);
    if meets(object, wanted) {
        let words = paint.good(&format!("condition {wanted} met"));
        say(&format!("{name} {words}"))?;
        return Ok(Some(CommandOutcome::Yes));
    }
    // An ended object cannot reach the condition any more: report that instead of waiting on.
    let Some(over) = kinds::ended(object) else {
        return Ok(None);
    };
    let (_, message) = kinds::state(object);
    let words = paint.bad(&format!("is {over}, not {wanted}"));
    say(format!("{name} {words}  {message}").trim())?;
    Ok(Some(CommandOutcome::No))
}

/// The success condition of a Job is called Complete, and that of a Volcano Job Completed.
fn meets(object: &DynamicObject, wanted: &str) -> bool {
    let names = ["Complete", "Completed"];
    kinds::has_condition(object, wanted)
        || wanted == SUCCEEDED && names.iter().any(|name| kinds::has_condition(object, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_over_without_what_was_waited_for_is_a_no_and_complete_is_success() {
        let job = |condition: &str| -> DynamicObject {
            let status = serde_json::json!({"conditions": [{"type": condition, "status": "True"}]});
            serde_json::from_value(serde_json::json!({"metadata": {"name": "j"}, "status": status}))
                .unwrap()
        };
        let kind = kinds::kind("jobs").unwrap();
        let judged = |condition: &str| judge(&job(condition), kind, SUCCEEDED, |_| Ok(())).unwrap();
        assert_eq!(judged("Complete"), Some(CommandOutcome::Yes));
        assert_eq!(judged("Failed"), Some(CommandOutcome::No));
        assert_eq!(judged("Running"), None);
        let volcano = |phase: &str| {
            let status = serde_json::json!({"state": {"phase": phase}});
            let job = serde_json::json!({"metadata": {"name": "j"}, "status": status});
            judge(
                &serde_json::from_value(job).unwrap(),
                kind,
                SUCCEEDED,
                |_| Ok(()),
            )
            .unwrap()
        };
        assert_eq!(volcano("Completed"), Some(CommandOutcome::Yes));
        assert_eq!(volcano("Terminated"), Some(CommandOutcome::No));
        assert_eq!(volcano("Completing"), None);
    }
}
