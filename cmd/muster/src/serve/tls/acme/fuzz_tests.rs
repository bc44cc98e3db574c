//! Damaged and forged answers of an ACME server end an attempt with a certificate or an error, and none panics.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::body::{Body, Bytes};
use axum::http::{Request, Response};
use instant_acme::{BodyWrapper, BytesResponse, Error};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::documents::{ByteChange, changed, damage, damaged};

const PATHS: [&str; 9] = [
    "/directory",
    "/nonce",
    "/account",
    "/orders",
    "/order",
    "/authorization",
    "/challenge",
    "/finalize",
    "/certificate",
];

fn url(path: &str) -> String {
    format!("https://acme.example{path}")
}

fn order(status: &str) -> Value {
    json!({
        "status": status,
        "identifiers": [{"type": "dns", "value": "a.example"}],
        "authorizations": [url("/authorization")],
        "finalize": url("/finalize"),
        "certificate": url("/certificate"),
    })
}

/// The answer at a path after `earlier` answers there.
fn sound(path: &str, earlier: usize) -> Value {
    let challenge = |status: &str| json!({"type": "tls-alpn-01", "url": url("/challenge"), "token": "t0ken", "status": status});
    match path {
        "/directory" => json!({
            "newNonce": url("/nonce"), "newAccount": url("/account"), "newOrder": url("/orders"),
            "revokeCert": url("/revoke"), "keyChange": url("/key"),
        }),
        "/account" => json!({"status": "valid"}),
        "/orders" => order("pending"),
        "/order" if earlier == 0 => order("ready"),
        "/order" => order("valid"),
        "/authorization" => json!({
            "identifier": {"type": "dns", "value": "a.example"},
            "status": "pending",
            "expires": "2030-01-01T00:00:00Z",
            "challenges": [challenge("pending"), {"type": "http-01", "url": url("/h"), "token": "u", "status": "pending"}],
        }),
        "/challenge" => challenge("processing"),
        "/finalize" => order("processing"),
        _ => Value::Null,
    }
}

/// An answer in place of the sound one.
#[derive(Clone, Debug)]
struct Forged {
    at: usize,
    body: Value,
    damage: Vec<ByteChange>,
    status: u16,
    nonce: &'static [u8],
    retry_after: Option<&'static str>,
}

fn forged() -> impl Strategy<Value = Forged> {
    let body = |at: usize| {
        let problem =
            json!({"type": "urn:ietf:params:acme:error:badNonce", "detail": "d", "status": 400});
        (
            Just(at),
            changed(vec![sound(PATHS[at], 0), sound(PATHS[at], 1), problem]),
        )
    };
    (
        (0..PATHS.len()).prop_flat_map(body),
        damage(),
        prop::sample::select(vec![200_u16, 201, 204, 400, 403, 429, 500, 503]),
        prop::sample::select(vec![&b"n0nce"[..], b"", b"\xff", b"a b"]),
        prop::sample::select(vec![
            None,
            Some("0"),
            Some("-1"),
            Some("99999999999999999999"),
            Some("Fri, 31 Dec 9999 23:59:59 GMT"),
        ]),
    )
        .prop_map(|((at, body), damage, status, nonce, retry_after)| Forged {
            at,
            body,
            damage,
            status,
            nonce,
            retry_after,
        })
}

/// A server whose answers are sound but for one.
struct ForgingServer {
    forged: Option<Forged>,
    answered: [AtomicUsize; PATHS.len()],
}

impl HttpClient for ForgingServer {
    fn request(
        &self,
        request: Request<BodyWrapper<Bytes>>,
    ) -> Pin<Box<dyn Future<Output = Result<BytesResponse, Error>> + Send>> {
        let path = request.uri().path();
        let at = PATHS.iter().position(|one| *one == path);
        let Some(at) = at else {
            return Box::pin(async { Err(Error::Str("no such path")) });
        };
        let earlier = self.answered[at].fetch_add(1, Ordering::SeqCst);
        let status = if matches!(path, "/account" | "/orders") {
            201
        } else {
            200
        };
        let mut answer = Response::builder()
            .status(status)
            .header("replay-nonce", "n0nce")
            .header(
                "location",
                url(if path == "/orders" { "/order" } else { path }),
            );
        let mut bytes = match path {
            "/certificate" => {
                b"-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n".to_vec()
            }
            _ => sound(path, earlier).to_string().into_bytes(),
        };
        if let Some(forged) = self.forged.as_ref().filter(|forged| forged.at == at) {
            answer = Response::builder()
                .status(forged.status)
                .header("replay-nonce", forged.nonce)
                .header("location", url("/order"));
            if let Some(retry_after) = forged.retry_after {
                answer = answer.header("retry-after", retry_after);
            }
            if path != "/certificate" {
                bytes = forged.body.to_string().into_bytes();
            }
            bytes = damaged(bytes, &forged.damage);
        }
        let answer = answer.body(Body::from(bytes)).unwrap();
        Box::pin(async move { Ok(BytesResponse::from(answer)) })
    }
}

/// One attempt, with waits that take no time; the numbers of answers at each path.
fn attempt(forged: Option<Forged>) -> (Result<CertificatePair>, Vec<usize>) {
    let directory = tempfile::tempdir().unwrap();
    let acme = Acme {
        settings: AcmeSettings {
            directory: url("/directory"),
            domains: vec!["a.example".to_owned()],
            contacts: Vec::new(),
            http: None,
            root: None,
        },
        directory: directory.path().to_owned(),
        renewal: None,
    };
    let server = Arc::new(ForgingServer {
        forged,
        answered: Default::default(),
    });
    struct Shared(Arc<ForgingServer>);
    impl HttpClient for Shared {
        fn request(
            &self,
            request: Request<BodyWrapper<Bytes>>,
        ) -> Pin<Box<dyn Future<Output = Result<BytesResponse, Error>> + Send>> {
            self.0.request(request)
        }
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .unwrap();
    let challenges = Challenges::default();
    let client = Box::new(Shared(server.clone()));
    let attempted = runtime.block_on(acme.attempt(&challenges, client));
    assert!(challenges.certificate("a.example").is_none());
    let answered = server
        .answered
        .iter()
        .map(|count| count.load(Ordering::SeqCst));
    (attempted, answered.collect())
}

#[test]
fn the_sound_answers_lead_to_the_certificate() {
    let (attempted, answered) = attempt(None);
    // The certificate is none.
    assert!(attempted.is_err());
    assert!(answered.iter().all(|count| *count > 0), "{answered:?}");
}

#[test]
fn a_directory_with_a_nonce_that_is_no_url_ends_the_attempt() {
    let mut body = sound("/directory", 0);
    body["newNonce"] = "no url".into();
    let (attempted, _) = attempt(Some(Forged {
        at: 0,
        body,
        damage: Vec::new(),
        status: 200,
        nonce: b"n0nce",
        retry_after: None,
    }));
    let error = attempted.unwrap_err().to_string();
    assert!(
        error.starts_with("--acme-directory = \"https://acme.example/directory\""),
        "{error}"
    );
}

/// Each case makes keys and syncs a file.
const CASES: u32 = 64;

proptest! {
    #![proptest_config(ProptestConfig {
        cases: std::env::var("PROPTEST_CASES").ok().and_then(|n| n.parse().ok()).map_or(CASES, |n: u32| n / 8 + 1),
        ..ProptestConfig::default()
    })]
    #[test]
    fn no_answer_of_an_acme_server_panics(forged in forged()) {
        let (attempted, _) = attempt(Some(forged));
        // No certificate is made of these answers.
        prop_assert!(attempted.is_err());
    }
}
