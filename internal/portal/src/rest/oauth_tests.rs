//! The endpoints of the device authorization grant over HTTP in process, with identities over Secrets in memory.

use std::convert::Infallible;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::http::{Method, Request};
use axum::routing::post;
use identity::{NewUser, Options, TokenPurpose};
use parking_lot::Mutex;
use resources::access::UserRole;
use tower::ServiceExt as _;

use super::*;

/// The Secrets of `muster-system`, as far as identities need them. It has no watches: identities then know only their own
/// writes.
#[derive(Clone, Default)]
struct Secrets(Arc<Mutex<BTreeMap<String, Value>>>);

impl Secrets {
    fn answered(&self, method: &Method, uri: &Uri, body: &[u8]) -> (StatusCode, Value) {
        let failure = |code: StatusCode, reason: &str| {
            let status = json!({
                "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                "message": reason, "reason": reason, "code": code.as_u16(),
            });
            (code, status)
        };
        let mut held = self.0.lock();
        let name = uri.path().rsplit('/').next().unwrap_or_default().to_owned();
        if uri.query().is_some_and(|query| query.contains("watch=")) {
            return failure(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable");
        }
        match *method {
            Method::GET => {
                let items: Vec<Value> = held.values().cloned().collect();
                let list = json!({
                    "kind": "SecretList", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": items,
                });
                (StatusCode::OK, list)
            }
            Method::DELETE => match held.remove(&name) {
                Some(gone) => (StatusCode::OK, gone),
                None => failure(StatusCode::NOT_FOUND, "NotFound"),
            },
            _ => {
                let mut new: Value = serde_json::from_slice(body).unwrap();
                let name = new["metadata"]["name"].as_str().unwrap().to_owned();
                new["metadata"]["uid"] = json!("u");
                held.insert(name, new.clone());
                (StatusCode::CREATED, new)
            }
        }
    }

    fn client(&self) -> kube::Client {
        let secrets = self.clone();
        let service = tower::service_fn(move |request: Request<kube::client::Body>| {
            let secrets = secrets.clone();
            async move {
                let (head, body) = request.into_parts();
                let body = axum::body::to_bytes(Body::new(body), usize::MAX).await;
                let (code, value) = secrets.answered(&head.method, &head.uri, &body.unwrap());
                let body = kube::client::Body::from(value.to_string().into_bytes());
                let response = axum::http::Response::builder().status(code).body(body);
                Ok::<_, Infallible>(response.unwrap())
            }
        });
        kube::Client::new(service, "default")
    }
}

/// The endpoints, with a user `ann`.
struct Ground {
    identity: Identity,
    routes: Router,
}

struct Answered {
    code: u16,
    body: Value,
    headers: HeaderMap,
    repeated: bool,
    notes: Option<EventNotes>,
}

impl Ground {
    async fn new() -> Ground {
        let options = Options {
            first_password: Some("four random words".to_owned()),
        };
        let opened = Identity::open(Secrets::default().client(), options).await;
        let identity = opened.unwrap().identity;
        let ann = NewUser::new("ann", UserRole::Member);
        identity.create_user(ann).await.unwrap();
        let routes = Router::new()
            .route("/oauth2/device_authorization", post(device_authorization))
            .route("/oauth2/token", post(token))
            .with_state(identity.clone());
        Ground { identity, routes }
    }

    async fn send(&self, path: &str, headers: &[(&str, &str)], body: &str) -> Answered {
        let mut request = Request::post(path)
            .header("host", "gpu1:8443")
            .header("content-type", "application/x-www-form-urlencoded");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Body::from(body.to_owned())).unwrap();
        let response = self.routes.clone().oneshot(request).await.unwrap();
        let (mut head, body) = response.into_parts();
        let body = axum::body::to_bytes(body, usize::MAX).await.unwrap();
        Answered {
            code: head.status.as_u16(),
            body: serde_json::from_slice(&body).unwrap_or_default(),
            repeated: head.extensions.get::<RepeatedQuestion>().is_some(),
            notes: head.extensions.remove(),
            headers: head.headers,
        }
    }

