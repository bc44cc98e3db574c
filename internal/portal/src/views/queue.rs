//! One queue's page, and the form by which administrators change the queue.

use administration::team::Amounts;
use askama::Template;
use axum::Form;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Redirect, Response};
use kube::Api;
use kube::api::{ApiResource, DynamicObject, Patch, PatchParams};
use kube::core::GroupVersionKind;
use resources::access::Caller;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::flash::FlashQuery;
use super::{PageCaller, PageFrame, amounts, escape, message, page_with};
use crate::problem::Problem;
use crate::rest::{QueueAnswer, queue_answer};
use crate::state::{Portal, VOLCANO_GROUP};

const HERE: &str = "queues";
/// The maximum number of pending gangs on the page.
const SHOWN_WAITING: usize = 50;
/// How often a change is tried again that the queue's status overtook.
const TRIES: usize = 5;

/// The fields of the form. `version` is the generation of the spec that the form shows.
#[derive(Deserialize, Default, Clone, Debug, PartialEq, Eq)]
#[serde(default)]
pub struct QueueForm {
    version: String,
    weight: String,
    deserved: String,
    limits: String,
}

#[derive(Template)]
#[template(path = "queue.html")]
struct QueuePage {
    frame: PageFrame,
    queue: QueueAnswer,
    share: String,
    of_entitled: String,
    more: usize,
    /// The form, for a reader that may change the queue.
    edit: Option<QueueForm>,
    problem: String,
}

fn queues(portal: &Portal, caller: &Caller) -> Api<DynamicObject> {
    let gvk = GroupVersionKind::gvk(VOLCANO_GROUP, "v1beta1", "Queue");
    let resource = ApiResource::from_gvk_with_plural(&gvk, "queues");
    Api::all_with(portal.client(caller), &resource)
}

/// True if this caller may change the queue.
fn manages(portal: &Portal, caller: &Caller, name: &str) -> bool {
    portal.permits_cluster(caller, "patch", VOLCANO_GROUP, "queues", Some(name))
}

fn form_of(queue: &DynamicObject) -> QueueForm {
    let spec = &queue.data["spec"];
    let amounts = |field: &str| {
        let all = spec[field].as_object().into_iter().flatten();
        let texts = all.map(|(name, amount)| {
            let number = amount.to_string();
            (name.clone(), amount.as_str().map_or(number, str::to_owned))
        });
        let texts: Vec<(String, String)> = texts.collect();
        let pairs = texts
            .iter()
            .map(|(name, amount)| (name.as_str(), amount.as_str()));
        amounts::write(pairs)
    };
    QueueForm {
        version: version_of(queue),
        weight: spec["weight"]
            .as_i64()
            .map(|weight| weight.to_string())
            .unwrap_or_default(),
        deserved: amounts("deserved"),
        limits: amounts("capability"),
    }
}

fn version_of(queue: &DynamicObject) -> String {
    let generation = queue.metadata.generation;
    generation
        .map(|generation| generation.to_string())
        .unwrap_or_default()
}

async fn show(
    portal: &Portal,
    caller: &Caller,
    name: &str,
    flash: &FlashQuery,
    problem: Option<Problem>,
) -> Response {
    let mut queue = match queue_answer(portal, caller, name).await {
        Ok(queue) => queue,
        Err(missing) => return message(caller, HERE, &problem.unwrap_or(missing)),
    };
    let edit = match manages(portal, caller, name) {
        true => queues(portal, caller).get_opt(name).await.ok().flatten(),
        false => None,
    };
    let waiting = &mut queue.usage.waiting;
    let more = waiting.len().saturating_sub(SHOWN_WAITING);
    waiting.truncate(SHOWN_WAITING);
    let status = problem.as_ref().map_or(StatusCode::OK, Problem::status);
    page_with(
        status,
        &QueuePage {
            frame: PageFrame::with_problem(caller, HERE, problem.is_some())
                .flash(flash, &format!("/ui/queues/{}", escape(name))),
            share: percent(queue.usage.share),
            of_entitled: percent(queue.usage.share_of_entitled),
            queue,
            more,
            edit: edit.map(|queue| form_of(&queue)),
            problem: problem.map_or_else(String::new, |problem| problem.detail().to_owned()),
        },
    )
}

/// The page.
pub async fn one(
    State(portal): State<Portal>,
    PageCaller(caller): PageCaller,
    Path(name): Path<String>,
    Query(flash): Query<FlashQuery>,
) -> Response {
    show(&portal, &caller, &name, &flash, None).await
}

/// The merge patch that makes a map of amounts into another one.
fn replaced(known: &Value, wanted: &Amounts) -> Value {
    if wanted.is_empty() {
        return Value::Null;
    }
    let gone = known.as_object().into_iter().flatten();
    let gone = gone.filter(|(name, _)| !wanted.contains_key(*name));
    let mut map: Map<String, Value> = gone.map(|(name, _)| (name.clone(), Value::Null)).collect();
    map.extend(
        wanted
            .iter()
            .map(|(name, amount)| (name.clone(), json!(amount))),
    );
    Value::Object(map)
}

