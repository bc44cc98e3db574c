//! Which ports of a pod have web pages that a job's page links to: those whose name or number says so, because other
//! ports speak protocols that no browser knows. Pure.

use k8s_openapi::api::core::v1::ContainerPort;

/// A port with web pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebPort {
    /// Its number.
    pub number: u16,
    /// What is there.
    pub title: String,
}

/// What is at a port of the name `dashboard`.
pub const DASHBOARD: &str = "Dashboard";
/// The most ports of one pod that are kept.
const PORTS_MAX: usize = 8;

/// Usual ports, and what is there.
const USUAL: [(u16, &str); 3] = [
    (6006, "TensorBoard"),
    (8265, "Ray dashboard"),
    (8888, "JupyterLab"),
];
/// What names of ports begin with, and what is there.
const NAMED: [(&str, &str); 4] = [
    ("tensorboard", "TensorBoard"),
    ("jupyter", "JupyterLab"),
    ("notebook", "Notebook"),
    ("dashboard", DASHBOARD),
];

/// What is at a port; none if no web page is known to be there.
fn title(name: &str, number: u16) -> Option<String> {
    let usual = USUAL.iter().find(|(port, _)| *port == number);
    let named = || NAMED.iter().find(|(begin, _)| name.starts_with(begin));
    let known = usual.map(|(_, title)| *title).or_else(|| Some(named()?.1));
    if let Some(title) = known {
        return Some(title.to_owned());
    }
    let page = name.starts_with("http") || name.starts_with("web");
    (page && !name.starts_with("https")).then(|| format!("Port {number} ({name})"))
}

/// The ports with web pages among those that a container declares.
pub fn of(ports: &[ContainerPort]) -> Vec<WebPort> {
    let web = |port: &ContainerPort| {
        let tcp = port
            .protocol
            .as_deref()
            .is_none_or(|protocol| protocol == "TCP");
        let number = u16::try_from(port.container_port)
            .ok()
            .filter(|port| *port != 0 && tcp)?;
        let title = title(port.name.as_deref().unwrap_or_default(), number)?;
        Some(WebPort { number, title })
    };
    ports.iter().filter_map(web).take(PORTS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_with_pages_are_known_by_number_or_name() {
        for (name, number, expected) in [
            ("", 8265, Some("Ray dashboard")),
            ("dashboard", 8265, Some("Ray dashboard")),
            ("dashboard", 9000, Some("Dashboard")),
            ("", 8888, Some("JupyterLab")),
            ("tensorboard", 7000, Some("TensorBoard")),
            ("http-api", 8000, Some("Port 8000 (http-api)")),
            ("gcs-server", 6379, None),
            ("https", 8443, None),
            ("", 23456, None),
        ] {
            assert_eq!(title(name, number).as_deref(), expected, "{name} {number}");
        }
    }

    #[test]
    fn only_tcp_ports_have_pages() {
        let port = |number: i32, protocol: Option<&str>| ContainerPort {
            container_port: number,
            protocol: protocol.map(str::to_owned),
            ..ContainerPort::default()
        };
        let all = [
            port(8888, None),
            port(6006, Some("UDP")),
            port(8265, Some("TCP")),
            port(-1, None),
        ];
        let numbers: Vec<u16> = of(&all).into_iter().map(|port| port.number).collect();
        assert_eq!(numbers, [8888, 8265]);
    }
}
