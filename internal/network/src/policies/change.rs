//! The difference between two states of policies' rules, as one transaction of `nft`. Pure.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::sync::Arc;

use resources::network_policies::Element;

use super::TABLE;
use super::rules::{Rules, SetName, set_name, set_type};

/// The most members that one line adds to a set or takes from it.
const LINE_ELEMENTS: usize = 256;

/// What turns `old` into `new`; empty if nothing changes. The order is the kernel's: what a rule or an element names
/// exists before it, and nothing that is removed is named any more.
pub(super) fn script(old: &Rules, new: &Rules) -> String {
    let mut out = String::new();
    let changed = new.chains.iter();
    let changed: Vec<_> = changed
        .filter(|(name, lines)| old.chains.get(*name) != Some(*lines))
        .collect();
    let gone = old.chains.keys();
    let gone: Vec<_> = gone
        .filter(|name| !new.chains.contains_key(*name))
        .collect();

    for (key, element) in &old.pods {
        if new.pods.get(key) != Some(element) {
            let (map, device) = (key.0.map(), &key.1);
            line(
                &mut out,
                &format!("delete element inet {TABLE} {map} {{ \"{device}\" }}"),
            );
        }
    }
    for (name, _) in &changed {
        line(&mut out, &format!("add chain inet {TABLE} {name}"));
    }
    let emptied = changed
        .iter()
        .map(|(name, _)| *name)
        .chain(gone.iter().copied());
    for name in emptied.filter(|name| old.chains.contains_key(*name)) {
        line(&mut out, &format!("flush chain inet {TABLE} {name}"));
    }
    for name in &gone {
        line(&mut out, &format!("delete chain inet {TABLE} {name}"));
    }
    for name in old.sets.keys().filter(|name| !new.sets.contains_key(*name)) {
        line(
            &mut out,
            &format!("delete set inet {TABLE} {}", set_name(*name)),
        );
    }
    for (name, members) in &new.sets {
        change_set(&mut out, *name, old.sets.get(name), members);
    }
    for (name, lines) in changed {
        for rule in lines {
            line(&mut out, &format!("add rule inet {TABLE} {name} {rule}"));
        }
    }
    for (key, element) in &new.pods {
        if old.pods.get(key) != Some(element) {
            let (map, device, (chain, comment)) = (key.0.map(), &key.1, element);
            line(
                &mut out,
                &format!(
                    "add element inet {TABLE} {map} {{ \"{device}\" comment \"{comment}\" : goto {chain} }}"
                ),
            );
        }
    }
    out
}

fn line(out: &mut String, text: &str) {
    // Writing to a text cannot fail.
    let _ = writeln!(out, "{text}");
}

fn change_set(
    out: &mut String,
    name: SetName,
    old: Option<&Arc<BTreeSet<Element>>>,
    new: &Arc<BTreeSet<Element>>,
) {
    if old.is_some_and(|old| Arc::ptr_eq(old, new)) {
        return;
    }
    let set = set_name(name);
    let none = Arc::default();
    let before = old.unwrap_or_else(|| {
        let kind = set_type(name.0);
        line(
            out,
            &format!("add set inet {TABLE} {set} {{ type {kind}; }}"),
        );
        &none
    });
    for (verb, elements) in [
        ("delete", before.difference(new)),
        ("add", new.difference(before)),
    ] {
        let elements: Vec<String> = elements.map(member).collect();
        for some in elements.chunks(LINE_ELEMENTS) {
            let some = some.join(", ");
            line(
                out,
                &format!("{verb} element inet {TABLE} {set} {{ {some} }}"),
            );
        }
    }
}

fn member(element: &Element) -> String {
    match element.port {
        None => element.address.to_string(),
        Some((protocol, port)) => format!("{} . {protocol} . {port}", element.address),
    }
}

#[cfg(test)]
#[path = "change_tests.rs"]
mod tests;
