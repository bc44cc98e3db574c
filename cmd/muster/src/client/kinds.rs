//! What users call a kind, and the API calls for it.

use anyhow::{Result, bail};
use kube::api::{ApiResource, DynamicObject};
use kube::{Api, core::GroupVersionKind};
use resources::registry::{self, Kind};

use super::Connection;

/// Finds a kind by its plural, singular, short name or kind, with or without its group
/// (`pytorchjobs.kubeflow.org`).
pub fn kind(word: &str) -> Result<&'static Kind> {
    let word = word.to_ascii_lowercase();
    let (name, group) = match word.split_once('.') {
        Some((name, group)) => (name, Some(group)),
        None => (word.as_str(), None),
    };
    let named = |kind: &&Kind| {
        (kind.plural == name
            || kind.singular == name
            || kind.short_names.contains(&name)
            || kind.kind.eq_ignore_ascii_case(name))
            && group.is_none_or(|group| kind.group == group)
    };
    match registry::all().iter().find(named) {
        Some(kind) => Ok(kind),
        None => {
            let known: Vec<&str> = registry::all().iter().map(|kind| kind.plural).collect();
            bail!(
                "there is no kind {word:?}; those known are: {}",
                known.join(", ")
            )
        }
    }
}

/// Splits `KIND/NAME`, or takes the kind from the first word and names from the rest.
pub fn split(what: &str, names: &[String]) -> Result<(&'static Kind, Vec<String>)> {
    match what.split_once('/') {
        Some((_, name)) if name.is_empty() => bail!("{what:?} names no resource after the slash"),
        Some((word, name)) if names.is_empty() => Ok((kind(word)?, vec![name.to_string()])),
        Some(_) => bail!("give either KIND/NAME or KIND NAME..., not both"),
        None => Ok((kind(what)?, names.to_vec())),
    }
}

/// A kind as kube's client wants it.
pub fn api_resource(kind: &Kind) -> ApiResource {
    let gvk = GroupVersionKind::gvk(kind.group, kind.version, kind.kind);
    ApiResource::from_gvk_with_plural(&gvk, kind.plural)
}

impl Connection {
    /// The API for a kind, in this connection's namespace when the kind has one.
    pub fn api(&self, kind: &Kind) -> Api<DynamicObject> {
        self.api_in(kind, &self.namespace)
    }

    /// The API for a kind in a namespace.
    pub fn api_in(&self, kind: &Kind, namespace: &str) -> Api<DynamicObject> {
        let resource = api_resource(kind);
        if kind.namespaced {
            Api::namespaced_with(self.client.clone(), namespace, &resource)
        } else {
            Api::all_with(self.client.clone(), &resource)
        }
    }

    /// The path of a kind's collection: in one namespace, or in all.
    pub fn collection(&self, kind: &Kind, namespace: Option<&str>) -> String {
        let root = if kind.group.is_empty() {
            format!("/api/{}", kind.version)
        } else {
            format!("/apis/{}/{}", kind.group, kind.version)
        };
        match namespace.filter(|_| kind.namespaced) {
            Some(namespace) => format!("{root}/namespaces/{namespace}/{}", kind.plural),
            None => format!("{root}/{}", kind.plural),
        }
    }
}

/// The kinds that are jobs, in the order in which a bare name is looked for.
pub fn job_kinds() -> Vec<&'static Kind> {
    ["pytorchjobs", "jobs"]
        .iter()
        .filter_map(|word| kind(word).ok())
        .collect()
}

/// Finds a job by `KIND/NAME` or by its bare name.
pub async fn find_job(
    connection: &Connection,
    name: &str,
) -> Result<(&'static Kind, DynamicObject)> {
    if let Some((word, name)) = name.split_once('/') {
        let kind = kind(word)?;
        return Ok((kind, connection.api(kind).get(name).await?));
    }
    for kind in job_kinds() {
        if let Some(job) = connection.api(kind).get_opt(name).await? {
            return Ok((kind, job));
        }
    }
    bail!(
        "there is no job {name:?} in namespace {:?}; `muster get pytorchjobs` and `muster get jobs` list those there are",
        connection.namespace
    )
}
