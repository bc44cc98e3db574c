//! Compares GPUs with what a case asserts: which pods share one, how many of a node are free, how many a workload has.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::outcome::{Seen, Status};
use super::scene::gpus;
use super::{GPU, array};
use crate::cluster::{Cluster, Stand, amounts, text};

/// Checks that pods share a GPU as the case asserts, where it does.
pub(super) fn shared_gpus(case: &Value, seen: &Seen) -> Result<(), String> {
    if case["policy"]["placement"]["gpus"].is_null() {
        return Ok(());
    }
    let mut wanted: BTreeMap<(String, String), Vec<String>> = BTreeMap::new();
    let mut have: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for workload in array(&case["workloads"]) {
        let want = &case["expect"]["workloads"][text(&workload["name"])]["pods"];
        for pod in array(&workload["pods"]) {
            let name = text(&pod["name"]);
            let asserted = &want[&name];
            let Some(label) = asserted["gpu_ids"].get(0).map(text) else {
                continue;
            };
            let Some((_, Some(placed))) = seen.pods.get(&name) else {
                continue;
            };
            let kind = format!("{} {}", pod["gpu_fraction"], pod["gpu_memory_mib"]);
            // Of a pod that has only a place held, the GPU is asserted and not the node.
            let node = asserted["node"].as_str().unwrap_or(&placed.node);
            wanted
                .entry((node.to_owned(), label))
                .or_default()
                .push(kind.clone());
            let device = format!("{} {}", placed.node, placed.devices);
            have.entry(device).or_default().push(kind);
        }
    }
    let sorted = |groups: Vec<Vec<String>>| {
        let mut groups = groups;
        groups.iter_mut().for_each(|group| group.sort());
        groups.sort();
        groups
    };
    let wanted = sorted(wanted.into_values().collect());
    let have = sorted(have.into_values().collect());
    if wanted == have {
        Ok(())
    } else {
        Err(format!("GPUs are shared as {have:?}, wanted {wanted:?}"))
    }
}

/// The devices that an annotation names.
fn ids(annotation: &str) -> Vec<String> {
    let chosen: Value = serde_json::from_str(annotation).unwrap_or_default();
    let containers = chosen.as_object().into_iter().flatten();
    let lists = containers.flat_map(|(_, by_resource)| array(&by_resource[GPU]));
    lists.map(text).collect()
}

/// Idle and releasing GPUs, and GPUs given to a workload, where asserted.
pub(super) fn node_gpus(case: &Value, cluster: &Cluster, seen: &Seen) -> Result<(), String> {
    for (node, want) in case["expect"]["node_gpus"]
        .as_object()
        .into_iter()
        .flatten()
    {
        let total = array(&case["nodes"])
            .find(|n| n["name"] == *node)
            .map_or(0, gpus);
        // By device: a GPU that somebody still runs on is not releasing.
        let mut held: BTreeSet<String> = BTreeSet::new();
        let mut left: BTreeSet<String> = BTreeSet::new();
        for (name, member) in &cluster.members {
            let (Stand::Running(placed) | Stand::Leaving(placed)) = &member.stand else {
                continue;
            };
            if placed.node != *node {
                continue;
            }
            let into = if matches!(member.stand, Stand::Running(_)) {
                &mut held
            } else {
                &mut left
            };
            let requests = &member.manifest["spec"]["containers"][0]["resources"]["requests"];
            let unnamed = amounts(requests).get(GPU).unsigned_abs();
            match ids(&placed.devices) {
                known if !known.is_empty() => into.extend(known),
                _ => into.extend((0..unnamed).map(|i| format!("{name} {i}"))),
            }
        }
        let idle = total.saturating_sub(held.union(&left).count() as u64);
        let leaving = left.difference(&held).count() as u64;
        let differs = |key: &str, is: u64| want[key].as_f64().is_some_and(|n| n != is as f64);
        if differs("idle", idle) || differs("releasing", leaving) {
            return Err(format!(
                "{node}: {idle} GPUs idle, {leaving} releasing, wanted {want}"
            ));
        }
    }
    for workload in array(&case["workloads"]) {
        let want = &case["expect"]["workloads"][text(&workload["name"])]["gpus_accepted"];
        let Some(want) = want
            .as_str()
            .and_then(|n| n.parse::<f64>().ok())
            .or(want.as_f64())
        else {
            continue;
        };
        let memory = |node: Option<&String>| {
            let of = |at: &Value| at["gpu_memory_mib"].as_f64();
            let on = array(&case["nodes"]).find(|at| node.is_some_and(|name| at["name"] == **name));
            let first = || array(&case["nodes"]).find_map(of);
            on.and_then(of).or_else(first).unwrap_or(100.0)
        };
        let given: f64 = array(&workload["pods"])
            .filter(|pod| {
                let status = seen
                    .pods
                    .get(&text(&pod["name"]))
                    .map(|(status, _)| *status);
                matches!(status, Some(Status::Running | Status::Nominated))
            })
            .map(|pod| {
                let whole = text(&pod["requests"][GPU]).parse().unwrap_or(0.0);
                let part = pod["gpu_fraction"].as_f64();
                let placed = seen.pods.get(&text(&pod["name"]));
                let node = placed.and_then(|(_, placed)| placed.as_ref());
                let memory = memory(node.map(|placed| &placed.node));
                let part = part.or(pod["gpu_memory_mib"].as_f64().map(|mib| mib / memory));
                part.unwrap_or(whole)
            })
            .sum();
        if (given - want).abs() > 1e-6 {
            return Err(format!(
                "{} was given {given} GPUs, wanted {want}",
                workload["name"]
            ));
        }
    }
    Ok(())
}
