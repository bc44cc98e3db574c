//! Names that are noted many times, and gone through once in a while: noting one costs no look for
//! its place among the others.

use std::collections::HashSet;
use std::hash::Hash;

use crate::table::Fixed;

/// Names that something happened to, each once, until they are gone through.
#[derive(Clone, Debug)]
pub(crate) struct Noted<K> {
    known: HashSet<K, Fixed>,
    /// In the order in which they came, which is mostly that of names; some may be out again, or
    /// twice.
    came: Vec<K>,
}

impl<K> Default for Noted<K> {
    fn default() -> Noted<K> {
        Noted {
            known: HashSet::default(),
            came: Vec::new(),
        }
    }
}

impl<K: Clone + Ord + Hash> Noted<K> {
    pub(crate) fn insert(&mut self, key: &K) {
        if !self.known.contains(key) {
            self.known.insert(key.clone());
            self.came.push(key.clone());
        }
    }

    pub(crate) fn remove(&mut self, key: &K) {
        self.known.remove(key);
        if self.known.is_empty() {
            self.came.clear();
        }
    }

    pub(crate) fn contains(&self, key: &K) -> bool {
        self.known.contains(key)
    }

    /// All of them, for what comes out the same in any order.
    pub(crate) fn in_any_order(&self) -> impl Iterator<Item = &K> {
        self.known.iter()
    }

    /// All of them by name.
    pub(crate) fn into_sorted(self) -> Vec<K> {
        let Noted { known, mut came } = self;
        came.retain(|key| known.contains(key));
        came.sort_unstable();
        came.dedup();
        came
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_noted_is_gone_through_once_and_by_name() {
        let mut noted: Noted<&str> = Noted::default();
        for name in ["b", "c", "b", "a"] {
            noted.insert(&name);
        }
        noted.remove(&"b");
        noted.remove(&"c");
        noted.insert(&"c");
        assert!(noted.contains(&"a") && !noted.contains(&"b"));
        assert_eq!(noted.in_any_order().count(), 2);
        assert_eq!(noted.into_sorted(), ["a", "c"]);
    }
}
