//! Questions and answers in DNS' wire format. Pure.

use simple_dns::rdata::{A, CNAME, OPT, PTR, RData, SOA, SRV};
use simple_dns::{CLASS, Name, OPCODE, Packet, PacketFlag, QCLASS, QTYPE, Question, RCODE};
use simple_dns::{ResourceRecord, TYPE};

use resources::services::CLUSTER_DOMAIN;

use crate::zone::{Lookup, Record, RecordKind, Zone, is_of_cluster};

/// How long clients may keep an answer, in seconds, as CoreDNS has it.
const TTL: u32 = 5;
/// The largest answer by UDP to a client that names no size, in bytes (RFC 1035).
const PLAIN_UDP: usize = 512;
/// The largest answer by UDP, in bytes: it passes any network in one packet (DNS flag day 2020).
const LARGEST_UDP: usize = 1232;
/// The bytes of a message before its question.
const HEADER: usize = 12;
/// The most names that an external name is followed through.
const ALIASES_MAX: usize = 8;

/// How a message came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    /// In a datagram, whose answer is bounded.
    Udp,
    /// By a connection.
    Tcp,
}

/// What to do with a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Nothing: it is no question.
    Ignore,
    /// Answer this.
    Answer(Vec<u8>),
    /// Ask the host's resolvers the same.
    Forward,
    /// Ask the host's resolvers this instead, and answer with [`followed`].
    Follow {
        /// The question for the name at the end.
        question: Vec<u8>,
        /// The names that lead there.
        aliases: Vec<String>,
    },
}

/// What to do with a message; `zone` is absent until the server has sent the cluster's Services.
pub(crate) fn step(bytes: &[u8], transport: Transport, zone: Option<&Zone>) -> Step {
    let Ok(packet) = Packet::parse(bytes) else {
        return unreadable(bytes);
    };
    if packet.has_flags(PacketFlag::RESPONSE) {
        return Step::Ignore;
    }
    let (OPCODE::StandardQuery, [question]) = (packet.opcode(), packet.questions.as_slice()) else {
        return reply(&packet, transport, RCODE::NotImplemented, Vec::new());
    };
    let name = question.qname.to_string().to_ascii_lowercase();
    let internet = matches!(question.qclass, QCLASS::CLASS(CLASS::IN) | QCLASS::ANY);
    let Some(zone) = zone else {
        return match is_of_cluster(&name) {
            true => reply(&packet, transport, RCODE::ServerFailure, Vec::new()),
            false => Step::Forward,
        };
    };
    let kind = match question.qtype {
        QTYPE::TYPE(TYPE::A) => RecordKind::A,
        QTYPE::TYPE(TYPE::SRV) => RecordKind::Srv,
        QTYPE::TYPE(TYPE::PTR) => RecordKind::Ptr,
        _ => RecordKind::Other,
    };
    let mut found = zone.lookup(&name, kind);
    if !internet && found != Lookup::Elsewhere {
        return reply(&packet, transport, RCODE::NotImplemented, Vec::new());
    }
    let mut aliases = Vec::new();
    let asks_alias = question.qtype == QTYPE::TYPE(TYPE::CNAME);
    while let Lookup::Alias(target) = &found {
        if aliases.len() == ALIASES_MAX {
            return reply(&packet, transport, RCODE::ServerFailure, Vec::new());
        }
        aliases.push(target.clone());
        found = match asks_alias {
            true => Lookup::Records(Vec::new()),
            false => zone.lookup(target, kind),
        };
    }
    match found {
        Lookup::Elsewhere => match aliases.last() {
            None => Step::Forward,
            Some(target) => follow(&packet, question, target.clone(), aliases),
        },
        Lookup::Absent => {
            let answers = Answers {
                aliases,
                records: Vec::new(),
            };
            reply_with(&packet, transport, RCODE::NameError, &answers)
        }
        Lookup::Records(records) => {
            let answers = Answers { aliases, records };
            reply_with(&packet, transport, RCODE::NoError, &answers)
        }
        Lookup::Alias(_) => Step::Ignore,
    }
}

/// The answer to a question that could not be asked elsewhere.
pub(crate) fn failure(bytes: &[u8], transport: Transport) -> Step {
    match Packet::parse(bytes) {
        Ok(packet) => reply(&packet, transport, RCODE::ServerFailure, Vec::new()),
        Err(_) => Step::Ignore,
    }
}

/// The answer to the question of a [`Step::Follow`], from that of the host's resolvers.
pub(crate) fn followed(
    bytes: &[u8],
    transport: Transport,
    aliases: &[String],
    answer: &[u8],
) -> Step {
    let (Ok(packet), Ok(theirs)) = (Packet::parse(bytes), Packet::parse(answer)) else {
        return failure(bytes, transport);
    };
    let [question] = packet.questions.as_slice() else {
        return Step::Ignore;
    };
    let mut all = alias_records(question, aliases);
    all.extend(theirs.answers.iter().cloned());
    reply(&packet, transport, theirs.rcode(), all)
}

