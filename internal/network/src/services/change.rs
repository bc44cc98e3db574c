//! The difference between two states of Services' rules, as one transaction of `nft`. Pure.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::TABLE;
use super::rules::{Element, Rules, Table, session_set};

/// What turns `old` into `new`; empty if nothing changes. The order is the kernel's: what a rule names exists before
/// it, and nothing that is removed is named any more.
pub(super) fn script(old: &Rules, new: &Rules) -> String {
    let mut out = String::new();
    // A set with another timeout is made anew.
    let kept_set = |name: &String| old.sessions.get(name) == new.sessions.get(name);
    let gone_sets: Vec<&String> = old.sessions.keys().filter(|name| !kept_set(name)).collect();
    // Chains that name such a set are written again, although their text is the same.
    let renewed: BTreeSet<&String> = (gone_sets.iter().copied())
        .filter(|name| new.sessions.contains_key(*name))
        .collect();
    let names_renewed = |lines: &[String]| {
        let of_set = |line: &String| renewed.iter().any(|set| line.contains(&format!("@{set} ")));
        !renewed.is_empty() && lines.iter().any(of_set)
    };
    let changed: Vec<(&String, &Vec<String>)> = new
        .chains
        .iter()
        .filter(|(name, lines)| old.chains.get(*name) != Some(*lines) || names_renewed(lines))
        .collect();
    let gone: Vec<&String> = (old.chains.keys())
        .filter(|name| !new.chains.contains_key(*name))
        .collect();

    for (key, element) in &old.elements {
        if new.elements.get(key) != Some(element) {
            let _ = writeln!(
                out,
                "delete element ip {TABLE} {} {{ {} }}",
                key.0.name(),
                key.1
            );
        }
    }
    for (name, _) in &changed {
        let _ = writeln!(out, "add chain ip {TABLE} {name}");
    }
    for name in changed
        .iter()
        .map(|(name, _)| *name)
        .chain(gone.iter().copied())
    {
        if old.chains.contains_key(name) {
            let _ = writeln!(out, "flush chain ip {TABLE} {name}");
        }
    }
    for name in &gone {
        let _ = writeln!(out, "delete chain ip {TABLE} {name}");
    }
    for name in &gone_sets {
        let _ = writeln!(out, "delete set ip {TABLE} {name}");
    }
    for (name, seconds) in &new.sessions {
        if !kept_set(name) {
            out.push_str(&session_set(name, *seconds));
        }
    }
    for (name, lines) in changed {
        for line in lines {
            let _ = writeln!(out, "add rule ip {TABLE} {name} {line}");
        }
    }
    for (key, element) in &new.elements {
        if old.elements.get(key) != Some(element) {
            let _ = writeln!(out, "{}", added(key, element));
        }
    }
    out
}

fn added((table, key): &(Table, String), element: &Element) -> String {
    let Element { comment, chain } = element;
    let verdict = match chain {
        Some(chain) => format!(" : goto {chain}"),
        None => String::new(),
    };
    let table = table.name();
    format!("add element ip {TABLE} {table} {{ {key} comment \"{comment}\"{verdict} }}")
}

#[cfg(test)]
#[path = "change_tests.rs"]
mod tests;
