//! `muster queue NAME`: the state of one queue.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use resources::queue_status::QueueUsageStatus;
use serde_json::Value;

use super::connection::ServerConnection;
use super::outcome::CommandOutcome;
use super::output::{self, Paint, Table};
use super::platform::escape;
use crate::arguments::Output;

/// The maximum number of waiting gangs that are listed.
const NAMED_MAX: usize = 20;

/// Requests one queue's state and prints it.
pub async fn queue(
    connection: &ServerConnection,
    name: &str,
    form: Option<Output>,
) -> Result<CommandOutcome> {
    let path = format!("/api/v1/queues/{}", escape(name));
    let answer = connection.ask(&path).await?;
    match form {
        Some(form @ (Output::Json | Output::Yaml)) => output::print_value(&answer, form)?,
        Some(Output::Name) => output::put_line(&format!("queue.scheduling.volcano.sh/{name}"))?,
        _ => output::put(&words(&answer)?)?,
    }
    Ok(CommandOutcome::Yes)
}

fn words(answer: &Value) -> Result<String> {
    let queue: QueueUsageStatus = serde_json::from_value(answer.clone()).context(
        "the server's answer is not a queue's status; use a muster of the server's version",
    )?;
    let paint = Paint::stdout();
    let state = answer["state"].as_str().unwrap_or("Unknown");
    let mut out = format!(
        "{}  {state}\n",
        paint.strong(&format!("queue/{}", queue.name))
    );
    let mut line = |label: &str, value: String| {
        out.push_str(&format!(
            "  {} {value}\n",
            paint.dim(&format!("{label:<10}"))
        ));
    };
    if let Some(parent) = &queue.parent {
        line("parent", parent.clone());
    }
    line("weight", queue.weight.to_string());
    let of = match &queue.dominant {
        Some(resource) => format!(" of the cluster, by {resource}"),
        None => " of the cluster".to_owned(),
    };
    line("holds", format!("{:.1}%{of}", queue.share * 100.0));
    let entitled = format!(
        "{:.1}% of what it is entitled to",
        queue.share_of_entitled * 100.0
    );
    line("", entitled);
    if let Some(resource) = &queue.above {
        line(
            "above",
            format!("more {resource} than its share: others may take it back"),
        );
    }
    line(
        "gangs",
        format!(
            "{} running, {} waiting",
            answer["running"], answer["pending"]
        ),
    );
    for fault in &queue.faults {
        line("ignored", fault.clone());
    }
    out.push('\n');
    out.push_str(&resources_table(&queue).render());
    for (title, holders) in [("USER", &queue.users), ("TEAM", &queue.teams)] {
        if !holders.is_empty() {
            out.push('\n');
            out.push_str(&holders_table(title, holders).render());
        }
    }
    if !queue.waiting.is_empty() {
        let first = queue.waiting.iter().take(NAMED_MAX);
        let named: Vec<String> = first.map(|(ns, name)| format!("{ns}/{name}")).collect();
        let more = match queue.waiting.len().saturating_sub(NAMED_MAX) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        out.push_str(&format!("\nfirst in line: {}{more}\n", named.join(", ")));
    }
    Ok(out)
}

fn resources_table(queue: &QueueUsageStatus) -> Table {
    let mut table = Table::new([
        "RESOURCE",
        "USED",
        "ASKED",
        "ENTITLED",
        "DESERVED",
        "GUARANTEED",
        "BORROWED",
        "AT MOST",
        "EACH USER",
        "EACH TEAM",
    ]);
    let or_dash = |amount: &Option<String>| amount.clone().unwrap_or_else(|| "-".to_owned());
    for row in &queue.resources {
        table.row([
            row.resource.clone(),
            row.used.clone(),
            row.requested.clone(),
            row.entitled.clone(),
            or_dash(&row.deserved),
            or_dash(&row.guaranteed),
            row.borrowed.clone(),
            or_dash(&row.at_most),
            or_dash(&row.user_limit),
            or_dash(&row.team_limit),
        ]);
    }
    table
}

fn holders_table(title: &str, holders: &BTreeMap<String, BTreeMap<String, String>>) -> Table {
    let mut table = Table::new([title, "HOLDS"]);
    for (who, held) in holders {
        let held: Vec<String> = held.iter().map(|(name, n)| format!("{name}={n}")).collect();
        let who = if who.is_empty() { "(none named)" } else { who };
        table.row([who.to_owned(), held.join(",")]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_queue_is_shown_with_its_rights_what_it_borrows_and_who_holds_it() {
        let answer = json!({
            "state": "Open", "pending": 1, "running": 2, "name": "q", "weight": 2.0,
            "share": 0.75, "dominant": "nvidia.com/gpu", "shareOfEntitled": 1.5,
            "above": "nvidia.com/gpu",
            "resources": [{"resource": "nvidia.com/gpu", "used": "6", "requested": "14",
                "entitled": "4", "deserved": "4", "borrowed": "2", "userLimit": "8"}],
            "users": {"ann": {"nvidia.com/gpu": "6"}},
            "waiting": [["team", "big"]],
        });
        let text = words(&answer).unwrap();
        let row = text
            .lines()
            .find(|line| line.starts_with("nvidia.com/gpu"))
            .unwrap();
        let cells: Vec<&str> = row.split_whitespace().collect();
        assert_eq!(
            cells,
            [
                "nvidia.com/gpu",
                "6",
                "14",
                "4",
                "4",
                "-",
                "2",
                "-",
                "8",
                "-"
            ]
        );
        for expected in [
            "queue/q  Open",
            "75.0% of the cluster, by nvidia.com/gpu",
            "150.0% of what it is entitled to",
            "others may take it back",
            "2 running, 1 waiting",
            "nvidia.com/gpu=6",
            "first in line: team/big",
        ] {
            assert!(text.contains(expected), "{expected:?} in\n{text}");
        }
    }
}
