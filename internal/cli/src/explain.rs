//! `muster explain`: why a job or a pod waits, in the same terms as the API and the UI.

use anyhow::Result;
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{DynamicObject, ListParams};
use resources::names::{GROUP_NAME, RUNTIME_PROCESS};
use resources::registry::Kind;
use resources::report::NO_PROCESSES;
use serde_json::{Value, json};

use super::connection::ServerConnection;
use super::outcome::CommandOutcome;
use super::output::{self, Paint};
use super::platform::escape;
use super::{failure, history, kinds, nodes};
use crate::arguments::Subject;

/// The most nodes whose faults an explanation lists.
const UNFIT_MAX: u32 = 8;

/// Explains one job, gang or pod.
pub async fn explain(connection: &ServerConnection, subject: Subject) -> Result<CommandOutcome> {
    let mut among = kinds::waiting_kinds();
    for word in ["pods", "podgroups"] {
        among.push(kinds::kind(word)?);
    }
    if subject.history {
        return history::history(connection, &subject, &among).await;
    }
    let Some((kind, object)) = kinds::find(connection, &subject.name, &among).await? else {
        return Err(failure::not_found(format!(
            "there is no job, pod or gang {:?} in namespace {:?}\n  `muster get pytorchjobs`, `muster get jobs` and `muster get pods` list those there are",
            subject.name, connection.namespace
        )));
    };
    let mut answer = match kinds::waits_with(connection, kind, &object).await? {
        Some((kind, name)) => ask(connection, kind, &name).await?,
        None => by_itself(connection, &object).await?,
    };
    let unfit = unfit_nodes(connection, &answer).await;
    if !unfit.is_empty() {
        answer["unfitNodes"] = json!(unfit);
    }
    if subject.output == Some(crate::arguments::Output::Name) {
        output::put_line(&output::name_of(&object, kind))?;
        return Ok(CommandOutcome::Yes);
    }
    if let Some(form) = subject.output {
        output::print_value(&answer, form)?;
        return Ok(CommandOutcome::Yes);
    }
    output::put(&words(&output::name_of(&object, kind), &answer))?;
    Ok(CommandOutcome::Yes)
}

async fn ask(connection: &ServerConnection, kind: &Kind, name: &str) -> Result<Value> {
    let path = format!(
        "/api/v1/jobs/{}/{}/{}/explain",
        connection.namespace,
        kinds::address(kind),
        escape(name)
    );
    connection.ask(&path).await
}

/// Why nodes start no pods without an image, in their own words; empty if the report names no such node, or the user
/// may not list nodes.
async fn unfit_nodes(connection: &ServerConnection, answer: &Value) -> Vec<String> {
    let reasons = answer["report"]["perReason"].as_array();
    let mut reasons = reasons.into_iter().flatten();
    if !reasons.any(|reason| reason["reason"] == NO_PROCESSES) {
        return Vec::new();
    }
    let all: Api<Node> = Api::all(connection.client.clone());
    let selector = format!("{RUNTIME_PROCESS}=false");
    let unfit = ListParams::default().labels(&selector).limit(UNFIT_MAX);
    let unfit = all.list(&unfit).await.map(|list| list.items);
    unfit.unwrap_or_default().iter().map(unfit_node).collect()
}

fn unfit_node(node: &Node) -> String {
    let name = node.metadata.name.as_deref().unwrap_or_default();
    match nodes::suspicion(node) {
        Some(why) => format!("{name}: {why}"),
        None => format!("{name}: it starts no pods without an image; run `muster doctor` there"),
    }
}

/// The scheduler's report on a waiting gang or pod without a job; else the object's own status.
async fn by_itself(connection: &ServerConnection, object: &DynamicObject) -> Result<Value> {
    let (state, _) = kinds::state(object);
    if matches!(state.as_str(), "Pending" | "Inqueue") {
        let annotations = object.metadata.annotations.as_ref();
        let named = annotations.and_then(|all| all.get(GROUP_NAME));
        let own = object.metadata.name.as_ref();
        let gang = named.filter(|name| !name.is_empty()).or(own);
        let path = format!(
            "/api/v1/gangs/{}/{}/explain",
            connection.namespace,
            escape(gang.map_or("", String::as_str))
        );
        let answer = connection.ask(&path).await?;
        if answer["report"].is_object() {
            return Ok(answer);
        }
    }
    Ok(alone(object))
}

/// The status of a pod or gang as an explanation.
fn alone(object: &DynamicObject) -> Value {
    let (state, message) = kinds::state(object);
    let status = &object.data["status"];
    let conditions = status["conditions"].as_array();
    // The latest condition that says why the object is not placed, or its container not started.
    let refused = conditions.into_iter().flatten().rfind(|condition| {
        let (name, value) = (&condition["type"], &condition["status"]);
        name == "Unschedulable" && value == "True" || name == "PodScheduled" && value == "False"
    });
    let waiting = status["containerStatuses"].as_array();
    let waiting = waiting.into_iter().flatten().find_map(|container| {
        let waiting = &container["state"]["waiting"];
        waiting["message"].as_str().or(waiting["reason"].as_str())
    });
    let refused = refused
        .filter(|_| matches!(state.as_str(), "Pending" | "Inqueue"))
        .and_then(|condition| condition["message"].as_str());
    let sentence = match refused.or(waiting) {
        Some(why) => why.to_string(),
        None if !message.is_empty() => message,
        None if state == "Pending" => {
            "Nothing holds it back: it is about to be placed.".to_string()
        }
        None => format!("It is {state}; nothing holds it back."),
    };
    json!({"state": state, "sentence": sentence})
}

