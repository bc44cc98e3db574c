//! Teams: the list, a team's page, and the forms by which administrators make and change teams. Rights are those of the
//! resource API: the handlers act as the caller.

use administration::team::{
    Amounts, Members, NewTeam, QuotaUse, TeamProblem, TeamQueue, TeamRole, Teams,
};
use askama::Template;
use axum::Form;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Redirect, Response};
use resources::access::Caller;
use resources::names::NVIDIA_GPU;
use resources::syntax;
use serde::Deserialize;

use super::flash::FlashQuery;
use super::{PageCaller, PageFrame, amounts, escape, message, page_with};
use crate::board::{TeamRow, caught_up};
use crate::people;
use crate::problem::Problem;
use crate::state::Portal;

const HERE: &str = "teams";

/// The fields of a new team.
#[derive(Deserialize, Default)]
#[serde(default)]
pub struct NewTeamForm {
    name: String,
    namespaces: String,
    parent: String,
    weight: String,
    gpus: String,
    quota: String,
    leads: String,
    members: String,
    viewers: String,
}

/// The fields of a change to a team.
#[derive(Deserialize, Default)]
#[serde(default)]
pub struct ChangeForm {
    gpus: String,
    quota: String,
    user: String,
    role: String,
    /// `isolated` or `open`.
    network: String,
    confirm: String,
}

#[derive(Template)]
#[template(path = "teams.html")]
struct TeamsPage {
    frame: PageFrame,
    rows: Vec<TeamRow>,
    manages: bool,
    /// Names for the fields of users.
    users: Vec<String>,
    /// Queues that a team's queue may be part of.
    queues: Vec<String>,
    form: NewTeamForm,
    problem: String,
}

#[derive(Template)]
#[template(path = "team.html")]
struct TeamPage {
    frame: PageFrame,
    team: TeamRow,
    quotas: Vec<QuotaUse>,
    manages: bool,
    users: Vec<String>,
    /// The quota as the form's fields have it.
    gpus: String,
    others: String,
    /// The namespaces whose network is isolated; none for a reader that may not see their NetworkPolicies.
    isolated: Option<Vec<String>>,
    problem: String,
}

impl From<TeamProblem> for Problem {
    fn from(problem: TeamProblem) -> Problem {
        let conflict = |words: String| Problem::new(StatusCode::CONFLICT, "conflict", words);
        match problem {
            TeamProblem::Invalid(error) => Problem::invalid(error.to_string()),
            TeamProblem::Missing(_) | TeamProblem::NoMember { .. } => {
                Problem::new(StatusCode::NOT_FOUND, "not-found", problem.to_string())
            }
            TeamProblem::Object { object, source } => {
                let refusal = Problem::from(source);
                let words = format!("{object}: {}", refusal.detail());
                Problem::new(refusal.status(), "refused", words)
            }
            TeamProblem::Request(source) => Problem::from(source),
            other => conflict(other.to_string()),
        }
    }
}

/// True if this caller may change teams.
pub(super) fn manages(portal: &Portal, caller: &Caller) -> bool {
    portal.permits_cluster(caller, "patch", "", "namespaces", None)
}

/// Refuses a caller that may not change teams.
pub(super) fn require(portal: &Portal, caller: &Caller) -> Result<(), Problem> {
    match manages(portal, caller) {
        true => Ok(()),
        false => Err(Problem::forbidden(format!(
            "user {:?} may not change teams; an administrator can",
            caller.user
        ))),
    }
}

/// The teams that a caller may see.
pub(super) fn teams(portal: &Portal, caller: &Caller) -> Vec<TeamRow> {
    let sees = |namespace: &str| portal.may_see(caller, "", "resourcequotas", namespace);
    portal.board.teams(sees)
}

/// One of them.
pub(super) fn team(portal: &Portal, caller: &Caller, name: &str) -> Option<TeamRow> {
    let mut all = teams(portal, caller).into_iter();
    all.find(|team| team.name == name)
}

/// Waits until the board shows a change.
pub(super) async fn settled(portal: &Portal, holds: impl Fn() -> bool) {
    let shown = || holds().then_some(());
    let shown = caught_up(portal.board.version(), shown, std::future::ready(true));
    let _ = shown.await;
}

/// The names of users, for a caller that may list them.
fn users(portal: &Portal, caller: &Caller) -> Vec<String> {
    match people::require(portal, caller, "list") {
        Ok(()) => {
            let all = people::all(portal).into_iter();
            all.map(|(user, _)| user.name).collect()
        }
        Err(_) => Vec::new(),
    }
}

