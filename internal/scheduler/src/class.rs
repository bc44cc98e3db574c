//! Classes: pods that no node could tell apart when they ask for room. Feasibility and score are
//! worked out once a class, however many pods and gangs share it.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1 as k8s;
use resources::amounts::Amounts;
use resources::names::NVIDIA_GPU_PRODUCT;
use resources::names::REPLACES_LOST;
use serde::Serialize;

use crate::devices::{self, Ask};
use crate::filter::neighbours::Manners;
use crate::filter::volumes::Reach;
use crate::gpu::{Needs, Product};
use crate::node::Node;
use crate::resource::{AMOUNT_MAX, Demand, GPU, GPU_UNIT, Ix, Names, Set, each};
use crate::share::{Share, Take, Wish, foreign};

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
    /// Only nodes whose GPUs count under just these models.
    kind: Option<Set>,
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
    /// It has its devices allocated to ResourceClaims.
    claims: bool,
    /// Where its volumes let it run.
    reach: Option<Arc<Reach>>,
    /// Its pods' work goes over the network between them.
    spans: bool,
    /// The resources of which a container gets more than one.
    several: Set,
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
    /// It asks for GPUs, parts or slices of them.
    devices: bool,
    /// Products of which its GPUs are one, where something says so.
    named: Vec<Product>,
    /// The resources that are GPUs of a model that it certainly takes.
    models: Set,
    /// The same class on all nodes, and this one on those of one kind only.
    base: Option<ClassIx>,
    kinds: Vec<ClassIx>,
    members: usize,
    /// Which one it is of those that were in its place.
    born: u64,
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

    /// All that tells it from other classes, in words.
    #[cfg(test)]
    pub(crate) fn words(&self) -> String {
        format!("{:?}", self.key)
    }

    /// What the GPUs must be.
    pub(crate) fn gpus(&self) -> &Needs {
        &self.key.gpus
    }

    /// Only nodes whose GPUs count under just these models; none where any will do.
    pub(crate) fn kind(&self) -> Option<Set> {
        self.key.kind
    }

    /// The resources that are GPUs of a model, of those that it asks for: how many are free is
    /// how many GPUs are.
    pub(crate) fn models(&self) -> Set {
        self.models
    }

    /// What a pod takes on a node, or counts as while it has none.
    pub(crate) fn take(&self, node: Option<&Node>) -> Take {
        let mut demand = self.demand.clone();
        if let Some(node) = node {
            // Where it is tells which model it has, whatever it asked for.
            let models = node.models();
            let gpus = demand.get(GPU);
            each(self.models & !models).for_each(|ix| demand.set(ix, 0));
            each(models).for_each(|ix| demand.set(ix, gpus));
        }
        Take::of(demand, self.key.share, node)
    }

    /// Does a pod that shares a GPU go where one is begun, rather than anywhere?
    pub(crate) fn packs(&self) -> bool {
        self.packs
    }

    fn weigh(&mut self, memory: Option<i64>, models: &[(Product, Ix)]) {
        self.demand = self.key.demand.clone();
        if let Some(share) = self.key.share {
            let each = share.part.of(memory).min(GPU_UNIT);
            self.demand.set(GPU, each * share.gpus);
        }
        let gpus = self.demand.get(GPU);
        self.models = self.key.kind.unwrap_or(0);
        let named = |model: &Product| {
            !self.named.is_empty() && self.named.iter().all(|product| product.is(model))
        };
        for (_, ix) in models.iter().filter(|(model, _)| gpus > 0 && named(model)) {
            self.models |= 1 << ix;
        }
        for ix in each(self.models) {
            self.demand.set(ix, gpus);
        }
    }

    /// Does it ask for GPUs, or parts or slices of them?
    pub(crate) fn wants_devices(&self) -> bool {
        self.devices
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

    /// Does it want devices allocated to ResourceClaims? That is kube-scheduler's to do, and a pod
    /// that is bound without it waits on its node for ever.
    pub(crate) fn claims(&self) -> bool {
        self.key.claims
    }

    /// Where its volumes let it run; none where anywhere.
    pub(crate) fn reach(&self) -> Option<&Reach> {
        self.key.reach.as_deref()
    }

    /// Does its pods' work go over the network between them?
    pub(crate) fn spans(&self) -> bool {
        self.key.spans
    }

    /// The resources of which a container gets more than one.
    pub(crate) fn several(&self) -> Set {
        self.key.several
    }

    /// Does a container get a GPU with another beside it?
    pub(crate) fn has_several_gpus(&self) -> bool {
        self.key.several & 1 << GPU != 0
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
    models: Vec<(Product, Ix)>,
    packs: bool,
    /// How many classes there were.
    born: u64,
}

impl Classes {
    /// No classes yet. Sharers pack: they go to nodes where a GPU is begun.
    pub(crate) fn new(packs: bool) -> Classes {
        Classes {
            packs,
            ..Classes::default()
        }
    }

    /// The class of such pods, which ask for so much, by their containers so, with one member more.
    pub(crate) fn join(
        &mut self,
        spec: &k8s::PodSpec,
        (requests, asks): (Amounts, &[Ask]),
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
        let mut demand = names.demand(&foreign::without(requests));
        // A whole GPU is no part of one.
        let whole = Share::whole(wish.share);
        let share = wish.share.filter(|_| whole.is_none());
        if let Some(gpus) = whole.or(share.map(|_| 0)) {
            demand.set(GPU, gpus.clamp(0, AMOUNT_MAX / GPU_UNIT) * GPU_UNIT);
        }
        let of_gpus = |(ix, _): &(Ix, i64)| names.devices() & 1 << *ix != 0;
        let devices = share.is_some() || demand.0.iter().any(of_gpus);
        let several = devices::several(asks).filter_map(|name| names.find(name));
        let several = several.filter(|ix| demand.get(*ix) > 0);
        let gpus = Set::from(devices::has_several_gpus(asks)) << GPU;
        let several = several.fold(gpus, |set, ix| set | 1 << ix);
        let key = Key {
            demand,
            share,
            gpus: wish.needs.clone(),
            kind: None,
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
            claims: (spec.resource_claims.as_ref()).is_some_and(|claims| !claims.is_empty()),
            reach: None,
            spans: false,
            several,
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
            devices,
            named: named(spec, &wish.needs),
            models: 0,
            base: None,
            kinds: Vec::new(),
            members: 1,
            born: self.bear(),
        };
        class.weigh(self.least_memory, &self.models);
        let ix = self.free.pop().unwrap_or_else(|| {
            self.table.push(None);
            self.table.len() - 1
        });
        self.table[ix] = Some(class);
        self.index.insert(key, ix);
        ix
    }

    /// The same class for pods whose volumes let them run just there, with one member more. The
    /// class that is given keeps its members.
    pub(crate) fn reaching(&mut self, ix: ClassIx, reach: Option<Arc<Reach>>) -> ClassIx {
        self.changed(ix, |key| key.reach = reach)
    }

    /// The same class for pods whose work goes over the network between them, or doesn't, with one
    /// member more. The class that is given keeps its members.
    pub(crate) fn spanning(&mut self, ix: ClassIx, spans: bool) -> ClassIx {
        self.changed(ix, |key| key.spans = spans)
    }

    /// The class that a change makes of another, with one member more.
    fn changed(&mut self, ix: ClassIx, change: impl FnOnce(&mut Key)) -> ClassIx {
        let of = self.get(self.base(ix));
        let mut class = of.clone();
        change(&mut class.key);
        if of.key == class.key {
            return self.rejoin(self.base(ix));
        }
        if let Some(ix) = self.index.get(&class.key) {
            return self.rejoin(*ix);
        }
        class.kinds.clear();
        class.members = 1;
        class.born = self.bear();
        let key = class.key.clone();
        let ix = self.free.pop().unwrap_or_else(|| {
            self.table.push(None);
            self.table.len() - 1
        });
        self.table[ix] = Some(class);
        self.index.insert(key, ix);
        ix
    }

    fn bear(&mut self) -> u64 {
        self.born += 1;
        self.born
    }

    /// Which class it is of those that were in its place.
    pub(crate) fn born(&self, ix: ClassIx) -> u64 {
        self.get(ix).born
    }

    /// One member more of a class that has some, if it is that class still.
    pub(crate) fn rejoin_if(&mut self, (ix, born): (ClassIx, u64)) -> bool {
        match self.table.get_mut(ix).and_then(Option::as_mut) {
            Some(class) if class.born == born => {
                class.members += 1;
                true
            }
            _ => false,
        }
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
            class.weigh(memory, &self.models);
        }
    }

    /// Notes the resources that are GPUs of a model: classes that name one ask for these too.
    pub(crate) fn set_models(&mut self, models: &[(Product, Ix)]) {
        self.models = models.to_vec();
        for class in self.table.iter_mut().flatten() {
            class.weigh(self.least_memory, &self.models);
        }
    }

    pub(crate) fn models_known(&self) -> usize {
        self.models.len()
    }

    /// The same class on nodes of one kind only. It lives as long as the class has members.
    pub(crate) fn of_kind(&mut self, base: ClassIx, kind: Set) -> ClassIx {
        let base = self.base(base);
        let known = self.get(base).kinds.iter().copied();
        if let Some(ix) = known
            .into_iter()
            .find(|ix| self.get(*ix).kind() == Some(kind))
        {
            return ix;
        }
        let mut class = self.get(base).clone();
        class.key.kind = Some(kind);
        class.base = Some(base);
        class.kinds.clear();
        class.weigh(self.least_memory, &self.models);
        let ix = self.free.pop().unwrap_or_else(|| {
            self.table.push(None);
            self.table.len() - 1
        });
        self.table[ix] = Some(class);
        if let Some(class) = &mut self.table[base] {
            class.kinds.push(ix);
        }
        ix
    }

    /// The class on all nodes.
    pub(crate) fn base(&self, ix: ClassIx) -> ClassIx {
        self.get(ix).base.unwrap_or(ix)
    }

    /// One member more of a class that has some.
    pub(crate) fn rejoin(&mut self, ix: ClassIx) -> ClassIx {
        if let Some(class) = self.table.get_mut(ix).and_then(Option::as_mut) {
            class.members += 1;
        }
        ix
    }

    /// One member less; the classes that are gone with it when it was the last.
    pub(crate) fn leave(&mut self, ix: ClassIx) -> Vec<ClassIx> {
        let Some(class) = self.table.get_mut(ix).and_then(Option::as_mut) else {
            return Vec::new();
        };
        class.members -= 1;
        if class.members > 0 {
            return Vec::new();
        }
        let mut gone = std::mem::take(&mut class.kinds);
        self.index.remove(&class.key);
        gone.push(ix);
        for ix in &gone {
            self.table[*ix] = None;
        }
        self.free.extend(&gone);
        gone
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

/// Products of which a pod's GPUs are one: as it asks, or as its selector or affinity says.
fn named(spec: &k8s::PodSpec, needs: &Needs) -> Vec<Product> {
    if !needs.models.is_empty() {
        return needs.models.clone();
    }
    let selector = spec.node_selector.as_ref();
    if let Some(product) = selector.and_then(|labels| labels.get(NVIDIA_GPU_PRODUCT)) {
        return Product::read(product).into_iter().collect();
    }
    let affinity = spec.affinity.as_ref();
    let required = affinity
        .and_then(|affinity| affinity.node_affinity.as_ref())
        .and_then(|nodes| {
            nodes
                .required_during_scheduling_ignored_during_execution
                .as_ref()
        });
    let Some(selector) = required else {
        return Vec::new();
    };
    let mut all = Vec::new();
    for term in &selector.node_selector_terms {
        let mut rules = term.match_expressions.iter().flatten();
        let rule = rules.find(|rule| rule.key == NVIDIA_GPU_PRODUCT && rule.operator == "In");
        // A term that names none matches nodes of any.
        let Some(rule) = rule else { return Vec::new() };
        let values = rule.values.iter().flatten();
        all.extend(values.filter_map(|value| Product::read(value)));
    }
    all
}
