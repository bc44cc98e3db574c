//! Owns `pods/NAME/exec` over WebSocket, as kubectl from 1.31 and the Python client use it: the
//! subprotocols v4 and v5 of Kubernetes' remote commands. The nodes' agents run the commands; an
//! [`ExecOpener`] reaches them.

mod carry;
mod frames;

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::FromRequestParts;
use axum::extract::ws::WebSocketUpgrade;
use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use http::{Method, Request, Response, header};
use hyper::upgrade::OnUpgrade;
use parking_lot::Mutex;
use resources::access::RequestAttributes;
use resources::admission::enter_work;
use serde_json::Value;

use crate::call::Call;
use crate::object;
use crate::rewrite::absent;
use crate::status::Failure;
use crate::watch_rights::Rights;

/// The maximum number of commands of one user at the same time.
const PER_USER_MAX: usize = 128;
/// The maximum size of one message from a client, in bytes; kubectl sends 32 KiB.
const MESSAGE_BYTES_MAX: usize = 1 << 20;
/// The subprotocols, the best first. In v5 a client can end the input alone.
const PROTOCOLS: [&str; 2] = ["v5.channel.k8s.io", "v4.channel.k8s.io"];

/// A command to run in a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecRequest {
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub pod: String,
    /// The pod's uid: excludes a later pod of the same name.
    pub uid: String,
    /// The node that runs the pod.
    pub node: String,
    /// The container.
    pub container: String,
    /// The program and its arguments.
    pub command: Vec<String>,
    /// Whether the client sends an input.
    pub stdin: bool,
    /// Whether the client wants the standard output.
    pub stdout: bool,
    /// Whether the client wants the standard error.
    pub stderr: bool,
    /// Whether the command runs at a terminal.
    pub tty: bool,
}

/// What a client sends to a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExecInput {
    /// A piece of its input.
    Data(Bytes),
    /// The size of its terminal, in characters.
    Resize {
        /// Columns.
        width: u16,
        /// Rows.
        height: u16,
    },
    /// No more input follows.
    End,
}

/// What a command sends to its client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExecEvent {
    /// A piece of its standard output, or of its terminal.
    Output(Bytes),
    /// A piece of its standard error.
    Errors(Bytes),
    /// It has ended with this exit code.
    Exit(i32),
    /// Its end is not known; the text says why.
    Failed(String),
}

/// A running command; dropping it ends the command.
pub struct ExecStreams {
    /// Sends to the command; false if it is gone.
    pub send: Box<dyn FnMut(ExecInput) -> BoxFuture<'static, bool> + Send>,
    /// What the command sends; ends with it.
    pub events: BoxStream<'static, ExecEvent>,
}

/// Why a command was not started.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ExecError {
    /// The node cannot be reached, or takes no more commands; the text names it.
    #[error("{0}")]
    Unavailable(String),
    /// The container cannot run it now; the text says why.
    #[error("{0}")]
    Refused(String),
}

/// Starts a command in a container.
pub type ExecOpener =
    Arc<dyn Fn(ExecRequest) -> BoxFuture<'static, Result<ExecStreams, ExecError>> + Send + Sync>;

/// How many commands each user runs.
#[derive(Default)]
pub(crate) struct ExecCounts(Arc<Mutex<BTreeMap<String, usize>>>);

/// One command's place among those of its user.
pub(crate) struct ExecPlace {
    counts: Arc<Mutex<BTreeMap<String, usize>>>,
    user: String,
}

impl ExecCounts {
    fn place(&self, user: &str) -> Result<ExecPlace, Failure> {
        let mut counts = self.0.lock();
        let count = counts.entry(user.to_owned()).or_default();
        if *count >= PER_USER_MAX {
            return Err(Failure::too_many(&format!(
                "user {user:?} runs {PER_USER_MAX} commands in containers already; end one and try again"
            )));
        }
        *count += 1;
        Ok(ExecPlace {
            counts: self.0.clone(),
            user: user.to_owned(),
        })
    }
}

impl Drop for ExecPlace {
    fn drop(&mut self) {
        let mut counts = self.counts.lock();
        let count = counts.remove(&self.user).unwrap_or_default();
        if count > 1 {
            counts.insert(self.user.clone(), count - 1);
        }
    }
}

