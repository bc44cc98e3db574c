//! Namespaced names that are stored once, however many lists contain them: a hundred thousand names
//! occur several times each and are compared on each insertion. They order as plain strings do;
//! equality is mostly decided by comparing pointers and hashes.

use std::cmp::Ordering;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use crate::name_table::hash_of;
use crate::state::Scheduler;

/// A namespace and a name.
#[derive(Clone, Debug)]
pub(crate) struct NamespacedName {
    pub(crate) namespace: Arc<str>,
    pub(crate) name: Arc<str>,
    hash: u64,
}

impl NamespacedName {
    pub(crate) fn new(namespace: Arc<str>, name: &str) -> Arc<NamespacedName> {
        Arc::new(NamespacedName {
            hash: hash_of([&namespace, name]),
            namespace,
            name: Arc::from(name),
        })
    }
}

impl PartialEq for NamespacedName {
    fn eq(&self, other: &NamespacedName) -> bool {
        std::ptr::eq(self, other)
            || (self.hash == other.hash
                && self.name == other.name
                && self.namespace == other.namespace)
    }
}

impl Eq for NamespacedName {}

impl Hash for NamespacedName {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        hasher.write_u64(self.hash);
    }
}

impl Ord for NamespacedName {
    fn cmp(&self, other: &NamespacedName) -> Ordering {
        if std::ptr::eq(self, other) {
            return Ordering::Equal;
        }
        if !Arc::ptr_eq(&self.namespace, &other.namespace) {
            let namespaces = self.namespace.cmp(&other.namespace);
            if namespaces != Ordering::Equal {
                return namespaces;
            }
        }
        self.name.cmp(&other.name)
    }
}

impl PartialOrd for NamespacedName {
    fn partial_cmp(&self, other: &NamespacedName) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Scheduler {
    /// The string of a namespace, shared by consecutive objects of one namespace.
    pub(crate) fn namespace(&mut self, name: Option<&str>) -> Arc<str> {
        let name = name.unwrap_or("default");
        if *self.last_namespace != *name {
            self.last_namespace = Arc::from(name);
        }
        self.last_namespace.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_the_same_and_in_order_wherever_they_are_kept() {
        let namespace: Arc<str> = Arc::from("b");
        let table = [
            (NamespacedName::new("a".into(), "z"), Ordering::Less),
            (NamespacedName::new(namespace.clone(), "a"), Ordering::Less),
            (NamespacedName::new(namespace.clone(), "m"), Ordering::Equal),
            (NamespacedName::new("b".into(), "m"), Ordering::Equal),
            (NamespacedName::new("b".into(), "z"), Ordering::Greater),
            (NamespacedName::new("c".into(), "a"), Ordering::Greater),
        ];
        let middle = NamespacedName::new(namespace, "m");
        for (named, want) in table {
            assert_eq!(named.cmp(&middle), want, "{named:?}");
            assert_eq!(named == middle, want == Ordering::Equal, "{named:?}");
        }
    }
}
