//! Counts what runs for each node at a time, up to a bound: a place is taken, and given back when it
//! is dropped.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

/// The counts of all nodes.
pub struct NodePlaces {
    most: usize,
    counts: Arc<Mutex<BTreeMap<String, usize>>>,
}

/// One place of a node.
pub struct NodePlace {
    node: String,
    counts: Arc<Mutex<BTreeMap<String, usize>>>,
}

impl NodePlaces {
    /// At most so many places of each node.
    pub fn new(most: usize) -> NodePlaces {
        NodePlaces {
            most,
            counts: Arc::default(),
        }
    }

    /// Takes a place; none if the node has no more.
    pub fn take(&self, node: &str) -> Option<NodePlace> {
        let mut counts = self.counts.lock();
        let count = counts.entry(node.to_owned()).or_default();
        if *count >= self.most {
            return None;
        }
        *count += 1;
        Some(NodePlace {
            node: node.to_owned(),
            counts: self.counts.clone(),
        })
    }
}

impl Drop for NodePlace {
    fn drop(&mut self) {
        let mut counts = self.counts.lock();
        let count = counts.remove(&self.node).unwrap_or_default();
        if count > 1 {
            counts.insert(self.node.clone(), count - 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_has_a_bounded_number_of_places_and_they_come_back() {
        let all = NodePlaces::new(256);
        let mut taken: Vec<NodePlace> = (0..256).map(|_| all.take("n1").unwrap()).collect();
        assert!(all.take("n1").is_none());
        assert!(all.take("n2").is_some());
        taken.pop();
        assert!(all.take("n1").is_some());
        taken.clear();
        assert!(all.counts.lock().is_empty());
    }
}
