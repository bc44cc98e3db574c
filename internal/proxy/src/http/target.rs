//! Which pod and port a proxied request is for: reads names and ports, and finds a Service's pod. Makes no connection.

use std::collections::BTreeMap;

use apiserver::{ApiServer, ExecAction, ExecRequest};
use resources::registry::{self, Kind};
use serde_json::Value;

use crate::refusal::WebRefusal;
use crate::rights::Wanted;

/// The most ports that an error names.
const NAMED_MAX: usize = 20;

/// A port of a pod or Service, as the address of a page names it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct WebPort {
    /// `pods` or `services`.
    pub kind: String,
    /// The namespace.
    pub namespace: String,
    /// The name of the pod or Service.
    pub name: String,
    /// The port's number or name.
    pub port: String,
}

impl WebPort {
    /// The path at Muster's own address that leads to the port.
    pub fn entry_path(&self) -> String {
        let WebPort {
            kind,
            namespace,
            name,
            port,
        } = self;
        format!("/proxy/{namespace}/{kind}/{name}/{port}")
    }
}

/// How a request names a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PortName {
    Number(u16),
    Name(String),
    /// Not at all: the only one is meant.
    Only,
}

impl PortName {
    /// A number or a name.
    pub(super) fn parse(text: &str) -> Result<PortName, WebRefusal> {
        let wrong = || {
            WebRefusal::invalid(format!(
                "port: Invalid value: {text:?}: use a number from 1 to 65535, or the name of a port (up to 15 of a-z, \
                 0-9 and -)"
            ))
        };
        if text.is_empty() {
            return Ok(PortName::Only);
        }
        if text.bytes().all(|byte| byte.is_ascii_digit()) {
            let number = text.parse().ok().filter(|port| *port != 0);
            return number.map(PortName::Number).ok_or_else(wrong);
        }
        let named = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        let is_name = text.len() <= 15 && text.bytes().all(named);
        match is_name {
            true => Ok(PortName::Name(text.to_owned())),
            false => Err(wrong()),
        }
    }

    /// The object's name and the port of `[SCHEME:]NAME[:PORT]`, as Kubernetes writes it.
    pub(super) fn of_object(text: &str) -> Result<(&str, PortName), WebRefusal> {
        let parts: Vec<&str> = text.split(':').collect();
        let (scheme, name, port) = match parts.as_slice() {
            [name] => ("http", *name, ""),
            [name, port] => ("http", *name, *port),
            ["", name, port] => ("http", *name, *port),
            [scheme, name, port] => (*scheme, *name, *port),
            _ => ("", "", ""),
        };
        if name.is_empty() {
            return Err(WebRefusal::invalid(format!(
                "name: Invalid value: {text:?}: use NAME, NAME:PORT or http:NAME:PORT"
            )));
        }
        if scheme != "http" {
            return Err(WebRefusal::invalid(format!(
                "name: Unsupported value: {text:?}: the server speaks http to pods; use {name}:PORT, or `muster \
                 port-forward` for another protocol"
            )));
        }
        Ok((name, PortName::parse(port)?))
    }
}

pub(super) fn pods() -> &'static Kind {
    registered("pods")
}

fn registered(plural: &'static str) -> &'static Kind {
    registry::find("", "v1", plural).expect("pods and services are registered")
}

/// The kind whose ports have pages.
pub(super) fn kind(plural: &str) -> Result<&'static Kind, WebRefusal> {
    match plural {
        "pods" => Ok(pods()),
        "services" => Ok(registered("services")),
        other => Err(WebRefusal::invalid(format!(
            "kind: Unsupported value: {other:?}: supported values: \"pods\", \"services\""
        ))),
    }
}

/// A pod's port.
pub(super) struct ProxyTarget {
    pod: Value,
    /// The pod's port.
    pub(super) port: u16,
    /// The port that was asked for: the pod's, or the Service's.
    pub(super) asked: u16,
    /// The uid of the pod or Service that was asked for.
    pub(super) uid: String,
}

impl ProxyTarget {
    /// What the pod's node is asked for.
    pub(super) fn request(&self, namespace: &str) -> Result<ExecRequest, WebRefusal> {
        let name = self::name(&self.pod);
        let node = text(&self.pod["spec"]["nodeName"]);
        let phase = text(&self.pod["status"]["phase"]);
        if node.is_empty() {
            return Err(WebRefusal::unavailable(format!(
                "pod {name:?} waits for a node; try again once it runs"
            )));
        }
        if matches!(phase, "Succeeded" | "Failed") {
            return Err(WebRefusal::unavailable(format!(
                "pod {name:?} has ended (phase {phase}): its ports are closed"
            )));
        }
        Ok(ExecRequest {
            namespace: namespace.to_owned(),
            pod: name.to_owned(),
            uid: text(&self.pod["metadata"]["uid"]).to_owned(),
            node: node.to_owned(),
            container: String::new(),
            action: ExecAction::Forward(self.port),
            stdin: true,
            stdout: true,
            stderr: false,
            tty: false,
        })
    }
}

