//! Owns `pods/NAME/exec` and `pods/NAME/attach` over WebSocket, as kubectl from 1.31 and the Python client use them:
//! the subprotocols v4 and v5 of Kubernetes' remote commands; `pods/NAME/portforward` is [`forward`]'s. The nodes'
//! agents run the commands; an [`ExecOpener`] reaches them.

mod carry;
mod channels;
mod connections;
mod forward;
mod frames;
mod spdy;
mod tunnel;

use axum::body::Body;
use axum::extract::FromRequestParts;
use axum::extract::ws::WebSocketUpgrade;
use http::{Method, Request, Response, header};
use hyper::upgrade::OnUpgrade;
use resources::access::{Caller, RequestAttributes, TOKEN_EXTRA};
use resources::admission::{are_fellows, enter_work};
use serde_json::Value;

use crate::call::Call;
use crate::exec_opener::{ExecAction, ExecError, ExecOpener, ExecRequest};
use crate::object;
use crate::rewrite::absent;
use crate::status::Failure;
use crate::watch_rights::Rights;

pub(crate) use forward::portforward;

/// The maximum size of one message from a client, in bytes; kubectl sends 32 KiB.
const MESSAGE_BYTES_MAX: usize = 1 << 20;
/// The subprotocols, the best first. In v5 a client can end the input alone.
const PROTOCOLS: [&str; 2] = ["v5.channel.k8s.io", "v4.channel.k8s.io"];

/// Answers GET and POST of `pods/NAME/exec`.
pub(crate) async fn exec(call: &Call, method: &Method) -> Result<Response<Body>, Failure> {
    let pod = entered(call, "exec")?;
    let command: Vec<String> = call.params.all("command").map(str::to_owned).collect();
    if command.is_empty() {
        return Err(Failure::bad_request(
            "command: Required value: name the program and its arguments, one parameter each",
        ));
    }
    let action = ExecAction::Command(command);
    let request = in_container(call, &pod, "exec into", action)?;
    remote(call, method, "exec", request).await
}

/// Answers GET and POST of `pods/NAME/attach`.
pub(crate) async fn attach(call: &Call, method: &Method) -> Result<Response<Body>, Failure> {
    let pod = entered(call, "attach")?;
    let request = in_container(call, &pod, "attach to", ExecAction::Attach)?;
    remote(call, method, "attach", request).await
}

async fn remote(
    call: &Call,
    method: &Method,
    subresource: &'static str,
    request: ExecRequest,
) -> Result<Response<Body>, Failure> {
    let upgrade = upgrade(call, method, subresource, &PROTOCOLS).await?;
    let place = call.server.0.execs.place(&call.caller.user)?;
    let opener = opener(call)?;
    let tty = request.tty;
    let streams = opener(request).await.map_err(|error| match error {
        ExecError::Unavailable(why) => Failure::unavailable(why),
        ExecError::Refused(why) => Failure::bad_request(why),
    })?;
    let rights = Rights::to_create(call, subresource);
    let bound = call.server.0.config.stream_idle;
    Ok(bounded(upgrade).on_upgrade(move |socket| async move {
        carry::carry(socket, streams, tty, rights, bound).await;
        drop(place);
    }))
}

/// The pod, if the caller may enter it.
fn entered(call: &Call, subresource: &'static str) -> Result<Value, Failure> {
    // A client that may only read must not run commands, though a WebSocket begins with GET.
    may_create(call, subresource)?;
    let key = call.key();
    let entry = call.server.0.store.get(&key);
    let entry = entry.ok_or_else(|| absent(call, &key, call.object_name()))?;
    let pod = object::parse(&entry)?;
    if !call.headers.contains_key(header::UPGRADE) {
        let why = "the request asks for no upgrade";
        return Err(not_a_websocket(subresource, &PROTOCOLS, why));
    }
    // Before the protocol: kubectl tries SPDY after any refusal, and prints the last one.
    may_enter(call, &pod)?;
    Ok(pod)
}

fn opener(call: &Call) -> Result<ExecOpener, Failure> {
    let opener = call.server.0.exec_opener.read().clone();
    opener.ok_or_else(|| {
        Failure::unavailable(
            "no agent that can run commands is connected; check that the node's agent runs",
        )
    })
}

fn bounded(upgrade: WebSocketUpgrade) -> WebSocketUpgrade {
    upgrade
        .max_message_size(MESSAGE_BYTES_MAX)
        .max_frame_size(MESSAGE_BYTES_MAX)
}

fn may_create(call: &Call, subresource: &str) -> Result<(), Failure> {
    let wanted = RequestAttributes {
        verb: "create",
        group: call.kind.group,
        resource: call.kind.plural,
        subresource: Some(subresource),
        namespace: call.namespace.as_deref(),
        name: call.name.as_deref(),
    };
    call.server.require_selected(&call.caller, &wanted, "")
}

