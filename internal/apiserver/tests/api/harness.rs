//! A server over a temporary store, and helpers for requests to it.

use apiserver::{ApiConfig, ApiServer};
use axum::body::Body;
use axum::http::{HeaderMap, Request, StatusCode, header};
use axum::middleware::from_fn_with_state;
use axum::{Extension, Router};
use futures::StreamExt;
use http_body_util::BodyExt;
use resources::access::{Caller, Credential, MASTERS_GROUP, UserRole};
use serde_json::{Value, json};
use store::{Options, Store};
use tempfile::TempDir;
use tower::ServiceExt;

pub struct Api {
    pub server: ApiServer,
    router: Router,
    _dir: TempDir,
}

pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub text: String,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {}", self.text))
    }

    #[track_caller]
    pub fn is(self, status: u16) -> Value {
        assert_eq!(self.status.as_u16(), status, "{}", self.text);
        self.json()
    }

    /// A refusal's reason and message.
    #[track_caller]
    pub fn refused(self, status: u16, reason: &str) -> String {
        let value = self.is(status);
        assert_eq!(value["kind"], "Status", "{value}");
        assert_eq!(value["reason"], reason, "{value}");
        assert_eq!(value["code"], status, "{value}");
        value["message"].as_str().unwrap_or_default().to_string()
    }

    pub fn warnings(&self) -> Vec<String> {
        self.headers
            .get_all("warning")
            .iter()
            .map(|value| value.to_str().unwrap().to_string())
            .collect()
    }
}

pub fn admin() -> Caller {
    Caller::user("root", [MASTERS_GROUP.to_owned()])
}

/// A user with a role, everywhere or in the namespaces listed.
pub fn user(name: &str, role: UserRole, namespaces: Option<&[&str]>) -> Caller {
    let listed: Option<Vec<String>> =
        namespaces.map(|all| all.iter().map(|one| (*one).to_owned()).collect());
    Caller::user(name, role.groups(listed.as_deref()))
}

impl Api {
    pub fn new() -> Self {
        Self::with(Options::default(), ApiConfig::default())
    }

    pub fn with(options: Options, config: ApiConfig) -> Self {
        Self::over(tempfile::tempdir().unwrap(), options, config)
    }

    /// Over an existing store, or a new one.
    pub fn over(dir: tempfile::TempDir, options: Options, config: ApiConfig) -> Self {
        let store = Store::open(dir.path(), options).unwrap();
        let server = ApiServer::open(store, config).unwrap();
        let router = server.router().layer(Extension(admin()));
        Api {
            server,
            router,
            _dir: dir,
        }
    }

    pub async fn send(&self, request: Request<Body>) -> Answer {
        answer(self.router.clone(), request).await
    }

    pub async fn send_as(&self, caller: Caller, request: Request<Body>) -> Answer {
        let impersonate = from_fn_with_state(self.server.clone(), apiserver::impersonate);
        let router = self.server.router().layer(impersonate);
        answer(router.layer(Extension(caller)), request).await
    }

    /// With a service account's token, or another one, as the only credential.
    pub async fn send_with_token(&self, token: &str, mut request: Request<Body>) -> Answer {
        let value = format!("Bearer {token}").parse().unwrap();
        request.headers_mut().insert(header::AUTHORIZATION, value);
        let authenticate = from_fn_with_state(self.server.clone(), apiserver::authenticate);
        answer(self.server.router().layer(authenticate), request).await
    }

    /// Without a caller.
    pub async fn send_unknown(&self, request: Request<Body>) -> Answer {
        answer(self.server.router(), request).await
    }

    pub async fn call(
        &self,
        method: &str,
        path: &str,
        media: &str,
        body: impl Into<Body>,
    ) -> Answer {
        self.send(request(method, path, media, body)).await
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.call("GET", path, "", Body::empty()).await
    }

    pub async fn get_as(&self, path: &str, accept: &str) -> Answer {
        let mut request = request("GET", path, "", Body::empty());
        request
            .headers_mut()
            .insert(header::ACCEPT, accept.parse().unwrap());
        self.send(request).await
    }

    pub async fn post(&self, path: &str, body: &Value) -> Answer {
        self.call("POST", path, "application/json", body.to_string())
            .await
    }

    pub async fn put(&self, path: &str, body: &Value) -> Answer {
        self.call("PUT", path, "application/json", body.to_string())
            .await
    }

