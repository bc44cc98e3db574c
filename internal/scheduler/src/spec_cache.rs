//! Caches what was read of recent pod specs. Pods of one controller arrive in sequence with equal
//! specs, and each is reported several times; the cache recognises a spec by the fields that were
//! read from it. Keeps `KINDS_MAX` kinds. The unit test compares with reading each pod without the
//! cache.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1 as k8s;
use resources::amounts::{Amounts, pod_requests};

use crate::class::ClassIx;
use crate::devices::{self, DeviceRequest};
use crate::share::GpuAnnotations;
use crate::state::Scheduler;

/// The number of kinds that are kept.
const KINDS_MAX: usize = 16;

/// The most recently seen kinds, roughly in order of use.
#[derive(Clone, Debug, Default)]
pub(crate) struct SpecCache {
    kinds: Vec<CachedSpecs>,
}

/// Pods with equal relevant spec fields, and the result for the last of them.
#[derive(Clone, Debug)]
struct CachedSpecs {
    /// The relevant spec fields: everything that was read.
    relevant: k8s::PodSpec,
    requests: Amounts,
    asks: Vec<DeviceRequest>,
    listed: Vec<DeviceRequest>,
    last: Option<LastPod>,
}

/// The last pod of a kind: its other inputs, and the result.
#[derive(Clone, Debug)]
struct LastPod {
    wish: GpuAnnotations,
    namespace: Arc<str>,
    labels: Option<BTreeMap<String, String>>,
    /// Its class, with the generation of that index.
    class: (ClassIx, u64),
    asks: Arc<[DeviceRequest]>,
}

/// The fields of a spec that determine a pod's requests.
fn relevant(spec: &k8s::PodSpec) -> k8s::PodSpec {
    let inits = spec.init_containers.as_ref();
    k8s::PodSpec {
        containers: spec.containers.iter().map(relevant_of).collect(),
        init_containers: inits.map(|inits| inits.iter().map(relevant_of).collect()),
        resources: spec.resources.clone(),
        overhead: spec.overhead.clone(),
        node_selector: spec.node_selector.clone(),
        affinity: spec.affinity.clone(),
        tolerations: spec.tolerations.clone(),
        topology_spread_constraints: spec.topology_spread_constraints.clone(),
        resource_claims: spec.resource_claims.clone(),
        ..k8s::PodSpec::default()
    }
}

fn relevant_of(container: &k8s::Container) -> k8s::Container {
    k8s::Container {
        name: container.name.clone(),
        image: container.image.clone(),
        ports: container.ports.clone(),
        resources: container.resources.clone(),
        restart_policy: container.restart_policy.clone(),
        ..k8s::Container::default()
    }
}

/// True if `relevant` would return this for the spec.
fn is_relevant(relevant: &k8s::PodSpec, spec: &k8s::PodSpec) -> bool {
    let same = |a: &[k8s::Container], b: &[k8s::Container]| {
        a.len() == b.len() && a.iter().zip(b).all(|(a, b)| is_relevant_of(a, b))
    };
    let inits = match (&relevant.init_containers, &spec.init_containers) {
        (Some(a), Some(b)) => same(a, b),
        (None, None) => true,
        _ => false,
    };
    inits
        && same(&relevant.containers, &spec.containers)
        && relevant.resources == spec.resources
        && relevant.overhead == spec.overhead
        && relevant.node_selector == spec.node_selector
        && relevant.affinity == spec.affinity
        && relevant.tolerations == spec.tolerations
        && relevant.topology_spread_constraints == spec.topology_spread_constraints
        && relevant.resource_claims == spec.resource_claims
}

fn is_relevant_of(relevant: &k8s::Container, container: &k8s::Container) -> bool {
    relevant.name == container.name
        && relevant.resources == container.resources
        && relevant.image == container.image
        && relevant.ports == container.ports
        && relevant.restart_policy == container.restart_policy
}