/// The change of the spec that a form asks for.
fn change(spec: &Value, form: &QueueForm) -> Result<Value, Problem> {
    let weight = match form.weight.trim() {
        "" => Value::Null,
        text => {
            let weight: Option<u16> = text.parse().ok();
            let weight = weight.filter(|weight| *weight > 0);
            json!(weight.ok_or_else(|| {
                Problem::invalid(format!(
                    "weight: Invalid value: {text:?}: write a number from 1 to 65535"
                ))
            })?)
        }
    };
    let deserved = amounts::read("deserved", &form.deserved)?;
    let limits = amounts::read("at most", &form.limits)?;
    Ok(json!({
        "weight": weight,
        "deserved": replaced(&spec["deserved"], &deserved),
        "capability": replaced(&spec["capability"], &limits),
    }))
}

fn overtaken(name: &str) -> Problem {
    let detail = format!(
        "queue {name:?} was changed by another user after this page was read, so your change was not made; the form shows what the queue says now: make the change again"
    );
    Problem::new(StatusCode::CONFLICT, "conflict", detail)
}

/// Changes the queue, if its spec is still the one that the form showed. The patch carries the `resourceVersion` that
/// was read: a change of the status alone is no conflict and is tried again.
async fn changed(
    portal: &Portal,
    caller: &Caller,
    name: &str,
    form: &QueueForm,
) -> Result<(), Problem> {
    if !manages(portal, caller, name) {
        return Err(Problem::forbidden(format!(
            "user {:?} may not change queues; an administrator can",
            caller.user
        )));
    }
    let api = queues(portal, caller);
    for _ in 0..TRIES {
        let queue = api.get(name).await?;
        if version_of(&queue) != form.version {
            break;
        }
        let patch = json!({
            "metadata": {"resourceVersion": queue.metadata.resource_version},
            "spec": change(&queue.data["spec"], form)?,
        });
        let patch = Patch::Merge(patch);
        match api.patch(name, &PatchParams::default(), &patch).await {
            Ok(_) => return Ok(()),
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(overtaken(name))
}

/// Answers the form.
pub async fn edit(
    State(portal): State<Portal>,
    PageCaller(caller): PageCaller,
    Path(name): Path<String>,
    Form(form): Form<QueueForm>,
) -> Response {
    match changed(&portal, &caller, &name, &form).await {
        Ok(()) => {
            let page = format!("/ui/queues/{}?flash=queue-changed", escape(&name));
            Redirect::to(&page).into_response()
        }
        Err(problem) if problem.status() == StatusCode::FORBIDDEN => {
            message(&caller, HERE, &problem)
        }
        Err(problem) => {
            let none = FlashQuery::default();
            show(&portal, &caller, &name, &none, Some(problem)).await
        }
    }
}

fn percent(part: f64) -> String {
    format!("{:.1}%", part * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_form_replaces_amounts_and_keeps_the_rest_of_the_spec() {
        let spec =
            json!({"weight": 2, "parent": "root", "capability": {"cpu": "4", "memory": "1Gi"}});
        let form = QueueForm {
            version: "3".into(),
            weight: "5".into(),
            deserved: "nvidia.com/gpu=2".into(),
            limits: "cpu=8".into(),
        };
        let patch = change(&spec, &form).unwrap();
        let want = json!({"weight": 5, "deserved": {"nvidia.com/gpu": "2"},
            "capability": {"cpu": "8", "memory": null}});
        assert_eq!(patch, want);
        let empty = change(&spec, &QueueForm::default()).unwrap();
        assert_eq!(
            empty,
            json!({"weight": null, "deserved": null, "capability": null})
        );
        for (weight, limits, field) in [
            ("0", "", "weight: "),
            ("x", "", "weight: "),
            ("1", "cpu", "at most: "),
        ] {
            let form = QueueForm {
                weight: weight.into(),
                limits: limits.into(),
                ..form.clone()
            };
            let problem = change(&spec, &form).unwrap_err();
            assert!(problem.detail().starts_with(field), "{}", problem.detail());
        }
    }

    #[test]
    fn the_form_shows_what_the_queue_says() {
        let gvk = GroupVersionKind::gvk(VOLCANO_GROUP, "v1beta1", "Queue");
        let resource = ApiResource::from_gvk_with_plural(&gvk, "queues");
        let mut queue = DynamicObject::new("q", &resource);
        queue.metadata.generation = Some(7);
        queue.data = json!({"spec": {"weight": 2, "capability": {"cpu": 4, "memory": "1Gi"}}});
        let form = form_of(&queue);
        assert_eq!((form.version.as_str(), form.weight.as_str()), ("7", "2"));
        assert_eq!(
            (form.deserved.as_str(), form.limits.as_str()),
            ("", "cpu=4, memory=1Gi")
        );
    }
}
