//! `muster nodes` and `muster top`: state of nodes, their allocatable resources, and the part that is allocated to
//! pods.

use std::collections::BTreeMap;

use anyhow::Result;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use kube::api::ListParams;
use resources::amounts::{Amounts, pod_requests};
use resources::devices::{NodeInventory, inventory};
use resources::load::NodeLoad;
use resources::names::{DEVICES_UNHEALTHY, FABRIC_FAILED, LOAD, NVIDIA_GPU, SUSPECT};
use serde_json::{Value, json};

use super::connection::ServerConnection;
use super::outcome::CommandOutcome;
use super::output::{self, Table};
use super::show;
use crate::arguments::{Listing, Output};

const GIB: i64 = 1 << 30;

/// A node with its allocated resources; these are unknown if the user may not list all pods.
struct NodeUse {
    node: Node,
    used: Option<Amounts>,
    room: Amounts,
}

async fn read(connection: &ServerConnection) -> Result<Vec<NodeUse>> {
    let nodes: Api<Node> = Api::all(connection.client.clone());
    let pods: Api<Pod> = Api::all(connection.client.clone());
    let nodes = nodes.list(&ListParams::default()).await?.items;
    let pods = match pods.list(&ListParams::default()).await {
        Ok(list) => Some(list.items),
        Err(kube::Error::Api(status)) if status.code == 403 => None,
        Err(error) => return Err(error.into()),
    };
    let with_use = |node: Node| {
        let name = node.metadata.name.as_deref().unwrap_or_default();
        let room = node.status.as_ref().and_then(|s| s.allocatable.as_ref());
        NodeUse {
            used: pods.as_ref().map(|pods| used_on(pods, name)),
            room: room.map(Amounts::from_k8s).unwrap_or_default(),
            node,
        }
    };
    Ok(nodes.into_iter().map(with_use).collect())
}

/// Lists nodes with their devices.
pub async fn nodes(connection: &ServerConnection, listing: Listing) -> Result<CommandOutcome> {
    let wide = match listing.output {
        None => false,
        Some(Output::Wide) => true,
        Some(form) => return show::list_of(connection, "nodes", form).await,
    };
    let mut headings = vec![
        "NAME", "STATUS", "GPUS", "MODEL", "CPU", "MEMORY", "PODS", "AGE",
    ];
    if wide {
        headings.extend([
            "ADDRESS",
            "VERSION",
            "OS",
            "KERNEL",
            "RUNTIME",
            "OTHER DEVICES",
            "DEVICES FROM",
            "LOAD",
            "SUSPECT",
            "ALERTS",
        ]);
    }
    let mut table = Table::new(headings);
    for row in read(connection).await? {
        table.row(node_line(&row, wide));
    }
    output::put(&table.render())?;
    Ok(CommandOutcome::Yes)
}

fn node_line(row: &NodeUse, wide: bool) -> Vec<String> {
    let node = &row.node;
    let inventory = inventory(node.metadata.annotations.as_ref());
    let mut cells = vec![
        node.metadata.name.clone().unwrap_or_default(),
        status(node),
        gpus(row, inventory.as_ref()),
        models(inventory.as_ref()),
        share(row, "cpu", cores),
        format!("{} GiB", share(row, "memory", gib)),
        row.used
            .as_ref()
            .map_or("?".into(), |used| used.get("pods").to_string()),
        output::age(node.metadata.creation_timestamp.as_ref()),
    ];
    if wide {
        let status = node.status.as_ref();
        let address = status.and_then(|s| s.addresses.as_ref()).and_then(|all| {
            let inside = all.iter().find(|address| address.type_ == "InternalIP");
            inside.map(|address| address.address.clone())
        });
        cells.push(address.unwrap_or_default());
        let info = status.and_then(|status| status.node_info.as_ref());
        let text = |read: fn(&k8s_openapi::api::core::v1::NodeSystemInfo) -> &str| {
            info.map(read).unwrap_or("").to_string()
        };
        cells.push(text(|info| &info.kubelet_version));
        cells.push(text(|info| &info.os_image));
        cells.push(text(|info| &info.kernel_version));
        cells.push(text(|info| &info.container_runtime_version));
        cells.push(others(row));
        cells.push(inventory.map_or(String::new(), |inventory| inventory.source));
        cells.push(load(node).unwrap_or_else(|| "-".to_string()));
        cells.push(suspicion(node).unwrap_or_else(|| "-".to_string()));
        let alerts = resources::alerts::of_node(node);
        let words: Vec<String> = alerts.iter().map(|alert| alert.message()).collect();
        cells.push(if words.is_empty() {
            "-".to_string()
        } else {
            words.join("; ")
        });
    }
    cells
}