    async fn start(&self, more: &str) -> Answered {
        let body = format!("client_id={CLIENT}{more}");
        self.send("/oauth2/device_authorization", &[], &body).await
    }

    /// The codes of a new sign-in.
    async fn codes(&self) -> (String, String) {
        let started = self.start("&client_name=ann%40laptop").await;
        assert_eq!(started.code, 200, "{}", started.body);
        let text = |field: &str| started.body[field].as_str().unwrap().to_owned();
        (text("device_code"), text("user_code"))
    }

    async fn poll(&self, device_code: &str) -> Answered {
        let body = format!("grant_type={GRANT}&device_code={device_code}&client_id={CLIENT}");
        self.send("/oauth2/token", &[], &body).await
    }
}

#[tokio::test]
async fn a_program_gets_its_token_once_after_a_user_approved() {
    let ground = Ground::new().await;
    let started = ground.start("&requested_expires_in=7200").await;
    assert_eq!(
        started.body["verification_uri"],
        "https://gpu1:8443/ui/device"
    );
    let user_code = started.body["user_code"].as_str().unwrap();
    let complete = format!("https://gpu1:8443/ui/device?user_code={user_code}");
    assert_eq!(started.body["verification_uri_complete"], complete);
    assert_eq!(
        (&started.body["expires_in"], &started.body["interval"]),
        (&json!(600), &json!(5))
    );
    assert_eq!(started.headers["cache-control"], "no-store");
    let device_code = started.body["device_code"].as_str().unwrap();

    let pending = ground.poll(device_code).await;
    assert_eq!((pending.code, pending.repeated), (400, true));
    assert_eq!(pending.body["error"], "authorization_pending");
    let early = ground.poll(device_code).await;
    assert_eq!(
        (early.body["error"].as_str(), early.repeated),
        (Some("slow_down"), true)
    );

    ground
        .identity
        .decide_device_login(user_code, "ann", true)
        .unwrap();
    let issued = ground.poll(device_code).await;
    assert_eq!((issued.code, issued.repeated), (200, false));
    assert_eq!(issued.headers["cache-control"], "no-store");
    assert_eq!(
        (&issued.body["token_type"], &issued.body["expires_in"]),
        (&json!("Bearer"), &json!(7200))
    );
    let secret = issued.body["access_token"].as_str().unwrap();
    let (caller, info) = ground.identity.bearer(secret).unwrap();
    assert_eq!((&*caller.user, info.purpose), ("ann", TokenPurpose::Access));
    assert_eq!(info.label, format!("muster login: {UNNAMED}"));
    assert_eq!(info.expires.duration_since(info.created).as_secs(), 7200);
    let EventNotes(notes) = issued.notes.unwrap();
    assert_eq!(
        (&notes[EVENT][..], &notes[EVENT_TOKEN]),
        ("issued", &info.id)
    );

    let again = ground.poll(device_code).await;
    assert_eq!(
        (again.code, again.body["error"].as_str()),
        (400, Some("invalid_grant"))
    );
}

#[tokio::test]
async fn a_refused_program_and_one_whose_user_is_out_get_no_token() {
    let ground = Ground::new().await;
    let (device, user) = ground.codes().await;
    ground
        .identity
        .decide_device_login(&user, "ann", false)
        .unwrap();
    assert_eq!(ground.poll(&device).await.body["error"], "access_denied");
    assert_eq!(ground.poll(&device).await.body["error"], "invalid_grant");

    let (device, user) = ground.codes().await;
    ground
        .identity
        .decide_device_login(&user, "ann", true)
        .unwrap();
    let disabled = identity::UserChange {
        disabled: Some(true),
        ..identity::UserChange::default()
    };
    ground.identity.change_user("ann", disabled).await.unwrap();
    assert_eq!(ground.poll(&device).await.body["error"], "access_denied");
    assert!(ground.identity.access_tokens("ann").is_empty());
    let (_, user) = ground.codes().await;
    assert!(
        ground
            .identity
            .decide_device_login(&user, "ann", true)
            .is_err()
    );
}

