//! `muster open`: a web page inside a job in this machine's browser, at the server's address for it, or on a local port
//! that leads to the pod where the server has no domain for such pages.

use std::process::{Command, Stdio};

use anyhow::Result;
use http::Request;
use k8s_openapi::api::core::v1::{ContainerPort, Pod, Service, ServicePort};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::Api;
use kube::api::{DynamicObject, ListParams};
use resources::names;
use resources::registry::Kind;
use serde_json::Value;

use super::connection::ServerConnection;
use super::outcome::CommandOutcome;
use super::output::ProgressReporter;
use super::{failure, kinds, port_forward, ranks};
use crate::arguments::Open;

/// The name of the port of Ray's dashboard at a RayCluster's head.
const RAY_DASHBOARD: &str = "dashboard";

/// What is opened.
struct Page {
    /// `pods` or `services`.
    plural: &'static str,
    name: String,
    /// The pod that a local port leads to.
    pod: Pod,
    /// The port in the address: the pod's, or the Service's.
    shown: u16,
    /// The pod's port.
    port: u16,
}

/// Prints the address of the page and opens it.
pub async fn open(connection: &ServerConnection, arguments: Open) -> Result<CommandOutcome> {
    let page = page(connection, &arguments).await?;
    let pod = page.pod.metadata.name.clone().unwrap_or_default();
    if arguments.forward || !has_domain(connection).await? {
        let listener = port_forward::listen("127.0.0.1:0").await?;
        let address = format!("http://localhost:{}/", listener.local_addr()?.port());
        println!("{address}");
        ProgressReporter::default().say(&format!(
            "leads to port {} of pod {pod} until this command ends",
            page.port
        ));
        browse(&address, arguments.print);
        port_forward::serve(connection, &pod, listener, page.port).await?;
        return Ok(CommandOutcome::Yes);
    }
    let address = format!(
        "{}/proxy/{}/{}/{}/{}/",
        browser_address(&connection.server),
        connection.namespace,
        page.plural,
        page.name,
        page.shown
    );
    println!("{address}");
    browse(&address, arguments.print);
    Ok(CommandOutcome::Yes)
}

/// The server's address for a browser: without TLS on the server's own machine, where the browser would warn of a
/// certificate from the server's own authority.
pub fn browser_address(server: &str) -> String {
    let host = server.strip_prefix("https://").unwrap_or(server);
    let own = ["localhost", "127.0.0.1", "[::1]"];
    let is_own = own.iter().any(|own| {
        let rest = host.strip_prefix(own);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(':'))
    });
    match is_own {
        true => format!("http://{host}"),
        false => server.to_owned(),
    }
}