fn gpus(row: &NodeUse, inventory: Option<&NodeInventory>) -> String {
    let shared = share(row, NVIDIA_GPU, |count| count.to_string());
    let sick = inventory.map_or(0, |i| i.gpus.iter().filter(|gpu| !gpu.healthy).count());
    match sick {
        0 => shared,
        sick => format!("{shared} ({sick} unhealthy)"),
    }
}

/// A node's devices other than numbered GPUs that have a vendor's resource name: GPU slices, RDMA cards, other
/// vendors' devices.
fn others(row: &NodeUse) -> String {
    let all = row.room.iter().map(|(name, _)| name);
    let devices = all.filter(|name| name.contains('/') && *name != NVIDIA_GPU);
    let words: Vec<String> = devices
        .map(|name| format!("{name} {}", share(row, name, |count| count.to_string())))
        .collect();
    if words.is_empty() {
        "-".to_string()
    } else {
        words.join(", ")
    }
}

/// The models of a node's GPUs, each with its count.
fn models(inventory: Option<&NodeInventory>) -> String {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for gpu in inventory.into_iter().flat_map(|inventory| &inventory.gpus) {
        *counts.entry(&gpu.model).or_default() += 1;
    }
    let words: Vec<String> = counts
        .iter()
        .map(|(model, count)| format!("{count}x {model}"))
        .collect();
    if words.is_empty() {
        "-".to_string()
    } else {
        words.join(", ")
    }
}

/// Prints a line for each node, and a total.
pub async fn top(connection: &ServerConnection, listing: Listing) -> Result<CommandOutcome> {
    let rows = read(connection).await?;
    if let Some(form @ (Output::Json | Output::Yaml)) = listing.output {
        let items: Vec<Value> = rows.iter().map(as_value).collect();
        output::print_value(&json!({"items": items}), form)?;
        return Ok(CommandOutcome::Yes);
    }
    let mut table = Table::new(["NODE", "STATUS", "PODS", "CPU", "MEMORY", "GPU"]);
    let mut all = NodeUse {
        node: Node::default(),
        used: Some(Amounts::default()),
        room: Amounts::default(),
    };
    for row in &rows {
        let name = row.node.metadata.name.as_deref().unwrap_or_default();
        table.row(line(name, &status(&row.node), row));
        match (&mut all.used, &row.used) {
            (Some(sum), Some(used)) => sum.add(used),
            _ => all.used = None,
        }
        all.room.add(&row.room);
    }
    table.row(line("all", &format!("{} node(s)", rows.len()), &all));
    output::put(&table.render())?;
    Ok(CommandOutcome::Yes)
}

