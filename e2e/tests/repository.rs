//! The rules of the repository: dependencies between crates, entries at the top, the format of files, and that documents
//! and comments name files and modules that exist.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

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
    ("cli", &["administration", "alerting", "hardware", "usage"]),
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
    (
        "portal",
        &[
            "administration",
            "alerting",
            "identity",
            "measurements",
            "supervisor",
            "usage",
        ],
    ),
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
const PURE: [&str; 9] = [
    "alerting",
    "invariants",
    "measurements",
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

/// The value of a number in the code or in the table of limits, in its unit or in milliseconds: `3 * 1024`, `1 <<
/// 20`, `Duration::from_secs(5)`, `64 KiB`, `5 s`.
fn amount(text: &str) -> Option<u64> {
    let text = text.trim();
    let within = |begin: &str| text.strip_prefix(begin)?.strip_suffix(')');
    if let Some(seconds) = within("Duration::from_secs(") {
        return amount(seconds)?.checked_mul(1000);
    }
    if let Some(milliseconds) = within("Duration::from_millis(") {
        return amount(milliseconds);
    }
    if let Some((number, by)) = text.split_once("<<") {
        return amount(number)?.checked_shl(u32::try_from(amount(by)?).ok()?);
    }
    if let Some((one, rest)) = text.split_once('*') {
        return amount(one)?.checked_mul(amount(rest)?);
    }
    let (number, unit) = text.split_once(' ').unwrap_or((text, ""));
    let unit = match unit {
        "" => 1,
        "s" => 1000,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        _ => return None,
    };
    let number: u64 = number.replace('_', "").parse().ok()?;
    number.checked_mul(unit)
}

/// The declared value of a constant.
fn declared<'a>(source: &'a str, name: &str) -> Option<&'a str> {
    let (_, declaration) = source.split_once(&format!("const {name}: "))?;
    let (_, value) = declaration.split_once('=')?;
    value.split(';').next()
}

#[test]
fn numbers_of_limits_are_read() {
    for (text, expected) in [
        ("3 * 1024 * 1024", Some(3 << 20)),
        ("1 << 33", Some(1 << 33)),
        ("1_572_864", Some(1_572_864)),
        ("Duration::from_secs(12 * 3600)", Some(43_200_000)),
        ("43200 s", Some(43_200_000)),
        ("64 KiB", Some(65_536)),
        ("half", None),
        ("5 apples", None),
    ] {
        assert_eq!(amount(text), expected, "{text}");
    }
}

#[test]
fn the_table_of_limits_says_what_the_code_has() {
    let table = std::fs::read_to_string(repository().join("web/docs/limits.md")).unwrap();
    let mut compared = 0;
    for line in table.lines() {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let [_, what, value, _, constant, _] = cells.as_slice() else {
            continue;
        };
        let Some((path, name)) = constant.split_once(' ') else {
            continue;
        };
        let (path, name) = (path.trim_matches('`'), name.trim_matches('`'));
        let path = match path.starts_with("cmd/") {
            true => repository().join(path),
            false => repository().join("internal").join(path),
        };
        let source = std::fs::read_to_string(&path);
        let source = source.unwrap_or_else(|error| panic!("{what}: {}: {error}", path.display()));
        let code = declared(&source, name);
        let code = code.unwrap_or_else(|| panic!("{what}: {name} is not in {}", path.display()));
        assert!(amount(code).is_some(), "{name}: {code:?} is not understood");
        assert_eq!(amount(value), amount(code), "{what}: {name} is {code}");
        compared += 1;
    }
    assert!(compared >= 50, "only {compared} rows were compared");
}

/// The texts in backticks outside of code blocks.
fn quoted(document: &str) -> Vec<String> {
    let mut in_block = false;
    let mut prose = String::new();
    for line in document.lines() {
        if line.trim_start().starts_with("```") {
            in_block = !in_block;
        } else if !in_block {
            prose.push_str(line);
            prose.push('\n');
        }
    }
    prose
        .split('`')
        .skip(1)
        .step_by(2)
        .map(str::to_owned)
        .collect()
}

