//! Fetches the data that a pod uses from ConfigMaps, Secrets, claims, its service account and its
//! namespace, for the agent, which cannot read them. A missing object becomes a text in the pod's status; the session
//! retries later.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    ConfigMap, Container, KeyToPath, Namespace, PersistentVolumeClaim, Pod, Secret, Volume,
};
use kube::Client;
use kube::api::Api;
use resources::names::UNIX_ACCOUNT;
use rpc::agent::v1::{ContainerEnv, EnvVar, VolumeData, VolumeFile};

use crate::error::status_code;
use crate::node::valid_name;
use crate::service_account_tokens::{PodTokens, TokenError};

/// The data found for a pod.
#[derive(Debug, Default, PartialEq)]
pub struct Resolved {
    /// Its volumes' contents.
    pub volumes: Vec<VolumeData>,
    /// Its containers' values.
    pub env: Vec<ContainerEnv>,
    /// The Unix account in the namespace's label; empty if the namespace has no such label.
    pub unix_account: String,
    /// Why the namespace could not be read; empty if it was. Until then the pod's Unix account is
    /// unknown, and the agent must not choose one.
    pub no_namespace: String,
    /// When the pod's tokens have to be replaced; none if it has no tokens.
    pub renew_at: Option<Timestamp>,
}

impl Resolved {
    /// True if data was missing.
    pub fn has_problem(&self) -> bool {
        self.volumes.iter().any(|v| !v.problem.is_empty())
            || self.env.iter().any(|e| !e.problem.is_empty())
            || !self.no_namespace.is_empty()
    }
}

/// The objects that a pod refers to, if they exist.
#[derive(Default)]
pub struct ReferencedObjects {
    config_maps: BTreeMap<String, Option<ConfigMap>>,
    secrets: BTreeMap<String, Option<Secret>>,
    claims: BTreeMap<String, bool>,
    tokens: PodTokens,
    /// The objects whose request failed.
    failures: BTreeMap<String, ResolveError>,
}

/// Why a pod lacks a value or a file; the pod's status shows the text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum ResolveError {
    /// The object doesn't exist.
    #[error("{kind} {name:?} not found")]
    NotFound { kind: &'static str, name: String },
    /// The API did not report whether the object exists.
    #[error("{kind} {name:?}: {detail}")]
    Unread {
        kind: &'static str,
        name: String,
        detail: String,
    },
    /// The object that a variable refers to lacks the key.
    #[error("couldn't find key {key} in {kind} {namespace}/{name}")]
    NoKey {
        key: String,
        kind: &'static str,
        namespace: String,
        name: String,
    },
    /// The API issued no token.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// The object that is the source of a volume lacks the key.
    #[error("{kind} {name:?} references non-existent key: {key}")]
    NoItem {
        kind: &'static str,
        name: String,
        key: String,
    },
}

/// Fetches the objects that the pod refers to, each once.
pub async fn resolve(client: &Client, pod: &Pod, now: Timestamp) -> Resolved {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let mut sources = ReferencedObjects::default();
    for reference in references(pod) {
        sources.fetch(client, namespace, reference).await;
    }
    sources.tokens = PodTokens::request(client, pod, now).await;
    let mut resolved = assemble(pod, &sources);
    match namespace_object(client, namespace).await {
        Ok(found) => resolved.unix_account = unix_account(found.as_ref()),
        Err(why) => resolved.no_namespace = why.to_string(),
    }
    resolved
}

async fn namespace_object(client: &Client, name: &str) -> Result<Option<Namespace>, ResolveError> {
    let api: Api<Namespace> = Api::all(client.clone());
    let found = api.get_opt(name).await;
    found.map_err(|error| ResolveError::Unread {
        kind: "namespace",
        name: name.to_owned(),
        detail: detail(&error),
    })
}

/// The account in a namespace's label. A deleted namespace has none, and its pods are deleted too.
fn unix_account(namespace: Option<&Namespace>) -> String {
    let labels = namespace.and_then(|namespace| namespace.metadata.labels.as_ref());
    let account = labels.and_then(|labels| labels.get(UNIX_ACCOUNT));
    account.cloned().unwrap_or_default()
}

