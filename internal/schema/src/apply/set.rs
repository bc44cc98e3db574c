//! Sets of field paths, as a tree: union, intersection, difference and the fieldsV1 form. It
//! must not know schemas or values of objects.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use serde_json::{Map, Value};

use super::element::{Element, FieldsError};

/// A path in its message form, truncated to `longest` bytes.
fn text(path: &[&Element], longest: usize) -> String {
    let mut text = String::new();
    for element in path {
        text.push_str(&element.to_string());
        if text.len() > longest {
            text.truncate(text.floor_char_boundary(longest));
            text.push_str("...");
            break;
        }
    }
    text
}

/// A set of paths.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct PathSet {
    branches: BTreeMap<Element, SubtreePaths>,
}

/// The part of a set at and below one element.
#[derive(Clone, Debug, Default, PartialEq)]
struct SubtreePaths {
    /// The path that ends here is in the set.
    member: bool,
    below: PathSet,
}

impl SubtreePaths {
    fn is_empty(&self) -> bool {
        !self.member && self.below.is_empty()
    }
}

impl PathSet {
    pub(crate) fn is_empty(&self) -> bool {
        // Operations drop empty branches, so a branch means a member somewhere.
        self.branches.is_empty()
    }

    /// Adds a path; the empty path is the object itself, which has no owner.
    pub(crate) fn insert(&mut self, path: &[Element]) {
        let Some((first, rest)) = path.split_first() else {
            return;
        };
        if !self.branches.contains_key(first) {
            self.branches.insert(first.clone(), SubtreePaths::default());
        }
        if let Some(branch) = self.branches.get_mut(first) {
            if rest.is_empty() {
                branch.member = true;
            } else {
                branch.below.insert(rest);
            }
        }
    }

    /// Adds one element, taking it.
    pub(crate) fn insert_element(&mut self, element: Element, member: bool, below: PathSet) {
        if !member && below.is_empty() {
            return;
        }
        match self.branches.entry(element) {
            Entry::Vacant(place) => {
                place.insert(SubtreePaths { member, below });
            }
            Entry::Occupied(mut place) => {
                let branch = place.get_mut();
                branch.member |= member;
                branch.below.absorb(below);
            }
        }
    }

    #[cfg(test)]
    pub(crate) fn has(&self, path: &[Element]) -> bool {
        match path.split_first() {
            None => false,
            Some((first, rest)) => self.branches.get(first).is_some_and(|branch| {
                if rest.is_empty() {
                    branch.member
                } else {
                    branch.below.has(rest)
                }
            }),
        }
    }

    /// Whether the element itself is a member.
    pub(crate) fn has_element(&self, element: &Element) -> bool {
        self.branches.get(element).is_some_and(|b| b.member)
    }

    /// The set below an element.
    pub(crate) fn below(&self, element: &Element) -> Option<&PathSet> {
        self.branches
            .get(element)
            .map(|branch| &branch.below)
            .filter(|below| !below.is_empty())
    }

    pub(crate) fn branches(&self) -> impl Iterator<Item = (&Element, bool, &PathSet)> {
        self.branches
            .iter()
            .map(|(element, branch)| (element, branch.member, &branch.below))
    }

    /// Adds every path of `other`.
    pub(crate) fn absorb(&mut self, other: PathSet) {
        for (element, branch) in other.branches {
            self.insert_element(element, branch.member, branch.below);
        }
    }

    pub(crate) fn union(&self, other: &PathSet) -> PathSet {
        let mut all = self.clone();
        all.absorb(other.clone());
        all
    }

    pub(crate) fn intersection(&self, other: &PathSet) -> PathSet {
        let mut both = PathSet::default();
        for (element, branch) in &self.branches {
            if let Some(theirs) = other.branches.get(element) {
                both.insert_element(
                    element.clone(),
                    branch.member && theirs.member,
                    branch.below.intersection(&theirs.below),
                );
            }
        }
        both
    }

    pub(crate) fn intersects(&self, other: &PathSet) -> bool {
        self.branches.iter().any(|(element, branch)| {
            other.branches.get(element).is_some_and(|theirs| {
                (branch.member && theirs.member) || branch.below.intersects(&theirs.below)
            })
        })
    }

    /// The paths that are not in `other`; a parent in `other` doesn't remove its children.
    pub(crate) fn difference(&self, other: &PathSet) -> PathSet {
        let mut rest = PathSet::default();
        for (element, branch) in &self.branches {
            match other.branches.get(element) {
                None => {
                    rest.branches.insert(element.clone(), branch.clone());
                }
                Some(theirs) => rest.insert_element(
                    element.clone(),
                    branch.member && !theirs.member,
                    branch.below.difference(&theirs.below),
                ),
            }
        }
        rest
    }

