//! The report of `muster doctor` on sharing this machine's GPUs.

use std::path::Path;

use hardware::{Inventory, mig};

/// A short list of what no sharing mode isolates; the agent's help has the full list.
const APART: &str = "           MIG isolates all but PCIe, power, heat and faults of the whole GPU;
           MPS isolates neither faults nor memory bandwidth, caches and PCIe;
           time slicing isolates neither memory nor time nor faults of the GPU;
           `muster agent --help` has the details";

/// The lines of the report: the sharing modes of the machine's GPUs, and the isolation of each.
/// Empty for a machine without GPUs.
pub fn of(inventory: &Inventory, control: Option<&Path>) -> String {
    if inventory.gpus.is_empty() {
        return String::new();
    }
    let cut = inventory
        .gpus
        .iter()
        .filter(|gpu| gpu.slices.is_some())
        .count();
    let can = |gpu: &&hardware::Gpu| gpu.slices.is_some() || !mig::profiles(&gpu.model).is_empty();
    let able = inventory.gpus.iter().filter(can).count();
    let control = match control {
        Some(path) => format!("found {}", path.display()),
        None => "no nvidia-cuda-mps-control on the PATH; agents need --mps-control".to_owned(),
    };
    format!(
        "sharing    by MIG: {able} of {} GPUs can be partitioned, {cut} are\n           by MPS: {control}\n{APART}\n",
        inventory.gpus.len(),
    )
}

#[cfg(test)]
mod tests {
    use hardware::Gpu;

    use super::*;

    #[test]
    fn the_report_lists_the_sharing_modes_with_what_they_do_not_isolate() {
        let gpu = |model: &str| Gpu {
            model: model.into(),
            ..Gpu::default()
        };
        let inventory = Inventory {
            gpus: vec![gpu("NVIDIA H100 80GB HBM3"), gpu("NVIDIA L4")],
            ..Inventory::default()
        };
        let text = of(&inventory, None);
        for words in [
            "1 of 2 GPUs can be partitioned, 0 are",
            "no nvidia-cuda-mps-control",
            "MPS isolates neither faults nor memory bandwidth",
        ] {
            assert!(text.contains(words), "{text}");
        }
        let there = of(&inventory, Some(Path::new("/usr/bin/control")));
        assert!(there.contains("found /usr/bin/control"), "{there}");
        assert_eq!(of(&Inventory::default(), None), "");
    }
}