/// The pod and port; `may_enter` decides whether the caller may enter a pod.
pub(super) fn find(
    api: &ApiServer,
    wanted: &Wanted,
    name: &str,
    port: &PortName,
    may_enter: impl Fn(&Value) -> Result<(), WebRefusal>,
) -> Result<ProxyTarget, WebRefusal> {
    let Wanted {
        kind, namespace, ..
    } = wanted;
    let found = api.stored(kind, namespace, name).ok_or_else(|| {
        WebRefusal::not_found(format!(
            "{} {name:?} not found in namespace {namespace:?}",
            kind.plural
        ))
    })?;
    let uid = text(&found["metadata"]["uid"]).to_owned();
    if kind.plural == "pods" {
        may_enter(&found)?;
        let port =
            pod_port(&found, port).map_err(|error| WebRefusal::invalid(error.to_string()))?;
        return Ok(ProxyTarget {
            pod: found,
            port,
            asked: port,
            uid,
        });
    }
    let service_port =
        service_port(&found, port).map_err(|error| WebRefusal::invalid(error.to_string()))?;
    let pod = ready_pod(api, namespace, &found, may_enter)?;
    let port = pod_port(&pod, &service_port.target)
        .map_err(|error| WebRefusal::unavailable(error.to_string()))?;
    Ok(ProxyTarget {
        pod,
        port,
        asked: service_port.port,
        uid,
    })
}

/// Why an object has not the port that is asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum PortError {
    #[error(
        "port: Invalid value: {wanted:?}: pod {pod:?} has no port of this name; its ports are: {ports}"
    )]
    PodHasNone {
        wanted: String,
        pod: String,
        ports: String,
    },
    #[error("port: Required value: name a port of pod {pod:?}; its ports are: {ports}")]
    Unnamed { pod: String, ports: String },
    #[error(
        "port: Invalid value: Service {service:?} has no such port, or several and none is named; its ports are: {ports}"
    )]
    ServiceHasNone { service: String, ports: String },
}

/// The ports as an error names them.
fn listed<'a>(ports: impl Iterator<Item = (&'a str, u16)>) -> String {
    let mut words: Vec<String> = ports
        .take(NAMED_MAX)
        .map(|(name, port)| match name {
            "" => port.to_string(),
            name => format!("{port} ({name})"),
        })
        .collect();
    if words.is_empty() {
        words.push("none".to_owned());
    }
    words.join(", ")
}