#[tokio::test]
async fn invalid_requests_are_refused_by_the_grants_errors() {
    let ground = Ground::new().await;
    let long = "x".repeat(65);
    for (more, error) in [
        ("", None),
        ("&scope=", None),
        ("&login_hint=ann", None),
        ("&scope=openid", Some("invalid_scope")),
        ("&client_id=muster-cli", Some("invalid_request")),
        ("&client_name=a%0Ab", Some("invalid_request")),
        (&*format!("&client_name={long}"), Some("invalid_request")),
        ("&requested_expires_in=soon", Some("invalid_request")),
        ("&requested_expires_in=60", Some("invalid_request")),
        ("&requested_expires_in=99999999999", Some("invalid_request")),
    ] {
        let answer = ground.start(more).await;
        assert_eq!(answer.body["error"].as_str(), error, "{more}");
        assert_eq!(answer.code, if error.is_some() { 400 } else { 200 });
    }
    let grant = format!("grant_type={GRANT}");
    for (path, body, error) in [
        ("device_authorization", "", "invalid_request"),
        ("device_authorization", "client_id=other", "invalid_client"),
        ("token", "", "invalid_request"),
        ("token", "grant_type=password", "unsupported_grant_type"),
        (
            "token",
            &*format!("{grant}&device_code=x"),
            "invalid_request",
        ),
        (
            "token",
            &*format!("{grant}&client_id=muster-cli"),
            "invalid_request",
        ),
        (
            "token",
            &*format!("{grant}&client_id=muster-cli&device_code=none"),
            "invalid_grant",
        ),
    ] {
        let answer = ground.send(&format!("/oauth2/{path}"), &[], body).await;
        assert_eq!(
            (answer.code, answer.body["error"].as_str()),
            (400, Some(error)),
            "{path} {body}"
        );
        assert!(!answer.repeated);
    }
    // A page of another site.
    let origin = [("origin", "https://evil.example")];
    let foreign = ground.send(
        "/oauth2/device_authorization",
        &origin,
        "client_id=muster-cli",
    );
    assert_eq!(foreign.await.code, 403);
    let json = ground
        .send(
            "/oauth2/token",
            &[("content-type", "application/json")],
            "{}",
        )
        .await;
    assert_eq!(json.body["error"], "invalid_request");
}

#[tokio::test]
async fn programs_at_one_address_are_bounded() {
    let ground = Ground::new().await;
    // In process there is no address, which counts as one.
    for _ in 0..16 {
        assert_eq!(ground.start("").await.code, 200);
    }
    let refused = ground.start("").await;
    assert_eq!(
        (refused.code, refused.body["error"].as_str()),
        (429, Some("temporarily_unavailable"))
    );
    assert!(refused.headers.contains_key("retry-after"));
}

#[test]
fn a_description_has_only_the_characters_that_are_allowed() {
    assert_eq!(described("use \"x\\y\"\n or ä"), "use 'x/y'? or ?");
}

#[test]
fn the_servers_address_is_the_one_that_the_program_used() {
    let of = |host: Option<&str>, uri: &str| {
        let mut headers = HeaderMap::new();
        if let Some(host) = host {
            headers.insert(header::HOST, host.parse().unwrap());
        }
        origin(&headers, &uri.parse().unwrap()).ok()
    };
    let gpu = Some("https://gpu1:8443".to_owned());
    assert_eq!(of(Some("gpu1:8443"), "/oauth2/token"), gpu);
    assert_eq!(of(None, "https://gpu1:8443/oauth2/token"), gpu);
    for host in ["a b", "user@gpu1", "gpu1/x", "\"><script>"] {
        assert_eq!(of(Some(host), "/"), None, "{host}");
    }
    assert_eq!(of(None, "/"), None);
}
