//! The names of a cluster, by Kubernetes' DNS specification.

use proptest::prelude::*;
use resources::services::{EndpointPort, Protocol, ServicePort};

use super::*;

pub(crate) fn zone() -> Zone {
    let endpoint = |number: u8, hostname: Option<&str>, ready: bool| Endpoint {
        address: Ipv4Addr::new(10, 244, 0, number),
        hostname: hostname.map(str::to_owned),
        ready,
        draining: false,
    };
    let service = |name: &str, address: Option<Ipv4Addr>, external: Option<&str>| ClusterService {
        namespace: "team".to_owned(),
        name: name.to_owned(),
        address,
        external_name: external.map(str::to_owned),
        affinity_seconds: None,
        ports: vec![ServicePort {
            name: "http".to_owned(),
            protocol: Protocol::Tcp,
            port: 80,
            node_port: None,
        }],
        groups: vec![EndpointGroup {
            ports: vec![EndpointPort {
                name: "http".to_owned(),
                protocol: Protocol::Tcp,
                port: 8080,
            }],
            endpoints: vec![
                endpoint(2, Some("db-0"), true),
                endpoint(3, None, true),
                endpoint(4, Some("db-2"), false),
            ],
        }],
    };
    let all = [
        service("web", Some(Ipv4Addr::new(10, 96, 0, 7)), None),
        service("db", None, None),
        service("docs", None, Some("Example.ORG.")),
        service("local", None, Some("web.team.svc.cluster.local")),
        service("loop", None, Some("loop.team.svc.cluster.local")),
    ];
    let all = all.map(|one| {
        let key = (one.namespace.clone(), one.name.clone());
        (key, Arc::new(one))
    });
    Zone::new("10.96.0.0/16".parse().unwrap(), BTreeMap::from(all))
}

fn text(found: &Lookup) -> String {
    let record = |record: &Record| match record {
        Record::A(address) => address.to_string(),
        Record::Srv { port, target } => format!("{target}:{port}"),
        Record::Ptr(name) => name.clone(),
    };
    match found {
        Lookup::Elsewhere => "elsewhere".to_owned(),
        Lookup::Absent => "absent".to_owned(),
        Lookup::Alias(name) => format!("alias {name}"),
        Lookup::Records(all) => all.iter().map(record).collect::<Vec<_>>().join(" "),
    }
}

#[test]
fn names_have_the_records_of_the_specification() {
    use RecordKind::{A, Other, Ptr, Srv};
    let zone = zone();
    for (name, kind, expected) in [
        ("web.team.svc.cluster.local", A, "10.96.0.7"),
        ("web.team.svc.cluster.local", Other, ""),
        ("db.team.svc.cluster.local", A, "10.244.0.2 10.244.0.3"),
        ("db-0.db.team.svc.cluster.local", A, "10.244.0.2"),
        ("10-244-0-3.db.team.svc.cluster.local", A, "10.244.0.3"),
        ("db-2.db.team.svc.cluster.local", A, "absent"),
        ("db-0.web.team.svc.cluster.local", A, "absent"),
        ("docs.team.svc.cluster.local", A, "alias example.org"),
        (
            "_http._tcp.web.team.svc.cluster.local",
            Srv,
            "web.team.svc.cluster.local:80",
        ),
        (
            "_http._tcp.db.team.svc.cluster.local",
            Srv,
            "db-0.db.team.svc.cluster.local:8080 10-244-0-3.db.team.svc.cluster.local:8080",
        ),
        ("_http._udp.web.team.svc.cluster.local", Srv, "absent"),
        ("_tcp.web.team.svc.cluster.local", Srv, ""),
        ("_http._tcp.web.team.svc.cluster.local", A, ""),
        ("7.0.96.10.in-addr.arpa", Ptr, "web.team.svc.cluster.local"),
        (
            "2.0.244.10.in-addr.arpa",
            Ptr,
            "db-0.db.team.svc.cluster.local",
        ),
        ("8.0.96.10.in-addr.arpa", Ptr, "absent"),
        ("8.8.8.8.in-addr.arpa", Ptr, "elsewhere"),
        ("cluster.local", A, ""),
        ("svc.cluster.local", A, ""),
        ("team.svc.cluster.local", A, ""),
        ("other.svc.cluster.local", A, "absent"),
        ("web.other.svc.cluster.local", A, "absent"),
        ("web.team.cluster.local", A, "absent"),
        ("example.org.team.svc.cluster.local", A, "absent"),
        ("example.org", A, "elsewhere"),
        ("mycluster.local", A, "elsewhere"),
    ] {
        assert_eq!(text(&zone.lookup(name, kind)), expected, "{name} {kind:?}");
    }
}

proptest! {
    #[test]
    fn no_name_of_the_cluster_leaves_the_node_or_panics(inner in "[a-z0-9._-]{0,40}") {
        let name = format!("{inner}.cluster.local");
        prop_assert_ne!(zone().lookup(&name, RecordKind::A), Lookup::Elsewhere);
        let _ = zone().lookup(&inner, RecordKind::Ptr);
    }
}
