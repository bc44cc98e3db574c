//! Paths of the real programs.

use std::path::{Path, PathBuf};

/// The repository's root.
pub fn repository() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent()
        .expect("e2e lies in the repository")
        .to_path_buf()
}

/// The binary under test: the dev build, or the one in MUSTER_BINARY.
pub fn muster() -> PathBuf {
    match std::env::var_os("MUSTER_BINARY") {
        Some(path) => path.into(),
        None => existing(target().join("debug/muster"), "cargo build -p muster"),
    }
}

fn target() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(path) => path.into(),
        None => repository().join("target"),
    }
}

/// A program that `e2e/parts/get` built or installed.
pub fn part(name: &str) -> PathBuf {
    let parts = repository().join("target/parts");
    existing(
        parts.join(name),
        "e2e/parts/get kubernetes helm pebble openid-provider containerd axe guest python ray notebooks",
    )
}

/// kubectl, built from its Go module.
pub fn kubectl() -> PathBuf {
    part("kubectl")
}

/// The Python of the tests' virtual environment.
pub fn python() -> PathBuf {
    part("python/bin/python")
}

fn existing(path: PathBuf, how: &str) -> PathBuf {
    assert!(path.exists(), "{} is missing; run: {how}", path.display());
    path
}

/// Fails with the reason if a test needs root (network namespaces, cgroups, mounts).
pub fn require_root() {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let root = status.lines().any(|line| line.starts_with("Uid:\t0\t"));
    assert!(
        root,
        "this test makes namespaces and cgroups: run it as root"
    );
}
