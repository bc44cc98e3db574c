//! Owns the tested server, its initial objects, and the invariants of every response.

use std::fmt;
use std::fmt::Write as _;

use apiserver::ApiServer;
use apiserver::limits::{MOST_DEPTH, MOST_STORED_BYTES};
use axum::body::Body;
use axum::{Extension, Router};
use http::Request;
use http_body_util::BodyExt;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use proptest::prelude::{ProptestConfig, Strategy, TestCaseError};
use proptest::test_runner::{FileFailurePersistence, TestCaseResult, TestRunner};
use resources::access::{Caller, MASTERS_GROUP, UserRole};
use resources::registry::{self, Kind};
use schema::size::measure;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tower::ServiceExt;

use crate::fields;
use crate::start::start;

/// The namespace of all requests, as in [`fields::plain`].
pub const NAMESPACE: &str = "ns";
/// The name of the initial objects.
pub const BASE: &str = "base";
/// The bytes that an object's revision may take beyond the bound of stored objects.
const REVISION_BYTES: usize = 64;
/// How much of a body a failure shows.
const SHOWN_BYTES: usize = 4096;
/// How often a failing case is reduced.
const SHRINKS: u32 = 1024;

/// A request.
#[derive(Clone)]
pub struct Asked {
    pub method: String,
    /// With its query.
    pub path: String,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Asked {
    pub fn new(method: &str, path: &str, media: &str, body: impl Into<Vec<u8>>) -> Self {
        Asked {
            method: method.to_owned(),
            path: path.to_owned(),
            headers: vec![("content-type".to_owned(), media.to_owned())],
            body: body.into(),
        }
    }

    pub fn json(method: &str, path: &str, body: &Value) -> Self {
        let media = match method {
            "PATCH" => "application/merge-patch+json",
            _ => "application/json",
        };
        Asked::new(method, path, media, body.to_string())
    }
}

impl fmt::Debug for Asked {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = &self.body[..self.body.len().min(SHOWN_BYTES)];
        write!(
            out,
            "{} {} {:?} with {} bytes: {}",
            self.method,
            self.path,
            self.headers,
            self.body.len(),
            shown.escape_ascii()
        )
    }
}

/// A response.
pub struct Answer {
    pub code: u16,
    pub media: String,
    pub bytes: Vec<u8>,
}

impl Answer {
    /// The response's JSON, or null.
    pub fn value(&self) -> Value {
        serde_json::from_slice(&self.bytes).unwrap_or_default()
    }

    pub fn taken(&self) -> bool {
        (200..300).contains(&self.code)
    }
}

/// The role of a request's caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The group `system:masters`.
    Masters,
    /// A member of the namespace [`NAMESPACE`].
    Member,
    /// The node [`BASE`].
    Node,
}

impl Role {
    fn caller(self) -> Caller {
        match self {
            Role::Masters => Caller::user("root", [MASTERS_GROUP.to_owned()]),
            Role::Member => {
                let of = [NAMESPACE.to_owned()];
                Caller::user("ann", UserRole::Member.groups(Some(&of)))
            }
            Role::Node => Caller::node(BASE),
        }
    }
}

/// A server over its own store.
pub struct Ground {
    runtime: Runtime,
    router: Router,
    _server: ApiServer,
    _directory: TempDir,
}

impl Ground {
    /// A server with a [`BASE`] object of every kind.
    pub fn new() -> Self {
        let (server, runtime, directory) = start(2);
        let ground = Ground {
            router: server.router(),
            runtime,
            _server: server,
            _directory: directory,
        };
        let namespace = json!({"metadata": {"name": NAMESPACE}});
        ground.must("POST", "/api/v1/namespaces", &namespace);
        for kind in registry::all() {
            ground.must("POST", &collection(kind), &base(kind));
        }
        ground
    }

    /// Sends an administrator's request; none if HTTP cannot carry it.
    pub fn send(&self, asked: &Asked) -> Option<Answer> {
        self.send_as(Role::Masters, asked)
    }

