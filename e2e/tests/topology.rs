//! What people see of a machine's devices: `muster topology` and `muster doctor`, on described
//! machines, and through the GPU driver's library with the stand-in in its place.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::path::{Path, PathBuf};
use std::process::Command;

use e2e::{muster, repository, run};

fn machine(name: &str) -> PathBuf {
    repository().join("packaging/examples/machines").join(name)
}

fn topology(described: &Path) -> String {
    run(Command::new(muster())
        .args(["topology", "--machine"])
        .arg(described))
    .ok()
}

/// A folder with the stand-in under the driver's library's name.
fn library() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let beside = std::env::current_exe().unwrap();
    let built = beside.parent().unwrap().join("libnvml_standin.so");
    std::fs::copy(built, dir.path().join("libnvidia-ml.so.1")).unwrap();
    dir
}

/// The paths between GPUs in a table: each row's words up to the last GPU's.
fn gpus(table: &str, count: usize) -> Vec<Vec<&str>> {
    let rows = table.lines().filter(|line| line.starts_with("GPU"));
    rows.map(|row| row.split_whitespace().take(count + 1).collect())
        .collect()
}

#[test]
fn a_machine_that_is_saved_is_drawn_as_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let saved = dir.path().join("saved.toml");
    let described = machine("dgx-a100.toml");
    // Whether pods could be isolated here as well is no matter of this test.
    let doctor = run(Command::new(muster())
        .args(["doctor", "--machine"])
        .arg(&described)
        .arg("--save-machine")
        .arg(&saved));
    assert!(doctor.out.contains("mlx5_7"), "{}", doctor.out);
    assert_eq!(topology(&saved), topology(&described));
}

#[test]
fn the_drivers_library_is_asked_for_gpus_and_their_links() {
    let library = library();
    let described = machine("8x-v100.toml");
    let asked = run(Command::new(muster())
        .arg("topology")
        .env("LD_LIBRARY_PATH", library.path())
        .env("MUSTER_NVML_MACHINE", &described))
    .ok();
    let expected = topology(&described);
    // Sockets are this machine's own, so only NVLinks can be compared.
    let links = |rows: Vec<Vec<&str>>| -> Vec<Vec<bool>> {
        let row = |row: Vec<&str>| row.iter().map(|word| word.starts_with("NV")).collect();
        rows.into_iter().map(row).collect()
    };
    assert_eq!(links(gpus(&asked, 8)), links(gpus(&expected, 8)), "{asked}");
    assert!(gpus(&asked, 8)[0].starts_with(&["GPU0", "X", "NV1", "NV1", "NV2", "NV2"]));
}

#[test]
fn a_description_with_a_fault_is_refused_with_what_would_be_right() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("machine.toml");
    std::fs::write(
        &file,
        "[[gpu]]\nmodel = \"NVIDIA L4\"\nmemory_mib = 1\nunder = [\"there\"]\n",
    )
    .unwrap();
    let refused = run(Command::new(muster())
        .args(["topology", "--machine"])
        .arg(&file));
    assert!(refused.code != Some(0));
    for word in ["machine.toml", "gpu[0].under", "\"there\"", "pci0000:15"] {
        assert!(refused.err.contains(word), "{}", refused.err);
    }
}