fn list(
    portal: &Portal,
    caller: &Caller,
    form: NewTeamForm,
    flash: &FlashQuery,
    problem: Option<Problem>,
) -> Response {
    let status = problem.as_ref().map_or(StatusCode::OK, Problem::status);
    let manages = manages(portal, caller);
    let queues = portal.queues(caller).unwrap_or_default();
    let template = TeamsPage {
        frame: PageFrame::with_problem(caller, HERE, problem.is_some()).flash(flash, "/ui/teams"),
        rows: teams(portal, caller),
        users: users(portal, caller),
        queues: match manages {
            true => queues.into_iter().map(|queue| queue.name).collect(),
            false => Vec::new(),
        },
        manages,
        form,
        problem: problem.map_or_else(String::new, |problem| problem.detail().to_owned()),
    };
    page_with(status, &template)
}

/// The list.
pub async fn show(
    State(portal): State<Portal>,
    PageCaller(caller): PageCaller,
    Query(flash): Query<FlashQuery>,
) -> Response {
    list(&portal, &caller, NewTeamForm::default(), &flash, None)
}

/// The names in a field, separated by commas or spaces.
fn names(text: &str) -> Vec<String> {
    let names = text.split(|c: char| c == ',' || c.is_whitespace());
    let names = names.filter(|name| !name.is_empty());
    names.map(str::to_owned).collect()
}

/// A name that becomes that of an object.
fn named(field: &str, name: &str) -> Result<String, Problem> {
    match syntax::dns1123_label(name).first() {
        None => Ok(name.to_owned()),
        Some(fault) => Err(Problem::invalid(format!(
            "{field}: Invalid value: {name:?}: {fault}"
        ))),
    }
}

/// The quota of two fields: GPUs, and other amounts.
fn quota(gpus: &str, others: &str) -> Result<Amounts, Problem> {
    let mut quota = amounts::read("quota", others)?;
    let gpus = gpus.trim();
    if !gpus.is_empty() {
        let count: u32 = gpus.parse().map_err(|_| {
            Problem::invalid(format!(
                "gpus: Invalid value: {gpus:?}: write a number of GPUs, such as 8"
            ))
        })?;
        quota.insert(NVIDIA_GPU.to_owned(), count.to_string());
    }
    Ok(quota)
}

fn asked(form: &NewTeamForm) -> Result<NewTeam, Problem> {
    let mut members = Members::new();
    for (field, role) in [
        (&form.viewers, TeamRole::Viewer),
        (&form.members, TeamRole::Member),
        (&form.leads, TeamRole::Lead),
    ] {
        members.extend(names(field).into_iter().map(|user| (user, role)));
    }
    let namespaces = names(&form.namespaces);
    let weight = form.weight.trim();
    let weight = match weight {
        "" => None,
        text => Some(
            text.parse::<u32>()
                .ok()
                .filter(|weight| *weight > 0)
                .ok_or_else(|| {
                    Problem::invalid(format!(
                        "weight: Invalid value: {text:?}: write a number from 1, such as 2"
                    ))
                })?,
        ),
    };
    Ok(NewTeam {
        name: named("name", form.name.trim())?,
        namespaces: namespaces
            .iter()
            .map(|name| named("namespaces", name))
            .collect::<Result<_, _>>()?,
        queue: TeamQueue {
            parent: Some(form.parent.clone()).filter(|parent| !parent.is_empty()),
            weight,
            ..TeamQueue::default()
        },
        quota: quota(&form.gpus, &form.quota)?,
        members,
        isolate_network: false,
    })
}

async fn made(portal: &Portal, caller: &Caller, form: &NewTeamForm) -> Result<String, Problem> {
    require(portal, caller)?;
    let new = asked(form)?;
    Teams::new(portal.client(caller)).create(&new).await?;
    let shown = || team(portal, caller, &new.name).is_some_and(|team| team.members == new.members);
    settled(portal, shown).await;
    Ok(new.name)
}

/// Makes a team.
pub async fn create(
    State(portal): State<Portal>,
    PageCaller(caller): PageCaller,
    Form(form): Form<NewTeamForm>,
) -> Response {
    match made(&portal, &caller, &form).await {
        Ok(name) => Redirect::to(&format!("/ui/teams/{name}?flash=team-created")).into_response(),
        Err(problem) if problem.status() == StatusCode::FORBIDDEN => {
            message(&caller, HERE, &problem)
        }
        Err(problem) => {
            let none = FlashQuery::default();
            list(&portal, &caller, form, &none, Some(problem))
        }
    }
}