fn name(object: &Value) -> &str {
    text(&object["metadata"]["name"])
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn items(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn number(value: &Value) -> Option<u16> {
    let number = u16::try_from(value.as_u64()?).ok();
    number.filter(|port| *port != 0)
}

/// The TCP ports that a pod's containers declare, with their names.
fn declared(pod: &Value) -> Vec<(&str, u16)> {
    let containers = items(&pod["spec"]["containers"]).iter();
    let ports = containers.flat_map(|container| items(&container["ports"]));
    ports
        .filter(|port| matches!(text(&port["protocol"]), "" | "TCP"))
        .filter_map(|port| Some((text(&port["name"]), number(&port["containerPort"])?)))
        .collect()
}

/// A pod's port; a number need not be declared.
fn pod_port(pod: &Value, wanted: &PortName) -> Result<u16, PortError> {
    let ports = declared(pod);
    let those = || listed(ports.iter().copied());
    match wanted {
        PortName::Number(port) => Ok(*port),
        PortName::Name(wanted) => {
            let found = ports.iter().find(|(name, _)| name == wanted);
            let found = found.map(|(_, port)| *port);
            found.ok_or_else(|| PortError::PodHasNone {
                wanted: wanted.clone(),
                pod: name(pod).to_owned(),
                ports: those(),
            })
        }
        PortName::Only => match ports.as_slice() {
            [(_, port)] => Ok(*port),
            _ => Err(PortError::Unnamed {
                pod: name(pod).to_owned(),
                ports: those(),
            }),
        },
    }
}

/// A port of a Service, and the pods' port that it leads to.
#[derive(Debug, PartialEq, Eq)]
struct ServicePort {
    port: u16,
    target: PortName,
}

fn service_port(service: &Value, wanted: &PortName) -> Result<ServicePort, PortError> {
    let all = items(&service["spec"]["ports"]);
    let tcp = |port: &&Value| matches!(text(&port["protocol"]), "" | "TCP");
    let ports: Vec<(&str, u16, &Value)> = (all.iter().filter(tcp))
        .filter_map(|port| Some((text(&port["name"]), number(&port["port"])?, port)))
        .collect();
    let found = match wanted {
        PortName::Number(wanted) => ports.iter().find(|(_, port, _)| port == wanted),
        PortName::Name(wanted) => ports.iter().find(|(name, _, _)| name == wanted),
        PortName::Only => ports.first().filter(|_| ports.len() == 1),
    };
    let Some((_, port, found)) = found else {
        return Err(PortError::ServiceHasNone {
            service: name(service).to_owned(),
            ports: listed(ports.iter().map(|(name, port, _)| (*name, *port))),
        });
    };
    let target = match &found["targetPort"] {
        Value::String(name) if !name.is_empty() => PortName::Name(name.clone()),
        value => PortName::Number(number(value).unwrap_or(*port)),
    };
    Ok(ServicePort {
        port: *port,
        target,
    })
}

/// The first ready pod of a Service by name that the caller may enter, so that requests of one page reach one pod.
fn ready_pod(
    api: &ApiServer,
    namespace: &str,
    service: &Value,
    may_enter: impl Fn(&Value) -> Result<(), WebRefusal>,
) -> Result<Value, WebRefusal> {
    let none = |why: &str| {
        let name = name(service);
        WebRefusal::unavailable(format!(
            "no endpoints available for service {name:?}: {why}"
        ))
    };
    let selector = service["spec"]["selector"].as_object();
    let selector: BTreeMap<String, String> = (selector.into_iter().flatten())
        .map(|(key, value)| (key.clone(), text(value).to_owned()))
        .collect();
    if selector.is_empty() {
        return Err(none("it has no selector; name a pod instead"));
    }
    let mut refused = None;
    for pod in api.stored_with(pods(), namespace, &selector) {
        if !is_ready(&pod) {
            continue;
        }
        match may_enter(&pod) {
            Ok(()) => return Ok(pod),
            Err(failure) => refused = Some(failure),
        }
    }
    Err(refused.unwrap_or_else(|| none("none of its pods is ready; try again once one is")))
}

fn is_ready(pod: &Value) -> bool {
    let conditions = items(&pod["status"]["conditions"]);
    pod["metadata"]["deletionTimestamp"].is_null()
        && conditions
            .iter()
            .any(|one| one["type"] == "Ready" && one["status"] == "True")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn names_and_ports_are_read_as_kubernetes_writes_them() {
        let read = |text: &str| {
            let read = PortName::of_object(text);
            read.ok().map(|(name, port)| (name.to_owned(), port))
        };
        let some = |name: &str, port| Some((name.to_owned(), port));
        assert_eq!(read("web"), some("web", PortName::Only));
        assert_eq!(read("web:80"), some("web", PortName::Number(80)));
        assert_eq!(read("http:web:80"), some("web", PortName::Number(80)));
        assert_eq!(read("http:web:"), some("web", PortName::Only));
        assert_eq!(read("web:http"), some("web", PortName::Name("http".into())));
        for wrong in [
            "",
            ":",
            ":80",
            "https:web:443",
            "web:0",
            "web:65536",
            "a:b:c:d",
            "web:HTTP",
            "web:-/",
        ] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }

    fn pod(ports: Value) -> Value {
        json!({"metadata": {"name": "p"}, "spec": {"containers": [{"ports": ports}]}})
    }

    #[test]
    fn a_pods_port_is_found_by_number_name_or_as_the_only_one() {
        let two = pod(json!([
            {"name": "http", "containerPort": 8080}, {"name": "dns", "containerPort": 53, "protocol": "UDP"},
            {"containerPort": 9000},
        ]));
        assert_eq!(pod_port(&two, &PortName::Number(1234)), Ok(1234));
        assert_eq!(pod_port(&two, &PortName::Name("http".into())), Ok(8080));
        for wrong in [PortName::Name("dns".into()), PortName::Only] {
            let why = pod_port(&two, &wrong).unwrap_err().to_string();
            assert!(why.ends_with("its ports are: 8080 (http), 9000"), "{why}");
        }
        let one = pod(json!([{"containerPort": 6006}]));
        assert_eq!(pod_port(&one, &PortName::Only), Ok(6006));
        let none = pod_port(&pod(json!([])), &PortName::Only)
            .unwrap_err()
            .to_string();
        assert!(none.ends_with("its ports are: none"), "{none}");
    }

    #[test]
    fn a_services_port_leads_to_its_target() {
        let service = |ports: Value| json!({"metadata": {"name": "s"}, "spec": {"ports": ports}});
        let two = service(json!([
            {"name": "web", "port": 80, "targetPort": "http"}, {"name": "admin", "port": 81, "targetPort": 8081},
        ]));
        let found = |port, target| Ok(ServicePort { port, target });
        let web = found(80, PortName::Name("http".into()));
        assert_eq!(service_port(&two, &PortName::Number(80)), web);
        assert_eq!(service_port(&two, &PortName::Name("web".into())), web);
        let admin = found(81, PortName::Number(8081));
        assert_eq!(service_port(&two, &PortName::Number(81)), admin);
        let why = service_port(&two, &PortName::Only).unwrap_err().to_string();
        assert!(why.ends_with("80 (web), 81 (admin)"), "{why}");
        assert!(service_port(&two, &PortName::Number(8081)).is_err());
        let plain = service(json!([{"port": 80}]));
        assert_eq!(
            service_port(&plain, &PortName::Only),
            found(80, PortName::Number(80))
        );
    }
}
