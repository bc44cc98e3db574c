//! Emptying a node, with a preview of what it costs, and removing a node. The decisions are those of `muster node drain`.

use administration::drain::{self, DrainRules, PlannedPod, PodFate};
use askama::Template;
use axum::Form;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Redirect, Response};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use resources::access::Caller;
use serde::Deserialize;

use super::flash::FlashQuery;
use super::nodes::{manages, set_mark};
use super::{PageCaller, PageFrame, escape, message, page_with};
use crate::board::CORDON_REASON;
use crate::problem::Problem;
use crate::rest::remove_node;
use crate::state::Portal;

const HERE: &str = "nodes";
/// The most pods in the table.
const SHOWN_PODS: usize = 200;
/// The most pods that a refusal names.
const NAMED_PODS: usize = 8;

/// How the node is emptied.
#[derive(Deserialize, Default)]
#[serde(default)]
pub struct DrainForm {
    /// `on`: also end pods that nothing creates again.
    force: String,
}

/// What the reader typed to confirm.
#[derive(Deserialize, Default)]
#[serde(default)]
pub struct Confirmation {
    confirm: String,
}

/// One pod's outcome.
struct Outcome {
    pod: String,
    words: String,
    done: bool,
}

/// How many pods have each fate.
#[derive(Default)]
struct Counts {
    evicted: usize,
    waiting: usize,
    skipped: usize,
    unmovable: usize,
}

#[derive(Template)]
#[template(path = "drain.html")]
struct DrainPage {
    frame: PageFrame,
    name: String,
    pods: Vec<PlannedPod>,
    more: usize,
    counts: Counts,
    force: bool,
    outcomes: Vec<Outcome>,
    problem: String,
}

impl Counts {
    fn of(pods: &[PlannedPod]) -> Counts {
        let mut counts = Counts::default();
        for pod in pods {
            let count = match pod.fate {
                PodFate::Evicted => &mut counts.evicted,
                PodFate::Waits(_) => &mut counts.waiting,
                PodFate::Skipped(_) => &mut counts.skipped,
                PodFate::Unmovable => &mut counts.unmovable,
            };
            *count += 1;
        }
        counts
    }
}

/// Refuses a caller that may not change the node.
fn require(portal: &Portal, caller: &Caller, name: &str) -> Result<(), Problem> {
    match manages(portal, caller, name) {
        true => Ok(()),
        false => Err(Problem::forbidden(format!(
            "user {:?} may not change nodes; an administrator can",
            caller.user
        ))),
    }
}

async fn plan(
    portal: &Portal,
    caller: &Caller,
    name: &str,
    force: bool,
) -> Result<Vec<PlannedPod>, Problem> {
    require(portal, caller, name)?;
    let client = portal.client(caller);
    Api::<Node>::all(client.clone()).get_metadata(name).await?;
    let rules = DrainRules { force, grace: None };
    Ok(drain::read(&client, name, rules, Timestamp::now()).await?)
}

fn show(
    caller: &Caller,
    name: &str,
    mut pods: Vec<PlannedPod>,
    force: bool,
    outcomes: Vec<Outcome>,
    problem: Option<Problem>,
) -> Response {
    let status = problem.as_ref().map_or(StatusCode::OK, Problem::status);
    let counts = Counts::of(&pods);
    let more = pods.len().saturating_sub(SHOWN_PODS);
    pods.truncate(SHOWN_PODS);
    let flash = match outcomes.is_empty() {
        true => FlashQuery::default(),
        false => FlashQuery::named("draining"),
    };
    let address = format!("/ui/nodes/{}", escape(name));
    page_with(
        status,
        &DrainPage {
            frame: PageFrame::with_problem(caller, HERE, problem.is_some()).flash(&flash, &address),
            name: name.to_owned(),
            pods,
            more,
            counts,
            force,
            outcomes,
            problem: problem.map_or_else(String::new, |problem| problem.detail().to_owned()),
        },
    )
}

/// The preview.
pub async fn preview(
    State(portal): State<Portal>,
    PageCaller(caller): PageCaller,
    Path(name): Path<String>,
    axum::extract::Query(form): axum::extract::Query<DrainForm>,
) -> Response {
    let force = form.force == "on";
    match plan(&portal, &caller, &name, force).await {
        Ok(pods) => show(&caller, &name, pods, force, Vec::new(), None),
        Err(problem) => message(&caller, HERE, &problem),
    }
}

fn unmovable(name: &str, pods: &[PlannedPod]) -> Option<Problem> {
    let stuck = pods.iter().filter(|pod| pod.fate == PodFate::Unmovable);
    let stuck: Vec<String> = stuck
        .map(|pod| format!("{}/{}", pod.namespace, pod.name))
        .collect();
    if stuck.is_empty() {
        return None;
    }
    let named = stuck.iter().take(NAMED_PODS).cloned();
    let named = named.collect::<Vec<_>>().join(", ");
    let more = match stuck.len().saturating_sub(NAMED_PODS) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let detail = format!(
        "node {name:?} is not drained: no controller creates these pods again: {named}{more}; delete them, or choose to end them, too"
    );
    Some(Problem::new(StatusCode::CONFLICT, "conflict", detail))
}

