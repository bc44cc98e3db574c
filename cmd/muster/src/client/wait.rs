//! `muster wait`: until a condition is true, or until something is gone.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use futures::StreamExt;
use kube::api::DynamicObject;
use resources::registry::Kind;
use serde_json::Value;

use super::output::{self, Paint};
use super::{Answer, Connection, kinds};
use crate::arguments::Wait;

/// How often a failed watch is tried again before the wait gives up.
const MOST_ERRORS: u32 = 40;

/// How long to rest before trying again.
const REST: Duration = Duration::from_millis(500);

enum Until {
    Gone,
    Condition(String),
}

fn until(text: &str) -> Result<Until> {
    match text.split_once('=') {
        None if text == "delete" => Ok(Until::Gone),
        Some(("condition", name)) if !name.is_empty() => Ok(Until::Condition(name.to_string())),
        _ => bail!("--for: Invalid value: {text:?}: use condition=NAME or delete"),
    }
}

/// Waits; yes when it happened, no when the time is over or it can't happen any more.
pub async fn wait(connection: &Connection, arguments: Wait) -> Result<Answer> {
    let until = until(&arguments.until)?;
    let (kind, name) = match arguments.target.split_once('/') {
        Some((word, name)) => (kinds::kind(word)?, name.to_string()),
        None => {
            let (kind, _) = kinds::find_job(connection, &arguments.target).await?;
            (kind, arguments.target.clone())
        }
    };
    let waiting = follow(connection, kind, &name, &until);
    let seconds = Duration::from_secs(arguments.timeout);
    match tokio::time::timeout(seconds, waiting).await {
        Ok(answer) => answer,
        Err(_) => {
            eprintln!(
                "{}/{name} was not there after {} s: {}; `muster explain` or `muster describe` says why",
                kind.singular, arguments.timeout, arguments.until
            );
            Ok(Answer::No)
        }
    }
}

async fn follow(connection: &Connection, kind: &Kind, name: &str, until: &Until) -> Result<Answer> {
    let api = connection.api(kind);
    let mut changes = std::pin::pin!(kube::runtime::watcher::watch_object(api, name));
    let mut errors = 0;
    loop {
        let object = match changes.next().await {
            Some(Ok(object)) => object,
            Some(Err(error)) => {
                errors += 1;
                if errors > MOST_ERRORS {
                    return Err(error).context("the watch failed again and again");
                }
                tokio::time::sleep(REST).await;
                continue;
            }
            None => bail!("the watch ended"),
        };
        errors = 0;
        match (until, object) {
            (Until::Gone, None) => {
                println!("{}/{name} is gone", kind.singular);
                return Ok(Answer::Yes);
            }
            (Until::Gone, Some(_)) => {}
            (Until::Condition(_), None) => {
                eprintln!("{}/{name} does not exist", kind.singular);
                return Ok(Answer::No);
            }
            (Until::Condition(condition), Some(object)) => {
                if let Some(answer) = judge(&object, kind, condition) {
                    return Ok(answer);
                }
            }
        }
    }
}

/// Whether an object's condition is `True`.
pub fn has_condition(object: &DynamicObject, name: &str) -> bool {
    let conditions = object.data["status"]["conditions"].as_array();
    conditions
        .into_iter()
        .flatten()
        .any(|condition| is_true(condition, name))
}

fn is_true(condition: &Value, name: &str) -> bool {
    condition["status"] == "True"
        && condition["type"]
            .as_str()
            .is_some_and(|kind| kind.eq_ignore_ascii_case(name))
}

fn judge(object: &DynamicObject, kind: &Kind, wanted: &str) -> Option<Answer> {
    let paint = Paint::stdout();
    if has_condition(object, wanted) {
        println!(
            "{} {}",
            output::name_of(object, kind),
            paint.good(&format!("condition {wanted} met"))
        );
        return Some(Answer::Yes);
    }
    // A job that is over can't get there any more: say so instead of waiting on.
    let over = ["Succeeded", "Failed", "Complete"]
        .into_iter()
        .find(|end| has_condition(object, end))?;
    println!(
        "{} {}",
        output::name_of(object, kind),
        paint.bad(&format!("is {over}, not {wanted}"))
    );
    Some(Answer::No)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_to_wait_for_is_a_condition_or_delete() {
        assert!(matches!(until("delete"), Ok(Until::Gone)));
        assert!(matches!(until("condition=Ready"), Ok(Until::Condition(c)) if c == "Ready"));
        for bad in ["", "condition=", "jsonpath=x", "ready"] {
            assert!(until(bad).is_err(), "{bad}");
        }
    }
}
