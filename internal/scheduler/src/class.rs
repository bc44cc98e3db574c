//! Classes: pods that are identical for every node. Feasibility and score are computed once for
//! each class, however many pods and gangs share it.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1 as k8s;
use resources::amounts::Amounts;
use resources::names::NVIDIA_GPU_PRODUCT;
use resources::names::REPLACES_LOST;
use serde::Serialize;

use crate::devices::{self, DeviceRequest};
use crate::filter::neighbours::PodRules;
use crate::filter::volumes::NodeRequirements;
use crate::gpu::{Needs, Product};
use crate::node::Node;
use crate::resource::{AMOUNT_MAX, Demand, GPU, GPU_UNIT, Ix, ResourceNames, ResourceSet, each};
use crate::share::{GpuAnnotations, SharedPart, Take, foreign};

/// A class's index in the table. It depends on event order, so no decision may depend on it.
pub(crate) type ClassIx = usize;

/// The kind of runtime that a pod needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum RuntimeNeed {
    /// Some container names an image.
    Image,
    /// No container names an image: its commands run on the host.
    Process,
}

/// Everything that distinguishes classes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct ClassKey {
    /// Without GPUs, if parts of GPUs are requested.
    demand: Demand,
    share: Option<SharedPart>,
    /// What the GPUs must be.
    gpus: Needs,
    /// Only nodes whose GPUs count under exactly these models.
    kind: Option<ResourceSet>,
    need: RuntimeNeed,
    selector: BTreeMap<String, String>,
    /// Node affinity and tolerations as JSON: compared, never parsed.
    affinity: String,
    tolerations: String,
    /// True for pods that replace members lost with their node.
    replaces: bool,
    /// The inter-pod rules with the pod's namespace: compared, never parsed.
    pod_rules: String,
    /// True if its GPU annotations cannot be read.
    unreadable: bool,
    /// True if it uses ResourceClaims.
    claims: bool,
    /// The nodes that its volumes allow.
    reach: Option<Arc<NodeRequirements>>,
    /// True if its pods communicate over the network.
    spans: bool,
    /// The resources of which one container gets more than one.
    several: ResourceSet,
}

/// One class.
#[derive(Clone, Debug)]
pub(crate) struct Class {
    key: ClassKey,
    demand: Demand,
    packs: bool,
    pub(crate) affinity: Option<k8s::NodeAffinity>,
    pub(crate) tolerations: Vec<k8s::Toleration>,
    pod_rules: Option<Box<PodRules>>,
    /// True if it requests GPUs, or parts or slices of them.
    devices: bool,
    /// The products that its GPUs must be of, if specified.
    named: Vec<Product>,
    /// The resources for GPU models that it certainly uses.
    models: ResourceSet,
    /// For a class restricted to one kind of nodes: the class for all nodes; and the restricted
    /// classes of this one.
    base: Option<ClassIx>,
    kinds: Vec<ClassIx>,
    members: usize,
    /// Its generation: the index may be reused.
    generation: u64,
}

impl Class {
    /// A pod's request. A request for GPU memory counts as the largest part that it would be on any
    /// node.
    pub(crate) fn demand(&self) -> &Demand {
        &self.demand
    }

    /// The parts of GPUs that it requests; `None` if it requests whole GPUs or none.
    pub(crate) fn share(&self) -> Option<SharedPart> {
        self.key.share
    }

    /// All that distinguishes it from other classes, as text.
    #[cfg(test)]
    pub(crate) fn message(&self) -> String {
        format!("{:?}", self.key)
    }

    /// What the GPUs must be.
    pub(crate) fn gpus(&self) -> &Needs {
        &self.key.gpus
    }

    /// Only nodes whose GPUs count under exactly these models; `None` if any will do.
    pub(crate) fn kind(&self) -> Option<ResourceSet> {
        self.key.kind
    }

    /// The GPU model resources among its requests: their free amount is that of GPUs.
    pub(crate) fn models(&self) -> ResourceSet {
        self.models
    }

    /// What a pod takes on a node, or counts as without one.
    pub(crate) fn take(&self, node: Option<&Node>) -> Take {
        let mut demand = self.demand.clone();
        if let Some(node) = node {
            // The node determines the model, whatever was requested.
            let models = node.models();
            let gpus = demand.get(GPU);
            each(self.models & !models).for_each(|ix| demand.set(ix, 0));
            each(models).for_each(|ix| demand.set(ix, gpus));
        }
        Take::of(demand, self.key.share, node)
    }

