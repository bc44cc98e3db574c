//! The expected pods: classes with their popularity.

use std::collections::BTreeMap;

use super::node::PodDemand;

/// Classes of pods, each with its share of all pods. A mix made from counts has its classes in the
/// order of [`PodDemand`], so equal counts give equal mixes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Mix {
    classes: Vec<(PodDemand, f64)>,
}

impl Mix {
    /// A mix from counts of pods. Classes with a count of 0 are left out; the weights sum to 1
    /// unless there are no pods.
    #[must_use]
    pub fn from_counts(counts: &BTreeMap<PodDemand, u64>) -> Mix {
        let total: u64 = counts.values().sum();
        let classes = counts
            .iter()
            .filter(|(_, n)| **n > 0)
            .map(|(d, n)| (*d, *n as f64 / total as f64))
            .collect();
        Mix { classes }
    }

    /// A mix from classes with weights, in the given order. The weights should sum to 1.
    #[must_use]
    pub fn from_weights(classes: Vec<(PodDemand, f64)>) -> Mix {
        Mix { classes }
    }

    /// The classes with their weights.
    #[must_use]
    pub fn classes(&self) -> &[(PodDemand, f64)] {
        &self.classes
    }

    /// Whether the mix has no classes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.classes.is_empty()
    }

    /// Mean GPU demand of a pod in 1/1000 GPU.
    #[must_use]
    pub fn mean_gpu(&self) -> f64 {
        self.classes
            .iter()
            .map(|(d, w)| w * f64::from(d.gpu_total()))
            .sum()
    }
}
