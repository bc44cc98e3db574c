//! The fieldRef and resourceFieldRef values of a pod, for variables and files. Pure.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Container, DownwardAPIVolumeFile, ObjectFieldSelector, Pod, ResourceFieldSelector,
};
use resources::quantity::Quantity;

/// The node's facts that its pods can read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeFieldValues {
    /// The node's name.
    pub name: String,
    /// Its address, which is also the address of pods in its network.
    pub ip: String,
    /// The address of the pod, if the pod has a network of its own.
    pub pod_ip: Option<String>,
    /// Its CPUs: the limit of a container without one.
    pub cpus: u32,
    /// Its memory in bytes.
    pub memory_bytes: u64,
    /// Where pods reach the API.
    pub api: Option<ApiAddress>,
}

impl NodeFieldValues {
    /// The pod's address.
    #[must_use]
    pub fn of_pod(&self) -> &str {
        self.pod_ip.as_deref().unwrap_or(&self.ip)
    }
}

/// The address of the API, as the variables `KUBERNETES_SERVICE_*` give it to containers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiAddress {
    /// Host name or address.
    pub host: String,
    /// TCP port.
    pub port: u16,
}

impl ApiAddress {
    /// The address in a server's URL, `https://HOST:PORT`; the port is 443 if absent.
    pub fn of(server: &str) -> Option<ApiAddress> {
        let url: http::Uri = server.parse().ok()?;
        let host = url.host()?.trim_start_matches('[').trim_end_matches(']');
        Some(ApiAddress {
            host: host.to_owned(),
            port: url.port_u16().unwrap_or(443),
        })
    }

    /// The variables by which client libraries find the API in a cluster, with the names that Kubernetes gives them.
    pub fn variables(&self) -> [(&'static str, String); 7] {
        let port = self.port.to_string();
        // As in a URL, where an IPv6 address stands in brackets.
        let host = match self.host.contains(':') {
            true => format!("[{}]", self.host),
            false => self.host.clone(),
        };
        let url = format!("tcp://{host}:{port}");
        [
            ("KUBERNETES_SERVICE_HOST", self.host.clone()),
            ("KUBERNETES_SERVICE_PORT", port.clone()),
            ("KUBERNETES_SERVICE_PORT_HTTPS", port.clone()),
            ("KUBERNETES_PORT", url),
            ("KUBERNETES_PORT_443_TCP_ADDR", self.host.clone()),
            ("KUBERNETES_PORT_443_TCP_PORT", port),
            ("KUBERNETES_PORT_443_TCP_PROTO", "tcp".to_owned()),
        ]
    }
}

/// Why a reference to a field of the pod has no value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReferenceError {
    /// A `fieldRef` that the node can't answer.
    #[error("unsupported fieldPath: {0}")]
    Path(String),
    /// A `resourceFieldRef` to a container that the pod lacks.
    #[error("resourceFieldRef names container {0:?}, which the pod does not have")]
    NoContainer(String),
    /// A `resourceFieldRef` to a resource that is not known.
    #[error("unsupported container resource: {0}")]
    Resource(String),
    /// A file without a reference.
    #[error("the downward API file {0:?} names neither fieldRef nor resourceFieldRef")]
    NoReference(String),
}

/// The value of a fieldRef.
///
/// # Errors
///
/// For a path that is not supported.
pub fn field(
    pod: &Pod,
    node: &NodeFieldValues,
    selector: &ObjectFieldSelector,
) -> Result<String, ReferenceError> {
    let path = selector.field_path.as_str();
    let metadata = &pod.metadata;
    let spec = pod.spec.as_ref();
    let keyed = |map: &Option<BTreeMap<String, String>>, key: &str| {
        map.as_ref()
            .and_then(|map| map.get(key))
            .cloned()
            .unwrap_or_default()
    };
    if let Some(key) = subscript(path, "metadata.labels") {
        return Ok(keyed(&metadata.labels, key));
    }
    if let Some(key) = subscript(path, "metadata.annotations") {
        return Ok(keyed(&metadata.annotations, key));
    }
    match path {
        "metadata.name" => Ok(metadata.name.clone().unwrap_or_default()),
        "metadata.namespace" => Ok(metadata.namespace.clone().unwrap_or_default()),
        "metadata.uid" => Ok(metadata.uid.clone().unwrap_or_default()),
        "metadata.labels" => Ok(lines(&metadata.labels)),
        "metadata.annotations" => Ok(lines(&metadata.annotations)),
        "spec.nodeName" => Ok(node.name.clone()),
        "spec.serviceAccountName" => Ok(spec
            .and_then(|spec| spec.service_account_name.clone())
            .unwrap_or_else(|| "default".to_owned())),
        "status.hostIP" | "status.hostIPs" => Ok(node.ip.clone()),
        "status.podIP" | "status.podIPs" => Ok(node.of_pod().to_owned()),
        other => Err(ReferenceError::Path(other.to_owned())),
    }
}