/// Directories at the top whose files documents name by path.
const NAMED_BY_PATH: [&str; 8] = [
    ".github",
    "api",
    "cmd",
    "e2e",
    "internal",
    "packaging",
    "systemd",
    "web",
];

/// The path below one of [`NAMED_BY_PATH`] that the text is, without a slash at its end.
fn path_of(text: &str) -> Option<&str> {
    let (top, _) = text.split_once('/')?;
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-/".contains(c);
    let path = NAMED_BY_PATH.contains(&top) && text.chars().all(plain);
    path.then(|| text.trim_end_matches('/'))
}

/// The crate and the names below it that the text is: `fleet::ca`, `portal::routes()`.
fn names_of(text: &str) -> Option<(&str, Vec<&str>)> {
    let (name, rest) = text.trim_end_matches("()").split_once("::")?;
    let names: Vec<&str> = rest.split("::").collect();
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let words = names
        .iter()
        .all(|name| !name.is_empty() && name.chars().all(word));
    words.then_some((name, names))
}

/// Whether a source declares an item, method or public field of this name.
fn declares(source: &str, name: &str) -> bool {
    let keywords = [
        "const", "enum", "fn", "mod", "pub", "static", "struct", "trait", "type",
    ];
    keywords.iter().any(|keyword| {
        let declaration = format!("{keyword} {name}");
        source.match_indices(&declaration).any(|(at, _)| {
            let after = source[at + declaration.len()..].chars().next();
            !after.is_some_and(|c| c.is_ascii_alphanumeric() || c == '_')
        })
    })
}

#[test]
fn names_in_documents_are_read() {
    let document =
        "The `a b` of `cmd/x.rs`\n```\n`not/this`\n```\nand `fleet::\nca`, `fleet::ca::of()`.";
    assert_eq!(
        quoted(document),
        ["a b", "cmd/x.rs", "fleet::\nca", "fleet::ca::of()"]
    );
    for (text, path) in [
        ("cmd/x.rs", Some("cmd/x.rs")),
        ("web/docs/", Some("web/docs")),
        ("muster.io/devices", None),
        ("internal/x y", None),
        ("/api/v1", None),
    ] {
        assert_eq!(path_of(text), path, "{text}");
    }
    assert_eq!(
        names_of("fleet::ca::of()"),
        Some(("fleet", vec!["ca", "of"]))
    );
    assert_eq!(names_of("fleet::\nca"), None);
    assert_eq!(names_of("cmd/x.rs"), None);
    assert!(declares("pub(crate) fn of(x: u8)", "of"));
    assert!(declares("    pub cutting: bool,", "cutting"));
    assert!(!declares("fn offered()", "of"));
}

#[test]
fn documents_name_files_and_modules_that_exist() {
    let tracked = tracked();
    let exists = |path: &str| {
        let below = format!("{path}/");
        (tracked.iter()).any(|file| file == path || file.starts_with(&below))
    };
    let mut sources: BTreeMap<String, String> = BTreeMap::new();
    let mut modules: BTreeSet<(String, String)> = BTreeSet::new();
    for file in tracked.iter().filter(|file| file.ends_with(".rs")) {
        let inside = file.strip_prefix("internal/");
        let Some((name, below)) = inside.and_then(|inside| inside.split_once("/src/")) else {
            continue;
        };
        let path = repository().join(file);
        if let Ok(text) = std::fs::read_to_string(path) {
            sources.entry(name.to_owned()).or_default().push_str(&text);
        }
        for part in below.trim_end_matches(".rs").split('/') {
            modules.insert((name.to_owned(), part.to_owned()));
        }
    }
    let document = |file: &&String| {
        let place = file.starts_with("web/docs/") || file.starts_with(".github/");
        file.ends_with(".md") && (place || !file.contains('/'))
    };
    let mut compared = 0;
    for file in tracked.iter().filter(document) {
        let Ok(text) = std::fs::read_to_string(repository().join(file)) else {
            continue;
        };
        for text in quoted(&text) {
            if let Some(path) = path_of(&text) {
                assert!(exists(path), "{file} names {path}, which does not exist");
                compared += 1;
            }
            let Some((name, names)) = names_of(&text) else {
                continue;
            };
            let Some(source) = sources.get(name) else {
                continue;
            };
            for part in names {
                let known = modules.contains(&(name.to_owned(), part.to_owned()));
                assert!(
                    known || declares(source, part),
                    "{file} names {text}, and the crate {name} has no {part}"
                );
            }
            compared += 1;
        }
    }
    assert!(compared >= 100, "only {compared} names were compared");
}