fn as_value(row: &NodeUse) -> Value {
    let plain = |amounts: &Amounts| json!(amounts.to_k8s());
    json!({
        "name": row.node.metadata.name,
        "status": status(&row.node),
        "allocated": row.used.as_ref().map(plain),
        "allocatable": plain(&row.room),
    })
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

fn status(node: &Node) -> String {
    let conditions = node.status.as_ref().and_then(|s| s.conditions.as_ref());
    let ready = conditions
        .into_iter()
        .flatten()
        .find(|c| c.type_ == "Ready");
    let word = match ready.map(|c| c.status.as_str()) {
        Some("True") => "Ready",
        Some("False") => "NotReady",
        _ => "Unknown",
    };
    let closed = node.spec.as_ref().and_then(|spec| spec.unschedulable);
    let mut words = vec![word];
    if suspicion(node).is_some() {
        words.push("Suspect");
    }
    if closed == Some(true) {
        words.push("SchedulingDisabled");
    }
    words.join(",")
}

/// A warning about a node that keeps running.
pub fn suspicion(node: &Node) -> Option<String> {
    let conditions = node.status.as_ref()?.conditions.as_ref()?;
    // Warnings that keep gangs off the node come first.
    let all = [FABRIC_FAILED, SUSPECT, DEVICES_UNHEALTHY].into_iter();
    let warnings = all.filter_map(|name| {
        let mut all = conditions.iter();
        let found = all.find(|c| c.type_ == name && c.status == "True")?;
        Some(found.message.clone().unwrap_or_default())
    });
    let warnings: Vec<String> = warnings.collect();
    (!warnings.is_empty()).then(|| warnings.join("; "))
}

/// The load of a node's GPUs at the last report: the number of busy GPUs and the highest temperature.
fn load(node: &Node) -> Option<String> {
    let annotation = node.metadata.annotations.as_ref()?.get(LOAD)?;
    let load: NodeLoad = serde_json::from_str(annotation).ok()?;
    let busy = load.gpus.values().filter(|gpu| gpu.busy()).count();
    let hottest = load.gpus.values().filter_map(|gpu| gpu.celsius);
    let hottest = hottest.fold(f64::NEG_INFINITY, f64::max);
    let heat = if hottest.is_finite() {
        format!(", up to {hottest:.0} °C")
    } else {
        String::new()
    };
    Some(format!("{busy} of {} GPUs at work{heat}", load.gpus.len()))
}

/// Converts thousandths of a CPU to CPUs.
pub fn cores(milli: i64) -> String {
    format!("{:.1}", milli as f64 / 1000.0)
}

/// Converts bytes to GiB.
pub fn gib(bytes: i64) -> String {
    format!("{:.1}", bytes as f64 / GIB as f64)
}

fn share(row: &NodeUse, name: &str, show: impl Fn(i64) -> String) -> String {
    let used = row.used.as_ref().map(|used| show(used.get(name)));
    let used = used.unwrap_or_else(|| "?".to_string());
    format!("{used} of {}", show(row.room.get(name)))
}

fn line(name: &str, status: &str, row: &NodeUse) -> [String; 6] {
    [
        name.to_string(),
        status.to_string(),
        row.used
            .as_ref()
            .map_or("?".into(), |used| used.get("pods").to_string()),
        share(row, "cpu", cores),
        format!("{} GiB", share(row, "memory", gib)),
        share(row, NVIDIA_GPU, |count| count.to_string()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(used: Option<Amounts>) -> NodeUse {
        let node = serde_json::from_value(json!({
            "metadata": {"name": "n", "annotations": {"muster.io/inventory": json!({"gpus": [
                {"model": "H100", "healthy": true}, {"model": "H100", "healthy": false}]}).to_string(),
                "muster.io/load": json!({"at": "2026-01-01T00:00:00Z", "gpus": {
                    "a": {"utilisation": 97, "celsius": 71}, "b": {"celsius": 40}}}).to_string()}},
            "spec": {"unschedulable": true},
            "status": {"conditions": [{"type": "Ready", "status": "True"},
                {"type": "muster.io/suspect", "status": "True", "message": "GPU 1 is unhealthy"}]},
        }))
        .unwrap();
        let mut room = Amounts::default();
        room.set(NVIDIA_GPU, 2);
        NodeUse { node, used, room }
    }

    #[test]
    fn a_node_shows_its_gpus_their_model_and_their_health() {
        let mut used = Amounts::default();
        used.set(NVIDIA_GPU, 1);
        let cells = node_line(&row(Some(used)), true);
        assert_eq!(cells[1], "Ready,Suspect,SchedulingDisabled");
        assert_eq!(
            cells[cells.len() - 3..],
            [
                "1 of 2 GPUs at work, up to 71 °C",
                "GPU 1 is unhealthy",
                "-"
            ]
        );
        let mut failing = row(None);
        let status = failing.node.status.as_mut().unwrap();
        status.conditions = serde_json::from_value(json!([
            {"type": "muster.io/suspect", "status": "True", "message": "GPU 1 is unhealthy"},
            {"type": "muster.io/fabric-failed", "status": "True", "message": "mlx5_0/1: down"}]))
        .unwrap();
        let failing = node_line(&failing, true);
        assert_eq!(
            failing[failing.len() - 2],
            "mlx5_0/1: down; GPU 1 is unhealthy"
        );
        assert_eq!(cells[2], "1 of 2 (1 unhealthy)");
        assert_eq!(cells[3], "2x H100");
    }

    #[test]
    fn a_node_shows_devices_of_other_names_and_why_some_are_not_well() {
        let mut row = row(Some(Amounts::default()));
        assert_eq!(others(&row), "-");
        let why = "accel1 is not offered to pods: its check failed";
        let status = row.node.status.as_mut().unwrap();
        status.conditions = serde_json::from_value(json!([
            {"type": "muster.io/devices-unhealthy", "status": "True", "message": why}]))
        .unwrap();
        assert_eq!(suspicion(&row.node).as_deref(), Some(why));
        for (name, count) in [("habana.ai/gaudi", 8), ("rdma/hca", 64), ("cpu", 4000)] {
            row.room.set(name, count);
        }
        row.used.as_mut().unwrap().set("habana.ai/gaudi", 3);
        assert_eq!(others(&row), "habana.ai/gaudi 3 of 8, rdma/hca 0 of 64");
    }

    #[test]
    fn a_caller_who_may_not_see_all_pods_sees_no_use() {
        assert_eq!(gpus(&row(None), None), "? of 2");
    }
}
