//! `muster doctor` checks the isolation that the agent can give to pods, the devices and RDMA;
//! `muster topology` draws the links between devices; `muster xids` prints the actions for GPU
//! errors.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use cli::{CommandOutcome, Doctor};
use devices::mps;
use hardware::description::MachineDescription;
use hardware::rdma::{self, CheckOutcome as Found};
use hardware::{Inventory, InventorySources};

use crate::arguments::{Topology, Xids};

/// Checks this machine; answers no if something is missing that pods need.
pub async fn doctor(arguments: Doctor) -> Result<CommandOutcome> {
    let expected = arguments.expect.as_deref().map(expected).transpose()?;
    let described = arguments.machine.is_some();
    let inventory = look(arguments.machine, &arguments.root)?;
    if let Some(path) = &arguments.save_machine {
        let text = hardware::description::save(&inventory)?;
        std::fs::write(path, text)
            .with_context(|| format!("--save-machine: {} cannot be written", path.display()))?;
    }
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
    if !inventory.cpu_model.is_empty() {
        println!("           {}", inventory.cpu_model);
    }
    println!(
        "GPUs       {} (found by: {})",
        inventory.gpus.len(),
        inventory.origin.as_str()
    );
    if let Some(gpu) = inventory.gpus.first().filter(|gpu| !gpu.driver.is_empty()) {
        let cuda = &inventory.cuda;
        let cuda = if cuda.is_empty() {
            "of unknown version"
        } else {
            cuda
        };
        println!("           driver {}, CUDA {cuda}", gpu.driver);
    }
    for gpu in &inventory.gpus {
        println!("{}", of_gpu(gpu));
    }
    println!("NICs       {} that do RDMA", inventory.nics.len());
    for nic in &inventory.nics {
        println!("{}", of_nic(nic));
    }
    let mut answer = CommandOutcome::Yes;
    for warning in &inventory.warnings {
        println!("warning    {warning}");
        answer = CommandOutcome::No;
    }
    if inventory.gpus.iter().any(|gpu| !gpu.healthy) {
        answer = CommandOutcome::No;
    }
    let root = (!described).then_some(arguments.root.as_path());
    let checks = fabric(&inventory, root, expected.as_ref()).await;
    if !checks.is_empty() {
        print!("RDMA\n{}", rdma::draw(&checks));
    }
    if checks.iter().any(|check| check.answer == Found::Fail) {
        answer = CommandOutcome::No;
    }
    let control = mps::program_found(Path::new(mps::PROGRAM));
    print!("{}", super::sharing::of(&inventory, control.as_deref()));
    println!("isolation of pods that run as processes:");
    if !isolation().await? {
        answer = CommandOutcome::No;
    }
    Ok(answer)
}

/// Draws the links between a machine's devices.
pub fn topology(arguments: Topology) -> Result<CommandOutcome> {
    let inventory = look(arguments.machine, Path::new("/"))?;
    let text = hardware::matrix::draw(&inventory);
    std::io::stdout().lock().write_all(text.as_bytes())?;
    for warning in &inventory.warnings {
        eprintln!("muster: {warning}");
    }
    Ok(CommandOutcome::Yes)
}

/// Prints the action for each XID.
pub fn xids(arguments: &Xids) -> Result<CommandOutcome> {
    let policy = super::machine::xid_policy(arguments.xid_policy.as_deref())?;
    let text = policy.yaml();
    std::io::stdout().lock().write_all(text.as_bytes())?;
    Ok(CommandOutcome::Yes)
}

/// A machine's hardware: the described one's, or that below `root`.
///
/// # Errors
/// The description or the machine can't be read.
pub fn look(description: Option<PathBuf>, root: &Path) -> Result<Inventory> {
    Ok(hardware::discover(InventorySources {
        description,
        sysfs_root: root.to_owned(),
        ..InventorySources::default()
    })?)
}

/// The expected inventory of a machine, from a description file.
fn expected(file: &Path) -> Result<Inventory> {
    let mut inventory = Inventory::default();
    let description = MachineDescription::load(file).context("--expect")?;
    description.apply(&mut inventory);
    Ok(inventory)
}

/// The RDMA checks; for a described machine, from its description. If there are ports, their
/// counters are read twice.
async fn fabric(
    found: &Inventory,
    root: Option<&Path>,
    expected: Option<&Inventory>,
) -> Vec<rdma::RdmaCheck> {
    let files = root.map(|root| rdma::Files::read(root, found));
    let mut checks = rdma::examine(found, files.as_ref(), expected);
    if let Some(root) = root.filter(|_| !found.nics.is_empty()) {
        let counted = || rdma::PortCounters::of(&hardware::ports::read(root));
        let before = counted();
        tokio::time::sleep(rdma::LEAST).await;
        checks.extend(rdma::growth(&before, &counted(), rdma::LEAST));
    }
    checks
}

fn of_gpu(gpu: &hardware::Gpu) -> String {
    let health = if gpu.healthy {
        "healthy".to_string()
    } else {
        format!("UNHEALTHY: {}", gpu.problem)
    };
    let mut facts = vec![format!("{} MiB", gpu.memory_mib), gpu.pci.clone()];
    let pcie = gpu.pcie;
    if pcie.max_generation > 0 {
        facts.push(format!("PCIe {} x{}", pcie.max_generation, pcie.max_width));
    }
    if let Some(ecc) = gpu.ecc {
        let on = if ecc.enabled { "on" } else { "off" };
        facts.push(format!("ECC {on} ({} errors uncorrected)", ecc.uncorrected));
    }
    if let Some(slices) = &gpu.slices {
        facts.push(format!("MIG, {} slices", slices.len()));
    }
    format!(
        "  {:>2}  {}  {}  {}  {health}",
        gpu.index,
        gpu.model,
        facts.join(", "),
        gpu.id
    )
}

fn of_nic(nic: &hardware::Nic) -> String {
    let or_unknown = |text: &str| match text {
        "" => "unknown".to_string(),
        known => known.to_string(),
    };
    let ports = nic.ports.iter().map(|port| {
        format!(
            "port {} {} {} {} Gb/s",
            port.number,
            or_unknown(&port.layer),
            or_unknown(&port.state),
            port.gbits
        )
    });
    format!(
        "  {}  {}  firmware {}  {}",
        nic.name,
        or_unknown(&nic.model),
        or_unknown(&nic.firmware),
        ports.collect::<Vec<_>>().join(", ")
    )
}

/// Tries which isolation pods' processes can get and prints the results; returns whether all of it
/// works.
async fn isolation() -> Result<bool> {
    let capabilities = isolation_support().await?;
    for (what, support) in capabilities.lines() {
        println!("  {what:<24}{support}");
    }
    Ok(capabilities.missing().is_empty())
}

/// Tries which isolation pods' processes can get.
///
/// # Errors
/// The probe could not run, or left its directory behind.
pub async fn isolation_support() -> Result<runtime::Capabilities> {
    let scratch = std::env::temp_dir().join(format!("muster-doctor-{}", std::process::id()));
    let shim = vec![std::env::current_exe()?.into(), "shim".into()];
    let tried = runtime::ProcessRuntime::new(runtime::Config::new(scratch.clone(), shim)).await;
    let removed = std::fs::remove_dir_all(&scratch);
    let runtime = tried?;
    removed?;
    Ok(runtime.capabilities().clone())
}