/// `prefix['key']`: the key.
fn subscript<'a>(path: &'a str, prefix: &str) -> Option<&'a str> {
    let rest = path.strip_prefix(prefix)?.strip_prefix('[')?;
    let quoted = rest.strip_suffix(']')?;
    quoted
        .strip_prefix('\'')?
        .strip_suffix('\'')
        .or_else(|| quoted.strip_prefix('"')?.strip_suffix('"'))
}

/// A map as the downward API writes it: `key="value"`, one a line, sorted.
fn lines(map: &Option<BTreeMap<String, String>>) -> String {
    map.iter()
        .flatten()
        .map(|(key, value)| format!("{key}={value:?}"))
        .collect::<Vec<_>>()
        .join("\n")
}

/// The value of a resourceFieldRef for a container of the pod.
///
/// # Errors
///
/// For a container that the pod lacks, and a resource that is not supported.
pub fn resource(
    pod: &Pod,
    container: Option<&Container>,
    node: &NodeFieldValues,
    selector: &ResourceFieldSelector,
) -> Result<String, ReferenceError> {
    let named = selector.container_name.as_deref().filter(|n| !n.is_empty());
    let container = match named {
        Some(name) => pod.spec.as_ref().and_then(|spec| {
            let init = spec.init_containers.iter().flatten();
            init.chain(&spec.containers).find(|c| c.name == name)
        }),
        None => container,
    };
    let missing = || ReferenceError::NoContainer(named.unwrap_or_default().to_owned());
    let container = container.ok_or_else(missing)?;
    let unsupported = || ReferenceError::Resource(selector.resource.clone());
    let (kind, name) = selector.resource.split_once('.').ok_or_else(unsupported)?;
    let declared = |limits: bool| {
        let resources = container.resources.as_ref()?;
        let map = if limits {
            resources.limits.as_ref()
        } else {
            resources.requests.as_ref()
        };
        map?.get(name)?.0.parse::<Quantity>().ok()
    };
    let value = match kind {
        "limits" => declared(true).or_else(|| whole_node(node, name)),
        "requests" => declared(false).or_else(|| declared(true)),
        _ => return Err(unsupported()),
    };
    let value = value.unwrap_or(Quantity::from_value(0));
    let divisor = selector
        .divisor
        .as_ref()
        .and_then(|divisor| divisor.0.parse::<Quantity>().ok())
        .filter(|divisor| !divisor.is_zero())
        .unwrap_or(Quantity::from_value(1));
    // Rounded up, as Kubernetes does; CPU in thousandths so that a divisor of 1m works.
    let (value, divisor) = if name == "cpu" {
        (value.milli(), divisor.milli())
    } else {
        (value.value(), divisor.value())
    };
    let divisor = divisor.max(1);
    Ok(value
        .div_euclid(divisor)
        .saturating_add(i64::from(value.rem_euclid(divisor) > 0))
        .to_string())
}

fn whole_node(node: &NodeFieldValues, name: &str) -> Option<Quantity> {
    match name {
        "cpu" => Some(Quantity::from_value(i64::from(node.cpus))),
        "memory" => i64::try_from(node.memory_bytes)
            .ok()
            .map(Quantity::from_value),
        _ => None,
    }
}

