//! MIG layouts: the configurations that a node's label `nvidia.com/mig.config` can name, the holders
//! of GPUs that are to be partitioned, and the next steps to a layout. The agent's manager carries the
//! steps out.

pub mod configurations;
pub mod drain;
pub mod next;

use std::collections::BTreeMap;
use std::sync::Arc;

use hardware::mig_partitioner::Card;
use parking_lot::Mutex;

pub use configurations::{ConfigurationError, Configurations};

use crate::dra::Claimable;
use crate::inventory::NodeHardware;

/// The action for pods that hold a GPU that is to be partitioned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drain {
    /// The agent waits for their end.
    Wait,
    /// The agent evicts them, as far as their disruption budgets allow.
    Evict,
}

/// How GPUs are partitioned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MigSettings {
    /// The configurations that the node's label may name.
    pub configurations: Configurations,
    /// The action for pods that hold such a GPU.
    pub drain: Drain,
}

/// The GPUs that are withheld because they are to be partitioned, by UUID, each with its index.
#[derive(Clone, Debug, Default)]
pub struct Withheld(Arc<Mutex<BTreeMap<String, u32>>>);

impl Withheld {
    /// Withholds these GPUs from the next look on.
    pub fn set(&self, gpus: BTreeMap<String, u32>) {
        *self.0.lock() = gpus;
    }

    /// The withheld GPUs that a machine's inventory shows as such.
    pub fn seen_in(&self, machine: &NodeHardware) -> Vec<String> {
        let withheld = self.0.lock();
        let gpus = machine.inventory.gpus.iter();
        let out = gpus.filter(|gpu| !gpu.healthy && withheld.contains_key(&gpu.id));
        out.map(|gpu| gpu.id.clone()).collect()
    }

    /// Removes the GPUs from what is offered, as extended resources and to claims. They are
    /// healthy, so no problem is reported, and running work continues.
    pub fn take_out(&self, machine: &mut NodeHardware, claimables: &mut [Claimable]) {
        let withheld = self.0.lock();
        for gpu in &mut machine.inventory.gpus {
            gpu.healthy &= !withheld.contains_key(&gpu.id);
        }
        for one in claimables {
            let index = one.gpu();
            let out = withheld.values().any(|other| index == Some(*other));
            if out && one.problem.is_empty() {
                one.problem = "its GPU is being partitioned (MIG)".to_owned();
            }
        }
    }
}

/// Whether a machine shows these GPUs with their present layout.
pub fn shows(machine: &NodeHardware, cards: &[Card]) -> bool {
    cards.iter().all(|card| {
        let gpu = machine.inventory.gpus.iter().find(|gpu| gpu.id == card.id);
        let shown = gpu.map(|gpu| gpu.slices.as_ref());
        match shown {
            None => false,
            Some(None) => !card.layout.enabled,
            Some(Some(slices)) => {
                let known = |id| card.slices.contains_key(id);
                card.layout.enabled
                    && slices.len() == card.slices.len()
                    && slices.iter().all(|slice| known(&slice.id))
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use hardware::Inventory;
    use hardware::description::MachineDescription;
    use hardware::partition::GpuLayout;

    use super::*;
    use crate::dra;

    /// Two GPUs, the second in two slices.
    fn found() -> Inventory {
        let text = "[[gpu]]\nmodel = \"NVIDIA H100 80GB HBM3\"\nmemory_mib = 81559\nid = [\"GPU-a\"]\n\
                    [[gpu]]\nmodel = \"NVIDIA H100 80GB HBM3\"\nmemory_mib = 81559\nid = [\"GPU-b\"]\n\
                    mig = [\"1g.10gb\", \"3g.40gb\"]\n";
        let mut found = Inventory::default();
        let description = MachineDescription::parse(text, std::path::Path::new("m.toml"));
        description.expect("a machine").apply(&mut found);
        found
    }

    #[test]
    fn a_withheld_gpu_is_not_offered_and_has_no_problem() {
        let found = found();
        let withheld = Withheld::default();
        let look = || {
            let (mut machine, mut claimables) = (NodeHardware::of(&found), dra::claimables(&found));
            withheld.take_out(&mut machine, &mut claimables);
            (machine, claimables)
        };
        let (before, claimables) = look();
        assert!(claimables.iter().all(|one| one.problem.is_empty()));
        assert!(withheld.seen_in(&before).is_empty());
        withheld.set(BTreeMap::from([("GPU-b".to_owned(), 1)]));
        assert!(
            withheld.seen_in(&before).is_empty(),
            "nobody has heard of it"
        );
        let (machine, claimables) = look();
        assert_eq!(withheld.seen_in(&machine), ["GPU-b"]);
        let offered = machine.inventory.offered();
        assert!(offered.gpus[0].healthy);
        let slices: Vec<_> = offered.slices.values().flatten().collect();
        assert!(slices.len() == 2 && slices.iter().all(|(_, slice)| !slice.healthy));
        assert_eq!(
            claimables
                .iter()
                .filter(|one| one.problem.is_empty())
                .count(),
            1
        );
        assert_eq!(
            (machine.suspect, machine.inventory.gpus[1].failed),
            (before.suspect, false)
        );
    }

    #[test]
    fn a_machine_shows_a_new_cut_when_its_slices_are_those_of_the_driver() {
        let machine = NodeHardware::of(&found());
        let of = |id: &str, slices: Option<Vec<String>>| Card {
            id: id.to_owned(),
            layout: GpuLayout {
                enabled: slices.is_some(),
                ..GpuLayout::default()
            },
            slices: slices.into_iter().flatten().zip(1..).collect(),
            ..Card::default()
        };
        let slices = machine.inventory.gpus[1].slices.iter().flatten();
        let slices: Vec<String> = slices.map(|slice| slice.id.clone()).collect();
        let whole = || of("GPU-a", None);
        assert!(shows(
            &machine,
            &[whole(), of("GPU-b", Some(slices.clone()))]
        ));
        for other in [
            of("GPU-a", Some(Vec::new())),
            of("GPU-b", None),
            of("GPU-b", Some(slices[..1].to_vec())),
            of(
                "GPU-b",
                Some(vec![slices[0].clone(), "MIG-other".to_owned()]),
            ),
            of("GPU-c", None),
        ] {
            assert!(!shows(&machine, &[whole(), other.clone()]), "{other:?}");
        }
    }
}