    /// Sends a request of this role; none if HTTP cannot carry it.
    pub fn send_as(&self, role: Role, asked: &Asked) -> Option<Answer> {
        let mut request = Request::builder()
            .method(asked.method.as_str())
            .uri(asked.path.as_str());
        for (name, value) in &asked.headers {
            request = request.header(name.as_str(), value.as_bytes());
        }
        let request = request.body(Body::from(asked.body.clone())).ok()?;
        let watching = asked.path.contains("watch");
        Some(self.runtime.block_on(async {
            let router = self.router.clone().layer(Extension(role.caller()));
            let response = router.oneshot(request).await.unwrap();
            let (parts, body) = response.into_parts();
            let code = parts.status.as_u16();
            let media = parts.headers.get("content-type");
            let media = media.and_then(|media| media.to_str().ok());
            let media = media.unwrap_or_default().to_owned();
            // A watch lasts longer than a test.
            if watching && code == 200 {
                return Answer {
                    code,
                    media: String::new(),
                    bytes: Vec::new(),
                };
            }
            let bytes = body.collect().await.unwrap().to_bytes().to_vec();
            Answer { code, media, bytes }
        }))
    }

    pub fn get(&self, path: &str) -> Answer {
        let asked = Asked::new("GET", path, "", Vec::new());
        self.send(&asked).unwrap()
    }

    /// Sends a request that the server must accept.
    #[track_caller]
    pub fn must(&self, method: &str, path: &str, body: &Value) -> Value {
        let answer = self.send(&Asked::json(method, path, body)).unwrap();
        let value = answer.value();
        assert!(answer.taken(), "{method} {path} {body}: {value}");
        value
    }

    /// Sends a request that may be refused, and checks the invariants of every response.
    pub fn try_out(&self, asked: &Asked) -> Result<Option<Answer>, TestCaseError> {
        self.try_out_as(Role::Masters, asked)
    }

    /// The same for a request of this role.
    pub fn try_out_as(&self, role: Role, asked: &Asked) -> Result<Option<Answer>, TestCaseError> {
        let Some(answer) = self.send_as(role, asked) else {
            return Ok(None);
        };
        judge(asked, &answer)?;
        Ok(Some(answer))
    }

    /// Creates the kind's base object again after an earlier request deleted it.
    pub fn restore(&self, kind: &Kind) {
        if self.get(&object(kind, BASE)).code == 404 {
            self.send(&Asked::json("POST", &collection(kind), &base(kind)));
        }
    }

    /// A stored object is within the bounds and can be read and written back, and the server still
    /// answers other requests.
    pub fn stands(&self, path: &str) -> Result<(), TestCaseError> {
        let plain = self.get("/api/v1/namespaces/default");
        check(plain.code == 200, || "a plain request fails".to_owned())?;
        let stored = self.get(path);
        if stored.code == 404 {
            return Ok(());
        }
        let text = String::from_utf8_lossy(&stored.bytes);
        check(stored.code == 200, || format!("{path} reads {text}"))?;
        let bytes = stored.bytes.len();
        check(bytes <= MOST_STORED_BYTES + REVISION_BYTES, || {
            format!("{path} has {bytes} bytes")
        })?;
        let depth = measure(&stored.value()).depth;
        check(depth <= MOST_DEPTH, || format!("{path} has {depth} levels"))?;
        let back = Asked::new(
            "PUT",
            &format!("{path}?dryRun=All"),
            "application/json",
            stored.bytes.clone(),
        );
        let answer = self.send(&back).unwrap();
        check(answer.code == 200, || {
            let why = String::from_utf8_lossy(&answer.bytes);
            format!("what {path} holds is not taken back: {why}; it holds {text}")
        })
    }

    /// Deletes an object completely, and fails if it remains.
    pub fn remove(&self, kind: &Kind, name: &str) -> Result<(), TestCaseError> {
        let path = object(kind, name);
        let now = json!({"gracePeriodSeconds": 0, "propagationPolicy": "Background"});
        self.try_out(&Asked::json("DELETE", &path, &now))?;
        let held = self.get(&path);
        if held.code == 200 {
            let none = json!({"metadata": {"finalizers": null}});
            self.try_out(&Asked::json("PATCH", &path, &none))?;
            if kind.group.is_empty() && kind.kind == "Namespace" {
                let none = json!({"spec": {"finalizers": []}});
                self.try_out(&Asked::json("PUT", &format!("{path}/finalize"), &none))?;
            }
        }
        let left = self.get(&path);
        check(left.code == 404, || {
            let text = String::from_utf8_lossy(&left.bytes);
            format!("{path} cannot be deleted: {text}")
        })
    }
}

