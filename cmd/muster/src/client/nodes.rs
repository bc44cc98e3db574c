//! `muster top`: what nodes have and what of it is promised to pods.

use anyhow::Result;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use kube::api::ListParams;
use resources::amounts::{Amounts, pod_requests};

use super::output::Table;
use super::{Answer, Connection};

const GIB: i64 = 1 << 30;

/// Prints a line for each node, and one for all.
pub async fn top(connection: &Connection) -> Result<Answer> {
    let nodes: Api<Node> = Api::all(connection.client.clone());
    let pods: Api<Pod> = Api::all(connection.client.clone());
    let nodes = nodes.list(&ListParams::default()).await?.items;
    let pods = pods.list(&ListParams::default()).await?.items;
    let mut table = Table::new(["NODE", "STATUS", "PODS", "CPU", "MEMORY", "GPU"]);
    let (mut all_used, mut all_room) = (Amounts::default(), Amounts::default());
    for node in &nodes {
        let name = node.metadata.name.as_deref().unwrap_or_default();
        let used = used_on(&pods, name);
        let room = node
            .status
            .as_ref()
            .and_then(|status| status.allocatable.as_ref())
            .map(Amounts::from_k8s)
            .unwrap_or_default();
        table.row(line(name, readiness(node), &used, &room));
        all_used.add(&used);
        all_room.add(&room);
    }
    table.row(line(
        "all",
        &format!("{} node(s)", nodes.len()),
        &all_used,
        &all_room,
    ));
    print!("{}", table.render());
    Ok(Answer::Yes)
}

fn used_on(pods: &[Pod], node: &str) -> Amounts {
    let mut used = Amounts::default();
    for pod in pods {
        let Some(spec) = &pod.spec else { continue };
        let phase = pod
            .status
            .as_ref()
            .and_then(|status| status.phase.as_deref());
        let over = matches!(phase, Some("Succeeded" | "Failed"));
        if spec.node_name.as_deref() == Some(node) && !over {
            used.add(&pod_requests(spec));
        }
    }
    used
}

fn readiness(node: &Node) -> &str {
    let conditions = node
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_ref());
    let ready = conditions
        .into_iter()
        .flatten()
        .find(|c| c.type_ == "Ready");
    match ready.map(|c| c.status.as_str()) {
        Some("True") => "Ready",
        Some("False") => "NotReady",
        _ => "Unknown",
    }
}

fn line(name: &str, status: &str, used: &Amounts, room: &Amounts) -> [String; 6] {
    let cores = |milli: i64| format!("{:.1}", milli as f64 / 1000.0);
    let gib = |bytes: i64| format!("{:.1}", bytes as f64 / GIB as f64);
    let gpu = "nvidia.com/gpu";
    [
        name.to_string(),
        status.to_string(),
        used.get("pods").to_string(),
        format!("{} of {}", cores(used.get("cpu")), cores(room.get("cpu"))),
        format!(
            "{} of {} GiB",
            gib(used.get("memory")),
            gib(room.get("memory"))
        ),
        format!("{} of {}", used.get(gpu), room.get(gpu)),
    ]
}
