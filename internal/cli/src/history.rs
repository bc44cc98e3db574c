//! `muster explain NAME --history`: the scheduler's decisions on a job or gang, oldest first.

use anyhow::Result;
use resources::record::DecisionRecord;
use resources::registry::Kind;
use serde_json::Value;

use super::connection::ServerConnection;
use super::outcome::CommandOutcome;
use super::output::{self, Paint};
use super::platform::escape;
use super::{failure, kinds};
use crate::arguments::{Output, Subject};

/// Prints the records of a job, gang or pod, including a deleted one.
pub async fn history(
    connection: &ServerConnection,
    subject: &Subject,
    among: &[&'static Kind],
) -> Result<CommandOutcome> {
    let namespace = &connection.namespace;
    let found = kinds::find(connection, &subject.name, among).await?;
    let waits = match &found {
        Some((kind, object)) => kinds::waits_with(connection, kind, object).await?,
        None => None,
    };
    let bare = subject.name.rsplit('/').next().unwrap_or_default();
    let path = match &waits {
        Some((kind, name)) => format!(
            "/api/v1/jobs/{namespace}/{}/{}/history",
            kinds::address(kind),
            escape(name)
        ),
        None => format!("/api/v1/gangs/{namespace}/{}/history", escape(bare)),
    };
    let answer = connection.ask(&path).await?;
    let records = read(&answer)?;
    if records.is_empty() && found.is_none() {
        return Err(failure::not_found(format!(
            "there is no job, pod or gang {:?} in namespace {namespace:?}, and no decision on one is kept",
            subject.name
        )));
    }
    match subject.output {
        Some(Output::Json | Output::Yaml) => {
            output::print_value(&answer, subject.output.unwrap_or(Output::Json))?;
        }
        _ if records.is_empty() => {
            output::put_line("No decision on it is kept.")?;
        }
        _ => output::put(&words(&records))?,
    }
    Ok(CommandOutcome::Yes)
}

fn read(answer: &Value) -> Result<Vec<DecisionRecord>> {
    let items = answer["items"].as_array().cloned().unwrap_or_default();
    let records = items.into_iter().map(serde_json::from_value);
    Ok(records.collect::<Result<_, _>>()?)
}

fn words(records: &[DecisionRecord]) -> String {
    let paint = Paint::stdout();
    let mut out = String::new();
    for record in records {
        let until = match record.until {
            Some(until) => format!(" to {until:.0}"),
            None => String::new(),
        };
        out.push_str(&format!(
            "{} {}\n  {}\n",
            paint.strong(record.decision.as_str()),
            paint.dim(&format!("{:.0}{until}", record.at)),
            record.message()
        ));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn each_decision_is_told_with_its_time_and_all_that_it_says() {
        let answer = json!({"items": [
            {"group": "j", "at": "2026-01-01T00:00:00.123Z", "until": "2026-01-01T00:05:00Z",
             "decision": "pending", "verdict": "InsufficientResources", "sentence": "gang of 6 must start together.",
             "binding": "2 of 8 GPUs are free", "wouldFit": "room for 4 more",
             "evictions": "no pods are evicted for it: no pod may be evicted"},
            {"group": "j", "at": "2026-01-01T00:05:01Z", "decision": "bound",
             "sentence": "1 pod placed: j-0 on n1", "pods": [{"pod": "j-0", "node": "n1"}], "count": 1},
        ]});
        let text = words(&read(&answer).unwrap());
        assert_eq!(
            text,
            "pending 2026-01-01T00:00:00Z to 2026-01-01T00:05:00Z\n  gang of 6 must start together. What binds: 2 of 8 GPUs are free. What would fit: room for 4 more. no pods are evicted for it: no pod may be evicted\nbound 2026-01-01T00:05:01Z\n  1 pod placed: j-0 on n1\n"
        );
    }
}
