//! Which of the known pods predict the future ones: the oldest 50, or 100, or 200, and so on, as
//! many as exist. So the prediction follows from the present pods alone, and not from the order of
//! their events. While a few pods come and go it changes only when their number doubles; by then
//! the new information is worth recomputing everything.
//!
//! Example: with 99 pods the oldest 50 count, with 100 pods all 100.

use std::collections::BTreeMap;
use std::ops::Bound;

/// With fewer pods than this no prediction is made.
const FIRST: usize = 50;

/// The known pods with their classes, in the order of their keys: the oldest have the least.
#[derive(Clone, Debug)]
pub(crate) struct Window<K> {
    class: BTreeMap<K, usize>,
    /// The last pod inside the window, and how many pods are inside.
    last: Option<K>,
    size: usize,
    /// How many of each class are inside.
    counts: BTreeMap<usize, u64>,
    /// Whether the counts changed since they were last read.
    changed: bool,
}

impl<K> Default for Window<K> {
    fn default() -> Window<K> {
        Window {
            class: BTreeMap::new(),
            last: None,
            size: 0,
            counts: BTreeMap::new(),
            changed: false,
        }
    }
}

/// The size of the window for a number of known pods.
fn wanted(known: usize) -> usize {
    if known < FIRST {
        return 0;
    }
    FIRST << (known / FIRST).ilog2()
}

impl<K: Ord + Clone> Window<K> {
    /// Adds a pod.
    pub(crate) fn add(&mut self, key: K, class: usize) {
        let inside = self.last.as_ref().is_some_and(|last| key <= *last);
        let old = self.class.insert(key, class);
        if inside {
            match old {
                Some(old) => self.count(old, false),
                None => self.size += 1,
            }
            self.count(class, true);
        }
        self.fit();
    }

    /// Removes a pod.
    pub(crate) fn remove(&mut self, key: &K) {
        let Some(class) = self.class.remove(key) else {
            return;
        };
        if self.last.as_ref().is_some_and(|last| key <= last) {
            self.count(class, false);
            self.size -= 1;
            if self.last.as_ref() == Some(key) {
                let before = self.class.range(..key).next_back();
                self.last = before.map(|(key, _)| key.clone());
            }
        }
        self.fit();
    }

    /// Moves the window's end: a step or two, or a doubling.
    fn fit(&mut self) {
        let wanted = wanted(self.class.len());
        while self.size < wanted {
            let from = match &self.last {
                Some(last) => (Bound::Excluded(last), Bound::Unbounded),
                None => (Bound::Unbounded, Bound::Unbounded),
            };
            let Some((key, class)) = self.class.range(from).next() else {
                return;
            };
            let (key, class) = (key.clone(), *class);
            self.last = Some(key);
            self.size += 1;
            self.count(class, true);
        }
        while self.size > wanted {
            let Some(key) = self.last.take() else { return };
            if let Some(class) = self.class.get(&key).copied() {
                self.count(class, false);
            }
            self.size -= 1;
            let before = self.class.range(..&key).next_back();
            self.last = before.map(|(key, _)| key.clone());
        }
    }

    fn count(&mut self, class: usize, up: bool) {
        self.changed = true;
        let count = self.counts.entry(class).or_insert(0);
        *count = if up {
            *count + 1
        } else {
            count.saturating_sub(1)
        };
        if *count == 0 {
            self.counts.remove(&class);
        }
    }

    /// Whether the counts may have changed since the last call.
    pub(crate) fn news(&mut self) -> bool {
        std::mem::take(&mut self.changed)
    }

    /// How many of each class are inside.
    pub(crate) fn counts(&self) -> &BTreeMap<usize, u64> {
        &self.counts
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_window_is_empty_for_few_pods_and_grows_with_each_doubling() {
        let table = [
            (0, 0),
            (49, 0),
            (50, 50),
            (99, 50),
            (100, 100),
            (399, 200),
            (6400, 6400),
        ];
        for (known, want) in table {
            assert_eq!(wanted(known), want, "{known}");
        }
    }

    #[test]
    fn new_pods_change_nothing_between_doublings() {
        let mut window = Window::default();
        (0..50).for_each(|key| window.add(key, 0));
        assert!(window.news());
        (50..99).for_each(|key| window.add(key, 1));
        assert!(!window.news());
        window.add(99, 1);
        assert_eq!(window.counts(), &BTreeMap::from([(0, 50), (1, 50)]));
    }

    proptest! {
        #[test]
        fn the_window_depends_on_the_pods_and_not_on_the_order_of_events(
            ops in prop::collection::vec((0u32..160, 0usize..4, prop::bool::weighted(0.7)), 0..600),
        ) {
            let mut window = Window::default();
            let mut there: BTreeMap<u32, usize> = BTreeMap::new();
            for (key, class, comes) in ops {
                if comes {
                    window.add(key, class);
                    there.insert(key, class);
                } else {
                    window.remove(&key);
                    there.remove(&key);
                }
                let mut want = BTreeMap::new();
                for class in there.values().take(wanted(there.len())) {
                    *want.entry(*class).or_insert(0) += 1;
                }
                prop_assert_eq!(window.counts(), &want);
            }
        }
    }
}