/// One sentence on why a job waits for nodes, or why its containers do not run; none otherwise.
pub async fn sentence(connection: &ServerConnection, kind: &Kind, name: &str) -> Option<String> {
    let answer = ask(connection, kind, name).await.ok()?;
    if answer.get("report").is_none() && answer["blocked"] != true {
        return None;
    }
    Some(answer["sentence"].as_str()?.to_string())
}

fn words(name: &str, answer: &Value) -> String {
    let paint = Paint::stdout();
    let text = |field: &str| answer[field].as_str().unwrap_or("");
    let report = &answer["report"];
    let state = match text("state") {
        // A created object with a report waits.
        "Created" if report.is_object() => "Pending",
        state => state,
    };
    let mut out = format!("{}  {state}\n{}\n", paint.strong(name), text("sentence"));
    let mut line = |label: &str, value: String| {
        out.push_str(&format!(
            "  {} {value}\n",
            paint.dim(&format!("{label:<11}"))
        ));
    };
    for (label, field) in [
        ("binds", "binding"),
        ("would fit", "would_fit"),
        ("may start", "may_start"),
        ("evictions", "evictions"),
        ("could evict", "could_evict"),
        ("image", "image"),
        ("class", "class"),
        ("node", "node"),
        ("action", "action"),
    ] {
        if !text(field).is_empty() {
            line(label, text(field).to_string());
        }
    }
    let last = &answer["lastFailure"];
    if let Some(sentence) = last["sentence"].as_str() {
        let of = |field: &str| last[field].as_str().unwrap_or("none").to_owned();
        line("last failed", sentence.to_owned());
        line("class", of("class"));
        line("action", of("action"));
    }
    for task in report["tasks"].as_array().into_iter().flatten() {
        let role = match task["name"].as_str() {
            Some(name) if !name.is_empty() => name,
            _ => "members",
        };
        line(
            "members",
            format!(
                "{role}: {} of {} can be scheduled",
                task["placeable"], task["wanted"]
            ),
        );
    }
    for reason in report["perReason"].as_array().into_iter().flatten() {
        let why = reason["reason"].as_str().unwrap_or("");
        line("rejected", format!("{} node(s): {why}", reason["nodes"]));
    }
    for node in answer["unfitNodes"].as_array().into_iter().flatten() {
        line("node", node.as_str().unwrap_or("").to_string());
    }
    if let Some(ahead) = report["ahead"].as_u64() {
        let queue = report["queue"].as_str().unwrap_or("default");
        line("position", format!("{ahead} ahead in queue {queue}"));
    }
    if let Some(since) = report["since"].as_str() {
        line("since", since.to_string());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_explanation_says_what_binds_and_what_would_make_it_fit() {
        let answer = serde_json::json!({
            "state": "Created", "sentence": "no room.", "binding": "GPUs", "would_fit": "4 more",
            "may_start": "about noon",
            "evictions": "no pods are evicted for it: not worth it",
            "could_evict": "it would start now if evicted: 2 members of ns/a (Preempted)",
            "unfitNodes": ["n1: pods without an image cannot be started: no mounts"],
            "report": {"queue": "q", "ahead": 2,
                "perReason": [{"reason": "Insufficient nvidia.com/gpu", "nodes": 3}],
                "tasks": [{"name": "worker", "wanted": 5, "placeable": 3}]},
        });
        let text = words("pytorchjob/j", &answer);
        for expected in [
            "pytorchjob/j  Pending",
            "GPUs",
            "4 more",
            "3 node(s): Insufficient nvidia.com/gpu",
            "worker: 3 of 5 can be scheduled",
            "2 ahead in queue q",
            "node        n1: pods without an image cannot be started: no mounts",
            "may start   about noon",
            "evictions   no pods are evicted for it: not worth it",
            "could evict it would start now if evicted: 2 members of ns/a (Preempted)",
        ] {
            assert!(text.contains(expected), "{expected:?} in\n{text}");
        }
    }

    #[test]
    fn a_pod_that_no_job_made_is_explained_by_its_own_status() {
        let pod = |status: Value| -> DynamicObject {
            serde_json::from_value(json!({"metadata": {"name": "p"}, "status": status})).unwrap()
        };
        let waits = json!({"phase": "Pending", "conditions": [
            {"type": "PodScheduled", "status": "False", "message": "no room"}]});
        assert_eq!(alone(&pod(waits))["sentence"], "no room");
        let pulls = json!({"phase": "Pending", "containerStatuses": [
            {"state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}}]});
        assert_eq!(alone(&pod(pulls))["sentence"], "no such image");
        let runs = alone(&pod(json!({"phase": "Running"})));
        assert_eq!(runs["sentence"], "It is Running; nothing holds it back.");
    }
}
