//! The printed devices of a machine: `muster topology` and `muster doctor`, on described machines,
//! and with the stand-in for the GPU driver's library.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::path::{Path, PathBuf};
use std::process::Command;

use e2e::{Ran, muster, nvml_standin, repository, run};

#[path = "../../internal/hardware/testing/unpack.rs"]
mod unpack;

fn machine(name: &str) -> PathBuf {
    repository().join("packaging/examples/machines").join(name)
}

fn topology(described: &Path) -> String {
    run(Command::new(muster())
        .args(["topology", "--machine"])
        .arg(described))
    .ok()
}

/// A directory with the stand-in under the driver's library's name.
fn library() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    nvml_standin(dir.path());
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
    // This test does not depend on whether pods could be isolated here.
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
    // Sockets are this machine's own, so that only NVLinks can be compared.
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

/// A RoCE machine's files, and two GPUs for the driver's library.
struct Roce {
    root: tempfile::TempDir,
    library: tempfile::TempDir,
}

impl Roce {
    fn new() -> Roce {
        let root = tempfile::tempdir().unwrap();
        let tree = repository().join("internal/hardware/testing/trees/roce.txt");
        unpack::unpack(&std::fs::read_to_string(tree).unwrap(), root.path());
        let gpus = "[[gpu]]\nmodel = \"NVIDIA A100-SXM4-80GB\"\nmemory_mib = 81920\ncount = 2\n\
                    pci = [\"0000:18:00.0\", \"0000:3a:00.0\"]\n";
        let library = library();
        std::fs::write(library.path().join("gpus.toml"), gpus).unwrap();
        Roce { root, library }
    }

    fn doctor(&self, arguments: &[&str]) -> Ran {
        run(Command::new(muster())
            .args(["doctor", "--root"])
            .arg(self.root.path())
            .args(arguments)
            .env("LD_LIBRARY_PATH", self.library.path())
            .env("MUSTER_NVML_MACHINE", self.library.path().join("gpus.toml")))
    }
}

/// The rows of the doctor's table with this answer.
fn answers(ran: &Ran, answer: &str) -> Vec<String> {
    let rows = ran
        .out
        .lines()
        .filter(|row| row.trim_start().starts_with(answer));
    let words = |row: &str| row.split_whitespace().collect::<Vec<_>>().join(" ");
    rows.map(words).collect()
}

#[test]
fn the_doctor_says_what_is_wrong_with_rdma_and_what_to_do() {
    let machine = Roce::new();
    let saved = machine.library.path().join("well.toml");
    let saved = saved.to_str().unwrap();
    let well = machine.doctor(&["--save-machine", saved]);
    assert_eq!(answers(&well, "fail"), [""; 0], "{}", well.out);
    let unknown = answers(&well, "unknown");
    assert_eq!(unknown.len(), 2, "{}", well.out);
    assert!(unknown[0].contains("cards 2 found; the expected number is not given"));
    let pauses = &unknown[1];
    assert!(
        pauses.contains("PFC mlx5_0/1, mlx5_1/1 the driver does not say"),
        "{pauses}"
    );
    let passed = answers(&well, "pass");
    for row in [
        "pass port state mlx5_0/1, mlx5_1/1 ACTIVE, LinkUp",
        "pass GID mlx5_0/1 index 3: 10.0.0.1, RoCE v2",
        "pass GPU to card GPU 1 PIX to mlx5_1",
        "pass GPUDirect the driver's open modules share memory by dma-buf",
    ] {
        assert!(passed.iter().any(|it| it == row), "{row}: {}", well.out);
    }
    let still = passed
        .iter()
        .any(|row| row.contains("counters") && row.contains("still for 1 s"));
    assert!(still, "{}", well.out);

    let port = machine
        .root
        .path()
        .join("sys/class/infiniband/mlx5_1/ports/1");
    std::fs::write(port.join("state"), "1: DOWN").unwrap();
    std::fs::write(port.join("phys_state"), "3: Disabled").unwrap();
    let ill = machine.doctor(&["--expect", saved]);
    assert_eq!(ill.code, Some(1));
    assert_eq!(
        answers(&ill, "fail"),
        ["fail port state mlx5_1/1 DOWN, Disabled"]
    );
    assert!(
        ill.out
            .contains("do: its interface is down or has no carrier"),
        "{}",
        ill.out
    );
    assert!(
        answers(&ill, "pass")
            .iter()
            .any(|row| row == "pass cards 2 of 2 that are expected")
    );

    std::fs::remove_file(machine.root.path().join("sys/class/infiniband/mlx5_1")).unwrap();
    let gone = machine.doctor(&["--expect", saved]);
    let failed = answers(&gone, "fail");
    assert_eq!(
        failed[0], "fail cards 1 of 2 that are expected: mlx5_1 missing",
        "{}",
        gone.out
    );
}
