//! Classes: pods that no node could tell apart when they ask for room. Feasibility and score are
//! worked out once a class, however many pods and gangs share it.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1 as k8s;
use resources::amounts::pod_requests;
use resources::names::REPLACES_LOST;
use serde::Serialize;

use crate::filter::neighbours::Manners;
use crate::resource::{Demand, Names};

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
    demand: Demand,
    need: Need,
    selector: BTreeMap<String, String>,
    /// Node affinity and tolerations as JSON: compared, never read.
    affinity: String,
    tolerations: String,
    /// Its pods replace ones that were lost with their node.
    replaces: bool,
    /// What it asks of other pods, in the namespace that it asks from: compared, never read.
    manners: String,
}

/// One class.
#[derive(Clone, Debug)]
pub(crate) struct Class {
    key: Key,
    pub(crate) affinity: Option<k8s::NodeAffinity>,
    pub(crate) tolerations: Vec<k8s::Toleration>,
    manners: Option<Box<Manners>>,
    members: usize,
}

impl Class {
    pub(crate) fn demand(&self) -> &Demand {
        &self.key.demand
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
}

impl Classes {
    /// The class of such pods, with one member more.
    pub(crate) fn join(
        &mut self,
        spec: &k8s::PodSpec,
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
        let key = Key {
            demand: names.demand(&pod_requests(spec)),
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
        };
        if let Some(ix) = self.index.get(&key) {
            if let Some(class) = &mut self.table[*ix] {
                class.members += 1;
            }
            return *ix;
        }
        let class = Class {
            key: key.clone(),
            affinity: affinity.cloned(),
            tolerations: tolerations.to_vec(),
            manners,
            members: 1,
        };
        let ix = self.free.pop().unwrap_or_else(|| {
            self.table.push(None);
            self.table.len() - 1
        });
        self.table[ix] = Some(class);
        self.index.insert(key, ix);
        ix
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
