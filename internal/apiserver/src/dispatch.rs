//! Owns the path from an HTTP request to a verb: the caller, the resource in the path, the
//! authorisation. Every response passes [`observe`]. Executes no verb itself.

use std::time::Instant;

use axum::body::Body;
use axum::extract::State;
use axum::middleware::Next;
use http::request::Parts;
use http::{Method, Request, Response};
use hyper::upgrade::OnUpgrade;
use resources::access::{Caller, Credential, RequestAttributes};
use resources::audit::Recorded;
use resources::registry::{self, Kind};

use crate::audit::AuditNotes;
use crate::call::Call;
use crate::client::InProcess;
use crate::core_kinds::is_namespace;
use crate::object::ObjectPart;
use crate::path::{RequestTarget, ResourcePath};
use crate::pod_proxy::{self, PROXY, ProxiedRequest};
use crate::request::Params;
use crate::server::ApiServer;
use crate::status::Failure;
use crate::training_progress::ProgressReport;
use crate::verb::{Verb, within};
use crate::work_threads::{By, weight};
use crate::{
    audit, binding, create, delete, delete_collection, discovery, eviction, exec, finalize,
    impersonation, list, logs, negotiate, patch, path, read, request, review, scale,
    service_account, training_progress, update, usage_metrics, versions, watch,
};

type DispatchResult = Result<Response<Body>, Failure>;

/// Everything below `/api` and `/apis`.
pub(crate) async fn resources(
    State(server): State<ApiServer>,
    request: Request<Body>,
) -> Response<Body> {
    let started = Instant::now();
    let (parts, body) = request.into_parts();
    let auditor = server.0.auditor.read().clone();
    let (record, answer) = match audit::begin(auditor, &parts, body).await {
        Ok((record, body)) => (record, answer(&server, &parts, body).await),
        Err(failure) => (None, Err(failure)),
    };
    let mut answer = answer.unwrap_or_else(Failure::into_response);
    observe(&parts, &answer, started);
    if let Some(record) = record {
        answer = record.finish(&parts, answer).await;
        answer.extensions_mut().insert(Recorded);
    }
    answer
}

/// Middleware of the paths that are not resources: refuses callers without the right to them.
pub(crate) async fn permitted_path(
    State(server): State<ApiServer>,
    request: Request<Body>,
    next: Next,
) -> Response<Body> {
    let caller = request.extensions().get::<Caller>();
    let verdict = server.require_path(caller, request.method(), request.uri().path());
    match verdict {
        Ok(()) => next.run(request).await,
        Err(failure) => failure.into_response(),
    }
}

async fn answer(server: &ApiServer, parts: &Parts, body: Body) -> DispatchResult {
    let caller = parts
        .extensions
        .get::<Caller>()
        .ok_or_else(Failure::unauthorized)?;
    // An outer layer handles impersonation: if it is missing, such a request must not be executed
    // as the caller's own.
    if impersonation::is_requested(&parts.headers) {
        let why = "this endpoint does not accept impersonation headers; leave them out";
        return Err(impersonation::refused(Some(caller), why));
    }
    match path::parse(parts.uri.path()) {
        RequestTarget::Resource(target) if parts.extensions.get::<ProgressReport>().is_some() => {
            training_progress::report(server, target, parts, body).await
        }
        RequestTarget::Resource(target) => {
            match registry::find(&target.group, &target.version, &target.resource) {
                Some(kind) => on_resource(server, caller, kind, target, parts, body).await,
                None => match usage_metrics::target(&target) {
                    Some(of) => usage_metrics::answer(server, caller, of, target, parts),
                    None => review::answer(server, caller, target, parts, body).await,
                },
            }
        }
        other if parts.method == Method::GET || parts.method == Method::HEAD => {
            server.require_path(Some(caller), &parts.method, parts.uri.path())?;
            discovery::answer(&other, &parts.headers)
        }
        RequestTarget::Unknown => Err(Failure::no_such_resource()),
        _ => Err(Failure::method_not_allowed()),
    }
}

async fn on_resource(
    server: &ApiServer,
    caller: &Caller,
    kind: &'static Kind,
    target: ResourcePath,
    parts: &Parts,
    body: Body,
) -> DispatchResult {
    let ResourcePath {
        namespace,
        name,
        subresource,
        ..
    } = target;
    if namespace.is_some() && !kind.namespaced
        || namespace.is_none() && kind.namespaced && name.is_some()
    {
        return Err(Failure::no_such_resource());
    }
    let params = Params::parse(parts.uri.query())?;
    let watching = params.switch("watch") == Some(true) && subresource.is_none();
    let verb = Verb::of(&parts.method, name.is_some(), watching)
        .ok_or_else(Failure::method_not_allowed)?;
    server.require_selected(
        caller,
        &RequestAttributes {
            verb: verb.word(),
            group: kind.group,
            resource: kind.plural,
            subresource: subresource.as_deref(),
            namespace: within(kind, namespace.as_deref(), name.as_deref()),
            name: name.as_deref(),
        },
        params.get("fieldSelector").unwrap_or_default(),
    )?;
    // Logs and a pod's own answers are bytes in any format: their handlers do not negotiate.
    let proxied = subresource.as_deref() == Some(PROXY) && kind.extra_subresources.contains(&PROXY);
    let form = match subresource.as_deref() {
        Some("log" | "exec" | "attach" | "portforward") => negotiate::PLAIN,
        _ if proxied => negotiate::PLAIN,
        _ => negotiate::objects(&parts.headers)?,
    };
    let call = Call {
        server: server.clone(),
        caller: caller.clone(),
        credential: parts.extensions.get::<Credential>().cloned(),
        kind,
        namespace,
        name,
        // A program in a pod gives its own parameters their meaning.
        dry_run: !proxied && params.dry_run()?,
        params,
        headers: parts.headers.clone(),
        form,
        without_managers: parts.extensions.get::<InProcess>().is_some(),
        audit: AuditNotes::default(),
        upgrade: parts.extensions.get::<OnUpgrade>().cloned(),
    };
    let notes = call.audit.clone();
    let answer = if proxied {
        in_pod(&call, parts, body).await
    } else if verb.reads() {
        carried_out(call, subresource, verb, Body::empty()).await
    } else {
        let bytes = request::read(body).await?;
        let by = By::of(&call.caller);
        let size = size(&call, verb, &bytes);
        let work = carried_out(call, subresource, verb, Body::from(bytes));
        server.0.large.carry_out(size, &by, work).await
    };
    let mut response = match answer {
        Ok(response) if proxied => response,
        Ok(response) => versions::shown(kind, response),
        Err(failure) => failure.into_response(),
    };
    if let Some(notes) = notes.take() {
        response.extensions_mut().insert(notes);
    }
    Ok(response)
}