    /// True if a pod that requests a part prefers a GPU that is shared already.
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

    /// True if it requests GPUs, or parts or slices of them.
    pub(crate) fn wants_devices(&self) -> bool {
        self.devices
    }

    pub(crate) fn replaces(&self) -> bool {
        self.key.replaces
    }

    pub(crate) fn need(&self) -> RuntimeNeed {
        self.key.need
    }

    pub(crate) fn selector(&self) -> &BTreeMap<String, String> {
        &self.key.selector
    }

    /// True if its GPU annotations cannot be read. Such pods wait, and their report says so.
    pub(crate) fn unreadable(&self) -> bool {
        self.key.unreadable
    }

    /// True if it uses ResourceClaims, which only kube-scheduler allocates: a pod bound without an
    /// allocation would wait on its node for ever.
    pub(crate) fn claims(&self) -> bool {
        self.key.claims
    }

    /// The nodes that its volumes allow; `None` if any.
    pub(crate) fn reach(&self) -> Option<&NodeRequirements> {
        self.key.reach.as_deref()
    }

    /// True if its pods communicate over the network.
    pub(crate) fn spans(&self) -> bool {
        self.key.spans
    }

    /// The resources of which one container gets more than one.
    pub(crate) fn several(&self) -> ResourceSet {
        self.key.several
    }

    /// True if a container gets more than one GPU.
    pub(crate) fn has_several_gpus(&self) -> bool {
        self.key.several & 1 << GPU != 0
    }

    /// Its inter-pod rules; `None` if it has none.
    pub(crate) fn pod_rules(&self) -> Option<&PodRules> {
        self.pod_rules.as_deref()
    }
}

/// All classes that have members.
#[derive(Clone, Debug, Default)]
pub(crate) struct Classes {
    table: Vec<Option<Class>>,
    free: Vec<ClassIx>,
    index: BTreeMap<ClassKey, ClassIx>,
    /// The smallest GPU memory of any node, in MiB.
    least_memory: Option<i64>,
    models: Vec<(Product, Ix)>,
    packs: bool,
    /// The number of classes created so far.
    generation: u64,
}

impl Classes {
    /// No classes yet. `packs`: pods that request parts of GPUs prefer GPUs that are shared
    /// already.
    pub(crate) fn new(packs: bool) -> Classes {
        Classes {
            packs,
            ..Classes::default()
        }
    }

