//! The rules of the repository. Here: dependencies between crates, entries at the top, and the length of files.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod documents;
mod durable_files;
mod fuzz_names;
mod limits_table;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use e2e::{repository, run};

/// The arrows of ARCHITECTURE.md. Every crate may also name `resources`.
const ARROWS: &[(&str, &[&str])] = &[
    ("administration", &[]),
    (
        "agent",
        &[
            "devices",
            "dns",
            "durable",
            "hardware",
            "network",
            "rpc",
            "runtime",
            "supervisor",
        ],
    ),
    ("alerting", &[]),
    ("apiserver", &["schema", "store"]),
    (
        "cli",
        &[
            "administration",
            "alerting",
            "durable",
            "hardware",
            "oidc",
            "usage",
        ],
    ),
    (
        "controllers",
        &["invariants", "scheduler", "supervisor", "workloads"],
    ),
    ("devices", &["durable", "hardware", "runtime"]),
    ("dns", &[]),
    ("durable", &[]),
    ("fleet", &["durable", "rpc", "supervisor"]),
    ("hardware", &[]),
    ("identity", &["durable", "supervisor"]),
    ("invariants", &[]),
    ("measurements", &[]),
    ("network", &["durable"]),
    ("nvml-standin", &["hardware"]),
    ("oidc", &[]),
    (
        "portal",
        &[
            "administration",
            "alerting",
            "identity",
            "measurements",
            "oidc",
            "supervisor",
            "usage",
        ],
    ),
    ("proxy", &["apiserver"]),
    ("resources", &[]),
    ("rpc", &[]),
    ("runtime", &["durable"]),
    ("scheduler", &[]),
    ("schema", &[]),
    ("simulator", &["invariants", "scheduler", "workloads"]),
    ("store", &["durable"]),
    ("supervisor", &[]),
    ("telemetry", &[]),
    ("systemd", &[]),
    ("usage", &[]),
    ("workloads", &[]),
];

/// Crates without input or output, and the crates that they must not depend on.
const PURE: [&str; 10] = [
    "alerting",
    "invariants",
    "measurements",
    "oidc",
    "resources",
    "scheduler",
    "schema",
    "simulator",
    "usage",
    "workloads",
];
const IMPURE: [&str; 6] = ["axum", "hyper", "nix", "reqwest", "sled", "tokio"];

/// The entries allowed at the repository's top.
const TOP: [&str; 18] = [
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "Cargo.lock",
    "Cargo.toml",
    "LICENSE",
    "Makefile",
    "README.md",
    "api",
    "clippy.toml",
    "cmd",
    "deny.toml",
    "e2e",
    "internal",
    "packaging",
    "rust-toolchain.toml",
    "rustfmt.toml",
    "systemd",
    "web",
];

/// The most lines of product code in one file.
const LONGEST: usize = 800;

/// Each crate's direct dependencies, by name; those for tests apart.
fn dependencies() -> BTreeMap<String, BTreeSet<String>> {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["metadata", "--format-version=1", "--no-deps", "--locked"]);
    let out = run(cargo.current_dir(repository())).ok();
    let metadata: serde_json::Value = serde_json::from_str(&out).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    let of = |package: &serde_json::Value| {
        let all = package["dependencies"].as_array().unwrap().iter();
        let needed = all.filter(|dependency| dependency["kind"].is_null());
        needed
            .map(|dependency| dependency["name"].as_str().unwrap().to_string())
            .collect()
    };
    packages
        .iter()
        .map(|p| (p["name"].as_str().unwrap().to_string(), of(p)))
        .collect()
}

#[test]
fn no_crate_names_another_that_the_picture_does_not_show() {
    let all = dependencies();
    let picture: BTreeMap<&str, &[&str]> = ARROWS.iter().copied().collect();
    for (name, needs) in &all {
        if name == "muster" || name == "e2e" {
            continue;
        }
        let allowed = picture.get(name.as_str());
        let allowed = allowed.unwrap_or_else(|| panic!("crate {name} is not in the picture"));
        for need in needs.iter().filter(|need| all.contains_key(*need)) {
            let fine = need == "resources" || allowed.contains(&need.as_str());
            assert!(
                fine,
                "{name} -> {need} is an arrow that ARCHITECTURE.md lacks"
            );
        }
    }
    for (name, _) in ARROWS {
        assert!(
            all.contains_key(*name),
            "the picture shows {name}, which does not exist"
        );
    }
}

#[test]
fn architecture_md_shows_every_crate_and_every_arrow() {
    let text = std::fs::read_to_string(repository().join("ARCHITECTURE.md")).unwrap();
    for (name, allowed) in ARROWS {
        let row = text
            .lines()
            .find(|line| line.starts_with(&format!("| `{name}` |")));
        let row = row.unwrap_or_else(|| panic!("ARCHITECTURE.md has no row for {name}"));
        for arrow in *allowed {
            assert!(
                row.contains(&format!("`{arrow}`")),
                "{name}'s row lacks the arrow to {arrow}"
            );
        }
    }
}

#[test]
fn pure_crates_are_built_on_nothing_that_acts() {
    let all = dependencies();
    for name in PURE {
        for impure in IMPURE {
            assert!(
                !all[name].contains(impure),
                "{name} is pure, and names {impure}"
            );
        }
    }
}

#[test]
fn only_the_store_names_sled() {
    for (name, needs) in dependencies() {
        assert!(
            name == "store" || !needs.contains("sled"),
            "{name} names sled"
        );
    }
}

fn tracked() -> Vec<String> {
    let out = run(Command::new("git")
        .args(["ls-files"])
        .current_dir(repository()))
    .ok();
    out.lines().map(str::to_string).collect()
}

#[test]
fn nothing_lies_at_the_top_that_does_not_belong_there() {
    for file in tracked() {
        let top = file.split('/').next().unwrap();
        assert!(
            top.starts_with('.') || TOP.contains(&top),
            "{top} does not belong at the top"
        );
    }
}

#[test]
fn no_file_of_product_code_is_too_long_and_each_says_what_it_owns() {
    for file in tracked() {
        let product =
            file.ends_with(".rs") && (file.starts_with("internal/") || file.starts_with("cmd/"));
        let path = repository().join(&file);
        if !product || file.contains("/tests/") || !Path::new(&path).exists() {
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(
            text.starts_with("//!"),
            "{file} does not say what it owns in its first line"
        );
        let code = text.split("#[cfg(test)]").next().unwrap_or("");
        assert!(
            code.lines().count() <= LONGEST,
            "{file} has over {LONGEST} lines"
        );
    }
}
