//! A machine's paths as a table, in the terms of `nvidia-smi topo -m`. Pure.

use std::fmt::Write;

use crate::graph::{Edge, PathGraph};
use crate::inventory::{Inventory, LinkKind};

/// Draws the table: the paths between GPUs and network cards, their CPUs and NUMA nodes, a legend,
/// the card of each `NIC`, and the bandwidths of the paths.
pub fn draw(inventory: &Inventory) -> String {
    let graph = PathGraph::of(inventory);
    if graph.size() == 0 {
        return "no GPUs and no network cards that do RDMA were found\n".into();
    }
    let mut text = table(inventory, &graph);
    text.push_str(LEGEND);
    if !inventory.nics.is_empty() {
        text.push_str("\nNIC legend:\n\n");
    }
    for (at, nic) in inventory.nics.iter().enumerate() {
        let ports = nic.ports.iter().map(|port| {
            let state = if port.state.is_empty() {
                "state unknown"
            } else {
                &port.state
            };
            format!("{} Gb/s {} {state}", port.gbits, port.layer)
        });
        let ports = ports.collect::<Vec<_>>().join(", ");
        let _ = writeln!(text, "  NIC{at}: {}  {ports}", nic.name);
    }
    text.push_str(&carried(&graph));
    text
}

const LEGEND: &str = "
Legend:

  X    = itself
  SYS  = PCIe and the link between NUMA nodes
  NODE = PCIe and the link between host bridges of one NUMA node
  PHB  = PCIe and a host bridge, which is the CPU
  PXB  = several PCIe switches, no host bridge
  PIX  = at most one PCIe switch
  NV#  = # NVLinks, bonded
";

fn table(inventory: &Inventory, graph: &PathGraph) -> String {
    let names: Vec<String> = (graph.gpus.iter().map(|gpu| format!("GPU{}", gpu.index)))
        .chain((0..graph.nics.len()).map(|at| format!("NIC{at}")))
        .collect();
    let mut rows = vec![vec![String::new()]];
    rows[0].extend(names.iter().cloned());
    rows[0].extend(["CPU Affinity".into(), "NUMA Affinity".into()]);
    for (at, name) in names.iter().enumerate() {
        let mut row = vec![name.clone()];
        row.extend((0..names.len()).map(|to| graph.edge(at, to).map_or("X".into(), word)));
        // As in nvidia-smi, for GPUs only.
        if let Some(gpu) = graph.gpus.get(at) {
            row.push(affinity(inventory, gpu.numa));
            row.push(gpu.numa.map_or("N/A".into(), |numa| numa.to_string()));
        }
        rows.push(row);
    }
    let columns = rows[0].len();
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.len()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in &rows {
        let cells = row.iter().zip(&widths);
        let line: Vec<String> = cells
            .map(|(cell, width)| format!("{cell:<width$}"))
            .collect();
        text.push_str(line.join("  ").trim_end());
        text.push('\n');
    }
    text
}

/// A path as the table's abbreviation.
pub fn word(edge: Edge) -> String {
    match edge.kind {
        LinkKind::Nvl | LinkKind::Nvs => format!("NV{}", edge.links),
        other => other.as_str().into(),
    }
}

/// The CPUs of a NUMA node; all of the machine if the node is not known.
fn affinity(inventory: &Inventory, numa: Option<u32>) -> String {
    let nodes = inventory.numa_nodes.iter();
    let mut cpus: Vec<u32> = nodes
        .filter(|node| numa.is_none_or(|numa| node.id == numa))
        .flat_map(|node| node.cpus.iter().copied())
        .collect();
    cpus.sort_unstable();
    if cpus.is_empty() {
        return "N/A".into();
    }
    ranges(&cpus)
}

/// Numbers that ascend, in the kernel's form: `0-3,8`.
pub fn ranges(numbers: &[u32]) -> String {
    let mut parts: Vec<(u32, u32)> = Vec::new();
    for number in numbers {
        match parts.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(*number) => *last = *number,
            _ => parts.push((*number, *number)),
        }
    }
    let part = |(first, last): &(u32, u32)| {
        if first == last {
            first.to_string()
        } else {
            format!("{first}-{last}")
        }
    };
    parts.iter().map(part).collect::<Vec<_>>().join(",")
}

/// The bandwidth of each kind of path in the table.
fn carried(graph: &PathGraph) -> String {
    let mut seen: Vec<(LinkKind, Edge)> = Vec::new();
    for one in 0..graph.gpus.len() {
        for other in one + 1..graph.size() {
            let Some(edge) = graph.edge(one, other) else {
                continue;
            };
            if seen.iter().all(|(_, known)| *known != edge) {
                seen.push((edge.kind, edge));
            }
        }
    }
    if seen.is_empty() {
        return String::new();
    }
    seen.sort_by_key(|(kind, edge)| (*kind, std::cmp::Reverse(edge.bandwidth)));
    let mut text = String::from("\nWhat GPUs' paths carry, by their links, each direction:\n\n");
    let mut lines: Vec<(String, Vec<String>)> = Vec::new();
    for (_, edge) in seen {
        let name = word(edge);
        let bandwidth = edge.bandwidth.to_string();
        match lines.last_mut().filter(|(last, _)| *last == name) {
            Some((_, all)) if all.contains(&bandwidth) => {}
            Some((_, all)) => all.push(bandwidth),
            None => lines.push((name, vec![bandwidth])),
        }
    }
    for (name, bandwidths) in lines {
        let _ = writeln!(text, "  {name:<6}{}", bandwidths.join(", "));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_as_ranges() {
        for (numbers, text) in [
            (&[0, 1, 2, 3, 8][..], "0-3,8"),
            (&[5], "5"),
            (&[1, 3], "1,3"),
            (&[], ""),
        ] {
            assert_eq!(ranges(numbers), text);
        }
    }

    #[test]
    fn a_machine_without_devices_says_so() {
        assert!(draw(&Inventory::default()).starts_with("no GPUs"));
    }
}
