//! `muster alerts`: the alerts that fire, their silences and the receivers that are notified.

use std::time::Duration;

use alerting::DeliveryRecord;
use anyhow::{Result, bail};
use jiff::Timestamp;
use resources::span::human_duration;
use serde_json::{Value, json};

use super::connection::ServerConnection;
use super::outcome::CommandOutcome;
use super::output::{self, Table};
use super::platform::escape;
use crate::arguments::{AlertsArguments, AlertsCommand};

/// How often the result of a test is asked for, and how many times: longer than a receiver may take.
const ASKED_EVERY: Duration = Duration::from_millis(500);
const ASKED_MAX: u32 = 60;

/// Lists alerts, silences and receivers, and changes silences.
pub async fn alerts(
    connection: &ServerConnection,
    arguments: AlertsArguments,
) -> Result<CommandOutcome> {
    match arguments.command {
        None => list(connection, arguments.output.is_some()).await,
        Some(AlertsCommand::Receivers) => receivers(connection).await,
        Some(AlertsCommand::Test { name }) => test(connection, &name).await,
        Some(AlertsCommand::Silences) => silences(connection).await,
        Some(AlertsCommand::Silence {
            rule,
            on,
            seconds,
            comment,
        }) => {
            let body = json!({"rule": rule, "on": on, "seconds": seconds, "comment": comment});
            let made = connection
                .call("POST", "/api/v1/alert-silences", &body)
                .await?;
            output::put_line(&format!(
                "silence {} holds until {}; `muster alerts unsilence {}` ends it",
                made["id"],
                text(&made, "until"),
                made["id"]
            ))?;
            Ok(CommandOutcome::Yes)
        }
        Some(AlertsCommand::Unsilence { id }) => {
            let path = format!("/api/v1/alert-silences/{id}");
            connection.call("DELETE", &path, &Value::Null).await?;
            output::put_line(&format!("silence {id} has ended"))?;
            Ok(CommandOutcome::Yes)
        }
    }
}

fn text(of: &Value, field: &str) -> String {
    of[field].as_str().unwrap_or_default().to_owned()
}

fn items(answer: &Value) -> impl Iterator<Item = &Value> {
    answer["items"].as_array().into_iter().flatten()
}

async fn list(connection: &ServerConnection, json: bool) -> Result<CommandOutcome> {
    let answer = connection.ask("/api/v1/alerts").await?;
    if json {
        output::put_line(&serde_json::to_string_pretty(&answer)?)?;
        return Ok(CommandOutcome::Yes);
    }
    let mut table = Table::new(["SEVERITY", "ALERT", "ON", "SINCE", "MESSAGE"]);
    let now = Timestamp::now();
    let mut count = 0;
    for alert in items(&answer) {
        count += 1;
        let on = match alert["subject"].as_str() {
            Some(subject) => subject.to_owned(),
            None => format!("{}/{}", text(alert, "node"), alert["gpu"]),
        };
        let since = text(alert, "since").parse::<Timestamp>();
        let since = since.map_or_else(
            |_| "-".to_owned(),
            |since| human_duration(now.duration_since(since).as_secs()),
        );
        let silenced = alert["silenced"].as_bool().unwrap_or_default();
        let severity = match silenced {
            true => format!("{} (silenced)", text(alert, "severity")),
            false => text(alert, "severity"),
        };
        let mut message = text(alert, "message");
        let advice = text(alert, "advice");
        if !advice.is_empty() {
            message = format!("{message}. {advice}");
        }
        table.row([severity, text(alert, "alert"), on, since, message]);
    }
    if count == 0 {
        eprintln!("No alert fires.");
    } else {
        output::put(&table.render())?;
    }
    Ok(CommandOutcome::Yes)
}

async fn receivers(connection: &ServerConnection) -> Result<CommandOutcome> {
    let answer = connection.ask("/api/v1/alert-receivers").await?;
    let mut table = Table::new(["RECEIVER", "KIND", "FROM", "WAITING", "LAST", "LAST RESULT"]);
    let mut count = 0;
    for receiver in items(&answer) {
        count += 1;
        let all = deliveries(receiver)?;
        let waiting = all.iter().filter(|one| one.waits).count();
        let last = all.iter().find(|one| one.attempts > 0);
        let (at, result) = last.map_or((String::new(), String::new()), |last| {
            (last.at.to_string(), last.outcome())
        });
        table.row([
            text(receiver, "name"),
            text(receiver, "kind"),
            text(receiver, "severity"),
            waiting.to_string(),
            at,
            result,
        ]);
    }
    if count == 0 {
        eprintln!(
            "The server has no receivers; name them in the file of --alert-receivers (`muster server --help`)."
        );
    } else {
        output::put(&table.render())?;
    }
    Ok(CommandOutcome::Yes)
}

/// The latest deliveries to a receiver.
fn deliveries(receiver: &Value) -> Result<Vec<DeliveryRecord>> {
    Ok(serde_json::from_value(receiver["deliveries"].clone())?)
}

async fn test(connection: &ServerConnection, name: &str) -> Result<CommandOutcome> {
    let path = format!("/api/v1/alert-receivers/{}/test", escape(name));
    let made = connection.call("POST", &path, &json!({})).await?;
    let id = text(&made, "id");
    for _ in 0..ASKED_MAX {
        let answer = connection.ask("/api/v1/alert-receivers").await?;
        let receiver = items(&answer).find(|one| one["name"] == name);
        let all = receiver.map(deliveries).transpose()?.unwrap_or_default();
        if let Some(own) = all.iter().find(|one| one.id == id && !one.waits) {
            if own.failure.is_empty() {
                output::put_line(&format!("receiver {name} took the test"))?;
                return Ok(CommandOutcome::Yes);
            }
            bail!("receiver {name} did not take the test: {}", own.failure);
        }
        tokio::time::sleep(ASKED_EVERY).await;
    }
    bail!(
        "the test still waits behind other deliveries to receiver {name}; `muster alerts receivers` shows them"
    )
}

async fn silences(connection: &ServerConnection) -> Result<CommandOutcome> {
    let answer = connection.ask("/api/v1/alert-silences").await?;
    let mut table = Table::new(["NUMBER", "RULE", "ON", "UNTIL", "BY", "COMMENT"]);
    let mut count = 0;
    for silence in items(&answer) {
        count += 1;
        let or_all = |field: &str| silence[field].as_str().unwrap_or("all").to_owned();
        table.row([
            silence["id"].to_string(),
            or_all("rule"),
            or_all("on"),
            text(silence, "until"),
            text(silence, "by"),
            text(silence, "comment"),
        ]);
    }
    if count == 0 {
        eprintln!("There is no silence.");
    } else {
        output::put(&table.render())?;
    }
    Ok(CommandOutcome::Yes)
}
