//! The web UI's pages: HTML rendered from the templates in `web/`, notified of changes by
//! server-sent events, usable without scripts.

mod account;
mod again;
mod alerts;
mod amounts;
mod assets;
mod chart;
mod design;
mod device;
mod drain;
mod find;
mod flash;
mod idle;
mod job;
mod jobs;
mod live;
mod measured;
mod nodes;
mod oidc;
mod overview;
mod queue;
mod second_factor;
mod sign_in;
mod submit;
mod teams;
mod usage;
mod users;
mod when;

use askama::Template;
use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{Html, IntoResponse, Redirect, Response};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use resources::access::{Caller, UserRole};

use crate::people::DEVICE_PAGE;
use crate::problem::Problem;
use crate::routes::Routes;

/// Adds the pages' routes.
pub fn routes(routes: Routes) -> Routes {
    routes
        .get("/", async || Redirect::to("/ui/"))
        .get("/ui", async || Redirect::to("/ui/"))
        .get("/ui/", overview::overview)
        .get("/ui/sign-in", sign_in::form)
        .post("/ui/sign-in", sign_in::sign_in)
        .post("/ui/sign-in/code", second_factor::check)
        .post("/ui/sign-out", sign_in::sign_out)
        .post("/ui/oidc/start", oidc::begin)
        .get("/ui/oidc/callback", oidc::end)
        .get("/ui/account", account::show)
        .post("/ui/account/password", account::password)
        .post("/ui/account/second-factor", second_factor::begin)
        .post("/ui/account/second-factor/confirm", second_factor::confirm)
        .post("/ui/account/second-factor/recovery", second_factor::renew)
        .post("/ui/account/second-factor/remove", second_factor::remove)
        .post("/ui/account/sessions/{id}", account::end_session)
        .post("/ui/account/tokens/{id}", account::revoke_token)
        .post("/ui/account/tokens/{id}/rotation", account::rotate_token)
        .get(DEVICE_PAGE, device::show)
        .post(DEVICE_PAGE, device::decide)
        .get("/ui/reset/{link}", account::reset_form)
        .post("/ui/reset", account::reset)
        .get("/ui/users", users::show)
        .post("/ui/users", users::create)
        .post("/ui/users/{name}/{action}", users::act)
        .get("/ui/jobs", jobs::list)
        .post("/ui/jobs", jobs::act)
        .post("/ui/jobs/views", jobs::keep_view)
        .get("/ui/jobs/{namespace}/{kind}/{name}", job::page)
        .post("/ui/jobs/{namespace}/{kind}/{name}/{action}", job::act)
        .get("/ui/nodes", nodes::nodes)
        .get("/ui/nodes/{name}", nodes::node)
        .post("/ui/nodes/{name}/cordon", nodes::cordon)
        .post("/ui/nodes/{name}/uncordon", nodes::uncordon)
        .get("/ui/nodes/{name}/drain", drain::preview)
        .post("/ui/nodes/{name}/drain", drain::drain_node)
        .post("/ui/nodes/{name}/remove", drain::remove)
        .get("/ui/teams", teams::show)
        .post("/ui/teams", teams::create)
        .get("/ui/teams/{name}", teams::page)
        .post("/ui/teams/{name}/{action}", teams::act)
        .get("/ui/queues", nodes::queues)
        .get("/ui/queues/{name}", queue::one)
        .post("/ui/queues/{name}", queue::edit)
        .get("/ui/usage", usage::show)
        .get("/ui/idle", idle::show)
        .post("/ui/idle/{team}", idle::change)
        .get("/ui/alerts", alerts::show)
        .post("/ui/alerts/silence", alerts::silence)
        .post("/ui/alerts/{what}/{name}", alerts::act)
        .get("/ui/submit", submit::blank)
        .post("/ui/submit", submit::submit)
        .post("/ui/submit/form", submit::from_form)
        .get("/ui/find", find::show)
        .get("/ui/design", design::design)
        .get("/ui/live", live::changes)
        .get("/ui/assets/{file}", assets::asset)
        .get("/ui/{*path}", missing)
}

/// The content of every page's frame.
pub struct PageFrame {
    user: String,
    here: &'static str,
    live: bool,
    /// True for an administrator, whose pages link to the page of users.
    administers: bool,
    /// The message about the action before.
    flash: Option<FlashLine>,
}

