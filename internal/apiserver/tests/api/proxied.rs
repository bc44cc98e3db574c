//! HTTP to ports of pods, with scripted programs in place of a node: slow, silent and broken ones, and rights that end.

use std::sync::Arc;
use std::time::Duration;

use apiserver::{
    ApiConfig, ExecAction, ExecError, ExecEvent, ExecInput, ExecRequest, ExecStreams, ProxyLimits,
    PublicOrigin, WebPort, WebRefusal,
};
use axum::body::Body;
use axum::http::Request;
use axum::response::Response;
use bytes::Bytes;
use futures::channel::mpsc;
use futures::{FutureExt, StreamExt};
use http_body_util::BodyExt;
use parking_lot::Mutex;
use resources::access::{BrowserSession, Caller, Credential};
use serde_json::json;

use crate::harness::{Api, PODS, admin, pod, request};

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

async fn api(proxy: ProxyLimits) -> Api {
    let config = ApiConfig {
        proxy,
        watch_recheck: SOON,
        ..ApiConfig::default()
    };
    let api = Api::with(store::Options::default(), config);
    api.server.set_exec_opener(Arc::new(|wanted: ExecRequest| {
        let opened = match wanted.action {
            ExecAction::Forward(99) => Err(ExecError::Refused("nothing listens there".into())),
            _ => Ok(program(&wanted)),
        };
        async move { opened }.boxed()
    }));
    api.post(PODS, &pod("a")).await.is(201);
    let binding = json!({"metadata": {"name": "a"}, "target": {"kind": "Node", "name": "n1"}});
    api.post(&format!("{PODS}/a/binding"), &binding)
        .await
        .is(201);
    api
}

fn patient() -> ProxyLimits {
    ProxyLimits {
        answer: NEVER,
        silence: NEVER,
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
    api: &Api,
    number: u16,
    caller: &Caller,
    credential: Option<Credential>,
) -> Result<Response<Body>, WebRefusal> {
    let origin = PublicOrigin {
        scheme: "https",
        authority: "a-1-x.proxy.example".into(),
    };
    let uid = api
        .server
        .find_web_port(&admin(), &port(number))
        .unwrap()
        .uid;
    let request = Request::get("/").body(Body::empty()).unwrap();
    api.server
        .forward_web(caller, credential, &port(number), &uid, &origin, request)
        .await
}

async fn asked(api: &Api, number: u16) -> Result<Response<Body>, WebRefusal> {
    asked_by(api, number, &admin(), None).await
}

async fn text(answer: Response<Body>) -> Option<String> {
    let collected = answer.into_body().collect().await.ok()?;
    String::from_utf8(collected.to_bytes().to_vec()).ok()
}

#[tokio::test]
async fn an_answer_passes_and_broken_ones_are_refusals() {
    let api = api(patient()).await;
    assert_eq!(
        text(asked(&api, 2).await.unwrap()).await.as_deref(),
        Some("hello")
    );
    for (number, code) in [(5, 502), (6, 502), (7, 502), (99, 502)] {
        let refused = asked(&api, number).await.unwrap_err();
        assert_eq!(refused.status.as_u16(), code, "{number}: {refused}");
    }
    // Two lengths: the chunks count, and the other one is not passed on.
    if let Ok(answer) = asked(&api, 8).await {
        assert!(!answer.headers().contains_key("content-length"));
        assert_eq!(text(answer).await.as_deref(), Some("abc"));
    }
}

#[tokio::test]
async fn an_answer_that_the_pod_does_not_end_is_cut_off() {
    let api = api(patient()).await;
    assert_eq!(text(asked(&api, 4).await.unwrap()).await, None);
    let short = ProxyLimits {
        silence: SOON,
        ..patient()
    };
    let api = self::api(short).await;
    assert_eq!(text(asked(&api, 3).await.unwrap()).await, None);
}

#[tokio::test]
async fn a_pod_that_never_answers_is_given_up() {
    let api = api(ProxyLimits {
        answer: SOON,
        silence: NEVER,
    })
    .await;
    let refused = asked(&api, 1).await.unwrap_err();
    assert_eq!(refused.status.as_u16(), 504, "{refused}");
    assert!(refused.message.contains("on port 1"), "{refused}");
}

#[tokio::test]
async fn a_stream_ends_with_the_sign_in_behind_it() {
    let api = api(patient()).await;
    let valid = Arc::new(Mutex::new(true));
    let still = valid.clone();
    let credential = Credential::new(move || still.lock().then(admin));
    let answer = asked_by(&api, 3, &admin(), Some(credential)).await.unwrap();
    let mut body = answer.into_body();
    let first = body.frame().await.unwrap().unwrap();
    assert_eq!(first.into_data().unwrap(), "hello");
    *valid.lock() = false;
    assert!(body.frame().await.unwrap().is_err());
}

#[tokio::test]
async fn a_caller_without_the_right_and_a_browsers_session_are_refused() {
    let api = api(patient()).await;
    let eve = Caller::user("eve", []);
    let refused = api.server.find_web_port(&eve, &port(2)).unwrap_err();
    assert_eq!(refused.status.as_u16(), 403, "{refused}");
    let refused = asked_by(&api, 2, &eve, None).await.unwrap_err();
    assert_eq!(refused.status.as_u16(), 403, "{refused}");

    let path = format!("{PODS}/a:2/proxy/");
    let answer = api.get(&path).await;
    assert_eq!(
        (answer.status.as_u16(), answer.text.as_str()),
        (200, "hello")
    );
    let policy = answer.headers["content-security-policy"].to_str().unwrap();
    assert!(policy.starts_with("sandbox;"), "{policy}");
    let mut by_cookie = request("GET", &path, "", Body::empty());
    by_cookie.extensions_mut().insert(BrowserSession);
    let message = api.send(by_cookie).await.refused(403, "Forbidden");
    assert!(
        message.contains("/proxy/NAMESPACE/pods/NAME/PORT/"),
        "{message}"
    );
    // Relative links need the slash.
    let answer = api.get(&format!("{PODS}/a:2/proxy?x=1")).await;
    assert_eq!(answer.status.as_u16(), 301);
    assert_eq!(
        answer.headers["location"],
        format!("{PODS}/a:2/proxy/?x=1").as_str()
    );
}