    /// The class of pods with this spec and these requests, with one member more.
    pub(crate) fn join(
        &mut self,
        spec: &k8s::PodSpec,
        (requests, asks): (Amounts, &[DeviceRequest]),
        wish: &GpuAnnotations,
        namespace: &str,
        labels: Option<&BTreeMap<String, String>>,
        names: &mut ResourceNames,
    ) -> ClassIx {
        let pod_rules = PodRules::read(spec, namespace, labels);
        let affinity = spec
            .affinity
            .as_ref()
            .and_then(|affinity| affinity.node_affinity.as_ref());
        let tolerations = spec.tolerations.as_deref().unwrap_or_default();
        let mut demand = names.demand(&foreign::without(requests));
        // A whole GPU is not a part.
        let whole = SharedPart::whole(wish.share);
        let share = wish.share.filter(|_| whole.is_none());
        if let Some(gpus) = whole.or(share.map(|_| 0)) {
            demand.set(GPU, gpus.clamp(0, AMOUNT_MAX / GPU_UNIT) * GPU_UNIT);
        }
        let of_gpus = |(ix, _): &(Ix, i64)| names.devices() & 1 << *ix != 0;
        let devices = share.is_some() || demand.0.iter().any(of_gpus);
        let several = devices::several(asks).filter_map(|name| names.find(name));
        let several = several.filter(|ix| demand.get(*ix) > 0);
        let gpus = ResourceSet::from(devices::has_several_gpus(asks)) << GPU;
        let several = several.fold(gpus, |set, ix| set | 1 << ix);
        let key = ClassKey {
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
            pod_rules: pod_rules
                .as_ref()
                .map_or(String::new(), |m| format!("{m:?}")),
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
            pod_rules,
            devices,
            named: named(spec, &wish.needs),
            models: 0,
            base: None,
            kinds: Vec::new(),
            members: 1,
            generation: self.next_generation(),
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

    /// The class with these volume requirements in place of the given class's, with one member
    /// more. The given class keeps its members.
    pub(crate) fn reaching(
        &mut self,
        ix: ClassIx,
        reach: Option<Arc<NodeRequirements>>,
    ) -> ClassIx {
        self.changed(ix, |key| key.reach = reach)
    }

    /// The class for pods that do, or do not, communicate over the network, with one member more.
    /// The given class keeps its members.
    pub(crate) fn spanning(&mut self, ix: ClassIx, spans: bool) -> ClassIx {
        self.changed(ix, |key| key.spans = spans)
    }

    /// The class that results from changing another one's key, with one member more.
    fn changed(&mut self, ix: ClassIx, change: impl FnOnce(&mut ClassKey)) -> ClassIx {
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
        class.generation = self.next_generation();
        let key = class.key.clone();
        let ix = self.free.pop().unwrap_or_else(|| {
            self.table.push(None);
            self.table.len() - 1
        });
        self.table[ix] = Some(class);
        self.index.insert(key, ix);
        ix
    }

    fn next_generation(&mut self) -> u64 {
        self.generation += 1;
        self.generation
    }

    /// The generation of the class at an index.
    pub(crate) fn generation(&self, ix: ClassIx) -> u64 {
        self.get(ix).generation
    }

    /// Adds a member to a class, if it still exists in the same generation.
    pub(crate) fn rejoin_if(&mut self, (ix, generation): (ClassIx, u64)) -> bool {
        match self.table.get_mut(ix).and_then(Option::as_mut) {
            Some(class) if class.generation == generation => {
                class.members += 1;
                true
            }
            _ => false,
        }
    }

    pub(crate) fn least_memory(&self) -> Option<i64> {
        self.least_memory
    }

    /// Sets the smallest GPU memory of any node: what memory requests of unplaced pods count by.
    pub(crate) fn set_least_memory(&mut self, memory: Option<i64>) {
        if self.least_memory == memory {
            return;
        }
        self.least_memory = memory;
        for class in self.table.iter_mut().flatten() {
            class.weigh(memory, &self.models);
        }
    }

    /// Sets the GPU model resources: a class that names a model requests these too.
    pub(crate) fn set_models(&mut self, models: &[(Product, Ix)]) {
        self.models = models.to_vec();
        for class in self.table.iter_mut().flatten() {
            class.weigh(self.least_memory, &self.models);
        }
    }

    pub(crate) fn models_known(&self) -> usize {
        self.models.len()
    }

    /// The class restricted to one kind of nodes. It exists as long as the base class has members.
    pub(crate) fn of_kind(&mut self, base: ClassIx, kind: ResourceSet) -> ClassIx {
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

    /// The class for all nodes.
    pub(crate) fn base(&self, ix: ClassIx) -> ClassIx {
        self.get(ix).base.unwrap_or(ix)
    }

    /// Adds a member to a class that has some.
    pub(crate) fn rejoin(&mut self, ix: ClassIx) -> ClassIx {
        if let Some(class) = self.table.get_mut(ix).and_then(Option::as_mut) {
            class.members += 1;
        }
        ix
    }

    /// Removes a member; returns the classes that were removed with the last one.
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

    /// True if some class uses the term with this text.
    pub(crate) fn uses_term(&self, term: &str) -> bool {
        let pod_rules = self.table.iter().flatten().filter_map(Class::pod_rules);
        pod_rules
            .into_iter()
            .any(|pod_rules| pod_rules.terms.contains_key(term))
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

fn need(spec: &k8s::PodSpec) -> RuntimeNeed {
    let named = |container: &k8s::Container| {
        container
            .image
            .as_ref()
            .is_some_and(|image| !image.is_empty())
    };
    let inits = spec.init_containers.iter().flatten();
    if spec.containers.iter().chain(inits).any(named) {
        RuntimeNeed::Image
    } else {
        RuntimeNeed::Process
    }
}

/// The products that a pod's GPUs must be of, by its annotation, selector or affinity.
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
        // A term that names no product matches nodes with any.
        let Some(rule) = rule else { return Vec::new() };
        let values = rule.values.iter().flatten();
        all.extend(values.filter_map(|value| Product::read(value)));
    }
    all
}
