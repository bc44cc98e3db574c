//! Former attacks that ended the server, gave access or lost data, repeated with the real binary. Each test sends the
//! original requests, and checks the answer and the server: it runs, answers other requests meanwhile, and has not
//! grown. This module holds the shared parts; tests next to the code cover the limits at their edges.

mod access;
mod machine;
mod objects;
mod requests;

use std::time::Duration;

use e2e::{Answer, Platform, Target, eventually_async, peak_resident_mib, resident_mib};
use serde_json::{Value, json};

/// How long an expected event may take on a busy machine.
const SOON: Duration = Duration::from_secs(90);

/// How long `/healthz` may take during other requests: far above the time on a busy machine, far below the 69 seconds
/// that it once took.
const HEALTHZ_MAX: Duration = Duration::from_secs(15);

/// How much the server's peak memory may grow while it refuses one request. The requests have at most 1 MB, and the
/// least of the attacks once took 490 MiB.
const GROWTH_MAX_MIB: f64 = 192.0;

const JSON: &str = "application/json";
const MERGE: &str = "application/merge-patch+json";
const PODS: &str = "/api/v1/namespaces/default/pods";
const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";
const SYSTEM_SECRETS: &str = "/api/v1/namespaces/muster-system/secrets";

/// A member of a team, in every namespace, and the member's token with its stored digest.
const MEMBER: &str = "ann";
const MEMBER_TOKEN: &str =
    "muster_0123456789ab_5555555555555555555555555555555555555555555555555555555555555555";
const MEMBER_DIGEST: &str = "afa09486c6e00f658f9c145853d9bdf17dbdfc6f5d162897d75425a02e0b080d";

/// A user's or a token's Secret, as Muster keeps it.
fn identity(kind: &str, name: &str, record: &Value, hash: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Secret", "type": format!("muster.io/{kind}"),
        "metadata": {"namespace": "muster-system", "name": format!("{kind}-{name}")},
        "stringData": {"record": record.to_string(), "hash": hash},
    })
}

/// The record of one of the member's tokens.
fn token_record(id: &str, expires: &str) -> Value {
    json!({"id": id, "user": MEMBER, "label": "test", "purpose": "access",
        "created": "2020-01-01T00:00:00Z", "expires": expires})
}

/// A server, its administrator and a member.
struct Ground {
    platform: Platform,
    admin: Target,
    member: Target,
}

impl Ground {
    async fn server() -> Ground {
        Ground::of(Platform::server(&[])).await
    }

    async fn of(platform: Platform) -> Ground {
        let user = json!({"name": MEMBER, "role": "member", "namespaces": null});
        let token = token_record("0123456789ab", "2999-01-01T00:00:00Z");
        let user = identity("user", MEMBER, &user, "none");
        let token = identity("token", "0123456789ab", &token, MEMBER_DIGEST);
        platform.apply(&format!("{user}\n---\n{token}\n"));
        let admin = Target::of(&platform.kubeconfig());
        let member = admin.with_token(MEMBER_TOKEN);
        eventually_async("the member's token counts", SOON, || async {
            (get(&member, PODS).await.status == 200).then_some(())
        })
        .await;
        Ground {
            platform,
            admin,
            member,
        }
    }

    /// The server runs and answers other requests.
    async fn healthy(&self) {
        let asked = tokio::time::timeout(HEALTHZ_MAX, get(&self.admin, "/healthz"));
        let answer = asked.await.expect("/healthz is answered meanwhile");
        assert_eq!(answer.status, 200, "{}", answer.text());
    }

    /// Sends a request, and checks the server's health until the answer arrives.
    async fn beside_others(
        &self,
        target: &Target,
        method: &'static str,
        path: &'static str,
        media: &'static str,
        body: String,
    ) -> Answer {
        let target = target.clone();
        let sent = tokio::spawn(async move { send(&target, method, path, media, body).await });
        loop {
            self.healthy().await;
            if sent.is_finished() {
                return sent.await.expect("the request's task");
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// The server's current memory, for [`Ground::has_not_grown`].
    fn memory(&self) -> f64 {
        resident_mib(self.platform.pid())
    }

    /// The server's memory has not grown much since then at any time.
    fn has_not_grown(&self, before: f64) {
        let peak = peak_resident_mib(self.platform.pid());
        assert!(
            peak - before < GROWTH_MAX_MIB,
            "the server had {before:.0} MiB and took {peak:.0} MiB"
        );
    }
}

async fn get(target: &Target, path: &str) -> Answer {
    let answer = target.ask("GET", path, &[], "").await;
    answer.expect("the answer comes whole")
}

async fn send(target: &Target, method: &str, path: &str, media: &str, body: String) -> Answer {
    let headers = [("content-type", media)];
    let answer = target.ask(method, path, &headers, body).await;
    answer.expect("the answer comes whole")
}

async fn post(target: &Target, path: &str, object: &Value) -> Answer {
    send(target, "POST", path, JSON, object.to_string()).await
}

/// Creates an object that the server accepts.
async fn create(target: &Target, path: &str, object: &Value) -> Value {
    let answer = post(target, path, object).await;
    assert_eq!(answer.status, 201, "{path}: {}", answer.text());
    answer.json()
}

/// The request was refused with a short message of its specific reason.
#[track_caller]
fn refused(answer: &Answer) {
    let few = answer.body.len() < 64 * 1024;
    assert!((400..500).contains(&answer.status) && few, "{answer:?}");
}

/// The request was refused with this code and a message that names the reason.
#[track_caller]
fn refused_for(answer: &Answer, status: u16, words: &str) {
    let text = answer.text();
    assert_eq!(answer.status, status, "{text}");
    assert!(text.contains(words), "{words:?} is missing in {text}");
}

/// Waits until an object is deleted.
async fn gone(target: &Target, path: &str) {
    eventually_async(&format!("{path} is gone"), SOON, || async {
        (get(target, path).await.status == 404).then_some(())
    })
    .await;
}

/// A pod with a shell script; the scheduler is Muster's unless the manifest is changed.
fn pod(name: &str, script: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"restartPolicy": "Never", "containers": [{
            "name": "c", "command": ["/bin/sh", "-c", script],
            "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}}}]},
    })
}