/// Why a request failed.
fn detail(error: &kube::Error) -> String {
    match status_code(error) {
        Some(code) => format!("the API answered {code}: {error}"),
        None => error.to_string(),
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ValueReference {
    ConfigMap(String),
    Secret(String),
    Claim(String),
}

impl ReferencedObjects {
    async fn fetch(&mut self, client: &Client, namespace: &str, reference: ValueReference) {
        let failed = match &reference {
            ValueReference::ConfigMap(name) => {
                let api: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
                let found = api.get_opt(name).await;
                found.map(|found| {
                    self.config_maps.insert(name.clone(), found);
                })
            }
            ValueReference::Secret(name) => {
                let api: Api<Secret> = Api::namespaced(client.clone(), namespace);
                let found = api.get_opt(name).await;
                found.map(|found| {
                    self.secrets.insert(name.clone(), found);
                })
            }
            ValueReference::Claim(name) => {
                let api: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), namespace);
                let found = api.get_opt(name).await;
                found.map(|found| {
                    self.claims.insert(name.clone(), found.is_some());
                })
            }
        };
        if let Err(error) = failed {
            let (word, name) = reference.message();
            let detail = detail(&error);
            self.failures.insert(
                format!("{word}/{name}"),
                ResolveError::Unread {
                    kind: word,
                    name: name.to_owned(),
                    detail,
                },
            );
        }
    }

    fn absent(&self, kind: &'static str, name: &str) -> ResolveError {
        self.failures
            .get(&format!("{kind}/{name}"))
            .cloned()
            .unwrap_or_else(|| ResolveError::NotFound {
                kind,
                name: name.to_owned(),
            })
    }
}

impl ValueReference {
    fn message(&self) -> (&'static str, &str) {
        match self {
            ValueReference::ConfigMap(name) => ("configmap", name),
            ValueReference::Secret(name) => ("secret", name),
            ValueReference::Claim(name) => ("persistentvolumeclaim", name),
        }
    }
}

/// Init containers, then the others.
fn containers(pod: &Pod) -> impl Iterator<Item = &Container> {
    let spec = pod.spec.as_ref();
    spec.and_then(|spec| spec.init_containers.as_ref())
        .into_iter()
        .flatten()
        .chain(spec.map(|spec| &spec.containers).into_iter().flatten())
}

fn volumes(pod: &Pod) -> impl Iterator<Item = &Volume> {
    pod.spec
        .as_ref()
        .and_then(|spec| spec.volumes.as_ref())
        .into_iter()
        .flatten()
}

fn references(pod: &Pod) -> Vec<ValueReference> {
    let mut found = Vec::new();
    for container in containers(pod) {
        for env in container.env.iter().flatten() {
            let Some(from) = &env.value_from else {
                continue;
            };
            if let Some(key) = &from.config_map_key_ref {
                found.push(ValueReference::ConfigMap(key.name.clone()));
            }
            if let Some(key) = &from.secret_key_ref {
                found.push(ValueReference::Secret(key.name.clone()));
            }
        }
        for from in container.env_from.iter().flatten() {
            if let Some(source) = &from.config_map_ref {
                found.push(ValueReference::ConfigMap(source.name.clone()));
            }
            if let Some(source) = &from.secret_ref {
                found.push(ValueReference::Secret(source.name.clone()));
            }
        }
    }
    for volume in volumes(pod) {
        if let Some(source) = &volume.config_map {
            found.push(ValueReference::ConfigMap(source.name.clone()));
        }
        if let Some(name) = volume.secret.as_ref().and_then(|s| s.secret_name.clone()) {
            found.push(ValueReference::Secret(name));
        }
        if let Some(claim) = &volume.persistent_volume_claim {
            found.push(ValueReference::Claim(claim.claim_name.clone()));
        }
        let projected = volume.projected.as_ref().and_then(|p| p.sources.as_ref());
        for source in projected.into_iter().flatten() {
            if let Some(map) = &source.config_map {
                found.push(ValueReference::ConfigMap(map.name.clone()));
            }
            if let Some(secret) = &source.secret {
                found.push(ValueReference::Secret(secret.name.clone()));
            }
        }
    }
    // An invalid name could change a request's path. It counts as not found, because no object has
    // such a name.
    found.retain(|reference| valid_name(reference.message().1));
    found.sort();
    found.dedup();
    found
}