fn follow(
    packet: &Packet<'_>,
    question: &Question<'_>,
    target: String,
    aliases: Vec<String>,
) -> Step {
    let Ok(name) = Name::new(&target) else {
        return reply(packet, Transport::Tcp, RCODE::ServerFailure, Vec::new());
    };
    let mut asked = Packet::new_query(packet.id());
    asked.set_flags(PacketFlag::RECURSION_DESIRED);
    let question = Question::new(name, question.qtype, question.qclass, false);
    asked.questions.push(question);
    match asked.build_bytes_vec() {
        Ok(question) => Step::Follow { question, aliases },
        Err(_) => Step::Ignore,
    }
}

/// A message whose header says that it is a question, and whose rest cannot be read.
fn unreadable(bytes: &[u8]) -> Step {
    let (Some(header), true) = (
        bytes.get(..HEADER),
        bytes.get(2).is_some_and(|byte| byte & 0x80 == 0),
    ) else {
        return Step::Ignore;
    };
    let mut packet = Packet::new_reply(u16::from_be_bytes([header[0], header[1]]));
    *packet.rcode_mut() = RCODE::FormatError;
    packet.build_bytes_vec().map_or(Step::Ignore, Step::Answer)
}

struct Answers {
    aliases: Vec<String>,
    records: Vec<Record>,
}

fn reply_with(packet: &Packet<'_>, transport: Transport, code: RCODE, answers: &Answers) -> Step {
    let [question] = packet.questions.as_slice() else {
        return Step::Ignore;
    };
    let mut all = alias_records(question, &answers.aliases);
    for record in &answers.records {
        let data = match record {
            Record::A(address) => RData::A(A::from(*address)),
            Record::Srv { port, target } => match Name::new(target) {
                Ok(target) => RData::SRV(SRV {
                    priority: 0,
                    weight: 100,
                    port: *port,
                    target,
                }),
                Err(_) => continue,
            },
            Record::Ptr(name) => match Name::new(name) {
                Ok(name) => RData::PTR(PTR(name)),
                Err(_) => continue,
            },
        };
        let name = match answers.aliases.last().map(|name| Name::new(name)) {
            Some(Ok(name)) => name,
            _ => question.qname.clone(),
        };
        all.push(ResourceRecord::new(name, CLASS::IN, TTL, data));
    }
    reply(packet, transport, code, all)
}

/// The records that lead from the question's name to the last alias.
fn alias_records<'a>(question: &Question<'a>, aliases: &'a [String]) -> Vec<ResourceRecord<'a>> {
    let mut from = question.qname.clone();
    let mut all = Vec::new();
    for alias in aliases {
        let Ok(to) = Name::new(alias) else { break };
        let data = RData::CNAME(CNAME(to.clone()));
        all.push(ResourceRecord::new(from, CLASS::IN, TTL, data));
        from = to;
    }
    all
}

fn reply<'a>(
    packet: &Packet<'a>,
    transport: Transport,
    code: RCODE,
    answers: Vec<ResourceRecord<'a>>,
) -> Step {
    let asked = packet.opt().map(|opt| usize::from(opt.udp_packet_size));
    let room = match transport {
        Transport::Tcp => usize::from(u16::MAX),
        Transport::Udp => asked.unwrap_or(PLAIN_UDP).clamp(PLAIN_UDP, LARGEST_UDP),
    };
    let mut out = Packet::new_reply(packet.id());
    *out.rcode_mut() = code;
    out.set_flags(PacketFlag::AUTHORITATIVE_ANSWER | PacketFlag::RECURSION_AVAILABLE);
    if packet.has_flags(PacketFlag::RECURSION_DESIRED) {
        out.set_flags(PacketFlag::RECURSION_DESIRED);
    }
    out.questions.clone_from(&packet.questions);
    if asked.is_some() {
        *out.opt_mut() = Some(OPT {
            opt_codes: Vec::new(),
            udp_packet_size: u16::try_from(LARGEST_UDP).unwrap_or(u16::MAX),
            version: 0,
        });
    }
    if answers.is_empty() && matches!(code, RCODE::NameError | RCODE::NoError) {
        // How long clients may remember that there is nothing (RFC 2308).
        out.name_servers.extend(authority());
    }
    out.answers = answers;
    match out.build_bytes_vec_compressed() {
        Ok(bytes) if bytes.len() <= room => Step::Answer(bytes),
        Ok(_) => {
            // The client asks again by a connection.
            out.answers.clear();
            out.set_flags(PacketFlag::TRUNCATION);
            out.build_bytes_vec_compressed()
                .map_or(Step::Ignore, Step::Answer)
        }
        Err(_) => Step::Ignore,
    }
}

fn authority<'a>() -> Option<ResourceRecord<'a>> {
    let (mname, rname) = (
        Name::new("ns.dns.cluster.local").ok()?,
        Name::new("hostmaster.cluster.local").ok()?,
    );
    let data = SOA {
        mname,
        rname,
        serial: 1,
        refresh: 7200,
        retry: 1800,
        expire: 86400,
        minimum: TTL,
    };
    let name = Name::new(CLUSTER_DOMAIN).ok()?;
    Some(ResourceRecord::new(name, CLASS::IN, TTL, RData::SOA(data)))
}

#[cfg(test)]
#[path = "message_tests.rs"]
mod tests;