#[test]
fn sources_name_tests_that_exist() {
    let mut compared = 0;
    for file in tracked() {
        let Some((root, _)) = file.split_once("/src/") else {
            continue;
        };
        let Ok(text) = std::fs::read_to_string(repository().join(&file)) else {
            continue;
        };
        let comments = text
            .lines()
            .filter(|line| line.trim_start().starts_with("//"));
        for name in comments.flat_map(|line| line.split('`').skip(1).step_by(2)) {
            if !name.starts_with("tests/") || !name.ends_with(".rs") {
                continue;
            }
            let test = repository().join(root).join(name);
            assert!(test.exists(), "{file} names {name}, which does not exist");
            compared += 1;
        }
    }
    assert!(compared >= 50, "only {compared} names were compared");
}

/// Calls that write, create or rename a file, as far as their names tell.
const FILE_WRITES: [&str; 6] = [
    "fs::write(",
    "fs::rename(",
    "fs::copy(",
    "File::create",
    "OpenOptions::new()",
    "File::options()",
];

/// The product code outside of `durable` with such calls: how many there are, and why what they write need not survive
/// a power cut, or how it does.
const FILES_WRITTEN_WITHOUT_DURABLE: &[(&str, usize, &str)] = &[
    (
        "cmd/muster/src/manual.rs",
        1,
        "manual pages that a command of the build writes",
    ),
    (
        "cmd/muster/src/serve/alerting.rs",
        1,
        "puts a damaged file aside; after a power cut the next start does it again",
    ),
    (
        "cmd/muster/src/serve/doctor.rs",
        1,
        "a file that the command line names, for its user",
    ),
    (
        "cmd/muster/src/serve/history/files.rs",
        1,
        "appends to the log of the present hour, whose last seconds may be lost",
    ),
    (
        "cmd/muster/src/simulate.rs",
        2,
        "files that the command line names, for its user",
    ),
    (
        "internal/agent/src/disk.rs",
        1,
        "a container's termination message; the container does not outlive a power cut",
    ),
    (
        "internal/agent/src/upgrade/receive.rs",
        1,
        "a binary on its way, which `durable::publish` syncs and names",
    ),
    (
        "internal/agent/src/volumes.rs",
        3,
        "volumes of containers, which are written again before a container starts",
    ),
    (
        "internal/devices/src/mps/control.rs",
        1,
        "what an MPS daemon was told; the daemon does not outlive a power cut",
    ),
    (
        "internal/devices/src/nccl.rs",
        2,
        "written again at each start of the agent",
    ),
    (
        "internal/hardware/src/kmsg.rs",
        1,
        "reads the kernel's messages",
    ),
    (
        "internal/identity/src/audit/log.rs",
        5,
        "the audit log's own files: appended and synced, renamed with a sync of the directory",
    ),
    (
        "internal/network/src/namespace.rs",
        1,
        "a mount point in a directory that is in memory",
    ),
    (
        "internal/network/src/pod_networks.rs",
        1,
        "the kernel's settings",
    ),
    (
        "internal/runtime/src/cgroup.rs",
        1,
        "the kernel's control files",
    ),
    (
        "internal/runtime/src/cri/watch.rs",
        1,
        "rotates a container's log",
    ),
    (
        "internal/runtime/src/logs/write.rs",
        2,
        "a container's log, whose last lines may be lost",
    ),
    (
        "internal/runtime/src/mounts/apply.rs",
        2,
        "mount points of a container",
    ),
    ("internal/runtime/src/process.rs", 1, "a shim's log"),
    ("internal/runtime/src/process/watch.rs", 1, "a lock"),
    (
        "internal/runtime/src/shim/processes.rs",
        1,
        "opens /dev/null",
    ),
    (
        "internal/runtime/src/shim/start.rs",
        3,
        "the kernel's files, and a container's host name",
    ),
    ("internal/runtime/src/shim/supervise.rs", 1, "a lock"),
    (
        "internal/runtime/src/volumes.rs",
        2,
        "removes a container's volume; writes its hosts file in place, which is written again before it starts",
    ),
    (
        "internal/store/src/backup.rs",
        1,
        "a backup on its way, which `durable::publish` syncs and names",
    ),
    (
        "internal/store/src/disk.rs",
        2,
        "a lock, and the acknowledged revision, which is synced in place",
    ),
    (
        "internal/store/src/ledger.rs",
        1,
        "puts a damaged ledger aside; after a power cut the next start does it again",
    ),
    (
        "internal/store/src/quarantine.rs",
        1,
        "renames a record with a sync of the directory",
    ),
    (
        "internal/store/src/space.rs",
        1,
        "the reserve file, which holds nothing",
    ),
];