    pub async fn delete(&self, path: &str, body: Option<&Value>) -> Answer {
        self.call(
            "DELETE",
            path,
            "application/json",
            body.map(Value::to_string).unwrap_or_default(),
        )
        .await
    }

    pub async fn merge(&self, path: &str, body: &Value) -> Answer {
        self.call(
            "PATCH",
            path,
            "application/merge-patch+json",
            body.to_string(),
        )
        .await
    }

    pub async fn apply(&self, path: &str, body: &Value) -> Answer {
        self.call(
            "PATCH",
            path,
            "application/apply-patch+yaml",
            body.to_string(),
        )
        .await
    }

    /// Starts a watch.
    pub async fn watch(&self, path: &str) -> Frames {
        self.watch_as(path, "application/json").await
    }

    pub async fn watch_as(&self, path: &str, accept: &str) -> Frames {
        let mut request = request("GET", path, "", Body::empty());
        request
            .headers_mut()
            .insert(header::ACCEPT, accept.parse().unwrap());
        frames(self.router.clone(), request).await
    }

    /// Starts a watch as this caller, by a credential that may end before the watch does.
    pub async fn watch_by(&self, caller: Caller, credential: Credential, path: &str) -> Frames {
        let router = self.server.router().layer(Extension(caller));
        let request = request("GET", path, "", Body::empty());
        frames(router.layer(Extension(credential)), request).await
    }

    /// Starts a watch with a service account's token.
    pub async fn watch_with_token(&self, token: &str, path: &str) -> Frames {
        let mut request = request("GET", path, "", Body::empty());
        let value = format!("Bearer {token}").parse().unwrap();
        request.headers_mut().insert(header::AUTHORIZATION, value);
        let authenticate = from_fn_with_state(self.server.clone(), apiserver::authenticate);
        frames(self.server.router().layer(authenticate), request).await
    }
}

async fn frames(router: Router, request: Request<Body>) -> Frames {
    let response = router.oneshot(request).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    Frames {
        stream: response.into_body().into_data_stream(),
        buffer: Vec::new(),
    }
}

async fn answer(router: Router, request: Request<Body>) -> Answer {
    let response = router.oneshot(request).await.unwrap();
    let (parts, body) = response.into_parts();
    let bytes = body.collect().await.unwrap().to_bytes();
    Answer {
        status: parts.status,
        headers: parts.headers,
        text: String::from_utf8(bytes.to_vec()).unwrap(),
    }
}

pub fn request(method: &str, path: &str, media: &str, body: impl Into<Body>) -> Request<Body> {
    let mut builder = Request::builder().method(method).uri(path);
    if !media.is_empty() {
        builder = builder.header(header::CONTENT_TYPE, media);
    }
    builder.body(body.into()).unwrap()
}

/// A watch's frames, one JSON document a line.
pub struct Frames {
    stream: axum::body::BodyDataStream,
    buffer: Vec<u8>,
}

impl Frames {
    pub async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                return Some(serde_json::from_slice(&line).unwrap());
            }
            self.buffer
                .extend_from_slice(&self.stream.next().await?.unwrap());
        }
    }

    /// The next frame's type and object's name.
    pub async fn pair(&mut self) -> (String, String) {
        let frame = self.next().await.expect("the watch goes on");
        let name = &frame["object"]["metadata"]["name"];
        (
            frame["type"].as_str().unwrap().into(),
            name.as_str().unwrap_or_default().into(),
        )
    }
}

pub const PODS: &str = "/api/v1/namespaces/default/pods";
pub const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";
pub const JOBS: &str = "/apis/kubeflow.org/v1/namespaces/default/pytorchjobs";

pub fn pod(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"containers": [{"name": "main", "command": ["true"]}]},
    })
}

pub fn config_map(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"a": "1"}})
}

pub fn pytorch_job(name: &str, workers: u64) -> Value {
    let replicas = |count: u64| {
        json!({
            "replicas": count, "restartPolicy": "OnFailure",
            "template": {"spec": {"containers": [{"name": "pytorch", "image": "x", "command": ["true"]}]}},
        })
    };
    json!({
        "apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": name},
        "spec": {"pytorchReplicaSpecs": {"Master": replicas(1), "Worker": replicas(workers)}},
    })
}

/// A ConfigMap's name in a list's or collection's items.
pub fn names(list: &Value) -> Vec<String> {
    let items = list["items"].as_array().unwrap();
    items
        .iter()
        .map(|item| item["metadata"]["name"].as_str().unwrap().to_string())
        .collect()
}
