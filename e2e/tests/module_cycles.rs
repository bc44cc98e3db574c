//! Import cycles between the modules of a crate. A module is a crate's file or directory directly under `src`, with
//! all that lies in it. Of two modules that import each other neither can be understood, tested or moved alone.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use e2e::repository;

/// The crates that still have cycles: how many of their modules import each other in a circle, and how many imports do
/// so, counted once for each file and imported module. A crate that is not listed has none. The numbers may only
/// shrink.
const CYCLES: &[(&str, usize, usize)] = &[("scheduler", 32, 442)];

/// The root of a crate, as a module: what `lib.rs` or `main.rs` re-exports is imported from there.
const ROOT: &str = "lib";

/// An import of product code.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Import {
    /// The importing file, below `src`.
    file: String,
    /// The importing module.
    from: String,
    /// The imported module.
    to: String,
}

/// A source without its comments and without what is compiled for tests only.
fn product(text: &str) -> String {
    let mut lines = Vec::new();
    let mut all = text.lines().peekable();
    while let Some(line) = all.next() {
        if line.trim() != "#[cfg(test)]" {
            let code = line.split("//").next().unwrap_or_default();
            lines.push(code);
            continue;
        }
        // Further attributes, and then an item of one line or up to its closing brace, as rustfmt places it.
        let indent = line.len() - line.trim_start().len();
        while all
            .peek()
            .is_some_and(|next| next.trim_start().starts_with("#["))
        {
            all.next();
        }
        let first = all.next().unwrap_or_default();
        if first.ends_with(';') || first.ends_with('}') {
            continue;
        }
        for rest in all.by_ref() {
            let ends = ["}", "};", ");"].contains(&rest.trim());
            if ends && rest.len() - rest.trim_start().len() == indent {
                break;
            }
        }
    }
    lines.join("\n")
}

/// The modules from the crate's root to this file: none for `lib.rs`, `a` and `b` for `a/b.rs` and `a/b/mod.rs`.
fn modules_of(file: &str) -> Vec<&str> {
    let path = file.strip_suffix(".rs").unwrap_or(file);
    let path = path.strip_suffix("/mod").unwrap_or(path);
    match path {
        "lib" | "main" => Vec::new(),
        path => path.split('/').collect(),
    }
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The first names of a path's rest: `a` of `a::b`, `a` and `c` of `{a::b, c}`.
fn heads(rest: &str) -> Vec<&str> {
    let word = |text: &str| text.find(|c| !is_word(c)).unwrap_or(text.len());
    let Some(group) = rest.strip_prefix('{') else {
        return vec![&rest[..word(rest)]];
    };
    let (mut depth, mut begins) = (0, true);
    let mut found = Vec::new();
    for (at, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => begins = true,
            c if begins && is_word(c) => {
                found.push(&group[at..at + word(&group[at..])]);
                begins = false;
            }
            _ => {}
        }
    }
    found
}

/// The names directly below the crate's root that a file's code imports or names by their path.
fn named<'a>(code: &'a str, file: &str, top: &BTreeSet<String>) -> BTreeSet<&'a str> {
    let own = modules_of(file);
    let mut found = BTreeSet::new();
    for (at, _) in code.match_indices("::") {
        let begin = code[..at].trim_end_matches(is_word).len();
        let word = &code[begin..at];
        let continues = code[..begin].ends_with("::");
        let rest = &code[at + 2..];
        match word {
            "crate" => found.extend(heads(rest)),
            "super" if !continues => {
                let (mut levels, mut rest) = (1, rest);
                while let Some(more) = rest.strip_prefix("super::") {
                    (levels, rest) = (levels + 1, more);
                }
                // Deeper: a module within this one. Higher: out of a module that is written in this file.
                if levels == own.len() {
                    found.extend(heads(rest));
                }
            }
            // The root names its modules without a prefix.
            _ if own.is_empty() && !continues && top.contains(word) => {
                found.insert(word);
            }
            _ => {}
        }
    }
    found
}

/// The imports between the modules of a crate whose files are these, by their path below `src`.
fn imports(files: &BTreeMap<String, String>) -> BTreeSet<Import> {
    let module = |file: &str| modules_of(file).first().copied().unwrap_or(ROOT).to_owned();
    let top: BTreeSet<String> = files.keys().map(|file| module(file)).collect();
    let mut all = BTreeSet::new();
    for (file, text) in files {
        let code = product(text);
        let from = module(file);
        for name in named(&code, file, &top) {
            // What is no module is an item of the root.
            let to = if top.contains(name) { name } else { ROOT };
            if to != from {
                let (file, from, to) = (file.clone(), from.clone(), to.to_owned());
                all.insert(Import { file, from, to });
            }
        }
    }
    all
}

/// The modules that each module reaches by imports, over any number of others.
fn reached(imports: &BTreeSet<Import>) -> BTreeMap<&str, BTreeSet<&str>> {
    let mut direct: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for import in imports {
        direct.entry(&import.from).or_default().insert(&import.to);
    }
    let of = |from: &str| {
        let mut seen = BTreeSet::new();
        let mut left: Vec<&str> = direct.get(from).into_iter().flatten().copied().collect();
        while let Some(next) = left.pop() {
            if seen.insert(next) {
                left.extend(direct.get(next).into_iter().flatten());
            }
        }
        seen
    };
    direct.keys().map(|from| (*from, of(from))).collect()
}