#[test]
fn what_must_survive_a_power_cut_is_written_by_durable() {
    let mut found = Vec::new();
    for file in tracked() {
        let crate_file = file.split_once("/src/").map(|(_, within)| within);
        let product = file.starts_with("internal/") || file.starts_with("cmd/");
        let Some(within) = crate_file.filter(|_| product && file.ends_with(".rs")) else {
            continue;
        };
        let test = file.contains("/testing/")
            || ["tests", "testing", "test_"]
                .iter()
                .any(|part| within.contains(part));
        let Ok(text) = std::fs::read_to_string(repository().join(&file)) else {
            continue;
        };
        if test || file.starts_with("internal/durable/") {
            continue;
        }
        let code = text.split("#[cfg(test)]").next().unwrap_or("");
        let code = code
            .lines()
            .filter(|line| !line.trim_start().starts_with("//"));
        let writes = code.map(|line| {
            let calls = FILE_WRITES.iter().map(|call| line.matches(call).count());
            calls.sum::<usize>()
        });
        match writes.sum() {
            0_usize => {}
            writes => found.push((file, writes)),
        }
    }
    let listed = FILES_WRITTEN_WITHOUT_DURABLE.iter();
    let listed: Vec<(String, usize)> = listed
        .map(|(file, writes, _)| ((*file).to_owned(), *writes))
        .collect();
    assert_eq!(
        found, listed,
        "write files by the crate durable (replace, publish), or say in the list why they need not survive a power cut"
    );
}

/// What the parameters of a test of arbitrary bytes, texts or documents have.
const FUZZED: [&str; 6] = [
    "any::<u8>()",
    "\\\\PC",
    "broken(",
    "changed(",
    "damage()",
    "any_json()",
];

/// The tests of a source that take such parameters.
fn fuzz_tests(source: &str) -> Vec<&str> {
    let tests = source.split("#[test]").skip(1);
    let found = tests.filter_map(|test| {
        let (_, test) = test.split_once("fn ")?;
        let (name, test) = test.split_once('(')?;
        // Braces of a text's repetitions are within the parameters.
        let (parameters, _) = test.split_once(") {\n")?;
        let fuzzed = FUZZED.iter().any(|part| parameters.contains(part));
        (fuzzed && parameters.contains(" in ")).then_some(name)
    });
    found.collect()
}

#[test]
fn make_fuzz_has_every_test_of_arbitrary_bytes_texts_and_documents() {
    let makefile = std::fs::read_to_string(repository().join("Makefile")).unwrap();
    assert!(
        makefile.contains("'(binary(fuzz) + binary(ends) + test(/_panics?$$/)) - package(e2e)'")
    );
    let mut count = 0;
    for file in tracked() {
        let in_crate = file.starts_with("internal/") || file.starts_with("cmd/");
        if !in_crate || !file.ends_with(".rs") || file.contains("/tests/fuzz/") {
            continue;
        }
        let Ok(text) = std::fs::read_to_string(repository().join(&file)) else {
            continue;
        };
        for name in fuzz_tests(&text) {
            count += 1;
            assert!(
                name.ends_with("_panics") || name.ends_with("_panic"),
                "{file}: `make fuzz` does not choose {name}; let its name end in _panics"
            );
        }
    }
    assert!(count >= 50, "only {count} tests were found");
}
