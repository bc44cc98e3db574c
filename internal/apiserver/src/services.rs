//! Owns the addresses and node ports of Services: a Service gets those that it lacks before it is written, and the
//! transaction that writes it checks that no other Service has them. The Services themselves are the record of what is
//! taken. `resources::services::addresses` decides.
//!
//! A write of a Service that changes none of these costs nothing here; another one reads the selector fields of all
//! Services, and the objects of those with node ports.

use std::sync::Arc;

use resources::registry::Kind;
use resources::services::addresses::{Taken, allocate};
use serde_json::{Value, json};
use store::{Entry, TransactionView};
use uuid::Uuid;

use crate::call::Call;
use crate::object;
use crate::refusal::RewriteRefusal;
use crate::status::{Cause, Failure};

fn is_service(kind: &Kind) -> bool {
    kind.kind == "Service" && kind.group.is_empty()
}

/// True if a write may change which addresses and ports are taken.
pub(crate) fn concerns(kind: &Kind, object: &Value, old: Option<&Value>) -> bool {
    if !is_service(kind) {
        return false;
    }
    let fields = ["type", "clusterIP", "ports"];
    old.is_none_or(|old| {
        fields
            .iter()
            .any(|field| old["spec"][field] != object["spec"][field])
    })
}

/// Gives a Service what it lacks, or refuses what it names. `old` is the stored Service, if there is one.
pub(crate) fn complete(
    call: &Call,
    object: &mut Value,
    old: Option<&Value>,
) -> Result<(), Failure> {
    if !concerns(call.kind, object, old) {
        return Ok(());
    }
    let entries = call
        .server
        .0
        .store
        .list(&call.kind.prefix(None), None, usize::MAX);
    let taken = taken(&entries.entries, &key_of(call.kind, object));
    // The first bytes of a version 4 uuid are random.
    let random = Uuid::new_v4();
    let from = u32::from_be_bytes([0, 1, 2, 3].map(|at: usize| random.as_bytes()[at]));
    let range = call.server.0.config.service_range;
    allocate(object, old, range, &taken, from).map_err(|errors| {
        let causes = errors.iter().map(Cause::from).collect();
        Failure::invalid(call.kind, object::name(object), causes)
    })
}

/// What a transaction checks about a Service that it is to write.
pub(crate) struct Claim {
    key: String,
    /// Its type, address and ports.
    service: Value,
}

/// The check of a write, if it is needed.
pub(crate) fn claim(kind: &Kind, object: &Value, old: Option<&Value>) -> Option<Claim> {
    concerns(kind, object, old).then(|| Claim {
        key: key_of(kind, object),
        service: json!({"spec": {
            "clusterIP": object["spec"]["clusterIP"], "ports": object["spec"]["ports"],
        }}),
    })
}

/// Inside the transaction: stale if another Service took an address or a port meanwhile.
pub(crate) fn settle(
    view: &TransactionView<'_>,
    kind: &Kind,
    claim: Option<&Claim>,
) -> Result<(), RewriteRefusal> {
    let Some(claim) = claim else { return Ok(()) };
    let taken = taken(&view.list(&kind.prefix(None)), &claim.key);
    if taken.conflicts(&claim.service) {
        return Err(RewriteRefusal::Stale);
    }
    Ok(())
}

fn key_of(kind: &Kind, object: &Value) -> String {
    kind.key(
        Some(object::meta_text(object, "namespace")),
        object::name(object),
    )
}

/// What all Services but the one with the key have.
fn taken(entries: &[Arc<Entry>], except: &str) -> Taken {
    let mut taken = Taken::default();
    for entry in entries.iter().filter(|entry| *entry.key != *except) {
        let field = |name: &str| entry.meta.fields.get(name).map_or("", String::as_str);
        if matches!(field("spec.type"), "NodePort" | "LoadBalancer") {
            // A damaged record keeps its address by the field below, and loses its ports.
            if let Ok(service) = serde_json::from_slice(&entry.value) {
                taken.add(&service);
            }
        }
        taken
            .addresses
            .extend(field("spec.clusterIP").parse::<std::net::Ipv4Addr>());
    }
    taken
}
