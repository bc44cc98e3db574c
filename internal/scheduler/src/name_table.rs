//! A hash table that is iterated in key order, so that no result depends on hashing or event order;
//! or in any order, where the caller knows that it does not matter.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::ops::Index;

/// A fixed hash function: the same events must cause the same work.
pub(crate) type FixedHash = BuildHasherDefault<NameHasher>;

/// An odd number with well-mixed bits.
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

/// Hashes eight bytes at a time: names are short and looked up many times for each event.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct NameHasher(u64);

impl NameHasher {
    fn add(&mut self, word: u64) {
        let product = u128::from(self.0 ^ word ^ FACTOR) * u128::from(FACTOR);
        self.0 = (product as u64) ^ ((product >> 64) as u64);
    }
}

impl Hasher for NameHasher {
    fn write(&mut self, letters: &[u8]) {
        let (words, rest) = letters.as_chunks::<8>();
        for word in words {
            self.add(u64::from_le_bytes(*word));
        }
        let last = rest
            .iter()
            .fold(0, |word, letter| (word << 8) | u64::from(*letter));
        self.add(last ^ ((letters.len() as u64) << 56));
    }

    fn write_u8(&mut self, letter: u8) {
        self.0 ^= u64::from(letter);
    }

    fn write_u64(&mut self, word: u64) {
        self.add(word);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// The hash of two strings.
pub(crate) fn hash_of(texts: [&str; 2]) -> u64 {
    let mut words = NameHasher::default();
    texts.hash(&mut words);
    words.finish()
}

/// Entries in one chunk. The table grows by chunks and existing entries stay in place: they are
/// large, and moving them all would cost more than inserting them did.
const CHUNK: usize = 256;

/// A table.
#[derive(Clone, Debug)]
pub(crate) struct NameTable<K, V> {
    places: HashMap<K, u32, FixedHash>,
    slots: Slots<K, V>,
    free: Vec<u32>,
}

/// All chunks but the last are full.
#[derive(Clone, Debug)]
struct Slots<K, V>(Vec<Vec<Option<(K, V)>>>);

impl<K, V> Slots<K, V> {
    fn get(&self, at: u32) -> Option<&(K, V)> {
        let at = at as usize;
        self.0.get(at / CHUNK)?.get(at % CHUNK)?.as_ref()
    }

    fn at(&mut self, at: u32) -> Option<&mut Option<(K, V)>> {
        let at = at as usize;
        self.0.get_mut(at / CHUNK)?.get_mut(at % CHUNK)
    }

    /// Appends an entry; returns its index.
    fn push(&mut self, entry: (K, V)) -> u32 {
        if self.0.last().is_none_or(|last| last.len() == CHUNK) {
            self.0.push(Vec::with_capacity(CHUNK));
        }
        let before = (self.0.len() - 1) * CHUNK;
        let Some(last) = self.0.last_mut() else {
            return 0;
        };
        last.push(Some(entry));
        (before + last.len() - 1) as u32
    }

    fn iter(&self) -> impl Iterator<Item = &(K, V)> {
        self.0.iter().flatten().flatten()
    }
}

impl<K, V> Default for NameTable<K, V> {
    fn default() -> NameTable<K, V> {
        NameTable {
            places: HashMap::default(),
            slots: Slots(Vec::new()),
            free: Vec::new(),
        }
    }
}

impl<K: Clone + Ord + Hash, V> NameTable<K, V> {
    fn slot(&self, key: &K) -> Option<&(K, V)> {
        let at = *self.places.get(key)?;
        self.slots.get(at)
    }

    pub(crate) fn get(&self, key: &K) -> Option<&V> {
        self.slot(key).map(|(_, value)| value)
    }

    pub(crate) fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        let at = *self.places.get(key)?;
        let slot = self.slots.at(at)?;
        slot.as_mut().map(|(_, value)| value)
    }

    /// The stored key: a caller that keeps it too can share it.
    pub(crate) fn key(&self, key: &K) -> Option<&K> {
        self.slot(key).map(|(own, _)| own)
    }

    pub(crate) fn contains_key(&self, key: &K) -> bool {
        self.places.contains_key(key)
    }

    /// The number of entries.
    pub(crate) fn len(&self) -> usize {
        self.places.len()
    }

    /// Inserts a value; returns the previous one of that key.
    pub(crate) fn insert(&mut self, key: K, value: V) -> Option<V> {
        if let Some(old) = self.get_mut(&key) {
            return Some(std::mem::replace(old, value));
        }
        let entry = (key.clone(), value);
        let at = match self.free.pop() {
            Some(at) => {
                if let Some(slot) = self.slots.at(at) {
                    *slot = Some(entry);
                }
                at
            }
            None => self.slots.push(entry),
        };
        self.places.insert(key, at);
        None
    }

    pub(crate) fn remove(&mut self, key: &K) -> Option<V> {
        let at = self.places.remove(key)?;
        self.free.push(at);
        let slot = self.slots.at(at)?;
        slot.take().map(|(_, value)| value)
    }

    /// The value of that key, inserted if absent.
    pub(crate) fn or_default(&mut self, key: &K) -> &mut V
    where
        V: Default,
    {
        let at = match self.places.get(key) {
            Some(at) => *at,
            None => {
                self.insert(key.clone(), V::default());
                self.places[key]
            }
        };
        let slot = self.slots.at(at).expect("a name's place is in the table");
        let entry = slot.get_or_insert_with(|| (key.clone(), V::default()));
        &mut entry.1
    }

    /// Takes a value out temporarily; it counts as absent until `give_back`.
    pub(crate) fn lend(&mut self, key: &K) -> Option<((u32, K), V)> {
        let at = *self.places.get(key)?;
        let (key, value) = self.slots.at(at)?.take()?;
        Some(((at, key), value))
    }

    /// Puts a lent value back.
    pub(crate) fn give_back(&mut self, (at, key): (u32, K), value: V) {
        if let Some(slot) = self.slots.at(at) {
            *slot = Some((key, value));
        }
    }

    /// All entries; only for uses whose result does not depend on the order.
    pub(crate) fn in_any_order(&self) -> impl Iterator<Item = (&K, &V)> {
        self.slots.iter().map(|(key, value)| (key, value))
    }

    /// All entries in key order. Sorts, so not for frequent use.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        let mut all: Vec<&(K, V)> = self.slots.iter().collect();
        all.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        all.into_iter().map(|(key, value)| (key, value))
    }

