//! What has a name in a namespace, kept in one place however many lists it is in: lists hold a
//! hundred thousand of these several times over, and compare them with each insertion. Names order
//! as they always did; that two are the same one, or are of one namespace, is mostly told by where
//! they are kept.

use std::cmp::Ordering;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use crate::state::Scheduler;
use crate::table::hash_of;

/// A name within the cluster.
#[derive(Clone, Debug)]
pub(crate) struct Named {
    pub(crate) namespace: Arc<str>,
    pub(crate) name: Arc<str>,
    hash: u64,
}

impl Named {
    pub(crate) fn new(namespace: Arc<str>, name: &str) -> Arc<Named> {
        Arc::new(Named {
            hash: hash_of([&namespace, name]),
            namespace,
            name: Arc::from(name),
        })
    }
}

impl PartialEq for Named {
    fn eq(&self, other: &Named) -> bool {
        std::ptr::eq(self, other)
            || (self.hash == other.hash
                && self.name == other.name
                && self.namespace == other.namespace)
    }
}

impl Eq for Named {}

impl Hash for Named {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        hasher.write_u64(self.hash);
    }
}

impl Ord for Named {
    fn cmp(&self, other: &Named) -> Ordering {
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

impl PartialOrd for Named {
    fn partial_cmp(&self, other: &Named) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Scheduler {
    /// The name of a namespace, kept once for objects of one namespace that come in a row.
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
            (Named::new("a".into(), "z"), Ordering::Less),
            (Named::new(namespace.clone(), "a"), Ordering::Less),
            (Named::new(namespace.clone(), "m"), Ordering::Equal),
            (Named::new("b".into(), "m"), Ordering::Equal),
            (Named::new("b".into(), "z"), Ordering::Greater),
            (Named::new("c".into(), "a"), Ordering::Greater),
        ];
        let middle = Named::new(namespace, "m");
        for (named, want) in table {
            assert_eq!(named.cmp(&middle), want, "{named:?}");
            assert_eq!(named == middle, want == Ordering::Equal, "{named:?}");
        }
    }
}