/// The initial object of a kind.
pub fn base(kind: &Kind) -> Value {
    let mut object = fields::plain(kind);
    object["metadata"]["name"] = BASE.into();
    unowned(&mut object);
    object
}

/// Removes the fields that the server sets on an object.
pub fn unowned(object: &mut Value) {
    if let Some(metadata) = object["metadata"].as_object_mut() {
        metadata.remove("uid");
        metadata.remove("resourceVersion");
    }
}

fn root(kind: &Kind) -> String {
    if kind.group.is_empty() {
        format!("/api/{}", kind.version)
    } else {
        format!("/apis/{}/{}", kind.group, kind.version)
    }
}

/// The path of a kind's objects.
pub fn collection(kind: &Kind) -> String {
    let mut path = root(kind);
    if kind.namespaced {
        let _ = write!(path, "/namespaces/{NAMESPACE}");
    }
    format!("{path}/{}", kind.plural)
}

/// The path of an object.
pub fn object(kind: &Kind, name: &str) -> String {
    let name = utf8_percent_encode(name, NON_ALPHANUMERIC);
    format!("{}/{name}", collection(kind))
}

/// Fails with this message unless the condition holds.
pub fn check(holds: bool, why: impl FnOnce() -> String) -> Result<(), TestCaseError> {
    if holds {
        return Ok(());
    }
    Err(TestCaseError::fail(why()))
}

/// The invariants of every response: it is not an internal error; an error is a complete Status;
/// every other response has a kind.
pub fn judge(asked: &Asked, answer: &Answer) -> Result<(), TestCaseError> {
    let text = String::from_utf8_lossy(&answer.bytes);
    let said = || format!("{asked:?} is answered {}: {text}", answer.code);
    let value = answer.value();
    let expected = match answer.code {
        // A revision in the future; a log or a command without an agent that could read or run it.
        504 => value["reason"] == "Timeout",
        503 => asked.path.contains("/log") || asked.path.contains("/exec"),
        code => code < 500,
    };
    check(expected, said)?;
    if answer.code >= 400 {
        let whole = value["kind"] == "Status"
            && value["apiVersion"] == "v1"
            && value["status"] == "Failure"
            && value["code"] == answer.code
            && value["message"].is_string()
            && value["reason"].is_string();
        return check(whole, said);
    }
    if answer.media == "application/json" {
        return check(value["kind"].is_string(), said);
    }
    Ok(())
}

/// Runs this many cases, or PROPTEST_CASES; a failed seed is stored next to the tests and tried
/// first from then on.
#[track_caller]
pub fn try_all<S: Strategy>(
    name: &'static str,
    enough: u32,
    strategy: &S,
    test: impl Fn(S::Value) -> TestCaseResult,
) {
    let kept = match name {
        "bodies" => concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/tests/fuzz/proptest-regressions/bodies.txt"
        ),
        "patches" => concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/tests/fuzz/proptest-regressions/patches.txt"
        ),
        "roles" => concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/tests/fuzz/proptest-regressions/roles.txt"
        ),
        _ => concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/tests/fuzz/proptest-regressions/requests.txt"
        ),
    };
    let mut config = ProptestConfig {
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct(kept))),
        test_name: Some(name),
        source_file: Some(file!()),
        max_shrink_iters: SHRINKS,
        ..ProptestConfig::default()
    };
    if std::env::var_os("PROPTEST_CASES").is_none() {
        config.cases = enough;
    }
    let cases = config.cases;
    let mut runner = TestRunner::new(config);
    if let Err(error) = runner.run(strategy, test) {
        panic!("{name}: {error}");
    }
    println!("{name}: {cases} cases");
}
