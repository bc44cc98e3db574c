//! The log of server and agent as JSON.

use std::collections::BTreeMap;

use e2e::{Platform, eventually};
use serde_json::Value;

use super::SOON;

const POD: &str = "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec:\n  schedulerName: muster\n  restartPolicy: Never\n  containers: [{name: main, command: ['true']}]\n";

/// The fields of each span in a log, by the span's name. Each line is a JSON object, but for the notice at the start.
#[track_caller]
fn spans(log: &str) -> BTreeMap<String, Value> {
    let mut spans = BTreeMap::new();
    for line in log.lines().filter(|line| line.starts_with('{')) {
        let line: Value =
            serde_json::from_str(line).unwrap_or_else(|error| panic!("{line}: {error}"));
        for part in ["timestamp", "level", "target"] {
            assert!(line[part].is_string(), "{part} is missing in {line}");
        }
        assert!(line["fields"]["message"].is_string(), "{line}");
        for span in line["spans"].as_array().into_iter().flatten() {
            let name = span["name"].as_str().unwrap_or_default();
            spans.insert(name.to_owned(), span.clone());
        }
    }
    spans
}

#[test]
fn a_log_in_json_has_the_plan_the_binding_and_the_session_as_spans() {
    let levels = ["env", "MUSTER_LOG=info,controllers=debug"];
    let platform = Platform::server_by(&levels, &["--log-format", "json"]);
    let agent = platform.agent("n1", None, &["--log-format", "json"]);
    platform.await_nodes(1);
    platform.apply(POD);
    let of_server = eventually("the spans of the server", SOON, || {
        let spans = spans(&platform.logged());
        let all = ["plan", "bind", "session"];
        all.iter()
            .all(|name| spans.contains_key(*name))
            .then_some(spans)
    });
    assert!(of_server["plan"]["binds"].is_u64(), "{of_server:?}");
    assert_eq!(of_server["bind"]["pod"], "p");
    assert_eq!(of_server["bind"]["node"], "n1");
    assert_eq!(of_server["session"]["node"], "n1");
    let of_agent = eventually("the agent's session", SOON, || {
        spans(&agent.logged()).remove("session")
    });
    assert_eq!(of_agent["node"], "n1");
}