/// Takes the node out of use and asks once for each eviction.
async fn carry_out(
    portal: &Portal,
    caller: &Caller,
    name: &str,
    pods: &[PlannedPod],
) -> Result<Vec<Outcome>, Problem> {
    let client = portal.client(caller);
    let node = Api::<Node>::all(client.clone()).get(name).await?;
    let known = node.metadata.annotations.unwrap_or_default();
    let reason = known.get(CORDON_REASON).cloned();
    let reason = reason.unwrap_or_else(|| format!("drained ({})", caller.user));
    set_mark(portal, caller, name, Some(&reason)).await?;
    let mut outcomes = Vec::new();
    for pod in pods {
        if matches!(pod.fate, PodFate::Skipped(_)) {
            continue;
        }
        let (done, words) = match drain::evict(&client, pod, Timestamp::now()).await {
            Ok(true) => (true, format!("ends within {} s", pod.grace)),
            Ok(false) => (
                false,
                "a PodDisruptionBudget allows no eviction now; drain again when it does".to_owned(),
            ),
            Err(error) => {
                let source = std::error::Error::source(&error).map(ToString::to_string);
                (false, format!("{error}: {}", source.unwrap_or_default()))
            }
        };
        outcomes.push(Outcome {
            pod: format!("{}/{}", pod.namespace, pod.name),
            words,
            done,
        });
    }
    Ok(outcomes)
}

/// Empties the node, as far as budgets allow it now.
pub async fn drain_node(
    State(portal): State<Portal>,
    PageCaller(caller): PageCaller,
    Path(name): Path<String>,
    Form(form): Form<DrainForm>,
) -> Response {
    let force = form.force == "on";
    let pods = match plan(&portal, &caller, &name, force).await {
        Ok(pods) => pods,
        Err(problem) => return message(&caller, HERE, &problem),
    };
    if let Some(problem) = unmovable(&name, &pods) {
        return show(&caller, &name, pods, force, Vec::new(), Some(problem));
    }
    let outcomes = match carry_out(&portal, &caller, &name, &pods).await {
        Ok(outcomes) if outcomes.is_empty() => {
            let page = format!("/ui/nodes/{}?flash=drained", escape(&name));
            return Redirect::to(&page).into_response();
        }
        Ok(outcomes) => outcomes,
        Err(problem) => return message(&caller, HERE, &problem),
    };
    match plan(&portal, &caller, &name, force).await {
        Ok(pods) => show(&caller, &name, pods, force, outcomes, None),
        Err(problem) => message(&caller, HERE, &problem),
    }
}

/// Removes a node whose name the reader typed.
pub async fn remove(
    State(portal): State<Portal>,
    PageCaller(caller): PageCaller,
    Path(name): Path<String>,
    Form(form): Form<Confirmation>,
) -> Response {
    let wrong = (form.confirm != name).then(|| {
        Problem::invalid(format!(
            "confirm: Invalid value: {:?}: type the node's name, {name:?}, to remove it",
            form.confirm
        ))
    });
    match remove_node(&portal, &caller, &name, wrong).await {
        Ok(()) => Redirect::to("/ui/nodes?flash=node-removed").into_response(),
        Err(problem) => message(&caller, HERE, &problem),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str, fate: PodFate) -> PlannedPod {
        PlannedPod {
            namespace: "a".into(),
            name: name.into(),
            uid: name.into(),
            owner: "-".into(),
            fate,
            grace: 30,
            checkpoints: false,
            lost: None,
        }
    }

    #[test]
    fn pods_that_nothing_creates_again_are_named_to_a_bound() {
        let waits = || PodFate::Waits("keep".into());
        assert!(unmovable("n", &[pod("p", PodFate::Evicted), pod("q", waits())]).is_none());
        let many: Vec<PlannedPod> = (0..10)
            .map(|n| pod(&format!("p{n}"), PodFate::Unmovable))
            .collect();
        let problem = unmovable("n", &many).unwrap();
        assert_eq!(problem.status(), StatusCode::CONFLICT);
        assert!(
            problem.detail().contains("a/p7 and 2 more"),
            "{}",
            problem.detail()
        );
    }

    #[test]
    fn every_fate_is_counted() {
        let fates = [
            PodFate::Evicted,
            PodFate::Evicted,
            PodFate::Waits("keep".into()),
            PodFate::Skipped("its DaemonSet keeps it on the node"),
            PodFate::Unmovable,
        ];
        let pods: Vec<PlannedPod> = fates.into_iter().map(|fate| pod("p", fate)).collect();
        let counts = Counts::of(&pods);
        let told = [
            counts.evicted,
            counts.waiting,
            counts.skipped,
            counts.unmovable,
        ];
        assert_eq!(told, [2, 1, 1, 1]);
    }
}