impl SpecCache {
    /// Moves the kind of such pods to the front.
    fn bring_forward(&mut self, spec: &k8s::PodSpec) -> &mut CachedSpecs {
        let known = self
            .kinds
            .iter()
            .position(|kind| is_relevant(&kind.relevant, spec));
        let at = known.unwrap_or_else(|| {
            self.kinds.truncate(KINDS_MAX - 1);
            let relevant = relevant(spec);
            self.kinds.push(CachedSpecs {
                requests: pod_requests(&relevant),
                asks: devices::asks(&relevant),
                listed: devices::listed_asks(&relevant),
                relevant,
                last: None,
            });
            self.kinds.len() - 1
        });
        self.kinds.swap(0, at);
        &mut self.kinds[0]
    }
}

impl Scheduler {
    /// The class of a pod, with one member more, and what its containers request.
    pub(crate) fn read_asks(
        &mut self,
        pod: &k8s::Pod,
        spec: &k8s::PodSpec,
        namespace: &Arc<str>,
    ) -> (ClassIx, Arc<[DeviceRequest]>) {
        let labels = pod.metadata.labels.as_ref();
        let kind = self.spec_cache.bring_forward(spec);
        let wish = GpuAnnotations::read(&pod.metadata, &kind.relevant, &kind.requests);
        if let Some(last) = &kind.last
            && last.wish == wish
            && last.namespace == *namespace
            && last.labels.as_ref() == labels
            && self.classes.rejoin_if(last.class)
        {
            return (last.class.0, last.asks.clone());
        }
        let asks = devices::wished(&kind.relevant, &wish, &kind.asks, &kind.listed);
        let class = self.classes.join(
            &kind.relevant,
            (kind.requests.clone(), &asks),
            &wish,
            namespace,
            labels,
            &mut self.names,
        );
        // Equal requests of different kinds are stored once.
        if *self.last_asks != asks[..] {
            self.last_asks = Arc::from(asks);
        }
        kind.last = Some(LastPod {
            wish,
            namespace: namespace.clone(),
            labels: labels.cloned(),
            class: (class, self.classes.generation(class)),
            asks: self.last_asks.clone(),
        });
        (class, self.last_asks.clone())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::config::Config;
    use crate::event::Event;
    use crate::pod::PodKey;

    /// GPUs, tenths of a core, a node selector, a part of a GPU, a label, a host port.
    type Says = (u8, u8, bool, bool, bool, bool);

    fn pod(name: &str, says: Says) -> k8s::Pod {
        let (gpus, cpu, selects, shares, labelled, port) = says;
        let mut pod = json!({
            "metadata": {"name": name, "namespace": "ns", "uid": name, "annotations": {}},
            "spec": {"schedulerName": "muster", "containers": [{"name": "main", "resources":
                {"limits": {"nvidia.com/gpu": gpus.to_string()},
                 "requests": {"cpu": format!("{}m", u32::from(cpu) * 100)}}}]},
        });
        if selects {
            pod["spec"]["nodeSelector"] = json!({"zone": "a"});
        }
        if shares {
            pod["metadata"]["annotations"] = json!({"muster.io/gpu-fraction": "0.5"});
        }
        if labelled {
            pod["metadata"]["labels"] = json!({"muster.io/replaces-lost": "true"});
        }
        if port {
            pod["spec"]["containers"][0]["ports"] = json!([{"containerPort": 1, "hostPort": 1}]);
        }
        serde_json::from_value(pod).unwrap()
    }

    /// The text of a pod's class, and what its containers request.
    fn read(s: &Scheduler, name: &str) -> (String, Arc<[DeviceRequest]>) {
        let pod = &s.pods[&PodKey::new("ns", name)];
        (s.classes.get(pod.class).message(), pod.asks.clone())
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn a_pod_is_read_as_without_the_cache(
            steps in proptest::collection::vec(
                (0..6usize, proptest::option::weighted(0.9,
                    (0..3u8, 0..3u8, any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>()))),
                1..80),
        ) {
            let mut s = Scheduler::new(Config::default());
            for (name, says) in steps {
                let name = format!("p{name}");
                let Some(says) = says else {
                    s.apply(Event::PodGone("ns".to_owned(), name));
                    continue;
                };
                let pod = pod(&name, says);
                s.pod_changed(&pod);
                let mut alone = Scheduler::new(Config::default());
                alone.pod_changed(&pod);
                prop_assert_eq!(read(&s, &name), read(&alone, &name));
            }
        }
    }
}
