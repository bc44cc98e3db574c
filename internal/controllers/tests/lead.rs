//! One of several candidates leads, by a Lease, against the resource API in process.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod served;

use std::time::Duration;

use controllers::lead::{Fence, Fenced, LeaderCandidate, LeaseDurations};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;
use tokio::time::Instant;

use served::served;

const PATIENCE: Duration = Duration::from_secs(30);
/// Long enough for a busy machine to renew in time.
const TIMES: LeaseDurations = LeaseDurations {
    lease: Duration::from_secs(5),
    renew: Duration::from_secs(4),
    retry: Duration::from_millis(200),
};

fn candidate(client: &Client, identity: &str) -> LeaderCandidate {
    LeaderCandidate::new(client.clone(), "default", "leader", identity, TIMES)
}

async fn soon<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, what).await.unwrap()
}

async fn write(client: &Client, name: &str) -> kube::Result<ConfigMap> {
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
    let mut map = ConfigMap::default();
    map.metadata.name = Some(name.to_owned());
    maps.create(&PostParams::default(), &map).await
}

async fn holder(client: &Client) -> Option<String> {
    let leases: Api<Lease> = Api::namespaced(client.clone(), "default");
    leases.get("leader").await.unwrap().spec?.holder_identity
}

fn is_fenced(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Service(cause) if cause.downcast_ref::<Fenced>().is_some())
}

#[tokio::test(flavor = "multi_thread")]
async fn one_leads_and_the_other_only_once_its_writes_have_ended() {
    let (_data, client) = served("controllers").await;
    let mut first = soon(candidate(&client, "first").lead()).await;
    let mut other = candidate(&client, "second");
    let mut known = other.leader();
    let writer = first.client();
    write(&writer, "by-first").await.unwrap();
    let waiting = tokio::spawn(async move { other.lead().await });
    soon(known.wait_for(|leader| leader == "first"))
        .await
        .unwrap();
    // The leader renews for longer than the lease lasts: the other candidate waits on.
    let held = tokio::time::timeout(TIMES.lease * 3, first.hold()).await;
    assert!(held.is_err() && !waiting.is_finished());
    assert_eq!(holder(&client).await.as_deref(), Some("first"));
    // The leader stops renewing, as if the process had stalled. The other candidate leads, and the
    // old leader's writes are refused before they are sent, although it was not notified.
    let second = soon(waiting).await.unwrap();
    assert_eq!(holder(&client).await.as_deref(), Some("second"));
    let late = write(&writer, "too-late").await.unwrap_err();
    assert!(is_fenced(&late), "{late}");
    write(&second.client(), "by-second").await.unwrap();
    let maps: Api<ConfigMap> = Api::namespaced(writer, "default");
    let seen = maps.list(&ListParams::default()).await.unwrap();
    let names: Vec<_> = seen
        .iter()
        .filter_map(|map| map.metadata.name.as_deref())
        .collect();
    assert_eq!(names, ["by-first", "by-second"], "reads pass");
    soon(first.hold()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_released_lease_is_taken_at_once_and_a_lost_one_ends_the_term() {
    let (_data, client) = served("controllers").await;
    let first = soon(candidate(&client, "first").lead()).await;
    first.release().await;
    assert_eq!(holder(&client).await.as_deref(), Some(""));
    let mut second = soon(candidate(&client, "second").lead()).await;
    let leases: Api<Lease> = Api::namespaced(client.clone(), "default");
    let transitions = leases.get("leader").await.unwrap().spec.unwrap();
    assert_eq!(transitions.lease_transitions, Some(1));
    leases
        .delete("leader", &DeleteParams::default())
        .await
        .unwrap();
    soon(second.hold()).await;
    assert!(is_fenced(
        &write(&second.client(), "late").await.unwrap_err()
    ));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_annotation_on_a_dead_leaders_lease_delays_no_candidate() {
    let (_data, client) = served("controllers").await;
    // This term is never renewed.
    let _dead = soon(candidate(&client, "first").lead()).await;
    let leases: Api<Lease> = Api::namespaced(client.clone(), "default");
    let meddling = tokio::spawn(async move {
        for times in 0.. {
            let note = json!({"metadata": {"annotations": {"note": times.to_string()}}});
            let params = PatchParams::default();
            leases
                .patch("leader", &params, &Patch::Merge(note))
                .await
                .unwrap();
            tokio::time::sleep(TIMES.retry / 2).await;
        }
    });
    let mut second = soon(candidate(&client, "second").lead()).await;
    assert_eq!(holder(&client).await.as_deref(), Some("second"));
    // Nor does it end the term of a live leader.
    let held = tokio::time::timeout(TIMES.lease, second.hold()).await;
    assert!(held.is_err(), "it leads on");
    meddling.abort();
}

#[tokio::test]
async fn a_fence_that_was_shut_never_opens_again() {
    let fence = Fence::open_until(Instant::now() + PATIENCE);
    assert!(fence.is_open());
    fence.shut();
    fence.extend(Instant::now() + PATIENCE);
    assert!(!fence.is_open());
    assert!(!Fence::open_until(Instant::now()).is_open());
}
