//! The page on which a signed-in person approves or refuses the sign-in of a program (RFC 8628, section 3.3): it shows the
//! code, the program that asks, what its token may do and when the token expires.

use std::net::{IpAddr, SocketAddr};

use askama::Template;
use axum::extract::{ConnectInfo, Query, State};
use axum::http::StatusCode;
use axum::response::Response;
use axum::{Extension, Form};
use identity::audit::EventNotes;
use identity::{DeviceLogin, IdentityError, TokenInfo, User};
use jiff::Timestamp;
use resources::access::{Caller, Impersonator};
use resources::span::human_duration;
use serde::Deserialize;

use super::account::{namespaces_of, role_name};
use super::when::When;
use super::{PageCaller, PageFrame, message, page_with};
use crate::problem::Problem;
use crate::rest::{may_issue_token, oauth_notes};
use crate::state::Portal;

const HERE: &str = "account";

type Peer = Option<Extension<ConnectInfo<SocketAddr>>>;

/// The code in the address.
#[derive(Deserialize, Default)]
#[serde(default)]
pub struct Asked {
    user_code: String,
}

/// What a person decided.
#[derive(Deserialize, Default)]
#[serde(default)]
pub struct DecisionForm {
    user_code: String,
    decision: String,
}

/// A program that waits.
struct Waiting {
    code: String,
    client: String,
    address: String,
    asked: When,
    expires: When,
    /// How long the token is valid.
    life: String,
    until: When,
}

#[derive(Template)]
#[template(path = "device.html")]
struct DevicePage {
    frame: PageFrame,
    user: User,
    waiting: Option<Waiting>,
    problem: String,
    done: String,
}

impl DevicePage {
    fn role(&self) -> &'static str {
        role_name(self.user.role)
    }

    fn namespaces(&self) -> String {
        namespaces_of(&self.user)
    }
}

/// The address that a program asked from, compared with the browser's.
fn address_words(program: Option<IpAddr>, browser: Option<IpAddr>) -> String {
    let canonical = |address: Option<IpAddr>| address.map(|address| address.to_canonical());
    match (canonical(program), canonical(browser)) {
        (None, _) => "unknown".to_owned(),
        (Some(program), Some(browser)) if program == browser => {
            format!("{program}, as this browser")
        }
        (Some(program), Some(browser)) => format!("{program}; this browser is at {browser}"),
        (Some(program), None) => program.to_string(),
    }
}

impl Waiting {
    fn of(login: &DeviceLogin, browser: Option<IpAddr>, now: Timestamp) -> Waiting {
        let life = login.request.token_ttl;
        let until = now.checked_add(life).unwrap_or(Timestamp::MAX);
        Waiting {
            code: login.user_code.clone(),
            client: login.request.client.clone(),
            address: address_words(login.request.from, browser),
            asked: When::of(login.begun, now),
            expires: When::of(login.expires, now),
            life: human_duration(i64::try_from(life.as_secs()).unwrap_or(i64::MAX)),
            until: When {
                at: until.to_string(),
                words: until.strftime("%Y-%m-%d %H:%M UTC").to_string(),
            },
        }
    }
}

/// What the page says besides the code's form.
enum Shows {
    Nothing,
    Waiting(Box<Waiting>),
    Done(String),
    Problem(Problem),
}

fn device(portal: &Portal, caller: &Caller, shows: Shows) -> Response {
    let Some(user) = portal.identity.user(&caller.user) else {
        let detail = format!(
            "{:?} is no user of Muster, and no program can act as it",
            caller.user
        );
        let problem = Problem::new(StatusCode::NOT_FOUND, "not-found", detail);
        return message(caller, HERE, &problem);
    };
    let mut page = DevicePage {
        frame: PageFrame::still(caller, HERE),
        user,
        waiting: None,
        problem: String::new(),
        done: String::new(),
    };
    let mut status = StatusCode::OK;
    match shows {
        Shows::Nothing => {}
        Shows::Waiting(waiting) => page.waiting = Some(*waiting),
        Shows::Done(done) => page.done = done,
        Shows::Problem(problem) => {
            status = problem.status();
            page.problem = problem.detail().to_owned();
        }
    }
    page_with(status, &page)
}

/// The page: a form for the code, or what waits with the code in the address.
pub async fn show(
    State(portal): State<Portal>,
    PageCaller(caller): PageCaller,
    peer: Peer,
    Query(asked): Query<Asked>,
) -> Response {
    let known = portal.identity.user(&caller.user).is_some();
    if asked.user_code.is_empty() || !known {
        return device(&portal, &caller, Shows::Nothing);
    }
    let browser = peer.map(|Extension(ConnectInfo(address))| address.ip());
    let found = portal.identity.device_login(&asked.user_code, &caller.user);
    let shows = match found {
        Ok(login) => Shows::Waiting(Box::new(Waiting::of(&login, browser, Timestamp::now()))),
        Err(error) => Shows::Problem(error.into()),
    };
    device(&portal, &caller, shows)
}

/// Approves or refuses.
pub async fn decide(
    State(portal): State<Portal>,
    PageCaller(caller): PageCaller,
    impersonator: Option<Extension<Impersonator>>,
    credential: Option<Extension<TokenInfo>>,
    Form(form): Form<DecisionForm>,
) -> Response {
    let credential = credential.map(|Extension(token)| token.purpose);
    let may = may_issue_token(&portal, &caller, impersonator.is_some(), credential);
    if let Err(problem) = may {
        return message(&caller, HERE, &problem);
    }
    match decided(&portal, &caller, &form) {
        Ok((login, approved)) => {
            let client = &login.request.client;
            let (what, done) = match approved {
                true => (
                    "approved",
                    format!("{client} is signed in as you. Its terminal goes on within seconds."),
                ),
                false => ("refused", format!("{client} is refused.")),
            };
            tracing::info!(
                user = caller.user,
                client,
                "the sign-in of a program was {what}"
            );
            let mut page = device(&portal, &caller, Shows::Done(done));
            let notes = EventNotes(oauth_notes(what, &login.request));
            page.extensions_mut().insert(notes);
            page
        }
        Err(problem) => device(&portal, &caller, Shows::Problem(problem)),
    }
}

fn decided(
    portal: &Portal,
    caller: &Caller,
    form: &DecisionForm,
) -> Result<(DeviceLogin, bool), Problem> {
    let approve = match form.decision.as_str() {
        "approve" => true,
        "refuse" => false,
        _ => return Err(Problem::invalid("decision: use approve or refuse")),
    };
    let name = &caller.user;
    if portal.identity.user(name).is_none() {
        return Err(IdentityError::NoSuchUser { name: name.clone() }.into());
    }
    let login = (portal.identity).decide_device_login(&form.user_code, name, approve)?;
    Ok((login, approve))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_programs_address_is_compared_with_the_browsers() {
        let parse = |text: &str| text.parse::<IpAddr>().ok();
        for (program, browser, words) in [
            ("10.0.0.1", "10.0.0.1", "10.0.0.1, as this browser"),
            ("::ffff:10.0.0.1", "10.0.0.1", "10.0.0.1, as this browser"),
            (
                "10.0.0.1",
                "10.0.0.2",
                "10.0.0.1; this browser is at 10.0.0.2",
            ),
            ("10.0.0.1", "", "10.0.0.1"),
            ("", "10.0.0.1", "unknown"),
        ] {
            assert_eq!(address_words(parse(program), parse(browser)), words);
        }
    }
}
