//! Messages in wire format: what is answered here, what is asked elsewhere, and the bounds of answers.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::Arc;

use proptest::prelude::*;
use resources::services::{ClusterService, Endpoint, EndpointGroup};

use super::*;

fn asked(name: &str, kind: TYPE) -> Vec<u8> {
    let mut packet = Packet::new_query(77);
    packet.set_flags(PacketFlag::RECURSION_DESIRED);
    let name = Name::new(name).unwrap();
    packet
        .questions
        .push(Question::new(name, kind.into(), CLASS::IN.into(), false));
    packet.build_bytes_vec().unwrap()
}

fn many(count: u32) -> Zone {
    let endpoints = (0..count).map(|number| Endpoint {
        address: Ipv4Addr::from(0x0af4_0002 + number),
        hostname: None,
        ready: true,
        draining: false,
    });
    let service = |name: &str, external: Option<&str>| ClusterService {
        namespace: "team".to_owned(),
        name: name.to_owned(),
        address: None,
        external_name: external.map(str::to_owned),
        affinity_seconds: None,
        ports: Vec::new(),
        groups: Vec::new(),
    };
    let mut db = service("db", None);
    db.groups.push(EndpointGroup {
        ports: Vec::new(),
        endpoints: endpoints.collect(),
    });
    let all = [
        db,
        service("docs", Some("example.org")),
        service("near", Some("db.team.svc.cluster.local")),
        service("loop", Some("loop.team.svc.cluster.local")),
    ];
    let all = all.map(|one| (("team".to_owned(), one.name.clone()), Arc::new(one)));
    Zone::new("10.96.0.0/16".parse().unwrap(), BTreeMap::from(all))
}

/// The code, the flags of interest and the answers.
fn shown(step: Step) -> String {
    let Step::Answer(bytes) = step else {
        return format!("{step:?}");
    };
    let packet = Packet::parse(&bytes).unwrap();
    assert_eq!(packet.id(), 77);
    assert!(packet.has_flags(PacketFlag::RESPONSE | PacketFlag::RECURSION_AVAILABLE));
    let cut = match packet.has_flags(PacketFlag::TRUNCATION) {
        true => " cut",
        false => "",
    };
    let answers: Vec<String> = packet
        .answers
        .iter()
        .map(|record| match &record.rdata {
            RData::A(address) => Ipv4Addr::from(address.address).to_string(),
            RData::CNAME(name) => format!("{}->{}", record.name, name.0),
            other => format!("{other:?}"),
        })
        .collect();
    format!("{:?}{cut} {}", packet.rcode(), answers.join(" "))
}

#[test]
fn the_clusters_names_are_answered_here_and_others_elsewhere() {
    let zone = many(2);
    let of = |name: &str, kind: TYPE| shown(step(&asked(name, kind), Transport::Udp, Some(&zone)));
    assert_eq!(
        of("DB.team.svc.Cluster.Local", TYPE::A),
        "NoError 10.244.0.2 10.244.0.3"
    );
    assert_eq!(of("db.team.svc.cluster.local", TYPE::AAAA), "NoError ");
    assert_eq!(of("no.team.svc.cluster.local", TYPE::A), "NameError ");
    assert_eq!(of("example.org", TYPE::A), "Forward");
    assert_eq!(
        of("near.team.svc.cluster.local", TYPE::A),
        "NoError near.team.svc.cluster.local->db.team.svc.cluster.local 10.244.0.2 10.244.0.3"
    );
    assert_eq!(
        of("docs.team.svc.cluster.local", TYPE::CNAME),
        "NoError docs.team.svc.cluster.local->example.org"
    );
    assert_eq!(of("loop.team.svc.cluster.local", TYPE::A), "ServerFailure ");
    // Nothing is known before the server has sent the Services.
    let early = |name: &str| shown(step(&asked(name, TYPE::A), Transport::Udp, None));
    assert_eq!(early("db.team.svc.cluster.local"), "ServerFailure ");
    assert_eq!(early("example.org"), "Forward");
}

#[test]
fn an_external_name_is_followed() {
    let (zone, query) = (many(1), asked("docs.team.svc.cluster.local", TYPE::A));
    let Step::Follow { question, aliases } = step(&query, Transport::Udp, Some(&zone)) else {
        panic!("it is asked elsewhere")
    };
    assert_eq!(question, asked("example.org", TYPE::A));
    let mut theirs = Packet::new_reply(77);
    let address = RData::A(A::from(Ipv4Addr::new(192, 0, 2, 1)));
    let name = Name::new("example.org").unwrap();
    theirs
        .answers
        .push(ResourceRecord::new(name, CLASS::IN, 60, address));
    let theirs = theirs.build_bytes_vec().unwrap();
    assert_eq!(
        shown(followed(&query, Transport::Udp, &aliases, &theirs)),
        "NoError docs.team.svc.cluster.local->example.org 192.0.2.1"
    );
    assert_eq!(
        shown(followed(&query, Transport::Udp, &aliases, b"nonsense")),
        "ServerFailure "
    );
}

#[test]
fn an_answer_that_is_too_large_for_a_datagram_is_cut() {
    let (zone, query) = (many(100), asked("db.team.svc.cluster.local", TYPE::A));
    let datagram = step(&query, Transport::Udp, Some(&zone));
    assert_eq!(shown(datagram), "NoError cut ");
    let connection = shown(step(&query, Transport::Tcp, Some(&zone)));
    assert_eq!(connection.split(' ').count(), 101);
}

#[test]
fn what_is_no_question_gets_no_answer() {
    let mut answer = Packet::new_reply(77);
    answer.set_flags(PacketFlag::RECURSION_DESIRED);
    let answer = answer.build_bytes_vec().unwrap();
    assert_eq!(step(&answer, Transport::Udp, None), Step::Ignore);
    assert_eq!(step(&[], Transport::Udp, None), Step::Ignore);
    let mut broken = asked("example.org", TYPE::A);
    broken.truncate(20);
    let Step::Answer(bytes) = step(&broken, Transport::Udp, None) else {
        panic!("it is a question")
    };
    assert_eq!(Packet::parse(&bytes).unwrap().rcode(), RCODE::FormatError);
}

proptest! {
    #[test]
    fn no_message_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200), at in 0_usize..60, byte: u8) {
        let zone = many(2);
        let _ = step(&bytes, Transport::Udp, Some(&zone));
        let mut query = asked("docs.team.svc.cluster.local", TYPE::A);
        if let Some(place) = query.get_mut(at) {
            *place = byte;
        }
        let _ = step(&query, Transport::Udp, Some(&zone));
        let _ = followed(&query, Transport::Udp, &["example.org".to_owned()], &bytes);
    }
}
