//! Classes: pods that no node could tell apart when they ask for room. Feasibility and score are
//! worked out once a class, however many pods and gangs share it.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1 as k8s;
use resources::amounts::pod_requests;
use resources::names::REPLACES_LOST;
use serde::Serialize;

use crate::filter::neighbours::Manners;
use crate::gpu::Needs;
use crate::node::Node;
use crate::resource::{Demand, GPU, GPU_UNIT, Names};
use crate::share::{Share, Take, Wish};

/// A class's place in the table. Depends on the order of events: nothing may be decided by it.
pub(crate) type ClassIx = usize;

/// What kind of runtime a pod needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Need {
    /// Some container names an image.
    Image,
    /// None does: commands on the host.
    Process,
}

/// What makes two pods the same to every node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    /// Without GPUs, where parts of them are asked for.
    demand: Demand,
    share: Option<Share>,
    /// What the GPUs must be.
    gpus: Needs,
    need: Need,
    selector: BTreeMap<String, String>,
    /// Node affinity and tolerations as JSON: compared, never read.
    affinity: String,
    tolerations: String,
    /// Its pods replace ones that were lost with their node.
    replaces: bool,
    /// What it asks of other pods, in the namespace that it asks from: compared, never read.
    manners: String,
    /// It asks for GPUs in words that cannot be read.
    unreadable: bool,
}

/// One class.
#[derive(Clone, Debug)]
pub(crate) struct Class {
    key: Key,
    demand: Demand,
    packs: bool,
    pub(crate) affinity: Option<k8s::NodeAffinity>,
    pub(crate) tolerations: Vec<k8s::Toleration>,
    manners: Option<Box<Manners>>,
    members: usize,
}

impl Class {
    /// What a pod asks for. Where it asks for a GPU's memory, that counts as the largest part that
    /// it would be on any node.
    pub(crate) fn demand(&self) -> &Demand {
        &self.demand
    }

    /// The parts of GPUs that it asks for; none where it wants whole ones, or none.
    pub(crate) fn share(&self) -> Option<Share> {
        self.key.share
    }

    /// What the GPUs must be.
    pub(crate) fn gpus(&self) -> &Needs {
        &self.key.gpus
    }

    /// What a pod takes on a node, or counts as while it has none.
    pub(crate) fn take(&self, node: Option<&Node>) -> Take {
        Take::of(&self.demand, self.key.share, node)
    }

    /// Does a pod that shares a GPU go where one is begun, rather than anywhere?
    pub(crate) fn packs(&self) -> bool {
        self.packs
    }

    fn weigh(&mut self, memory: Option<i64>) {
        self.demand = self.key.demand.clone();
        if let Some(share) = self.key.share {
            let each = share.part.of(memory).min(GPU_UNIT);
            self.demand.set(GPU, each * share.gpus);
        }
    }

    pub(crate) fn replaces(&self) -> bool {
        self.key.replaces
    }

    pub(crate) fn need(&self) -> Need {
        self.key.need
    }

    pub(crate) fn selector(&self) -> &BTreeMap<String, String> {
        &self.key.selector
    }

    /// Does it ask for GPUs in words that cannot be read? Such pods wait and say so.
    pub(crate) fn unreadable(&self) -> bool {
        self.key.unreadable
    }

    /// What it asks of the pods around it; none if it does not care.
    pub(crate) fn manners(&self) -> Option<&Manners> {
        self.manners.as_deref()
    }
}

/// All classes that some pod belongs to.
#[derive(Clone, Debug, Default)]
pub(crate) struct Classes {
    table: Vec<Option<Class>>,
    free: Vec<ClassIx>,
    index: BTreeMap<Key, ClassIx>,
    /// What a GPU has of memory, in MiB, on the nodes that have the least.
    least_memory: Option<i64>,
    packs: bool,
}

impl Classes {
    /// No classes yet. Sharers pack: they go to nodes where a GPU is begun.
    pub(crate) fn new(packs: bool) -> Classes {
        Classes {
            packs,
            ..Classes::default()
        }
    }

