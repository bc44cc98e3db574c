//! Owns the bytes of the live objects by namespace: the third part of a key, `/GROUP/PLURAL/NAMESPACE/NAME`.

use std::collections::BTreeMap;

use crate::entry::Entry;

/// The bytes of objects and their keys, by namespace.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct NamespaceSizes {
    bytes: BTreeMap<String, u64>,
}

fn namespace(key: &str) -> Option<&str> {
    key.split('/').nth(3)
}

fn size(entry: &Entry) -> u64 {
    let bytes = entry.key.len().saturating_add(entry.value.len());
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

impl NamespaceSizes {
    /// The sizes of these objects.
    pub(crate) fn of<'e>(objects: impl IntoIterator<Item = &'e Entry>) -> NamespaceSizes {
        let mut sizes = NamespaceSizes::default();
        for entry in objects {
            sizes.change(None, Some(entry));
        }
        sizes
    }

    /// Counts a change of one object.
    pub(crate) fn change(&mut self, before: Option<&Entry>, after: Option<&Entry>) {
        let Some(namespace) = before.or(after).and_then(|entry| namespace(&entry.key)) else {
            return;
        };
        let known = self.bytes.get(namespace).copied().unwrap_or(0);
        let next = known
            .saturating_sub(before.map_or(0, size))
            .saturating_add(after.map_or(0, size));
        if next == 0 {
            self.bytes.remove(namespace);
        } else if let Some(bytes) = self.bytes.get_mut(namespace) {
            *bytes = next;
        } else {
            self.bytes.insert(namespace.to_owned(), next);
        }
    }

    /// The bytes of a namespace's objects.
    pub(crate) fn in_namespace(&self, namespace: &str) -> u64 {
        self.bytes.get(namespace).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bytes::Bytes;

    use super::*;
    use crate::entry::{EntryMeta, Revision};

    fn entry(key: &str, bytes: usize) -> Entry {
        Entry {
            key: key.into(),
            value: Bytes::from(vec![b'x'; bytes]),
            revision: Revision::new(1),
            meta: Arc::new(EntryMeta::default()),
            crc: 0,
            parts: 1,
        }
    }

    #[test]
    fn sizes_follow_each_change_and_end_where_a_new_count_does() {
        let (small, large) = (entry("/core/pods/a/p", 10), entry("/core/pods/a/p", 100));
        let other = entry("/core/pods/b/p", 7);
        let mut sizes = NamespaceSizes::of([&small, &other]);
        assert_eq!(sizes.in_namespace("a"), 24);
        sizes.change(Some(&small), Some(&large));
        assert_eq!(sizes, NamespaceSizes::of([&large, &other]));
        sizes.change(Some(&other), None);
        assert_eq!(sizes, NamespaceSizes::of([&large]));
        assert_eq!(sizes.in_namespace("b"), 0);
        // A key of another form counts nowhere.
        sizes.change(None, Some(&entry("odd", 5)));
        assert_eq!(sizes, NamespaceSizes::of([&large]));
    }
}