    /// The paths that neither are in `other` nor have a parent there.
    pub(crate) fn without_subtrees(&self, other: &PathSet) -> PathSet {
        let mut rest = PathSet::default();
        for (element, branch) in &self.branches {
            match other.branches.get(element) {
                None => {
                    rest.branches.insert(element.clone(), branch.clone());
                }
                Some(theirs) if theirs.member => {}
                Some(theirs) => rest.insert_element(
                    element.clone(),
                    branch.member,
                    branch.below.without_subtrees(&theirs.below),
                ),
            }
        }
        rest
    }

    /// The first paths in their message form, in the order of conflicts: at each level, members come before the
    /// children of other elements. At most `most` paths are written, each truncated to `longest` bytes, because a
    /// caller chooses the length of names and the number of fields below them.
    pub(crate) fn shown(&self, most: usize, longest: usize) -> Vec<String> {
        let mut shown = Vec::new();
        self.show(&mut Vec::new(), most, longest, &mut shown);
        shown
    }

    fn show<'s>(
        &'s self,
        path: &mut Vec<&'s Element>,
        most: usize,
        longest: usize,
        shown: &mut Vec<String>,
    ) {
        let members = self.branches.iter().filter(|(_, branch)| branch.member);
        for (element, _) in members.take(most.saturating_sub(shown.len())) {
            path.push(element);
            shown.push(text(path, longest));
            path.pop();
        }
        for (element, branch) in &self.branches {
            if shown.len() >= most {
                return;
            }
            path.push(element);
            branch.below.show(path, most, longest, shown);
            path.pop();
        }
    }

    /// Every path, in the order of [`PathSet::shown`].
    #[cfg(test)]
    pub(crate) fn paths(&self) -> Vec<Vec<Element>> {
        fn walk(set: &PathSet, path: &mut Vec<Element>, all: &mut Vec<Vec<Element>>) {
            for (element, branch) in &set.branches {
                if branch.member {
                    let mut member = path.clone();
                    member.push(element.clone());
                    all.push(member);
                }
            }
            for (element, branch) in &set.branches {
                path.push(element.clone());
                walk(&branch.below, path, all);
                path.pop();
            }
        }
        let mut all = Vec::new();
        walk(self, &mut Vec::new(), &mut all);
        all
    }

    /// Reads a fieldsV1 object.
    ///
    /// # Errors
    /// Why it is invalid.
    pub(crate) fn parse(fields: &Value) -> Result<PathSet, FieldsError> {
        let Value::Object(map) = fields else {
            return Err(FieldsError::NotAnObject);
        };
        let mut set = PathSet::default();
        for (key, below) in map {
            if key == "." {
                continue;
            }
            let Some(element) = Element::parse(key)? else {
                continue;
            };
            let member = below
                .as_object()
                .is_none_or(|below| below.is_empty() || below.contains_key("."));
            let below = if below.is_object() {
                PathSet::parse(below)?
            } else {
                PathSet::default()
            };
            set.insert_element(element, member, below);
        }
        Ok(set)
    }

    /// The fieldsV1 object.
    pub(crate) fn print(&self) -> Value {
        let mut map = Map::new();
        for (element, branch) in &self.branches {
            if branch.is_empty() {
                continue;
            }
            let mut below = match branch.below.print() {
                Value::Object(below) => below,
                _ => Map::new(),
            };
            if branch.member && !below.is_empty() {
                below.insert(".".to_owned(), Value::Object(Map::new()));
            }
            map.insert(element.print(), Value::Object(below));
        }
        Value::Object(map)
    }

    /// The fieldsV1 text in canonical order, byte for byte as structured-merge-diff writes it (except the escaping of
    /// `<`, `>` and `&`). JSON objects have no order, so only tests use it.
    #[cfg(test)]
    pub(crate) fn canonical(&self) -> String {
        fn write(set: &PathSet, own: bool, text: &mut String) {
            text.push('{');
            let mut first = true;
            if own && !set.is_empty() {
                text.push_str("\".\":{}");
                first = false;
            }
            for (element, branch) in &set.branches {
                if !std::mem::take(&mut first) {
                    text.push(',');
                }
                text.push_str(&Value::from(element.print()).to_string());
                text.push(':');
                write(&branch.below, branch.member, text);
            }
            text.push('}');
        }
        let mut text = String::new();
        write(self, false, &mut text);
        text
    }
}