/// Assembles the agent's data from the fetched objects.
fn assemble(pod: &Pod, sources: &ReferencedObjects) -> Resolved {
    Resolved {
        volumes: volumes(pod)
            .filter_map(|volume| volume_data(volume, sources))
            .collect(),
        env: containers(pod)
            .map(|container| container_env(pod, container, sources))
            .filter(|env| !env.values.is_empty() || !env.from.is_empty() || !env.problem.is_empty())
            .collect(),
        renew_at: sources.tokens.renew_at(),
        ..Resolved::default()
    }
}

fn container_env(pod: &Pod, container: &Container, sources: &ReferencedObjects) -> ContainerEnv {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let mut result = ContainerEnv {
        container: container.name.clone(),
        ..ContainerEnv::default()
    };
    let mut problems = Vec::new();
    for from in container.env_from.iter().flatten() {
        let prefix = from.prefix.as_deref().unwrap_or_default();
        let found = if let Some(map) = &from.config_map_ref {
            texts_of_map(sources, &map.name, map.optional)
        } else if let Some(secret) = &from.secret_ref {
            texts_of_secret(sources, &secret.name, secret.optional)
        } else {
            continue;
        };
        match found {
            Ok(values) => result
                .from
                .extend(values.into_iter().map(|(name, value)| EnvVar {
                    name: format!("{prefix}{name}"),
                    value,
                })),
            Err(problem) => problems.push(problem),
        }
    }
    for env in container.env.iter().flatten() {
        let Some(from) = &env.value_from else {
            continue;
        };
        let (found, key, optional, kind, name) = if let Some(key) = &from.config_map_key_ref {
            let found = texts_of_map(sources, &key.name, key.optional);
            (found, &key.key, key.optional, "ConfigMap", &key.name)
        } else if let Some(key) = &from.secret_key_ref {
            let found = texts_of_secret(sources, &key.name, key.optional);
            (found, &key.key, key.optional, "Secret", &key.name)
        } else {
            continue;
        };
        match found.map(|mut values| values.remove(key)) {
            Ok(Some(value)) => {
                result.values.insert(env.name.clone(), value);
            }
            Ok(None) if optional == Some(true) => {}
            Ok(None) => problems.push(ResolveError::NoKey {
                key: key.clone(),
                kind,
                namespace: namespace.to_owned(),
                name: name.clone(),
            }),
            Err(problem) => problems.push(problem),
        }
    }
    if let Some(first) = problems.into_iter().next() {
        result.problem = first.to_string();
    }
    result
}

fn texts_of_map(
    sources: &ReferencedObjects,
    name: &str,
    optional: Option<bool>,
) -> Result<BTreeMap<String, String>, ResolveError> {
    match sources.config_maps.get(name) {
        Some(Some(map)) => Ok(map.data.clone().unwrap_or_default()),
        Some(None) if optional == Some(true) => Ok(BTreeMap::new()),
        _ => Err(sources.absent("configmap", name)),
    }
}

fn texts_of_secret(
    sources: &ReferencedObjects,
    name: &str,
    optional: Option<bool>,
) -> Result<BTreeMap<String, String>, ResolveError> {
    Ok(bytes_of_secret(sources, name, optional)?
        .into_iter()
        .map(|(key, value)| (key, String::from_utf8_lossy(&value).into_owned()))
        .collect())
}

fn bytes_of_map(
    sources: &ReferencedObjects,
    name: &str,
    optional: Option<bool>,
) -> Result<BTreeMap<String, Vec<u8>>, ResolveError> {
    match sources.config_maps.get(name) {
        Some(Some(map)) => {
            let texts = map.data.iter().flatten();
            let binaries = map.binary_data.iter().flatten();
            Ok(texts
                .map(|(key, value)| (key.clone(), value.clone().into_bytes()))
                .chain(binaries.map(|(key, value)| (key.clone(), value.0.clone())))
                .collect())
        }
        Some(None) if optional == Some(true) => Ok(BTreeMap::new()),
        _ => Err(sources.absent("configmap", name)),
    }
}

