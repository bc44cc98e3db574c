//! Which of the pods that are known tell what pods are to come: the oldest 50, or 100, or 200, and
//! so on, as many as there are. So the answer follows from what is there alone, and not from the
//! order in which it was told; and while pods come and few go it changes only with each doubling,
//! which is when what is learnt has become worth working everything out again.

use std::collections::BTreeMap;
use std::ops::Bound;

/// With fewer pods than this nothing is known of those to come.
const FIRST: usize = 50;

/// Pods of a class each, in order of their keys: the oldest have the least.
#[derive(Clone, Debug)]
pub(crate) struct Window<K> {
    class: BTreeMap<K, usize>,
    /// The last one inside, and how many there are.
    last: Option<K>,
    size: usize,
    /// How many of each class are inside.
    counts: BTreeMap<usize, u64>,
    /// The counts are not those of when they were last asked for.
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

/// How many of so many pods are looked at.
fn wanted(known: usize) -> usize {
    if known < FIRST {
        return 0;
    }
    FIRST << (known / FIRST).ilog2()
}

impl<K: Ord + Clone> Window<K> {
    /// A pod is there.
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

    /// A pod is gone.
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

    /// Moves the end to where it belongs: a step or two, or a doubling.
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

    /// May the counts be others than when this was last asked?
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
    fn nothing_is_told_by_few_pods_and_more_is_looked_at_with_each_doubling() {
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
    fn newcomers_change_nothing_between_doublings() {
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
        fn what_is_inside_depends_on_what_is_there_and_not_on_how_it_came(
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
