//! HTTP to ports of pods, with scripted programs in place of a node: slow, silent and broken ones, and rights that end.
#![allow(clippy::unwrap_used, reason = "what a test cannot unwrap fails it")]

use std::sync::Arc;
use std::time::Duration;

use apiserver::{
    ApiConfig, ApiServer, ExecAction, ExecError, ExecEvent, ExecInput, ExecRequest, ExecStreams,
};
use axum::body::Body;
use axum::http::Request;
use axum::response::Response;
use axum::{Extension, Router};
use bytes::Bytes;
use futures::channel::mpsc;
use futures::{FutureExt, StreamExt};
use http_body_util::BodyExt;
use parking_lot::Mutex;
use proxy::{PodHttp, ProxyTimes, PublicOrigin, WebPort, WebRefusal};
use resources::access::{BrowserSession, Caller, Credential, MASTERS_GROUP};
use serde_json::{Value, json};
use tower::ServiceExt;

const PODS: &str = "/api/v1/namespaces/default/pods";

/// Too short to slow a test down.
const SOON: Duration = Duration::from_millis(20);
/// Longer than any test runs.
const NEVER: Duration = Duration::from_secs(3600);

/// What the program at a port answers to the first request, and whether it then ends the connection.
fn script(port: u16) -> (&'static str, bool) {
    match port {
        1 => ("", false),
        2 => ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", false),
        3 => ("HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nhello", false),
        4 => ("HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nhello", true),
        5 => ("nonsense\r\n\r\n", false),
        6 => ("", true),
        7 => (
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
            false,
        ),
        8 => (
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
            true,
        ),
        other => panic!("no program listens on port {other}"),
    }
}

fn program(wanted: &ExecRequest) -> ExecStreams {
    let ExecAction::Forward(port) = wanted.action else {
        panic!("{wanted:?}");
    };
    let (text, ends) = script(port);
    let (sender, events) = mpsc::unbounded();
    let state = Arc::new(Mutex::new((Vec::new(), Some(sender))));
    let send = move |input: ExecInput| {
        let state = state.clone();
        async move {
            let (read, sender) = &mut *state.lock();
            if let ExecInput::Data(data) = input {
                read.extend_from_slice(&data);
            }
            if read.windows(4).any(|end| end == b"\r\n\r\n") {
                if let Some(sender) = sender.as_ref().filter(|_| !text.is_empty()) {
                    let _ = sender
                        .unbounded_send(ExecEvent::Output(Bytes::from_static(text.as_bytes())));
                }
                read.clear();
                if ends {
                    *sender = None;
                }
            }
            true
        }
        .boxed()
    };
    ExecStreams {
        send: Box::new(send),
        events: events.boxed(),
    }
}

fn admin() -> Caller {
    Caller::user("root", [MASTERS_GROUP.to_owned()])
}

/// A server with a pod that runs.
struct Ground {
    pods: PodHttp,
    router: Router,
    _dir: tempfile::TempDir,
}

impl Ground {
    async fn send(&self, request: Request<Body>) -> Response {
        self.router.clone().oneshot(request).await.unwrap()
    }
}

fn request(method: &str, path: &str, body: &Value) -> Request<Body> {
    let request = Request::builder().method(method).uri(path);
    let request = request.header("content-type", "application/json");
    let body = match body.is_null() {
        true => Body::empty(),
        false => Body::from(body.to_string()),
    };
    request.body(body).unwrap()
}

async fn ground(times: ProxyTimes) -> Ground {
    let dir = tempfile::tempdir().unwrap();
    let store = store::Store::open(dir.path(), store::Options::default()).unwrap();
    let api = ApiServer::open(store, ApiConfig::default()).unwrap();
    let opener = Arc::new(|wanted: ExecRequest| {
        let opened = match wanted.action {
            ExecAction::Forward(99) => Err(ExecError::Refused("nothing listens there".into())),
            _ => Ok(program(&wanted)),
        };
        async move { opened }.boxed()
    });
    let pods = PodHttp::new(api.clone(), opener, times);
    api.set_pod_proxy(pods.handler());
    let ground = Ground {
        pods,
        router: api.router().layer(Extension(admin())),
        _dir: dir,
    };
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"},
        "spec": {"containers": [{"name": "main", "command": ["true"]}]},
    });
    let binding = json!({"metadata": {"name": "a"}, "target": {"kind": "Node", "name": "n1"}});
    for (path, body) in [
        (PODS.to_owned(), pod),
        (format!("{PODS}/a/binding"), binding),
    ] {
        let answer = ground.send(request("POST", &path, &body)).await;
        assert_eq!(answer.status().as_u16(), 201, "{path}");
    }
    ground
}

fn patient() -> ProxyTimes {
    ProxyTimes {
        answer: NEVER,
        silence: NEVER,
        recheck: SOON,
    }
}