fn may_enter(call: &Call, pod: &Value) -> Result<(), Failure> {
    let own = pod_of_caller(call);
    if own.is_some_and(|own| are_fellows(&own, pod)) {
        return Ok(());
    }
    enter_work(&call.caller, |user| call.impersonates(user), pod)
        .map_err(|error| Failure::forbidden(call.kind, call.object_name(), &error.to_string()))
}

/// The pod that makes a request, if its caller is the service account of a pod in the request's namespace and has that
/// pod's token.
fn pod_of_caller(call: &Call) -> Option<Value> {
    let namespace = call.namespace.as_deref()?;
    let say = |key: &str| {
        call.caller
            .extra
            .get(&format!("{TOKEN_EXTRA}{key}"))?
            .first()
    };
    let key = call.kind.key(Some(namespace), say("pod-name")?);
    let entry = call.server.0.store.get(&key)?;
    let pod = object::parse(&entry).ok()?;
    let account = pod["spec"]["serviceAccountName"].as_str()?;
    let is_caller = call.caller.user == Caller::service_account(namespace, account).user;
    (is_caller && object::meta_text(&pod, "uid") == say("pod-uid")?).then_some(pod)
}

/// A request for a pod that runs, without a container.
fn of_pod(
    call: &Call,
    pod: &Value,
    doing: &str,
    action: ExecAction,
) -> Result<ExecRequest, Failure> {
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
            "cannot {doing} a container in a completed pod; current phase is {phase}"
        )));
    }
    Ok(ExecRequest {
        namespace: call.namespace.clone().unwrap_or_default(),
        pod: name.to_owned(),
        uid: object::meta_text(pod, "uid").to_owned(),
        node: node.to_owned(),
        container: String::new(),
        action,
        stdin: true,
        stdout: true,
        stderr: false,
        tty: false,
    })
}

/// A request for a container, with the streams that the client asks for.
fn in_container(
    call: &Call,
    pod: &Value,
    doing: &str,
    action: ExecAction,
) -> Result<ExecRequest, Failure> {
    let params = &call.params;
    let asked = |name: &str| params.switch(name) == Some(true);
    let request = ExecRequest {
        container: crate::logs::container(call, pod)?,
        stdin: asked("stdin"),
        // As in Kubernetes: at a terminal both outputs are one.
        stdout: params.switch("stdout").unwrap_or(true),
        stderr: params.switch("stderr").unwrap_or(true) && !asked("tty"),
        tty: asked("tty"),
        ..of_pod(call, pod, doing, action)?
    };
    if !(request.stdin || request.stdout || request.stderr) {
        return Err(Failure::bad_request(
            "you must specify at least 1 of stdin, stdout, stderr",
        ));
    }
    Ok(request)
}

/// The WebSocket that the client asks for.
async fn upgrade(
    call: &Call,
    method: &Method,
    doing: &str,
    protocols: &'static [&'static str],
) -> Result<WebSocketUpgrade, Failure> {
    let asked = call.headers.get(header::UPGRADE);
    let asked = asked
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default();
    if asked.to_ascii_lowercase().starts_with("spdy/") {
        return Err(Failure::bad_request(
            "this server takes exec, attach, cp and port-forward over WebSocket and not over SPDY; use kubectl 1.31 or \
             later, and set neither KUBECTL_REMOTE_COMMAND_WEBSOCKETS nor KUBECTL_PORT_FORWARD_WEBSOCKETS to false \
             (kubectl 1.30: set both to true; 1.29 has the first alone)",
        ));
    }
    let Some(connection) = call.upgrade.clone() else {
        let why = "the request's connection has no upgrade";
        return Err(not_a_websocket(doing, protocols, why));
    };
    let (mut parts, ()) = Request::new(()).into_parts();
    parts.method = method.clone();
    parts.headers = call.headers.clone();
    parts.extensions.insert::<OnUpgrade>(connection);
    let upgrade = WebSocketUpgrade::from_request_parts(&mut parts, &())
        .await
        .map_err(|rejection| not_a_websocket(doing, protocols, &rejection.to_string()))?
        .protocols(protocols.iter().copied());
    if upgrade.selected_protocol().is_none() {
        let why = "the request names none of them";
        return Err(not_a_websocket(doing, protocols, why));
    }
    Ok(upgrade)
}

fn not_a_websocket(doing: &str, protocols: &[&str], why: &str) -> Failure {
    Failure::bad_request(format!(
        "{doing} needs a WebSocket with subprotocol {}: {why}",
        protocols.join(" or ")
    ))
}
