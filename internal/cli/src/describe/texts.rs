//! Texts of a job's page: requests of the replicas, exits of their containers, run policy.

use k8s_openapi::api::core::v1::{Container, ContainerState};
use serde_json::Value;

/// One row of the table of replicas.
pub fn replica(role: &str, wanted: String, status: &Value, template: &Value) -> [String; 8] {
    let count = |field: &str| status[field].as_i64().unwrap_or(0).to_string();
    let restarts = template["restartPolicy"].as_str().unwrap_or("Never");
    let first = &template["containers"][0];
    let container: Option<Container> = serde_json::from_value(first.clone()).ok();
    [
        role.to_string(),
        wanted,
        count("active"),
        count("succeeded"),
        count("failed"),
        restarts.to_string(),
        container.as_ref().map_or_else(String::new, asks),
        container.as_ref().map_or_else(String::new, command),
    ]
}

/// The resource requests of a container.
fn asks(container: &Container) -> String {
    let resources = container.resources.as_ref();
    let mut all = resources.and_then(|r| r.limits.clone()).unwrap_or_default();
    all.extend(
        resources
            .and_then(|r| r.requests.clone())
            .unwrap_or_default(),
    );
    let words: Vec<String> = all
        .iter()
        .map(|(name, quantity)| format!("{name}={}", quantity.0))
        .collect();
    dash(words.join(","))
}

/// Characters of a command that are printed; `-o yaml` prints all of it.
const COMMAND_CHARACTERS: usize = 60;

/// A container's command, truncated if it is long.
fn command(container: &Container) -> String {
    let words: Vec<&str> = [&container.command, &container.args]
        .into_iter()
        .flatten()
        .flatten()
        .map(String::as_str)
        .collect();
    let line = words.join(" ").replace('\n', " ");
    if line.chars().count() <= COMMAND_CHARACTERS {
        return dash(line);
    }
    let start: String = line.chars().take(COMMAND_CHARACTERS - 1).collect();
    format!("{start}…")
}

/// How a container ended, or why it has not started.
pub fn exit(state: &ContainerState) -> Option<String> {
    if let Some(over) = &state.terminated {
        let reason = over.reason.as_deref().unwrap_or("Ended");
        return Some(format!("{reason} ({})", over.exit_code));
    }
    state.waiting.as_ref()?.reason.clone()
}

/// The run policy of a job, as text.
pub fn policy_words(policy: &Value) -> String {
    let fields = [
        ("suspend", "suspended"),
        ("backoffLimit", "backoff limit"),
        ("activeDeadlineSeconds", "deadline in s"),
        ("ttlSecondsAfterFinished", "kept after the end for s"),
    ];
    let mut words: Vec<String> = fields
        .into_iter()
        .filter_map(|(field, words)| match &policy[field] {
            Value::Null | Value::Bool(false) => None,
            Value::Bool(true) => Some(words.to_string()),
            Value::String(text) => Some(format!("{words}: {text}")),
            other => Some(format!("{words}: {other}")),
        })
        .collect();
    words.extend(match policy["cleanPodPolicy"].as_str() {
        Some("None") => Some("pods are kept at the end".to_string()),
        Some("All") => Some("all pods go at the end".to_string()),
        Some("Running") => Some("pods that still run go at the end".to_string()),
        _ => None,
    });
    dash(words.join(", "))
}

/// A dash for an empty text.
pub fn dash(text: String) -> String {
    if text.is_empty() {
        "-".to_string()
    } else {
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_command_is_cut() {
        let container = Container {
            command: Some(vec!["x".repeat(200)]),
            ..Container::default()
        };
        assert_eq!(command(&container).chars().count(), COMMAND_CHARACTERS);
    }

    #[test]
    fn a_policy_says_what_becomes_of_the_pods() {
        let policy =
            serde_json::json!({"suspend": false, "backoffLimit": 2, "cleanPodPolicy": "Running"});
        assert_eq!(
            policy_words(&policy),
            "backoff limit: 2, pods that still run go at the end"
        );
        assert_eq!(policy_words(&Value::Null), "-");
    }
}
