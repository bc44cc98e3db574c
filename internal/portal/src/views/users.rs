//! The administrators' page of users: list, create, links to set a password, disable, delete.

use askama::Template;
use axum::Form;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::Response;
use identity::{IssuedToken, User, UserChange};
use resources::access::{Caller, UserRole};
use serde::Deserialize;

use super::account::{namespaces_of, role_name};
use super::{PageCaller, PageFrame, message, page_with};
use crate::people::{self, NewPerson};
use crate::problem::Problem;
use crate::state::Portal;

const HERE: &str = "users";

/// The fields of a new user.
#[derive(Deserialize, Default)]
#[serde(default)]
pub struct UserForm {
    name: String,
    role: String,
    namespaces: String,
    display_name: String,
    email: String,
}

/// A line of the list.
struct UserRow {
    user: User,
    sessions: usize,
    second_factor: bool,
    own: bool,
}

impl UserRow {
    fn role(&self) -> &'static str {
        role_name(self.user.role)
    }

    fn namespaces(&self) -> String {
        namespaces_of(&self.user)
    }
}

#[derive(Template)]
#[template(path = "users.html")]
struct Users {
    frame: PageFrame,
    rows: Vec<UserRow>,
    form: UserForm,
    problem: String,
    done: String,
    /// The link to hand to a user, with the server's address.
    link: String,
}

/// What a request on the page did.
struct Done {
    sentence: String,
    link: String,
}

impl Done {
    fn said(sentence: String) -> Done {
        Done {
            sentence,
            link: String::new(),
        }
    }

    /// The address of the page's own origin, as the browser sent it with the form.
    fn linked(sentence: String, link: &IssuedToken, headers: &HeaderMap) -> Done {
        let origin = headers.get(header::ORIGIN);
        let origin = origin.and_then(|origin| origin.to_str().ok());
        let path = people::reset_path(link);
        Done {
            sentence,
            link: format!("{}{path}", origin.unwrap_or_default()),
        }
    }
}

fn list(
    portal: &Portal,
    caller: &Caller,
    form: UserForm,
    outcome: Result<Done, Problem>,
) -> Response {
    if let Err(problem) = people::require(portal, caller, "list") {
        return message(caller, HERE, &problem);
    }
    let (status, done, problem) = match outcome {
        Ok(done) => (StatusCode::OK, done, String::new()),
        Err(problem) => (
            problem.status(),
            Done::said(String::new()),
            problem.detail().to_owned(),
        ),
    };
    let row = |(user, sessions): (User, usize)| UserRow {
        own: user.name == caller.user,
        second_factor: portal.identity.second_factor(&user.name).is_some(),
        user,
        sessions,
    };
    let template = Users {
        frame: PageFrame::still(caller, HERE),
        rows: people::all(portal).into_iter().map(row).collect(),
        form,
        problem,
        done: done.sentence,
        link: done.link,
    };
    page_with(status, &template)
}

/// The page.
pub async fn show(State(portal): State<Portal>, PageCaller(caller): PageCaller) -> Response {
    let nothing = Ok(Done::said(String::new()));
    list(&portal, &caller, UserForm::default(), nothing)
}

fn role_of(text: &str) -> Result<UserRole, Problem> {
    serde_json::from_value(serde_json::json!(text)).map_err(|_| {
        Problem::invalid(format!(
            "role: Invalid value: {text:?}: use admin, lead, member or viewer"
        ))
    })
}

/// Creates a user and shows the link for its password.
pub async fn create(
    State(portal): State<Portal>,
    PageCaller(caller): PageCaller,
    headers: HeaderMap,
    Form(form): Form<UserForm>,
) -> Response {
    let created = match role_of(&form.role) {
        Ok(role) => people::create(&portal, &caller, asked(&form, role)).await,
        Err(problem) => Err(problem),
    };
    match created {
        Ok((user, link)) => {
            let sentence = format!("User {} is created.", user.name);
            let done = match &link {
                Some(link) => Done::linked(sentence, link, &headers),
                None => Done::said(sentence),
            };
            list(&portal, &caller, UserForm::default(), Ok(done))
        }
        Err(problem) => list(&portal, &caller, form, Err(problem)),
    }
}

/// What a form asks for; namespaces are separated by commas or spaces.
fn asked(form: &UserForm, role: UserRole) -> NewPerson {
    let names = form.namespaces.split([',', ' ']).map(str::trim);
    let names = names.filter(|name| !name.is_empty());
    NewPerson {
        name: form.name.trim().to_owned(),
        role: Some(role),
        namespaces: Some(names.map(str::to_owned).collect::<Vec<_>>())
            .filter(|names| !names.is_empty()),
        display_name: Some(form.display_name.trim().to_owned()),
        email: Some(form.email.trim().to_owned()),
        password: None,
    }
}

/// Acts on one user.
pub async fn act(
    State(portal): State<Portal>,
    PageCaller(caller): PageCaller,
    headers: HeaderMap,
    Path((name, action)): Path<(String, String)>,
) -> Response {
    let outcome = acted(&portal, &caller, &headers, &name, &action).await;
    list(&portal, &caller, UserForm::default(), outcome)
}

async fn acted(
    portal: &Portal,
    caller: &Caller,
    headers: &HeaderMap,
    name: &str,
    action: &str,
) -> Result<Done, Problem> {
    let switch = |disabled: bool| UserChange {
        disabled: Some(disabled),
        ..UserChange::default()
    };
    let sentence = match action {
        "reset" => {
            let link = people::reset_link(portal, caller, name, identity::RESET_HOURS).await?;
            let sentence = format!("User {name} can set a new password.");
            return Ok(Done::linked(sentence, &link, headers));
        }
        "reset-second-factor" => {
            people::reset_second_factor(portal, caller, name).await?;
            format!("The second factor of user {name} is removed: its password alone signs it in.")
        }
        "disable" => {
            people::change(portal, caller, name, switch(true)).await?;
            format!("User {name} is disabled: its sessions have ended, and its tokens are refused.")
        }
        "enable" => {
            people::change(portal, caller, name, switch(false)).await?;
            format!("User {name} is enabled.")
        }
        "end-sessions" => {
            people::require(portal, caller, "update")?;
            let ended = people::end_sessions(portal, caller, name).await?;
            format!("{ended} session(s) of user {name} have ended.")
        }
        "delete" => {
            people::delete(portal, caller, name).await?;
            format!("User {name} is deleted.")
        }
        _ => {
            people::require(portal, caller, "update")?;
            let detail = format!("there is no action {action:?} on a user");
            return Err(Problem::new(StatusCode::NOT_FOUND, "not-found", detail));
        }
    };
    Ok(Done::said(sentence))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_form_names_its_namespaces_in_one_field() {
        let form = UserForm {
            name: " ann ".into(),
            namespaces: "team-a, team-b  team-c,".into(),
            ..UserForm::default()
        };
        let asked = asked(&form, UserRole::Lead);
        assert_eq!(asked.name, "ann");
        assert_eq!(asked.namespaces.unwrap(), ["team-a", "team-b", "team-c"]);
        assert_eq!(asked.password, None);
        assert!(role_of("viewer").is_ok_and(|role| role == UserRole::Viewer));
        assert!(role_of("root").unwrap_err().detail().contains("\"root\""));
    }
}