/// A request to a program in a pod.
async fn in_pod(call: &Call, parts: &Parts, body: Body) -> DispatchResult {
    let proxy = call.server.0.pod_proxy.read().clone();
    let proxy = proxy.ok_or_else(|| {
        Failure::unavailable("this server reaches no programs in pods; use another server")
    })?;
    let below = pod_proxy::below(parts.uri.path()).ok_or_else(Failure::no_such_resource)?;
    let request = ProxiedRequest {
        parts: parts.clone(),
        body,
        kind: call.kind,
        namespace: call.namespace.clone().unwrap_or_default(),
        object: call.object_name().to_owned(),
        below: below.to_owned(),
        caller: call.caller.clone(),
        credential: call.credential.clone(),
    };
    Ok(proxy(request).await)
}

/// The size of a write: its body, and the stored object.
fn size(call: &Call, verb: Verb, body: &[u8]) -> usize {
    let format = match verb {
        Verb::Patch => request::patch_format(&call.headers),
        _ => request::object_format(&call.headers),
    };
    // An unsupported format is refused before the body is read.
    let sent = format.map_or(0, |format| weight(body, format));
    let live = match call.name {
        Some(_) => call.server.0.store.get(&call.key()),
        None => None,
    };
    sent + live.map_or(0, |entry| entry.value.len())
}

async fn carried_out(
    call: Call,
    subresource: Option<String>,
    verb: Verb,
    body: Body,
) -> DispatchResult {
    match subresource {
        None => on_object(&call, verb, body).await,
        Some(subresource) => on_subresource(&call, &subresource, verb, body).await,
    }
}

async fn on_object(call: &Call, verb: Verb, body: Body) -> DispatchResult {
    if call.kind.namespaced && call.namespace.is_none() && !matches!(verb, Verb::List | Verb::Watch)
    {
        return Err(Failure::method_not_allowed());
    }
    match verb {
        Verb::Get => read::get(call),
        Verb::List => list::list(call),
        Verb::Watch => watch::watch(call),
        Verb::Create if call.name.is_some() => Err(Failure::method_not_allowed()),
        Verb::Create => create::create(call, body).await,
        Verb::Update => update::update(call, body, ObjectPart::Main).await,
        Verb::Patch => patch::patch(call, body, ObjectPart::Main).await,
        Verb::Delete => delete::delete(call, body).await,
        Verb::DeleteCollection => delete_collection::delete_collection(call, body).await,
    }
}

async fn on_subresource(call: &Call, subresource: &str, verb: Verb, body: Body) -> DispatchResult {
    let kind = call.kind;
    let offered = match subresource {
        "status" => kind.status,
        "scale" => kind.scale.is_some(),
        "finalize" => is_namespace(kind),
        other => kind.extra_subresources.contains(&other),
    };
    if !offered {
        return Err(Failure::no_such_resource());
    }
    match (subresource, verb) {
        ("status", Verb::Get) => read::get(call),
        ("status", Verb::Update) => update::update(call, body, ObjectPart::Status).await,
        ("status", Verb::Patch) => patch::patch(call, body, ObjectPart::Status).await,
        ("scale", Verb::Get) => scale::get(call),
        ("scale", Verb::Update) => scale::update(call, body).await,
        ("scale", Verb::Patch) => scale::patch(call, body).await,
        ("binding", Verb::Create) => binding::create(call, body).await,
        ("eviction", Verb::Create) => eviction::create(call, body).await,
        ("log", Verb::Get) => logs::get(call).await,
        ("attach", Verb::Get) => exec::attach(call, &Method::GET).await,
        ("attach", Verb::Create) => exec::attach(call, &Method::POST).await,
        ("portforward", Verb::Get) => exec::portforward(call, &Method::GET).await,
        ("portforward", Verb::Create) => exec::portforward(call, &Method::POST).await,
        ("exec", Verb::Get) => exec::exec(call, &Method::GET).await,
        ("exec", Verb::Create) => exec::exec(call, &Method::POST).await,
        ("token", Verb::Create) => service_account::token(call, body).await,
        ("finalize", Verb::Update) => finalize::put(call, body).await,
        _ => Err(Failure::method_not_allowed()),
    }
}

/// The single function that every response about a resource passes: it records the caller, the
/// request and the result.
fn observe(parts: &Parts, answer: &Response<Body>, started: Instant) {
    tracing::debug!(
        user = parts.extensions.get::<Caller>().map(|caller| caller.user.as_str()),
        method = %parts.method,
        path = parts.uri.path(),
        code = answer.status().as_u16(),
        microseconds = started.elapsed().as_micros(),
        "request"
    );
}
