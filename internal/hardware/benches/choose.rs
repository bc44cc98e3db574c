//! What it costs to choose 8 of 16 GPUs, on machines as alike and as unlike as they come.

use std::hint::black_box;
use std::path::Path;

use criterion::{Criterion, criterion_group, criterion_main};
use hardware::description::MachineDescription;
use hardware::{GpuChooser, Inventory, PathGraph};

fn machine(text: &str) -> PathGraph {
    let mut inventory = Inventory::default();
    let description =
        MachineDescription::parse(text, Path::new("bench.toml")).expect("a good machine");
    description.apply(&mut inventory);
    PathGraph::of(&inventory)
}

/// Sixteen on one fabric, as a DGX-2 has them.
fn switched() -> String {
    "[[gpu]]\nmodel = \"V\"\nmemory_mib = 1\ncount = 16\nnvlinks = 6\nnvswitch = true\n\
     compute_capability = \"7.0\"\n"
        .into()
}

/// Four PCIe switches of four on two sockets, each with a card.
fn pcie() -> String {
    let mut text = String::new();
    for switch in 0..4 {
        let (address, numa) = (format!("0000:{}0:00.0", switch + 1), switch / 2);
        text += &format!(
            "[[switch]]\naddress = \"{address}\"\nunder = \"pci0000:{switch}f\"\n\
             pcie_generation = 4\npcie_width = 16\n\
             [[nic]]\nname = \"mlx5_{switch}\"\nunder = \"{address}\"\n\
             ports = [{{ gbits = 200, layer = \"Ethernet\" }}]\n"
        );
        let under = format!("[{}]", vec![format!("\"{address}\""); 4].join(", "));
        text += &format!(
            "[[gpu]]\nmodel = \"P\"\nmemory_mib = 1\ncount = 4\nnuma = {numa}\nunder = {under}\n\
             pcie_generation = 4\npcie_width = 16\n"
        );
    }
    text
}

/// A mesh in which no two GPUs are alike: one to nine links between most pairs.
fn unlike() -> String {
    let mut text = "[[gpu]]\nmodel = \"M\"\nmemory_mib = 1\ncount = 16\n".to_string();
    for one in 0..16u32 {
        for other in one + 1..16 {
            let links = (one * 7 + other * 11 + one * other) % 10;
            if links > 0 {
                text += &format!("[[nvlink]]\ngpus = [{one}, {other}]\nlinks = {links}\n");
            }
        }
    }
    text
}

fn choose(c: &mut Criterion) {
    let all: Vec<usize> = (0..16).collect();
    for (name, text) in [
        ("switched", switched()),
        ("pcie", pcie()),
        ("unlike", unlike()),
    ] {
        let graph = machine(&text);
        let ready = GpuChooser::new(graph.clone());
        ready.prepare();
        c.bench_function(&format!("8 of 16, {name}"), |b| {
            b.iter(|| ready.choose(black_box(&all), &[], 8));
        });
        c.bench_function(&format!("tables of 16, {name}"), |b| {
            b.iter(|| GpuChooser::new(black_box(&graph).clone()).prepare());
        });
    }
}

criterion_group!(benches, choose);
criterion_main!(benches);
