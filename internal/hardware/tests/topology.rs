//! The printed table of a described machine.

use std::path::Path;

use hardware::description::MachineDescription;
use hardware::{Inventory, matrix};

fn drawn(machine: &str) -> String {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/examples/machines");
    let mut inventory = Inventory::default();
    let description = MachineDescription::load(&dir.join(machine)).expect("a good description");
    description.apply(&mut inventory);
    matrix::draw(&inventory)
}

#[test]
fn four_a40_are_drawn_with_their_bridges_sockets_and_card() {
    let expected = [
        "      GPU0  GPU1  GPU2  GPU3  NIC0  CPU Affinity  NUMA Affinity",
        "GPU0  X     NV4   SYS   SYS   NODE  0-27,56-83    0",
        "GPU1  NV4   X     SYS   SYS   NODE  0-27,56-83    0",
        "GPU2  SYS   SYS   X     NV4   SYS   28-55,84-111  1",
        "GPU3  SYS   SYS   NV4   X     SYS   28-55,84-111  1",
        "NIC0  NODE  NODE  SYS   SYS   X",
    ];
    let text = drawn("4x-a40.toml");
    let head: Vec<&str> = text.lines().take(expected.len()).collect();
    assert_eq!(head, expected, "{text}");
    assert!(
        text.contains("NIC0: mlx5_0  100 Gb/s Ethernet ACTIVE\n"),
        "{text}"
    );
    let carried = "  NV4   48.0 GB/s\n  NODE  12.0 GB/s\n  SYS   10.0 GB/s\n";
    assert!(text.ends_with(carried), "{text}");
}

#[test]
fn in_the_hybrid_mesh_some_gpus_have_two_links_some_one_and_some_none() {
    let text = drawn("8x-v100.toml");
    let row = text
        .lines()
        .find(|line| line.starts_with("GPU1 "))
        .expect("a row");
    let words: Vec<&str> = row.split_whitespace().collect();
    let expected = [
        "GPU1",
        "NV1",
        "X",
        "NV2",
        "NV1",
        "SYS",
        "NV2",
        "SYS",
        "SYS",
        "PIX",
        "PHB",
        "SYS",
        "SYS",
        "0-19,40-59",
        "0",
    ];
    assert_eq!(words, expected);
}

#[test]
fn each_h100_has_a_card_of_its_own_under_its_switch() {
    let text = drawn("hgx-h100.toml");
    for gpu in 0..8 {
        let row = text
            .lines()
            .find(|line| line.starts_with(&format!("GPU{gpu} ")));
        let words: Vec<&str> = row.expect("a row").split_whitespace().collect();
        let near: Vec<usize> = (0..8).filter(|nic| words[9 + nic] == "PIX").collect();
        assert_eq!(near, [gpu]);
        assert_eq!(words.iter().filter(|word| **word == "NV18").count(), 7);
    }
}
