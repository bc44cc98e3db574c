//! Owns the way from an HTTP request to a verb: who calls, what the path names, whether it is permitted. Every
//! answer passes [`observe`]. Carries out no verb itself.

use std::time::Instant;

use axum::body::Body;
use axum::extract::State;
use http::request::Parts;
use http::{Method, Request, Response};
use resources::access::{Attributes, Caller, permits};
use resources::registry::{self, Kind};

use crate::call::Call;
use crate::client::InProcess;
use crate::path::{ResourcePath, Target};
use crate::prepare::Part;
use crate::request::Params;
use crate::server::ApiServer;
use crate::status::Failure;
use crate::{
    binding, create, delete, delete_collection, discovery, eviction, list, logs, namespace,
    negotiate, patch, path, read, review, scale, update, versions, watch,
};

type Answer = Result<Response<Body>, Failure>;

/// Everything below `/api` and `/apis`.
pub(crate) async fn resources(
    State(server): State<ApiServer>,
    request: Request<Body>,
) -> Response<Body> {
    let started = Instant::now();
    let (parts, body) = request.into_parts();
    let answer = answer(&server, &parts, body)
        .await
        .unwrap_or_else(Failure::into_response);
    observe(&parts, &answer, started);
    answer
}

async fn answer(server: &ApiServer, parts: &Parts, body: Body) -> Answer {
    let caller = parts
        .extensions
        .get::<Caller>()
        .ok_or_else(Failure::unauthorized)?;
    match path::parse(parts.uri.path()) {
        Target::Resource(target) => {
            match registry::find(&target.group, &target.version, &target.resource) {
                Some(kind) => on_resource(server, caller, kind, target, parts, body).await,
                None => review::answer(server, caller, target, parts, body).await,
            }
        }
        other if parts.method == Method::GET || parts.method == Method::HEAD => {
            discovery::answer(&other, &parts.headers)
        }
        Target::Unknown => Err(Failure::no_such_resource()),
        _ => Err(Failure::method_not_allowed()),
    }
}

/// What a request does, as authorisation and the verbs name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verb {
    Get,
    List,
    Watch,
    Create,
    Update,
    Patch,
    Delete,
    DeleteCollection,
}

impl Verb {
    fn word(self) -> &'static str {
        match self {
            Verb::Get => "get",
            Verb::List => "list",
            Verb::Watch => "watch",
            Verb::Create => "create",
            Verb::Update => "update",
            Verb::Patch => "patch",
            Verb::Delete => "delete",
            Verb::DeleteCollection => "deletecollection",
        }
    }

    fn of(method: &Method, named: bool, watching: bool) -> Option<Verb> {
        match (method, named) {
            (&Method::GET | &Method::HEAD, _) if watching => Some(Verb::Watch),
            (&Method::GET | &Method::HEAD, true) => Some(Verb::Get),
            (&Method::GET | &Method::HEAD, false) => Some(Verb::List),
            (&Method::POST, _) => Some(Verb::Create),
            (&Method::PUT, true) => Some(Verb::Update),
            (&Method::PATCH, true) => Some(Verb::Patch),
            (&Method::DELETE, true) => Some(Verb::Delete),
            (&Method::DELETE, false) => Some(Verb::DeleteCollection),
            _ => None,
        }
    }
}

async fn on_resource(
    server: &ApiServer,
    caller: &Caller,
    kind: &'static Kind,
    target: ResourcePath,
    parts: &Parts,
    body: Body,
) -> Answer {
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
    let params = Params::parse(parts.uri.query());
    let watching = params.switch("watch") == Some(true) && subresource.is_none();
    let verb = Verb::of(&parts.method, name.is_some(), watching)
        .ok_or_else(Failure::method_not_allowed)?;
    let wanted = Attributes {
        verb: verb.word(),
        group: kind.group,
        resource: kind.plural,
        subresource: subresource.as_deref(),
        namespace: namespace.as_deref(),
        name: name.as_deref(),
    };
    if !permits(caller, &wanted) {
        return Err(Failure::not_permitted(caller, &wanted));
    }
    // Logs are bytes, in whatever form: their reader negotiates nothing.
    let form = match subresource.as_deref() {
        Some("log") => negotiate::PLAIN,
        _ => negotiate::objects(&parts.headers)?,
    };
    let call = Call {
        server: server.clone(),
        caller: caller.clone(),
        kind,
        namespace,
        name,
        dry_run: params.dry_run()?,
        params,
        headers: parts.headers.clone(),
        form,
        without_managers: parts.extensions.get::<InProcess>().is_some(),
    };
    let answer = match subresource {
        None => on_object(&call, verb, body).await,
        Some(subresource) => on_subresource(&call, &subresource, verb, body).await,
    };
    answer.map(|response| versions::shown(kind, response))
}

async fn on_object(call: &Call, verb: Verb, body: Body) -> Answer {
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
        Verb::Update => update::update(call, body, Part::Main).await,
        Verb::Patch => patch::patch(call, body, Part::Main).await,
        Verb::Delete => delete::delete(call, body).await,
        Verb::DeleteCollection => delete_collection::delete_collection(call, body).await,
    }
}

async fn on_subresource(call: &Call, subresource: &str, verb: Verb, body: Body) -> Answer {
    let kind = call.kind;
    let offered = match subresource {
        "status" => kind.status,
        "scale" => kind.scale.is_some(),
        "finalize" => namespace::is_namespace(kind),
        other => kind.extra_subresources.contains(&other),
    };
    if !offered {
        return Err(Failure::no_such_resource());
    }
    match (subresource, verb) {
        ("status", Verb::Get) => read::get(call),
        ("status", Verb::Update) => update::update(call, body, Part::Status).await,
        ("status", Verb::Patch) => patch::patch(call, body, Part::Status).await,
        ("scale", Verb::Get) => scale::get(call),
        ("scale", Verb::Update) => scale::update(call, body).await,
        ("scale", Verb::Patch) => scale::patch(call, body).await,
        ("binding", Verb::Create) => binding::create(call, body).await,
        ("eviction", Verb::Create) => eviction::create(call, body).await,
        ("log", Verb::Get) => logs::get(call).await,
        ("finalize", Verb::Update) => namespace::finalize(call, body).await,
        _ => Err(Failure::method_not_allowed()),
    }
}

/// The one place that every answer about a resource passes: who asked for what, and what came of it.
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