/// The content of one file of a downward API volume.
///
/// # Errors
///
/// As [`field`] and [`resource`], and for a file without a reference.
pub fn file(
    pod: &Pod,
    node: &NodeFieldValues,
    item: &DownwardAPIVolumeFile,
) -> Result<String, ReferenceError> {
    if let Some(selector) = &item.field_ref {
        field(pod, node, selector)
    } else if let Some(selector) = &item.resource_field_ref {
        resource(pod, None, node, selector)
    } else {
        Err(ReferenceError::NoReference(item.path.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod() -> Pod {
        serde_json::from_value(json!({
            "metadata": {"namespace": "ns", "name": "p", "uid": "u",
                "labels": {"a.b/c": "x", "z": "say \"hi\""}},
            "spec": {"containers": [{"name": "main", "resources": {
                "requests": {"cpu": "250m"}, "limits": {"memory": "1Gi"}}}]},
        }))
        .unwrap()
    }

    fn node() -> NodeFieldValues {
        NodeFieldValues {
            name: "n".to_owned(),
            ip: "10.0.0.1".to_owned(),
            pod_ip: None,
            cpus: 8,
            memory_bytes: 16 << 30,
            api: None,
        }
    }

    #[test]
    fn the_address_of_the_api_comes_from_the_servers_url() {
        for (server, host, port, url) in [
            ("https://s1:8443", "s1", 8443, "tcp://s1:8443"),
            ("https://10.0.0.5", "10.0.0.5", 443, "tcp://10.0.0.5:443"),
            (
                "https://[fd00::1]:6443/",
                "fd00::1",
                6443,
                "tcp://[fd00::1]:6443",
            ),
        ] {
            let api = ApiAddress::of(server).unwrap();
            assert_eq!((api.host.as_str(), api.port), (host, port), "{server}");
            let variables = api.variables();
            assert_eq!(variables[0], ("KUBERNETES_SERVICE_HOST", host.to_owned()));
            assert_eq!(variables[3], ("KUBERNETES_PORT", url.to_owned()));
        }
        assert_eq!(ApiAddress::of("not a url"), None);
        assert_eq!(ApiAddress::of("/path"), None);
    }

    #[test]
    fn fields_of_the_pod_and_its_node_are_found() {
        for (path, expected) in [
            ("metadata.name", "p"),
            ("metadata.namespace", "ns"),
            ("metadata.uid", "u"),
            ("metadata.labels['a.b/c']", "x"),
            ("metadata.labels['none']", ""),
            ("metadata.annotations['none']", ""),
            ("metadata.labels", "a.b/c=\"x\"\nz=\"say \\\"hi\\\"\""),
            ("spec.nodeName", "n"),
            ("spec.serviceAccountName", "default"),
            ("status.podIP", "10.0.0.1"),
            ("status.hostIP", "10.0.0.1"),
        ] {
            let selector = ObjectFieldSelector {
                field_path: path.to_owned(),
                ..ObjectFieldSelector::default()
            };
            assert_eq!(
                field(&pod(), &node(), &selector).unwrap(),
                expected,
                "{path}"
            );
        }
        let selector = ObjectFieldSelector {
            field_path: "spec.secret".to_owned(),
            ..ObjectFieldSelector::default()
        };
        assert!(
            field(&pod(), &node(), &selector)
                .unwrap_err()
                .to_string()
                .contains("spec.secret")
        );
    }

    #[test]
    fn resources_are_divided_and_rounded_up_and_fall_back_to_the_node() {
        for (name, divisor, expected) in [
            ("requests.cpu", "1", "1"),
            ("requests.cpu", "1m", "250"),
            ("limits.cpu", "1", "8"),
            ("limits.memory", "1Mi", "1024"),
            ("limits.memory", "0", "1073741824"),
            ("requests.memory", "1Gi", "1"),
            ("limits.ephemeral-storage", "1", "0"),
        ] {
            let selector: ResourceFieldSelector = serde_json::from_value(json!({
                "containerName": "main", "resource": name, "divisor": divisor}))
            .unwrap();
            assert_eq!(
                resource(&pod(), None, &node(), &selector).unwrap(),
                expected,
                "{name} / {divisor}"
            );
        }
        let selector: ResourceFieldSelector =
            serde_json::from_value(json!({"containerName": "none", "resource": "limits.cpu"}))
                .unwrap();
        assert!(resource(&pod(), None, &node(), &selector).is_err());
    }
}
