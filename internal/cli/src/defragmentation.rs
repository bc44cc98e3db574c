//! `muster defragmentation`: which pods defragmentation would move now, with gain and loss. Moves
//! nothing.

use anyhow::{Context, Result};
use resources::defragmentation::DefragmentationReport;

use super::connection::ServerConnection;
use super::outcome::CommandOutcome;
use super::output::{self, Table};
use crate::arguments::{Listing, Output};

/// Requests the proposal from the server and prints it.
pub async fn proposal(connection: &ServerConnection, listing: Listing) -> Result<CommandOutcome> {
    let answer = connection.ask("/api/v1/defragmentation").await?;
    if let Some(form @ (Output::Json | Output::Yaml)) = listing.output {
        output::print_value(&answer, form)?;
        return Ok(CommandOutcome::Yes);
    }
    let report: DefragmentationReport = serde_json::from_value(answer["report"].clone())
        .context("the server's answer is not a report")?;
    output::put(&words(&report))?;
    Ok(CommandOutcome::Yes)
}

fn words(report: &DefragmentationReport) -> String {
    let mut out = format!("{}\n", report.sentence());
    if report.moves.is_empty() {
        return out;
    }
    let mut table = Table::new(["NAMESPACE", "POD", "GANG", "FROM", "TO"]);
    for step in &report.moves {
        table.row([
            &step.namespace,
            &step.pod,
            &step.group,
            &step.from,
            &step.to,
        ]);
    }
    out.push_str(&table.render());
    out.push_str(&format!(
        "becomes whole: {}; at most {} members are moved in an hour\n",
        report.nodes.join(", "),
        report.moves_an_hour
    ));
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use resources::defragmentation::DefragmentationMove;

    #[test]
    fn each_move_is_told_with_where_from_and_where_to() {
        let report = DefragmentationReport {
            moves: vec![DefragmentationMove {
                namespace: "ns".to_owned(),
                pod: "p".to_owned(),
                group: "g".to_owned(),
                from: "n1".to_owned(),
                to: "n2".to_owned(),
            }],
            nodes: vec!["n1".to_owned()],
            moves_an_hour: 8,
            ..DefragmentationReport::default()
        };
        let text = words(&report);
        assert!(text.contains("would make 1 node whole"), "{text}");
        let row = text.lines().nth(2).unwrap();
        let cells: Vec<&str> = row.split_whitespace().collect();
        assert_eq!(cells, ["ns", "p", "g", "n1", "n2"]);
        assert!(text.ends_with("becomes whole: n1; at most 8 members are moved in an hour\n"));
    }
}
