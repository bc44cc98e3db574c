//! Reads a RayService's spec, and refuses an invalid one with its field. All later code works on a
//! [`ParsedRayService`].

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use resources::kinds::{RayCluster, RayClusterSpec, RayService, RayServiceSpec};
use resources::names;
use resources::serve_config::{self, InvalidServeConfig};
use serde_json::{Value, json};
use sha1::{Digest as _, Sha1};

use crate::ray::{MANAGED_BY, SERVE};

/// Seconds after which a cluster that no longer serves is deleted. KubeRay's.
const DELETION_DELAY: i32 = 60;

/// Why a service cannot run: the field and its accepted values.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum InvalidRayService {
    #[error("spec.serveConfigV2: {0}")]
    Config(InvalidServeConfig),
    #[error("spec.serveConfigV2: give the applications that the service runs")]
    NoConfig,
    #[error("spec.upgradeStrategy.type: {type_:?} is not supported: use NewCluster or None")]
    Upgrade { type_: String },
}

/// A service's parsed spec.
pub(crate) struct ParsedRayService<'a> {
    pub(crate) meta: &'a ObjectMeta,
    pub(crate) spec: &'a RayServiceSpec,
    /// Ray Serve's configuration as the spec has it.
    config: Value,
    /// True if a changed cluster spec makes another cluster.
    pub(crate) upgrades: bool,
}

/// The configuration that Ray gets, with its hash.
pub(crate) struct DesiredConfig {
    pub(crate) body: Value,
    pub(crate) hash: String,
}

impl<'a> ParsedRayService<'a> {
    /// Reads the spec, or returns the invalid field.
    pub(crate) fn of(service: &'a RayService) -> Result<ParsedRayService<'a>, InvalidRayService> {
        let spec = &service.spec;
        let text = spec.serve_config_v2.as_deref().unwrap_or_default();
        if text.trim().is_empty() {
            return Err(InvalidRayService::NoConfig);
        }
        let config = serve_config::parse(text).map_err(InvalidRayService::Config)?;
        let strategy = spec.upgrade_strategy.as_ref();
        let type_ = strategy.and_then(|strategy| strategy.type_.as_deref());
        let upgrades = match type_.unwrap_or("NewCluster") {
            "NewCluster" => true,
            "None" => false,
            other => {
                let type_ = other.to_owned();
                return Err(InvalidRayService::Upgrade { type_ });
            }
        };
        Ok(ParsedRayService {
            meta: &service.metadata,
            spec,
            config,
            upgrades,
        })
    }

    pub(crate) fn name(&self) -> &'a str {
        self.meta.name.as_deref().unwrap_or_default()
    }

    pub(crate) fn excludes_head(&self) -> bool {
        self.spec.exclude_head_pod_from_serve_svc == Some(true)
    }

    /// Seconds after which a cluster that no longer serves is deleted.
    pub(crate) fn deletion_delay(&self) -> i64 {
        let delay = self.spec.ray_cluster_deletion_delay_seconds;
        i64::from(delay.unwrap_or(DELETION_DELAY))
    }

    /// The port on which Ray Serve answers HTTP in a cluster's pods.
    pub(crate) fn http_port(&self, cluster: &RayCluster) -> u16 {
        chosen_port(cluster).unwrap_or_else(|| self.own_http_port())
    }

    /// The port of HTTP in the user's configuration.
    pub(crate) fn own_http_port(&self) -> u16 {
        let given = self.config["http_options"]["port"].as_u64();
        given
            .and_then(|port| u16::try_from(port).ok())
            .unwrap_or(SERVE)
    }

    /// The configuration for a cluster, with the ports that Muster chose for it. Where pods share their node's address,
    /// it has a proxy on the head alone unless the user wants others: the pods of one node could not listen on the same
    /// port.
    pub(crate) fn config_for(&self, cluster: &RayCluster, shares_address: bool) -> DesiredConfig {
        let mut body = self.config.clone();
        if let Some(port) = chosen_port(cluster) {
            set_port(&mut body, "http_options", port);
            if body["grpc_options"].is_object() {
                set_port(&mut body, "grpc_options", port.saturating_add(1));
            }
            let head_alone = shares_address && !self.excludes_head();
            if body["proxy_location"].is_null() && head_alone {
                body["proxy_location"] = "HeadOnly".into();
            }
        }
        let hash = sha1_hex(&body.to_string());
        DesiredConfig { body, hash }
    }

    /// The spec of the service's clusters.
    pub(crate) fn cluster_spec(&self) -> RayClusterSpec {
        let mut spec = self.spec.ray_cluster_config.clone();
        // The service suspends by deleting its clusters.
        spec.suspend = None;
        spec.managed_by = Some(MANAGED_BY.to_owned());
        spec
    }

    /// How the spec differs from the one that a cluster was made from.
    pub(crate) fn compare(&self, cluster: &RayCluster) -> SpecChange {
        let annotations = cluster.metadata.annotations.as_ref();
        let noted = |name: &str| annotations.and_then(|all| all.get(name));
        let known = noted(names::RAY_SPEC_HASH).map(String::as_str);
        let mut spec = self.cluster_spec();
        if known == Some(spec_hash(&spec).as_str()) {
            return SpecChange::Nothing;
        }
        let groups = noted(names::RAY_WORKER_GROUPS).and_then(|text| text.parse::<usize>().ok());
        let given = spec.worker_group_specs.get_or_insert_default();
        if groups.is_some_and(|groups| groups < given.len()) {
            given.truncate(groups.unwrap_or_default());
            if given.is_empty() {
                spec.worker_group_specs = None;
            }
            if known == Some(spec_hash(&spec).as_str()) {
                return SpecChange::MoreGroups;
            }
        }
        SpecChange::Another
    }
}

/// How a spec differs from the one that a cluster was made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SpecChange {
    /// Not, but for the numbers of workers.
    Nothing,
    /// It has further groups after those of the cluster.
    MoreGroups,
    /// In a way that needs another cluster.
    Another,
}

/// Ray Serve's port in a cluster, if Muster chose it.
pub(crate) fn chosen_port(cluster: &RayCluster) -> Option<u16> {
    let annotations = cluster.metadata.annotations.as_ref()?;
    annotations.get(names::RENDEZVOUS_PORT)?;
    let endpoints = cluster.status.as_ref()?.endpoints.as_ref()?;
    endpoints.get("serve")?.parse().ok()
}

fn set_port(config: &mut Value, options: &str, port: u16) {
    if !config[options].is_object() {
        config[options] = json!({});
    }
    config[options]["port"] = port.into();
}

/// The hash of a cluster's spec without what may change while the cluster serves.
pub(crate) fn spec_hash(spec: &RayClusterSpec) -> String {
    let mut spec = spec.clone();
    spec.suspend = None;
    for group in spec.worker_group_specs.iter_mut().flatten() {
        (group.replicas, group.min_replicas, group.max_replicas) = (None, None, None);
        group.scale_strategy = None;
    }
    if spec.worker_group_specs.as_ref().is_some_and(Vec::is_empty) {
        spec.worker_group_specs = None;
    }
    sha1_hex(&json!(spec).to_string())
}

fn sha1_hex(text: &str) -> String {
    let digest = Sha1::digest(text.as_bytes());
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Whether `managedBy` names another controller for this service.
pub(crate) fn managed_elsewhere(service: &RayService) -> bool {
    let manager = service.spec.managed_by.as_deref();
    manager.is_some_and(|manager| manager != MANAGED_BY)
}