/// The modules in cycles, and the imports between modules of one cycle.
fn cycles(imports: &BTreeSet<Import>) -> (BTreeSet<&str>, Vec<&Import>) {
    let reached = reached(imports);
    let reaches = |from: &str, to: &str| reached.get(from).is_some_and(|all| all.contains(to));
    let modules = reached.keys().filter(|module| reaches(module, module));
    let within = imports
        .iter()
        .filter(|import| reaches(&import.to, &import.from));
    (modules.copied().collect(), within.collect())
}

/// A directory's Rust files of product code, by their path below it.
fn sources(src: &Path) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut left = vec![src.to_owned()];
    while let Some(directory) = left.pop() {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.is_dir() && name != "tests" {
                left.push(path);
                continue;
            }
            let of_tests = name == "tests.rs" || name.ends_with("_tests.rs");
            if name.ends_with(".rs") && !of_tests {
                let below = path
                    .strip_prefix(src)
                    .unwrap()
                    .to_string_lossy()
                    .into_owned();
                found.insert(below, std::fs::read_to_string(&path).unwrap());
            }
        }
    }
    found
}

/// The crates of `internal` and `cmd`, by name, each with its sources' directory.
fn crates() -> BTreeMap<String, PathBuf> {
    let directories = ["internal", "cmd"].map(|name| repository().join(name));
    let entries = directories
        .iter()
        .flat_map(|directory| std::fs::read_dir(directory).unwrap());
    let all = entries.map(|entry| {
        let entry = entry.unwrap();
        (
            entry.file_name().to_string_lossy().into_owned(),
            entry.path().join("src"),
        )
    });
    all.filter(|(_, src)| src.is_dir()).collect()
}

#[test]
fn no_modules_import_each_other_beyond_those_that_the_table_lists() {
    let allowed: BTreeMap<&str, (usize, usize)> = CYCLES
        .iter()
        .map(|(name, modules, imports)| (*name, (*modules, *imports)))
        .collect();
    let crates = crates();
    for name in allowed.keys() {
        assert!(
            crates.contains_key(*name),
            "CYCLES lists {name}, which does not exist"
        );
    }
    let (mut table, mut faults) = (String::new(), String::new());
    for (name, src) in &crates {
        let imports = imports(&sources(src));
        let (modules, within) = cycles(&imports);
        let found = (modules.len(), within.len());
        if found != (0, 0) {
            table.push_str(&format!("    (\"{name}\", {}, {}),\n", found.0, found.1));
        }
        let (most_modules, most_imports) = allowed.get(name.as_str()).copied().unwrap_or_default();
        if found == (most_modules, most_imports) {
            continue;
        }
        if found.0 <= most_modules && found.1 <= most_imports {
            faults.push_str(&format!(
                "{name} has fewer cycles than CYCLES lists: lower its numbers\n"
            ));
            continue;
        }
        faults.push_str(&format!(
            "{name} has {} modules in cycles and {} imports between them; CYCLES allows {most_modules} and \
             {most_imports}:\n",
            found.0, found.1
        ));
        for Import { file, from, to } in within {
            faults.push_str(&format!("  {from} -> {to} in {file}\n"));
        }
    }
    assert!(faults.is_empty(), "{faults}What is there now:\n{table}");
}

/// The imports of a crate with these files, as `from -> to`.
fn arrows(files: &[(&str, &str)]) -> Vec<String> {
    let owned = |(file, text): &(&str, &str)| ((*file).to_owned(), (*text).to_owned());
    let all = imports(&files.iter().map(owned).collect());
    all.iter()
        .map(|it| format!("{} -> {}", it.from, it.to))
        .collect()
}

#[test]
fn imports_are_those_of_product_code_between_modules() {
    let found = arrows(&[
        (
            "lib.rs",
            "mod a;\nmod b;\npub use a::Thing;\nfn f() { b::g(); }",
        ),
        (
            "a/mod.rs",
            "mod inner;\nuse crate::{c::{D, E}, f};\n// crate::e\nuse super::b::B;",
        ),
        (
            "a/inner.rs",
            "use super::Thing;\nuse super::super::c::D;\nuse crate::a::Thing as Same;",
        ),
        (
            "b.rs",
            "#[cfg(test)]\nmod tests {\n    use crate::a::Thing;\n}",
        ),
        ("c.rs", "pub struct D;"),
    ]);
    let expected = [
        "a -> c", "a -> b", "a -> c", "a -> lib", "lib -> a", "lib -> b",
    ];
    assert_eq!(found, expected);
}

#[test]
fn a_cycle_is_found_over_several_modules_and_its_neighbours_are_not_in_it() {
    let files = [
        ("a.rs", "use crate::b::B;\nuse crate::d::D;"),
        ("b.rs", "use crate::c::C;"),
        ("c.rs", "use crate::a::A;"),
        ("d.rs", ""),
        ("e.rs", "use crate::a::A;"),
    ];
    let owned = files.map(|(file, text)| (file.to_owned(), text.to_owned()));
    let imports = imports(&BTreeMap::from(owned));
    let (modules, within) = cycles(&imports);
    assert_eq!(modules.into_iter().collect::<Vec<_>>(), ["a", "b", "c"]);
    assert_eq!(within.len(), 3);
}