/// Whether the server has hosts for pages of pods; an older server has none.
async fn has_domain(connection: &ServerConnection) -> Result<bool> {
    let request = Request::get("/proxy").body(Vec::new())?;
    match connection
        .client
        .request::<serde_json::Value>(request)
        .await
    {
        Ok(answer) => Ok(answer["domain"].is_string()),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Starts a browser if there is one; the address is printed in any case.
pub fn browse(address: &str, print_only: bool) {
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let display = variable("DISPLAY").or_else(|| variable("WAYLAND_DISPLAY"));
    let program = variable("BROWSER").or_else(|| display.map(|_| "xdg-open".to_owned()));
    let Some(program) = program.filter(|_| !print_only) else {
        return;
    };
    let started = Command::new(&program)
        .arg(address)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    if let Err(error) = started {
        let words = format!("{program} did not start ({error}); open the address by hand");
        ProgressReporter::default().say(&words);
    }
}

async fn page(connection: &ServerConnection, arguments: &Open) -> Result<Page> {
    let (pods, services) = (kinds::kind("pods")?, kinds::kind("services")?);
    let clusters = kinds::kind("rayclusters")?;
    let mut among = vec![pods];
    among.extend(kinds::job_kinds());
    among.extend([clusters, services]);
    let found = kinds::find(connection, &arguments.name, &among).await?;
    let Some((kind, object)) = found else {
        return Err(failure::not_found(format!(
            "there is no pod, job, RayCluster or Service {:?} in namespace {:?}",
            arguments.name, connection.namespace
        )));
    };
    let asked = arguments.port.as_deref();
    if kind.is(services) {
        return of_service(connection, &object, asked).await;
    }
    if let Some(cluster) = ray_cluster(kind, clusters, &object)? {
        let pod = ray_head(connection, &cluster).await?;
        let port = pod_port(&pod, asked.or(Some(RAY_DASHBOARD)))?;
        return Ok(of_pod(pod, port));
    }
    let name = match kind.is(pods) {
        true => object.metadata.name.unwrap_or_default(),
        false => ranks::pod_of(connection, kind, &object, arguments.rank).await?,
    };
    let pod = Api::<Pod>::namespaced(connection.client.clone(), &connection.namespace);
    let pod = pod.get(&name).await?;
    let port = pod_port(&pod, asked)?;
    Ok(of_pod(pod, port))
}

fn of_pod(pod: Pod, port: u16) -> Page {
    Page {
        plural: "pods",
        name: pod.metadata.name.clone().unwrap_or_default(),
        pod,
        shown: port,
        port,
    }
}

/// The RayCluster that an object is or runs on.
fn ray_cluster(kind: &Kind, clusters: &Kind, object: &DynamicObject) -> Result<Option<String>> {
    let name = object.metadata.name.clone().unwrap_or_default();
    if kind.is(clusters) {
        return Ok(Some(name));
    }
    let status = &object.data["status"];
    let cluster = match kind.plural {
        "rayjobs" => &status["rayClusterName"],
        "rayservices" => match &status["activeServiceStatus"]["rayClusterName"] {
            Value::String(active) => return Ok(Some(active.clone())),
            _ => &status["pendingServiceStatus"]["rayClusterName"],
        },
        _ => return Ok(None),
    };
    match cluster.as_str() {
        Some(cluster) if !cluster.is_empty() => Ok(Some(cluster.to_owned())),
        _ => Err(failure::not_found(format!(
            "{} {name:?} has no RayCluster yet; `muster explain {name}` says why it waits",
            kind.kind
        ))),
    }
}

async fn ray_head(connection: &ServerConnection, cluster: &str) -> Result<Pod> {
    let pods = Api::<Pod>::namespaced(connection.client.clone(), &connection.namespace);
    let selector = format!(
        "{}={cluster},{}=head",
        names::RAY_CLUSTER,
        names::RAY_NODE_TYPE
    );
    let list = pods.list(&ListParams::default().labels(&selector)).await?;
    list.items.into_iter().next().ok_or_else(|| {
        failure::not_found(format!(
            "RayCluster {cluster:?} has no head yet; `muster explain {cluster}` says why it waits"
        ))
    })
}

fn is_tcp(protocol: Option<&String>) -> bool {
    protocol.is_none_or(|protocol| protocol == "TCP")
}

fn number(port: i32) -> Option<u16> {
    u16::try_from(port).ok().filter(|port| *port != 0)
}

/// The TCP ports that a pod declares.
fn declared(pod: &Pod) -> Vec<(String, u16)> {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let ports = containers.flat_map(|container| container.ports.iter().flatten());
    let named = |port: &ContainerPort| {
        let name = port.name.clone().unwrap_or_default();
        Some((name, number(port.container_port)?))
    };
    ports
        .filter(|port| is_tcp(port.protocol.as_ref()))
        .filter_map(named)
        .collect()
}

fn listed(ports: &[(String, u16)]) -> String {
    let words = ports.iter().map(|(name, port)| match name.as_str() {
        "" => port.to_string(),
        name => format!("{port} ({name})"),
    });
    words.collect::<Vec<_>>().join(", ")
}

/// The port with this number or name, or the only one.
fn choose(what: &str, ports: &[(String, u16)], asked: Option<&str>) -> Result<u16> {
    let those = match ports {
        [] => "it declares none".to_owned(),
        ports => format!("its ports are {}", listed(ports)),
    };
    let Some(asked) = asked else {
        return match ports {
            [(_, port)] => Ok(*port),
            _ => Err(failure::usage(format!(
                "name a port of {what} with --port: {those}"
            ))),
        };
    };
    let by_name = ports.iter().find(|(name, _)| name == asked);
    let found = by_name.map(|(_, port)| *port);
    found
        .or_else(|| asked.parse().ok().filter(|port| *port != 0))
        .ok_or_else(|| {
            failure::usage(format!(
                "--port {asked:?}: {what} has no such port; {those}"
            ))
        })
}

fn pod_port(pod: &Pod, asked: Option<&str>) -> Result<u16> {
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    choose(&format!("pod {name}"), &declared(pod), asked)
}

async fn of_service(
    connection: &ServerConnection,
    object: &DynamicObject,
    asked: Option<&str>,
) -> Result<Page> {
    let name = object.metadata.name.clone().unwrap_or_default();
    let services = Api::<Service>::namespaced(connection.client.clone(), &connection.namespace);
    let spec = services.get(&name).await?.spec.unwrap_or_default();
    let ports: Vec<ServicePort> = spec.ports.unwrap_or_default();
    let ports: Vec<ServicePort> = ports
        .into_iter()
        .filter(|port| is_tcp(port.protocol.as_ref()))
        .collect();
    let named =
        |port: &ServicePort| Some((port.name.clone().unwrap_or_default(), number(port.port)?));
    let choices: Vec<(String, u16)> = ports.iter().filter_map(named).collect();
    let shown = choose(&format!("Service {name}"), &choices, asked)?;
    let Some(port) = ports.iter().find(|port| number(port.port) == Some(shown)) else {
        return Err(failure::usage(format!(
            "--port {shown}: Service {name} has no such port; its ports are {}",
            listed(&choices)
        )));
    };
    let selector = spec.selector.unwrap_or_default();
    let selector: Vec<String> = selector
        .into_iter()
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    if selector.is_empty() {
        return Err(failure::usage(format!(
            "Service {name} has no selector, so no pods that could be opened; name a pod"
        )));
    }
    let pods = Api::<Pod>::namespaced(connection.client.clone(), &connection.namespace);
    let list = pods
        .list(&ListParams::default().labels(&selector.join(",")))
        .await?;
    let pod = list.items.into_iter().find(is_ready).ok_or_else(|| {
        failure::not_found(format!(
            "no pod of Service {name} is ready; `muster get pods -l {}` lists them",
            selector.join(",")
        ))
    })?;
    let port = match &port.target_port {
        None => shown,
        Some(IntOrString::Int(port)) => number(*port).unwrap_or(shown),
        Some(IntOrString::String(name)) => pod_port(&pod, Some(name))?,
    };
    Ok(Page {
        plural: "services",
        name,
        pod,
        shown,
        port,
    })
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_ref());
    let ready = |one: &k8s_openapi::api::core::v1::PodCondition| {
        one.type_ == "Ready" && one.status == "True"
    };
    pod.metadata.deletion_timestamp.is_none() && conditions.into_iter().flatten().any(ready)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_chosen_by_number_by_name_or_as_the_only_one() {
        let ports = |all: &[(&str, u16)]| -> Vec<(String, u16)> {
            all.iter()
                .map(|(name, port)| ((*name).to_owned(), *port))
                .collect()
        };
        let two = ports(&[("http", 8080), ("", 9000)]);
        let pick = |asked| choose("pod p", &two, asked).map_err(|error| error.to_string());
        assert_eq!(pick(Some("http")), Ok(8080));
        assert_eq!(pick(Some("1234")), Ok(1234));
        let why = "name a port of pod p with --port: its ports are 8080 (http), 9000";
        assert_eq!(pick(None), Err(why.to_owned()));
        let why = "--port \"web\": pod p has no such port; its ports are 8080 (http), 9000";
        assert_eq!(pick(Some("web")), Err(why.to_owned()));
        assert!(pick(Some("0")).is_err() && pick(Some("65536")).is_err());
        assert_eq!(choose("pod p", &ports(&[("", 6006)]), None).unwrap(), 6006);
        let none = choose("pod p", &[], None).unwrap_err().to_string();
        assert!(none.ends_with("it declares none"), "{none}");
    }

    #[test]
    fn a_browser_on_the_servers_machine_uses_plain_http() {
        for (server, address) in [
            ("https://127.0.0.1:8443", "http://127.0.0.1:8443"),
            ("https://localhost:8443", "http://localhost:8443"),
            (
                "https://localhost.example:8443",
                "https://localhost.example:8443",
            ),
            ("https://gpu1:8443", "https://gpu1:8443"),
        ] {
            assert_eq!(browser_address(server), address);
        }
    }
}