/// There is no such team for the caller.
pub(super) fn missing(name: &str) -> Problem {
    let detail = format!(
        "there is no team {name:?} that you may see; the page Teams and `muster team list` have the teams"
    );
    Problem::new(StatusCode::NOT_FOUND, "not-found", detail)
}

/// The quota of the first namespace, as the fields of the form have it: GPUs, and the rest.
fn fields(quotas: &[QuotaUse]) -> (String, String) {
    let gpu = format!("requests.{NVIDIA_GPU}");
    let first = quotas.first().map(|(_, amounts)| amounts.as_slice());
    let all = first.unwrap_or_default().iter();
    let gpus = all.clone().find(|(name, _, _)| *name == gpu);
    let others = all.filter(|(name, _, _)| *name != gpu);
    let others = others.map(|(name, _, most)| (name.as_str(), most.as_str()));
    (
        gpus.map(|(_, _, most)| most.clone()).unwrap_or_default(),
        amounts::write(others),
    )
}

/// Whether a form asks for an isolated network.
fn isolates(network: &str) -> Result<bool, Problem> {
    match network {
        "isolated" => Ok(true),
        "open" => Ok(false),
        other => Err(Problem::invalid(format!(
            "network: Invalid value: {other:?}: use isolated or open"
        ))),
    }
}

async fn one(
    portal: &Portal,
    caller: &Caller,
    name: &str,
    flash: &FlashQuery,
    problem: Option<Problem>,
) -> Response {
    let Some(team) = team(portal, caller, name) else {
        return message(caller, HERE, &problem.unwrap_or_else(|| missing(name)));
    };
    let status = problem.as_ref().map_or(StatusCode::OK, Problem::status);
    let api = Teams::new(portal.client(caller));
    let seen = team.namespaces.iter();
    let seen = seen.filter(|name| portal.may_see(caller, "", "resourcequotas", name));
    let seen: Vec<String> = seen.cloned().collect();
    let quotas = match api.quotas(name, &seen).await {
        Ok(quotas) => quotas,
        Err(error) => return message(caller, HERE, &error.into()),
    };
    let (gpus, others) = fields(&quotas);
    let policies =
        |name: &String| portal.may_see(caller, "networking.k8s.io", "networkpolicies", name);
    let isolated = match seen.iter().all(policies) {
        true => match api.isolated(name, &seen).await {
            Ok(isolated) => Some(isolated),
            Err(error) => return message(caller, HERE, &error.into()),
        },
        false => None,
    };
    let template = TeamPage {
        frame: PageFrame::with_problem(caller, HERE, problem.is_some())
            .flash(flash, &format!("/ui/teams/{name}")),
        manages: manages(portal, caller),
        users: users(portal, caller),
        team,
        quotas,
        gpus,
        others,
        isolated,
        problem: problem.map_or_else(String::new, |problem| problem.detail().to_owned()),
    };
    page_with(status, &template)
}

/// One team.
pub async fn page(
    State(portal): State<Portal>,
    PageCaller(caller): PageCaller,
    Path(name): Path<String>,
    Query(flash): Query<FlashQuery>,
) -> Response {
    one(&portal, &caller, &name, &flash, None).await
}