fn port(number: u16) -> WebPort {
    WebPort {
        kind: "pods".into(),
        namespace: "default".into(),
        name: "a".into(),
        port: number.to_string(),
    }
}

async fn asked_by(
    ground: &Ground,
    number: u16,
    caller: &Caller,
    credential: Option<Credential>,
) -> Result<Response<Body>, WebRefusal> {
    let origin = PublicOrigin {
        scheme: "https",
        authority: "a-1-x.proxy.example".into(),
    };
    let uid = ground.pods.find(&admin(), &port(number)).unwrap().uid;
    let request = Request::get("/").body(Body::empty()).unwrap();
    let opened = (&port(number), uid.as_str());
    ground
        .pods
        .forward(caller, credential, opened, &origin, request)
        .await
}

async fn asked(ground: &Ground, number: u16) -> Result<Response<Body>, WebRefusal> {
    asked_by(ground, number, &admin(), None).await
}

async fn text(answer: Response<Body>) -> Option<String> {
    let collected = answer.into_body().collect().await.ok()?;
    String::from_utf8(collected.to_bytes().to_vec()).ok()
}

#[tokio::test]
async fn an_answer_passes_and_broken_ones_are_refusals() {
    let ground = ground(patient()).await;
    assert_eq!(
        text(asked(&ground, 2).await.unwrap()).await.as_deref(),
        Some("hello")
    );
    for (number, code) in [(5, 502), (6, 502), (7, 502), (99, 502)] {
        let refused = asked(&ground, number).await.unwrap_err();
        assert_eq!(refused.status.as_u16(), code, "{number}: {refused}");
    }
    // Two lengths: the chunks count, and the other one is not passed on.
    if let Ok(answer) = asked(&ground, 8).await {
        assert!(!answer.headers().contains_key("content-length"));
        assert_eq!(text(answer).await.as_deref(), Some("abc"));
    }
}

#[tokio::test]
async fn an_answer_that_the_pod_does_not_end_is_cut_off() {
    let ground = ground(patient()).await;
    assert_eq!(text(asked(&ground, 4).await.unwrap()).await, None);
    let short = ProxyTimes {
        silence: SOON,
        ..patient()
    };
    let ground = self::ground(short).await;
    assert_eq!(text(asked(&ground, 3).await.unwrap()).await, None);
}

#[tokio::test]
async fn a_pod_that_never_answers_is_given_up() {
    let ground = ground(ProxyTimes {
        answer: SOON,
        ..patient()
    })
    .await;
    let refused = asked(&ground, 1).await.unwrap_err();
    assert_eq!(refused.status.as_u16(), 504, "{refused}");
    assert!(refused.message.contains("on port 1"), "{refused}");
}

#[tokio::test]
async fn a_stream_ends_with_the_sign_in_behind_it() {
    let ground = ground(patient()).await;
    let valid = Arc::new(Mutex::new(true));
    let still = valid.clone();
    let credential = Credential::new(move || still.lock().then(admin));
    let answer = asked_by(&ground, 3, &admin(), Some(credential))
        .await
        .unwrap();
    let mut body = answer.into_body();
    let first = body.frame().await.unwrap().unwrap();
    assert_eq!(first.into_data().unwrap(), "hello");
    *valid.lock() = false;
    assert!(body.frame().await.unwrap().is_err());
}

#[tokio::test]
async fn a_caller_without_the_right_and_a_browsers_session_are_refused() {
    let ground = ground(patient()).await;
    let eve = Caller::user("eve", []);
    let refused = ground.pods.find(&eve, &port(2)).unwrap_err();
    assert_eq!(refused.status.as_u16(), 403, "{refused}");
    let refused = asked_by(&ground, 2, &eve, None).await.unwrap_err();
    assert_eq!(refused.status.as_u16(), 403, "{refused}");

    let path = format!("{PODS}/a:2/proxy/");
    let answer = ground.send(request("GET", &path, &Value::Null)).await;
    assert_eq!(answer.status().as_u16(), 200);
    let policy = &answer.headers()["content-security-policy"];
    assert!(policy.to_str().unwrap().starts_with("sandbox;"));
    assert_eq!(text(answer).await.as_deref(), Some("hello"));
    let mut by_cookie = request("GET", &path, &Value::Null);
    by_cookie.extensions_mut().insert(BrowserSession);
    let refused = ground.send(by_cookie).await;
    assert_eq!(refused.status().as_u16(), 403);
    let words = text(refused).await.unwrap();
    assert!(
        words.contains("/proxy/NAMESPACE/pods/NAME/PORT/"),
        "{words}"
    );
    // Relative links need the slash.
    let without = format!("{PODS}/a:2/proxy?x=1");
    let answer = ground.send(request("GET", &without, &Value::Null)).await;
    assert_eq!(answer.status().as_u16(), 301);
    let with = format!("{PODS}/a:2/proxy/?x=1");
    assert_eq!(answer.headers()["location"], with.as_str());
}