/// A message above a page, with what takes its action back: the address and the name of it.
struct FlashLine {
    words: &'static str,
    undo: Option<(String, &'static str)>,
}

impl PageFrame {
    fn of(caller: &Caller, here: &'static str) -> PageFrame {
        PageFrame {
            user: caller.user.clone(),
            here,
            live: true,
            administers: caller.is_in(UserRole::Admin.group()),
            flash: None,
        }
    }

    /// With the message about the action before. `base` is the address of what the action changed.
    fn flash(mut self, query: &flash::FlashQuery, base: &str) -> PageFrame {
        self.flash = query.message().map(|flash| FlashLine {
            words: flash.words,
            undo: flash
                .undo
                .map(|(action, words)| (format!("{base}/{action}"), words)),
        });
        self
    }

    /// A page with a problem in it stands still, so that the problem stays.
    fn with_problem(caller: &Caller, here: &'static str, problem: bool) -> PageFrame {
        PageFrame {
            live: !problem,
            ..PageFrame::of(caller, here)
        }
    }

    fn still(caller: &Caller, here: &'static str) -> PageFrame {
        PageFrame {
            live: false,
            ..PageFrame::of(caller, here)
        }
    }
}

/// The caller of a page; a browser without a session is redirected to sign in and back.
pub struct PageCaller(Caller);

impl<S: Sync> FromRequestParts<S> for PageCaller {
    type Rejection = Redirect;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Redirect> {
        match parts.extensions.get::<Caller>() {
            Some(caller) => Ok(PageCaller(caller.clone())),
            None => {
                let asked = parts.uri.path_and_query().map_or("/ui/", |p| p.as_str());
                let next = if parts.method == axum::http::Method::GET {
                    asked
                } else {
                    "/ui/"
                };
                Err(Redirect::to(&format!("/ui/sign-in?next={}", escape(next))))
            }
        }
    }
}

/// Characters that a query's value contains unescaped: RFC 3986's unreserved characters, and the
/// slash of a path.
const VALUE: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~')
    .remove(b'/');

/// Percent-encodes a query's value.
fn escape(text: &str) -> String {
    utf8_percent_encode(text, VALUE).to_string()
}

/// Renders a page with the headers that all pages have.
fn page<T: Template>(template: &T) -> Response {
    page_with(StatusCode::OK, template)
}

fn page_with<T: Template>(status: StatusCode, template: &T) -> Response {
    let html = match template.render() {
        Ok(html) => html,
        Err(error) => {
            tracing::error!(%error, "the server could not render a page");
            let words = "the server could not render this page; see the server's log";
            return (StatusCode::INTERNAL_SERVER_ERROR, words).into_response();
        }
    };
    let mut response = (status, Html(html)).into_response();
    let headers = response.headers_mut();
    let policy = "default-src 'self'; frame-ancestors 'none'; form-action 'self'; base-uri 'none'";
    headers.insert(
        header::CONTENT_SECURITY_POLICY,
        HeaderValue::from_static(policy),
    );
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(
        header::X_CONTENT_TYPE_OPTIONS,
        HeaderValue::from_static("nosniff"),
    );
    headers.insert(
        header::REFERRER_POLICY,
        HeaderValue::from_static("same-origin"),
    );
    response
}

#[derive(Template)]
#[template(path = "message.html")]
struct MessagePage<'a> {
    frame: PageFrame,
    title: &'a str,
    detail: &'a str,
}

/// The page for an address that is none.
async fn missing(PageCaller(caller): PageCaller, uri: axum::http::Uri) -> Response {
    let detail = format!(
        "There is no page {:?}. The pages are in the bar beside this text.",
        uri.path()
    );
    let problem = Problem::new(StatusCode::NOT_FOUND, "not-found", detail);
    message(&caller, "", &problem)
}

/// A page with the reason of a failure.
fn message(caller: &Caller, here: &'static str, problem: &Problem) -> Response {
    let title = match problem.status() {
        StatusCode::NOT_FOUND => "Not found",
        StatusCode::FORBIDDEN => "Not allowed",
        _ => "The request failed",
    };
    let template = MessagePage {
        frame: PageFrame::still(caller, here),
        title,
        detail: problem.detail(),
    };
    page_with(problem.status(), &template)
}
