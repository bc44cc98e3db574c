//! A set of names that is added to often and read in order once in a while: adding costs one hash
//! lookup and no sorting.

use std::collections::HashSet;
use std::hash::Hash;

use crate::name_table::FixedHash;

/// Names that changed, each once, until they are read.
#[derive(Clone, Debug)]
pub(crate) struct DirtySet<K> {
    known: HashSet<K, FixedHash>,
    /// In order of arrival, which is mostly name order; may contain removed names and duplicates.
    came: Vec<K>,
}

impl<K> Default for DirtySet<K> {
    fn default() -> DirtySet<K> {
        DirtySet {
            known: HashSet::default(),
            came: Vec::new(),
        }
    }
}

impl<K: Clone + Ord + Hash> DirtySet<K> {
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

    /// All names; only for uses whose result does not depend on the order.
    pub(crate) fn in_any_order(&self) -> impl Iterator<Item = &K> {
        self.known.iter()
    }

    /// All names in order.
    pub(crate) fn into_sorted(self) -> Vec<K> {
        let DirtySet { known, mut came } = self;
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
    fn names_are_read_once_and_in_order() {
        let mut noted: DirtySet<&str> = DirtySet::default();
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
