//! Documents and comments name files, modules and tests that exist.

use std::collections::{BTreeMap, BTreeSet};

use e2e::repository;

use super::tracked;

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