/// Carries out a change; the answer is the page to go to.
async fn changed(
    portal: &Portal,
    caller: &Caller,
    name: &str,
    action: &str,
    form: &ChangeForm,
) -> Result<String, Problem> {
    require(portal, caller)?;
    let api = Teams::new(portal.client(caller));
    let user = form.user.trim();
    let role = |team: Option<TeamRow>| team.and_then(|team| team.members.get(user).copied());
    let here = |flash: &str| format!("/ui/teams/{}?flash={flash}", escape(name));
    match action {
        "quota" => {
            let quota = quota(&form.gpus, &form.quota)?;
            if quota.is_empty() {
                return Err(Problem::invalid(
                    "quota: Required value: write at least one amount, such as 8 GPUs",
                ));
            }
            api.set_quota(name, &quota).await?;
            Ok(here("quota-set"))
        }
        "network" => {
            let isolated = isolates(&form.network)?;
            api.set_isolation(name, isolated).await?;
            Ok(here(match isolated {
                true => "network-isolated",
                false => "network-opened",
            }))
        }
        "add-member" => {
            let wanted = TeamRole::ALL
                .into_iter()
                .find(|role| role.as_str() == form.role);
            let wanted = wanted.ok_or_else(|| {
                Problem::invalid(format!(
                    "role: Invalid value: {:?}: use lead, member or viewer",
                    form.role
                ))
            })?;
            if user.is_empty() {
                return Err(Problem::invalid("user: Required value: name the user"));
            }
            api.add_member(name, user, wanted).await?;
            settled(portal, || role(team(portal, caller, name)) == Some(wanted)).await;
            Ok(here("member-added"))
        }
        "remove-member" => {
            api.remove_member(name, user).await?;
            settled(portal, || role(team(portal, caller, name)).is_none()).await;
            Ok(here("member-removed"))
        }
        "delete" => {
            if form.confirm != name {
                return Err(Problem::invalid(format!(
                    "confirm: Invalid value: {:?}: type the team's name, {name:?}, to delete it",
                    form.confirm
                )));
            }
            api.delete(name, false).await?;
            settled(portal, || team(portal, caller, name).is_none()).await;
            Ok("/ui/teams?flash=team-deleted".to_owned())
        }
        other => {
            let detail = format!("there is no action {other:?} on a team");
            Err(Problem::new(StatusCode::NOT_FOUND, "not-found", detail))
        }
    }
}

/// Changes one team.
pub async fn act(
    State(portal): State<Portal>,
    PageCaller(caller): PageCaller,
    Path((name, action)): Path<(String, String)>,
    Form(form): Form<ChangeForm>,
) -> Response {
    match changed(&portal, &caller, &name, &action, &form).await {
        Ok(page) => Redirect::to(&page).into_response(),
        Err(problem) if problem.status() == StatusCode::FORBIDDEN => {
            message(&caller, HERE, &problem)
        }
        Err(problem) => {
            let none = FlashQuery::default();
            one(&portal, &caller, &name, &none, Some(problem)).await
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn form() -> NewTeamForm {
        NewTeamForm {
            name: " vision ".into(),
            namespaces: "v1, v2".into(),
            weight: "2".into(),
            gpus: "8".into(),
            quota: "pods=100".into(),
            leads: "ann".into(),
            members: "bob ann".into(),
            ..NewTeamForm::default()
        }
    }

    #[test]
    fn a_form_asks_for_a_team_as_the_command_line_does() {
        let new = asked(&form()).unwrap();
        assert_eq!(new.name, "vision");
        assert_eq!(new.own_namespaces(), ["v1", "v2"]);
        assert_eq!((new.queue.weight, new.queue.parent), (Some(2), None));
        assert_eq!(new.quota[NVIDIA_GPU], "8");
        assert_eq!(new.quota["pods"], "100");
        assert_eq!(new.members["ann"], TeamRole::Lead);
        assert_eq!(new.members["bob"], TeamRole::Member);
    }

    #[test]
    fn a_field_that_is_wrong_is_named() {
        let wrong = |change: fn(&mut NewTeamForm)| {
            let mut form = form();
            change(&mut form);
            asked(&form).unwrap_err().detail().to_owned()
        };
        let table = [
            (wrong(|form| form.name = "Vision/../x".into()), "name: "),
            (
                wrong(|form| form.namespaces = "a b/c".into()),
                "namespaces: ",
            ),
            (wrong(|form| form.weight = "0".into()), "weight: "),
            (wrong(|form| form.gpus = "-1".into()), "gpus: "),
            (wrong(|form| form.quota = "pods".into()), "quota: "),
        ];
        for (said, field) in table {
            assert!(said.starts_with(field), "{said}");
        }
    }

    #[test]
    fn a_network_is_isolated_or_open() {
        assert!(isolates("isolated").unwrap() && !isolates("open").unwrap());
        for other in ["", "Isolated", "closed"] {
            let error = isolates(other).unwrap_err();
            assert!(error.detail().starts_with("network: "), "{other}");
        }
    }

    #[test]
    fn the_form_for_the_quota_has_what_is_set() {
        let amount = |name: &str, most: &str| (name.to_owned(), "1".to_owned(), most.to_owned());
        let quotas = [(
            "v1".to_owned(),
            vec![amount("pods", "9"), amount("requests.nvidia.com/gpu", "8")],
        )];
        assert_eq!(fields(&quotas), ("8".to_owned(), "pods=9".to_owned()));
        assert_eq!(fields(&[]), (String::new(), String::new()));
        let (gpus, others) = fields(&quotas);
        assert_eq!(quota(&gpus, &others).unwrap()[NVIDIA_GPU], "8");
    }
}
