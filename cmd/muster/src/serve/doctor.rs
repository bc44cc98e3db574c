//! `muster doctor`: what the agent could isolate here, and which devices it sees.

use std::path::PathBuf;

use anyhow::Result;
use hardware::Source;

use crate::arguments::Doctor;
use crate::client::Answer;

/// Checks this machine; no when something that pods rely on is missing.
pub async fn doctor(arguments: Doctor) -> Result<Answer> {
    let inventory = hardware::discover(Source {
        nvml: true,
        description: arguments.machine,
        sysfs_root: PathBuf::from("/"),
    })?;
    println!(
        "machine    {} ({}, {})",
        inventory.hostname, inventory.os, inventory.kernel
    );
    println!(
        "           {} CPUs, {:.1} GiB, {} NUMA node(s)",
        inventory.cpus,
        inventory.memory_bytes as f64 / (1u64 << 30) as f64,
        inventory.numa_nodes.len()
    );
    println!(
        "GPUs       {} (found by: {})",
        inventory.gpus.len(),
        inventory.origin.as_str()
    );
    for gpu in &inventory.gpus {
        let health = if gpu.healthy {
            "healthy".to_string()
        } else {
            format!("UNHEALTHY: {}", gpu.problem)
        };
        println!(
            "  {:>2}  {}  {} MiB  {}  {health}",
            gpu.index, gpu.model, gpu.memory_mib, gpu.id
        );
    }
    let mut answer = Answer::Yes;
    for warning in &inventory.warnings {
        println!("warning    {warning}");
        answer = Answer::No;
    }
    if inventory.gpus.iter().any(|gpu| !gpu.healthy) {
        answer = Answer::No;
    }
    println!("isolation of pods that run as processes:");
    if !isolation().await? {
        answer = Answer::No;
    }
    Ok(answer)
}

/// Prints what pods' processes can be given, found out by trying it; whether all of it.
async fn isolation() -> Result<bool> {
    let scratch = std::env::temp_dir().join(format!("muster-doctor-{}", std::process::id()));
    let shim = vec![std::env::current_exe()?.into(), "shim".into()];
    let tried = runtime::ProcessRuntime::new(runtime::Config::new(scratch.clone(), shim)).await;
    let removed = std::fs::remove_dir_all(&scratch);
    let runtime = tried?;
    for (what, support) in runtime.capabilities().lines() {
        println!("  {what:<24}{support}");
    }
    removed?;
    Ok(runtime.capabilities().missing().is_empty())
}