    /// The class of such pods, with one member more.
    pub(crate) fn join(
        &mut self,
        spec: &k8s::PodSpec,
        wish: &Wish,
        namespace: &str,
        labels: Option<&BTreeMap<String, String>>,
        names: &mut Names,
    ) -> ClassIx {
        let manners = Manners::read(spec, namespace, labels);
        let affinity = spec
            .affinity
            .as_ref()
            .and_then(|affinity| affinity.node_affinity.as_ref());
        let tolerations = spec.tolerations.as_deref().unwrap_or_default();
        let mut demand = names.demand(&pod_requests(spec));
        // A whole GPU is no part of one.
        let whole = Share::whole(wish.share);
        let share = wish.share.filter(|_| whole.is_none());
        if let Some(gpus) = whole.or(share.map(|_| 0)) {
            demand.set(GPU, gpus * GPU_UNIT);
        }
        let key = Key {
            demand,
            share,
            gpus: wish.needs.clone(),
            need: need(spec),
            selector: spec.node_selector.clone().unwrap_or_default(),
            affinity: affinity.map(text).unwrap_or_default(),
            tolerations: if tolerations.is_empty() {
                String::new()
            } else {
                text(&tolerations)
            },
            replaces: labels
                .and_then(|labels| labels.get(REPLACES_LOST))
                .is_some_and(|value| value == "true"),
            manners: manners.as_ref().map_or(String::new(), |m| format!("{m:?}")),
            unreadable: wish.unreadable,
        };
        if let Some(ix) = self.index.get(&key) {
            if let Some(class) = &mut self.table[*ix] {
                class.members += 1;
            }
            return *ix;
        }
        let mut class = Class {
            key: key.clone(),
            demand: Demand::default(),
            packs: self.packs,
            affinity: affinity.cloned(),
            tolerations: tolerations.to_vec(),
            manners,
            members: 1,
        };
        class.weigh(self.least_memory);
        let ix = self.free.pop().unwrap_or_else(|| {
            self.table.push(None);
            self.table.len() - 1
        });
        self.table[ix] = Some(class);
        self.index.insert(key, ix);
        ix
    }

    pub(crate) fn least_memory(&self) -> Option<i64> {
        self.least_memory
    }

    /// Notes what GPUs have where they have the least: what pods count as that have no node.
    pub(crate) fn set_least_memory(&mut self, memory: Option<i64>) {
        if self.least_memory == memory {
            return;
        }
        self.least_memory = memory;
        for class in self.table.iter_mut().flatten() {
            class.weigh(memory);
        }
    }

    /// One member more of a class that has some.
    pub(crate) fn rejoin(&mut self, ix: ClassIx) -> ClassIx {
        if let Some(class) = self.table.get_mut(ix).and_then(Option::as_mut) {
            class.members += 1;
        }
        ix
    }

    /// One member less; true when it was the last and the class is gone.
    pub(crate) fn leave(&mut self, ix: ClassIx) -> bool {
        let Some(class) = self.table.get_mut(ix).and_then(Option::as_mut) else {
            return false;
        };
        class.members -= 1;
        if class.members > 0 {
            return false;
        }
        if let Some(class) = self.table[ix].take() {
            self.index.remove(&class.key);
            self.free.push(ix);
        }
        true
    }

    /// Does some class ask about a term of this text?
    pub(crate) fn asks_about(&self, term: &str) -> bool {
        let manners = self.table.iter().flatten().filter_map(Class::manners);
        manners
            .into_iter()
            .any(|manners| manners.terms.contains_key(term))
    }

    pub(crate) fn get(&self, ix: ClassIx) -> &Class {
        self.table[ix]
            .as_ref()
            .expect("a class lives while a pod belongs to it")
    }
}

fn text<T: Serialize + ?Sized>(value: &T) -> String {
    serde_json::to_string(value).expect("Kubernetes' types serialize")
}

fn need(spec: &k8s::PodSpec) -> Need {
    let named = |container: &k8s::Container| {
        container
            .image
            .as_ref()
            .is_some_and(|image| !image.is_empty())
    };
    let inits = spec.init_containers.iter().flatten();
    if spec.containers.iter().chain(inits).any(named) {
        Need::Image
    } else {
        Need::Process
    }
}