fn bytes_of_secret(
    sources: &ReferencedObjects,
    name: &str,
    optional: Option<bool>,
) -> Result<BTreeMap<String, Vec<u8>>, ResolveError> {
    match sources.secrets.get(name) {
        Some(Some(secret)) => Ok(secret
            .data
            .iter()
            .flatten()
            .map(|(key, value)| (key.clone(), value.0.clone()))
            .collect()),
        Some(None) if optional == Some(true) => Ok(BTreeMap::new()),
        _ => Err(sources.absent("secret", name)),
    }
}

fn volume_data(volume: &Volume, sources: &ReferencedObjects) -> Option<VolumeData> {
    let mut data = VolumeData {
        volume: volume.name.clone(),
        ..VolumeData::default()
    };
    let outcome = if let Some(source) = &volume.config_map {
        bytes_of_map(sources, &source.name, source.optional).and_then(|all| {
            let what = ("configmap", &*source.name);
            choose(all, source.items.as_deref(), source.optional, what)
        })
    } else if let Some(source) = &volume.secret {
        let name = source.secret_name.as_deref().unwrap_or_default();
        bytes_of_secret(sources, name, source.optional).and_then(|all| {
            let what = ("secret", name);
            choose(all, source.items.as_deref(), source.optional, what)
        })
    } else if let Some(claim) = &volume.persistent_volume_claim {
        data.claim = claim.claim_name.clone();
        data.read_only = claim.read_only.unwrap_or(false);
        match sources.claims.get(&claim.claim_name) {
            Some(true) => Ok(Vec::new()),
            _ => Err(sources.absent("persistentvolumeclaim", &claim.claim_name)),
        }
    } else if let Some(projected) = &volume.projected {
        projected_files(projected.sources.as_deref().unwrap_or_default(), sources)
    } else {
        return None;
    };
    match outcome {
        Ok(files) => data.files = files,
        Err(problem) => data.problem = problem.to_string(),
    }
    Some(data)
}

fn projected_files(
    projections: &[k8s_openapi::api::core::v1::VolumeProjection],
    sources: &ReferencedObjects,
) -> Result<Vec<VolumeFile>, ResolveError> {
    let mut files = Vec::new();
    for projection in projections {
        if let Some(map) = &projection.config_map {
            let all = bytes_of_map(sources, &map.name, map.optional)?;
            let what = ("configmap", &*map.name);
            files.extend(choose(all, map.items.as_deref(), map.optional, what)?);
        }
        if let Some(secret) = &projection.secret {
            let all = bytes_of_secret(sources, &secret.name, secret.optional)?;
            let what = ("secret", &*secret.name);
            files.extend(choose(all, secret.items.as_deref(), secret.optional, what)?);
        }
        if let Some(token) = &projection.service_account_token
            && let Some(issued) = sources.tokens.token(token)
        {
            files.push(VolumeFile {
                path: token.path.clone(),
                data: issued?.as_bytes().to_vec(),
                mode: 0,
            });
        }
    }
    Ok(files)
}

