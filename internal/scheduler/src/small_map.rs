//! Small ordered collections, for maps and sets that mostly have one or two entries and exist a
//! hundred thousand times. A standard `BTreeMap` allocates room for eleven entries with the first.

use std::borrow::Borrow;
use std::collections::{BTreeSet, btree_set};
use std::iter::Chain;

/// Sets with more entries than this become trees.
const SMALL_MAX: usize = 32;

/// Makes room for one more entry: exactly one in a small list, else by doubling.
fn grow<T>(list: &mut Vec<T>) {
    if list.len() == list.capacity() && list.len() < 4 {
        list.reserve_exact(1);
    }
}

/// A map in key order. Insertion and removal cost its size.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SmallMap<K, V>(Vec<(K, V)>);

impl<K, V> Default for SmallMap<K, V> {
    fn default() -> SmallMap<K, V> {
        SmallMap(Vec::new())
    }
}

impl<K: Ord, V> SmallMap<K, V> {
    fn find<Q: Ord + ?Sized>(&self, key: &Q) -> Result<usize, usize>
    where
        K: Borrow<Q>,
    {
        self.0.binary_search_by(|(own, _)| own.borrow().cmp(key))
    }

    pub(crate) fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        let at = self.find(key).ok()?;
        self.0.get(at).map(|(_, value)| value)
    }

    /// The stored key.
    pub(crate) fn key<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&K>
    where
        K: Borrow<Q>,
    {
        let at = self.find(key).ok()?;
        self.0.get(at).map(|(own, _)| own)
    }

    /// The value of that key, inserted if absent.
    pub(crate) fn or_default(&mut self, key: &K) -> &mut V
    where
        K: Clone,
        V: Default,
    {
        let at = match self.find(key) {
            Ok(at) => at,
            Err(at) => {
                grow(&mut self.0);
                self.0.insert(at, (key.clone(), V::default()));
                at
            }
        };
        &mut self.0[at].1
    }

    pub(crate) fn remove<Q: Ord + ?Sized>(&mut self, key: &Q)
    where
        K: Borrow<Q>,
    {
        if let Ok(at) = self.find(key) {
            self.0.remove(at);
            if self.0.is_empty() {
                self.0 = Vec::new();
            }
        }
    }

    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = (&K, &V)> {
        self.0.iter().map(|(key, value)| (key, value))
    }

    pub(crate) fn keys(&self) -> impl DoubleEndedIterator<Item = &K> {
        self.0.iter().map(|(key, _)| key)
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<K: Ord + Clone> SmallMap<K, usize> {
    /// Counts one of a kind up or down; a count of zero is removed.
    pub(crate) fn count(&mut self, key: &K, up: bool) {
        let times = self.or_default(key);
        *times = if up {
            *times + 1
        } else {
            times.saturating_sub(1)
        };
        if *times == 0 {
            self.remove(key);
        }
    }
}

/// An ordered set, small or large.
#[derive(Clone, Debug)]
pub(crate) struct SmallSet<T> {
    small: Vec<T>,
    /// All entries, once it is large.
    large: BTreeSet<T>,
}

impl<T> Default for SmallSet<T> {
    fn default() -> SmallSet<T> {
        SmallSet {
            small: Vec::new(),
            large: BTreeSet::new(),
        }
    }
}

type Entries<'a, T> = Chain<std::slice::Iter<'a, T>, btree_set::Iter<'a, T>>;

impl<T: Ord> SmallSet<T> {
    pub(crate) fn insert(&mut self, entry: T) {
        if !self.large.is_empty() {
            self.large.insert(entry);
            return;
        }
        let Err(at) = self.small.binary_search(&entry) else {
            return;
        };
        grow(&mut self.small);
        self.small.insert(at, entry);
        if self.small.len() > SMALL_MAX {
            self.large = std::mem::take(&mut self.small).into_iter().collect();
        }
    }

    pub(crate) fn remove(&mut self, entry: &T) {
        if self.large.remove(entry) {
            return;
        }
        if let Ok(at) = self.small.binary_search(entry) {
            self.small.remove(at);
            if self.small.is_empty() {
                self.small = Vec::new();
            }
        }
    }

    pub(crate) fn first(&self) -> Option<&T> {
        self.iter().next()
    }

    pub(crate) fn len(&self) -> usize {
        self.small.len() + self.large.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn iter(&self) -> Entries<'_, T> {
        self.small.iter().chain(&self.large)
    }
}

impl<'a, T: Ord> IntoIterator for &'a SmallSet<T> {
    type Item = &'a T;
    type IntoIter = Entries<'a, T>;

    fn into_iter(self) -> Entries<'a, T> {
        self.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_keeps_its_order_as_it_grows_and_shrinks() {
        let mut set = SmallSet::default();
        for n in (0..100).rev() {
            set.insert(n * 7 % 100);
            set.insert(n * 7 % 100);
        }
        assert!(set.iter().copied().eq(0..100));
        for n in 0..99 {
            set.remove(&n);
        }
        assert_eq!((set.first(), set.iter().count()), (Some(&99), 1));
        set.remove(&99);
        assert!(set.is_empty());
    }

    #[test]
    fn a_map_drops_counts_of_zero() {
        let mut map: SmallMap<&str, usize> = SmallMap::default();
        for (name, up) in [("b", true), ("a", true), ("b", true), ("a", false)] {
            map.count(&name, up);
        }
        assert_eq!(map.iter().collect::<Vec<_>>(), [(&"b", &2)]);
        assert_eq!((map.get("b"), map.get("a"), map.len()), (Some(&2), None, 1));
        map.remove("b");
        assert!(map.is_empty());
    }
}