/// Answers GET and POST of `pods/NAME/exec`.
pub(crate) async fn exec(call: &Call, method: &Method) -> Result<Response<Body>, Failure> {
    // A client that may only read must not run commands, though a WebSocket begins with GET.
    may_create(call)?;
    let key = call.key();
    let entry = call.server.0.store.get(&key);
    let entry = entry.ok_or_else(|| absent(call, &key, call.object_name()))?;
    let pod = object::parse(&entry)?;
    if !call.headers.contains_key(header::UPGRADE) {
        return Err(not_a_websocket("the request asks for no upgrade"));
    }
    // Before the protocol: kubectl tries SPDY after any refusal, and prints the last one.
    may_enter(call, &pod)?;
    let request = read(call, &pod)?;
    let upgrade = upgrade(call, method).await?;
    let place = call.server.0.execs.place(&call.caller.user)?;
    let opener = call.server.0.exec_opener.read().clone();
    let opener = opener.ok_or_else(|| {
        Failure::unavailable(
            "no agent that can run commands is connected; check that the node's agent runs",
        )
    })?;
    let tty = request.tty;
    let streams = opener(request).await.map_err(|error| match error {
        ExecError::Unavailable(why) => Failure::unavailable(why),
        ExecError::Refused(why) => Failure::bad_request(why),
    })?;
    let rights = Rights::to_create(call, "exec");
    let bounded = upgrade
        .max_message_size(MESSAGE_BYTES_MAX)
        .max_frame_size(MESSAGE_BYTES_MAX);
    Ok(bounded.on_upgrade(move |socket| async move {
        carry::carry(socket, streams, tty, rights).await;
        drop(place);
    }))
}

fn may_create(call: &Call) -> Result<(), Failure> {
    let wanted = RequestAttributes {
        verb: "create",
        group: call.kind.group,
        resource: call.kind.plural,
        subresource: Some("exec"),
        namespace: call.namespace.as_deref(),
        name: call.name.as_deref(),
    };
    call.server.require_selected(&call.caller, &wanted, "")
}

fn may_enter(call: &Call, pod: &Value) -> Result<(), Failure> {
    enter_work(&call.caller, |user| call.impersonates(user), pod)
        .map_err(|error| Failure::forbidden(call.kind, call.object_name(), &error.to_string()))
}

fn read(call: &Call, pod: &Value) -> Result<ExecRequest, Failure> {
    let params = &call.params;
    let command: Vec<String> = params.all("command").map(str::to_owned).collect();
    if command.is_empty() {
        return Err(Failure::bad_request(
            "command: Required value: name the program and its arguments, one parameter each",
        ));
    }
    let node = pod["spec"]["nodeName"].as_str().unwrap_or_default();
    let phase = pod["status"]["phase"].as_str().unwrap_or_default();
    let name = call.object_name();
    if node.is_empty() {
        return Err(Failure::bad_request(format!(
            "pod {name} does not have a host assigned"
        )));
    }
    if matches!(phase, "Succeeded" | "Failed") {
        return Err(Failure::bad_request(format!(
            "cannot exec into a container in a completed pod; current phase is {phase}"
        )));
    }
    let asked = |name: &str| params.switch(name) == Some(true);
    let request = ExecRequest {
        namespace: call.namespace.clone().unwrap_or_default(),
        pod: name.to_owned(),
        uid: object::meta_text(pod, "uid").to_owned(),
        node: node.to_owned(),
        container: crate::logs::container(call, pod)?,
        command,
        stdin: asked("stdin"),
        // As in Kubernetes: at a terminal both outputs are one.
        stdout: params.switch("stdout").unwrap_or(true),
        stderr: params.switch("stderr").unwrap_or(true) && !asked("tty"),
        tty: asked("tty"),
    };
    if !(request.stdin || request.stdout || request.stderr) {
        return Err(Failure::bad_request(
            "you must specify at least 1 of stdin, stdout, stderr",
        ));
    }
    Ok(request)
}

/// The WebSocket that the client asks for.
async fn upgrade(call: &Call, method: &Method) -> Result<WebSocketUpgrade, Failure> {
    let asked = call.headers.get(header::UPGRADE);
    let asked = asked
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default();
    if asked.to_ascii_lowercase().starts_with("spdy/") {
        return Err(Failure::bad_request(
            "this server runs commands over WebSocket and not over SPDY; use kubectl 1.31 or later (kubectl 1.29 and \
             1.30: set KUBECTL_REMOTE_COMMAND_WEBSOCKETS=true)",
        ));
    }
    let Some(connection) = call.upgrade.clone() else {
        return Err(not_a_websocket("the request's connection has no upgrade"));
    };
    let (mut parts, ()) = Request::new(()).into_parts();
    parts.method = method.clone();
    parts.headers = call.headers.clone();
    parts.extensions.insert::<OnUpgrade>(connection);
    let upgrade = WebSocketUpgrade::from_request_parts(&mut parts, &())
        .await
        .map_err(|rejection| not_a_websocket(&rejection.to_string()))?
        .protocols(PROTOCOLS);
    if upgrade.selected_protocol().is_none() {
        return Err(not_a_websocket("the request names none of them"));
    }
    Ok(upgrade)
}

fn not_a_websocket(why: &str) -> Failure {
    Failure::bad_request(format!(
        "exec needs a WebSocket with subprotocol {}: {why}",
        PROTOCOLS.join(" or ")
    ))
}