/// All keys as files, or the keys in `items` under their paths.
fn choose(
    mut all: BTreeMap<String, Vec<u8>>,
    items: Option<&[KeyToPath]>,
    optional: Option<bool>,
    (kind, name): (&'static str, &str),
) -> Result<Vec<VolumeFile>, ResolveError> {
    let Some(items) = items.filter(|items| !items.is_empty()) else {
        return Ok(all
            .into_iter()
            .map(|(path, data)| VolumeFile {
                path,
                data,
                mode: 0,
            })
            .collect());
    };
    let mut files = Vec::new();
    for item in items {
        match all.get_mut(&item.key) {
            Some(data) => files.push(VolumeFile {
                path: item.path.clone(),
                data: data.clone(),
                mode: item
                    .mode
                    .and_then(|mode| u32::try_from(mode).ok())
                    .unwrap_or(0),
            }),
            None if optional == Some(true) => {}
            None => {
                return Err(ResolveError::NoItem {
                    kind,
                    name: name.to_owned(),
                    key: item.key.clone(),
                });
            }
        }
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod() -> Pod {
        serde_json::from_value(json!({
            "metadata": {"namespace": "ns", "name": "p"},
            "spec": {
                "containers": [{
                    "name": "main",
                    "env": [
                        {"name": "LEVEL", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "level"}}},
                        {"name": "MAYBE", "valueFrom": {"secretKeyRef":
                            {"name": "none", "key": "k", "optional": true}}},
                    ],
                    "envFrom": [{"prefix": "P_", "secretRef": {"name": "s"}}],
                }],
                "volumes": [
                    {"name": "conf", "configMap": {"name": "c", "items": [{"key": "level", "path": "a/b", "mode": 256}]}},
                    {"name": "all", "projected": {"sources": [
                        {"configMap": {"name": "c"}}, {"secret": {"name": "s"}}]}},
                    {"name": "data", "persistentVolumeClaim": {"claimName": "disk"}},
                    {"name": "scratch", "emptyDir": {}},
                ],
            },
        }))
        .unwrap()
    }

    fn sources() -> ReferencedObjects {
        let map = serde_json::from_value(json!({
            "data": {"level": "high"}, "binaryData": {"blob": "AAE="}}))
        .unwrap();
        let secret = serde_json::from_value(json!({"data": {"pass": "aHVzaA=="}})).unwrap();
        ReferencedObjects {
            config_maps: BTreeMap::from([("c".to_owned(), Some(map))]),
            secrets: BTreeMap::from([("s".to_owned(), Some(secret)), ("none".to_owned(), None)]),
            claims: BTreeMap::from([("disk".to_owned(), true)]),
            tokens: PodTokens::default(),
            failures: BTreeMap::new(),
        }
    }

    #[test]
    fn each_object_is_fetched_once() {
        assert_eq!(
            references(&pod()),
            [
                ValueReference::ConfigMap("c".to_owned()),
                ValueReference::Secret("none".to_owned()),
                ValueReference::Secret("s".to_owned()),
                ValueReference::Claim("disk".to_owned()),
            ]
        );
    }

    #[test]
    fn a_reference_that_is_no_name_is_not_asked_for() {
        let mut odd = pod();
        let volumes = odd.spec.as_mut().unwrap().volumes.as_mut().unwrap();
        for name in ["../../../muster-system/secrets/user-admin", "a?b", "A", ""] {
            let volume = json!({"name": "v", "secret": {"secretName": name}});
            volumes.push(serde_json::from_value(volume).unwrap());
        }
        assert_eq!(references(&odd), references(&pod()));
    }

    #[test]
    fn values_files_and_claims_come_from_what_was_fetched() {
        let resolved = assemble(&pod(), &sources());
        assert!(!resolved.has_problem(), "{resolved:?}");
        let env = &resolved.env[0];
        assert_eq!(env.values["LEVEL"], "high");
        assert!(!env.values.contains_key("MAYBE"));
        assert_eq!(
            (env.from[0].name.as_str(), env.from[0].value.as_str()),
            ("P_pass", "hush")
        );
        let names: Vec<_> = resolved.volumes.iter().map(|v| v.volume.as_str()).collect();
        assert_eq!(names, ["conf", "all", "data"]);
        let file = &resolved.volumes[0].files[0];
        assert_eq!((file.path.as_str(), file.mode), ("a/b", 256));
        assert_eq!(resolved.volumes[1].files.len(), 3);
        assert_eq!(resolved.volumes[2].claim, "disk");
    }

    #[test]
    fn a_namespaces_label_names_the_account() {
        let labelled = |labels: serde_json::Value| -> Namespace {
            serde_json::from_value(json!({"metadata": {"name": "ns", "labels": labels}})).unwrap()
        };
        for (namespace, account) in [
            (None, ""),
            (Some(labelled(json!(null))), ""),
            (Some(labelled(json!({"team": "research"}))), ""),
            (
                Some(labelled(json!({UNIX_ACCOUNT: "research"}))),
                "research",
            ),
        ] {
            assert_eq!(unix_account(namespace.as_ref()), account);
        }
    }

    #[tokio::test]
    async fn a_namespace_that_cannot_be_read_is_a_problem_and_one_that_is_gone_is_none() {
        let client = |code: u16, reason: &'static str| {
            let api = tower::service_fn(move |_: http::Request<kube::client::Body>| async move {
                let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure",
                    "reason": reason, "message": "no", "code": code});
                let body = kube::client::Body::from(status.to_string().into_bytes());
                let answer = http::Response::builder().status(code).body(body).unwrap();
                Ok::<_, std::io::Error>(answer)
            });
            Client::new(api, "default")
        };
        let bare: Pod =
            serde_json::from_value(json!({"metadata": {"namespace": "ns", "name": "p"}})).unwrap();
        let now = Timestamp::UNIX_EPOCH;
        let gone = resolve(&client(404, "NotFound"), &bare, now).await;
        assert_eq!(gone, Resolved::default());
        assert!(!gone.has_problem());
        let unread = resolve(&client(500, "InternalError"), &bare, now).await;
        assert!(
            unread.has_problem() && unread.no_namespace.contains("\"ns\""),
            "{unread:?}"
        );
    }

    #[tokio::test]
    async fn a_projected_token_is_a_file_and_a_refused_one_a_problem() {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"namespace": "ns", "name": "p"},
            "spec": {"serviceAccountName": "ci", "containers": [], "volumes": [{"name": "access", "projected":
                {"sources": [{"serviceAccountToken": {"path": "token", "expirationSeconds": 3607}}]}}]},
        }))
        .unwrap();
        let spec = pod.spec.as_ref().unwrap();
        let projected = spec.volumes.as_ref().unwrap()[0]
            .projected
            .as_ref()
            .unwrap();
        let source = projected.sources.as_ref().unwrap()[0].clone();
        let found = ReferencedObjects {
            tokens: PodTokens::given(&source.service_account_token.unwrap(), "secret"),
            ..ReferencedObjects::default()
        };
        let resolved = assemble(&pod, &found);
        assert!(!resolved.has_problem(), "{resolved:?}");
        let file = &resolved.volumes[0].files[0];
        assert_eq!((file.path.as_str(), &*file.data), ("token", &b"secret"[..]));
        let refusing = tower::service_fn(|_: http::Request<kube::client::Body>| async move {
            let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure",
                "reason": "NotFound", "message": "no such account", "code": 404});
            let body = kube::client::Body::from(status.to_string().into_bytes());
            Ok::<_, std::io::Error>(http::Response::builder().status(404).body(body).unwrap())
        });
        let client = Client::new(refusing, "default");
        let resolved = resolve(&client, &pod, Timestamp::UNIX_EPOCH).await;
        let problem = &resolved.volumes[0].problem;
        assert!(
            problem.starts_with("no token for serviceaccount \"ci\": ")
                && problem.contains("no such account"),
            "{problem}"
        );
    }

    #[test]
    fn what_is_missing_is_named() {
        let mut without = sources();
        without.config_maps.insert("c".to_owned(), None);
        without.claims.insert("disk".to_owned(), false);
        let resolved = assemble(&pod(), &without);
        assert!(resolved.has_problem());
        assert_eq!(resolved.env[0].problem, "configmap \"c\" not found");
        assert_eq!(resolved.volumes[0].problem, "configmap \"c\" not found");
        assert_eq!(
            resolved.volumes[2].problem,
            "persistentvolumeclaim \"disk\" not found"
        );
        let mut other_keys = sources();
        other_keys
            .config_maps
            .insert("c".to_owned(), Some(ConfigMap::default()));
        let resolved = assemble(&pod(), &other_keys);
        assert_eq!(
            resolved.env[0].problem,
            "couldn't find key level in ConfigMap ns/c"
        );
        assert_eq!(
            resolved.volumes[0].problem,
            "configmap \"c\" references non-existent key: level"
        );
    }
}
