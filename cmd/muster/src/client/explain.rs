//! `muster explain`: why a job waits, in the words that the API and the UI use.

use anyhow::Result;
use serde_json::Value;

use super::output::{self, Paint};
use super::{Answer, Connection, kinds};
use crate::arguments::JobTarget;

/// Explains one job.
pub async fn explain(connection: &Connection, target: JobTarget) -> Result<Answer> {
    let (kind, job) = kinds::find_job(connection, &target.name).await?;
    let name = job.metadata.name.as_deref().unwrap_or_default();
    let path = format!(
        "/api/v1/jobs/{}/{}/{name}/explain",
        connection.namespace, kind.plural
    );
    let answer = connection.ask(&path).await?;
    if let Some(form) = target.output {
        output::print_value(&answer, form)?;
        return Ok(Answer::Yes);
    }
    let paint = Paint::stdout();
    let text = |field: &str| answer[field].as_str().unwrap_or("");
    println!(
        "{}  {}",
        paint.strong(&output::name_of(&job, kind)),
        text("state")
    );
    println!("{}", text("sentence"));
    for (label, field) in [
        ("binds", "binding"),
        ("would fit", "would_fit"),
        ("image", "image"),
    ] {
        if !text(field).is_empty() {
            println!("  {} {}", paint.dim(&format!("{label:<10}")), text(field));
        }
    }
    let report = &answer["report"];
    for reason in report["perReason"].as_array().into_iter().flatten() {
        let words = reason["reason"].as_str().unwrap_or("");
        println!(
            "  {} {} node(s): {words}",
            paint.dim("rejected  "),
            reason["nodes"]
        );
    }
    if let Some(ahead) = report["ahead"].as_u64() {
        let queue = report["queue"].as_str().unwrap_or("default");
        println!(
            "  {} {ahead} ahead in queue {queue}",
            paint.dim("position  ")
        );
    }
    if let Value::String(estimate) = &report["estimate"] {
        println!("  {} {estimate}", paint.dim("may start "));
    }
    Ok(Answer::Yes)
}