    /// All keys in order. Sorts, like `iter`.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &K> {
        self.iter().map(|(key, _)| key)
    }
}

impl<K: Clone + Ord + Hash, V> Index<&K> for NameTable<K, V> {
    type Output = V;

    fn index(&self, key: &K) -> &V {
        self.get(key).expect("a table is indexed by names in it")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_a_row_have_hashes_far_apart() {
        let hash = |name: &str| {
            let mut words = NameHasher::default();
            name.hash(&mut words);
            words.finish()
        };
        // By the bits that a hash table uses: the lowest and the highest.
        let all: Vec<u64> = (0..4096)
            .map(|i| hash(&format!("job-{i:05}-worker-0")))
            .collect();
        let low: std::collections::BTreeSet<u64> = all.iter().map(|hash| hash & 0xfff).collect();
        let high: std::collections::BTreeSet<u64> = all.iter().map(|hash| hash >> 57).collect();
        assert!(low.len() > 2300, "{}", low.len());
        assert_eq!(high.len(), 128);
    }

    #[test]
    fn entries_are_found_and_iterated_by_name() {
        let mut table: NameTable<&str, u32> = NameTable::default();
        for (name, n) in [("c", 3), ("a", 1), ("b", 2)] {
            assert_eq!(table.insert(name, n), None);
        }
        assert_eq!(table.insert("a", 10), Some(1));
        assert_eq!(table.remove(&"c"), Some(3));
        *table.or_default(&"d") += 4;
        let all: Vec<_> = table.iter().map(|(name, n)| (*name, *n)).collect();
        assert_eq!(all, [("a", 10), ("b", 2), ("d", 4)]);
        assert_eq!((table.get(&"c"), table[&"b"]), (None, 2));
    }

    #[test]
    fn more_than_lie_side_by_side_are_found_as_well() {
        let mut table: NameTable<usize, usize> = NameTable::default();
        let many = CHUNK * 3;
        for n in 0..many {
            table.insert(n, n * 2);
        }
        for n in 0..many {
            assert_eq!(table.get(&n), Some(&(n * 2)));
        }
        // A freed index is used before a new one is added.
        table.remove(&CHUNK);
        table.insert(many, 1);
        *table.or_default(&CHUNK) += 7;
        assert_eq!((table[&many], table[&CHUNK]), (1, 7));
        assert_eq!(table.in_any_order().count(), many + 1);
    }
}
