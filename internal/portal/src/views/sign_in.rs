//! Sign-in and sign-out.

use std::net::{IpAddr, SocketAddr};

use askama::Template;
use axum::Form;
use axum::extract::{ConnectInfo, Query, State};
use axum::http::{HeaderMap, Uri, header};
use axum::response::{IntoResponse, Redirect, Response};
use identity::audit::SignInName;
use identity::{
    IssuedToken, PasswordAnswer, SECURE_SESSION_COOKIE, SESSION_COOKIE, SESSION_TTL, TokenInfo,
};
use serde::Deserialize;

use super::{page, page_with, second_factor};
use crate::oidc_sign_in::OidcSignIn;
use crate::problem::Problem;
use crate::state::Portal;

#[derive(Template)]
#[template(path = "sign_in.html")]
struct SignIn<'a> {
    problem: String,
    user: String,
    next: String,
    /// The identity provider's name.
    provider: Option<&'a str>,
}

/// The form again, with the reason why a sign-in was refused.
pub(super) fn refused(portal: &Portal, problem: &Problem, user: &str, next: &str) -> Response {
    let template = SignIn {
        problem: problem.detail().to_owned(),
        user: user.to_owned(),
        next: own_page(next).to_owned(),
        provider: provider(portal),
    };
    let page = page_with(problem.status(), &template);
    match problem.retry_after() {
        Some(seconds) => ([(header::RETRY_AFTER, seconds.to_string())], page).into_response(),
        None => page,
    }
}

fn provider(portal: &Portal) -> Option<&str> {
    portal.oidc.as_deref().map(OidcSignIn::button)
}

/// A page that leads to a pod's page or to the identity provider. A redirect would end at another origin, and the form may
/// lead to this server's own pages only.
#[derive(Template)]
#[template(
    source = "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><title>Signed in</title>\
              <meta http-equiv=\"refresh\" content=\"0; url={{ next }}\"></head>\
              <body><p><a href=\"{{ next }}\">Go on</a></p></body></html>",
    ext = "html"
)]
struct LeadOn<'a> {
    next: &'a str,
}

/// A page that leads to another address at once.
pub(super) fn lead_on(next: &str) -> Response {
    page(&LeadOn { next })
}

/// The begin of the addresses of pods' pages.
const OF_PODS: &str = "/proxy/";

/// The page after signing in.
#[derive(Deserialize)]
pub struct NextPage {
    #[serde(default)]
    pub(super) next: String,
}

/// The form's fields.
#[derive(Deserialize)]
pub struct Credentials {
    user: String,
    password: String,
    #[serde(default)]
    next: String,
}

/// Accepts only the server's own pages and the addresses of pods' pages, so that a link cannot redirect to another site.
pub(super) fn own_page(next: &str) -> &str {
    let own = (next.starts_with("/ui/") || next.starts_with(OF_PODS))
        && !next.contains("//")
        && !next.contains('\\')
        // A header cannot carry them.
        && !next.contains(char::is_control);
    if own { next } else { "/ui/" }
}

/// The sign-in form.
pub async fn form(State(portal): State<Portal>, Query(next): Query<NextPage>) -> Response {
    page(&SignIn {
        problem: String::new(),
        user: String::new(),
        next: own_page(&next.next).to_string(),
        provider: provider(&portal),
    })
}

/// Checks the password and sets the session's cookie.
pub async fn sign_in(
    State(portal): State<Portal>,
    peer: Option<axum::Extension<ConnectInfo<SocketAddr>>>,
    uri: Uri,
    headers: HeaderMap,
    Form(form): Form<Credentials>,
) -> Response {
    if identity::is_cross_site(&headers, &uri) {
        let detail = "the sign-in form must be sent from Muster's own page; open it and try again";
        return Problem::forbidden(detail).into_response();
    }
    let name = SignInName(form.user.trim().to_owned());
    let from = peer.map(|axum::Extension(ConnectInfo(address))| address.ip());
    let mut answer = signed_in(&portal, &headers, from, form).await;
    answer.extensions_mut().insert(name);
    answer
}

async fn signed_in(
    portal: &Portal,
    headers: &HeaderMap,
    from: Option<IpAddr>,
    form: Credentials,
) -> Response {
    let next = own_page(&form.next).to_string();
    match portal
        .identity
        .sign_in(form.user.trim(), &form.password, from)
        .await
    {
        Ok(PasswordAnswer::SignedIn(session)) => opened(headers, &session, &next),
        Ok(PasswordAnswer::CodeNeeded(wait)) => second_factor::ask(wait, &next),
        Err(error) => {
            let problem = Problem::from(error);
            refused(portal, &problem, &form.user, &next)
        }
    }
}

/// Sets the cookie of a new session, and leads to one of the pages that [`own_page`] accepts.
pub(super) fn opened(headers: &HeaderMap, session: &IssuedToken, next: &str) -> Response {
    let cookie = cookie(&session.secret, SESSION_TTL.as_secs(), is_https(headers));
    let answer = match next.starts_with(OF_PODS) {
        true => lead_on(next),
        false => Redirect::to(next).into_response(),
    };
    ([(header::SET_COOKIE, cookie)], answer).into_response()
}

/// Ends the session.
pub async fn sign_out(
    State(portal): State<Portal>,
    session: Option<axum::Extension<TokenInfo>>,
    headers: HeaderMap,
) -> Response {
    if let Some(axum::Extension(session)) = session
        && let Err(error) = portal.identity.revoke(&session.id).await
    {
        tracing::warn!(%error, "the server could not end a session");
    }
    let cookie = cookie("", 0, is_https(&headers));
    ([(header::SET_COOKIE, cookie)], Redirect::to("/ui/sign-in")).into_response()
}

/// Browsers report the scheme of the page that a form was sent from.
pub(super) fn is_https(headers: &HeaderMap) -> bool {
    let origin = headers
        .get(header::ORIGIN)
        .and_then(|origin| origin.to_str().ok());
    origin.is_some_and(|origin| origin.starts_with("https://"))
}

pub(super) fn cookie(secret: &str, seconds: u64, https: bool) -> String {
    let (name, secure) = match https {
        true => (SECURE_SESSION_COOKIE, "; Secure"),
        false => (SESSION_COOKIE, ""),
    };
    format!("{name}={secret}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signing_in_leads_to_our_own_pages_only() {
        for own in ["/ui/jobs?q=x", "/proxy/a/pods/p/80/x"] {
            assert_eq!(own_page(own), own);
        }
        for other in [
            "",
            "https://evil.example",
            "//evil.example",
            "/ui//evil",
            "/ui/\\evil",
            "/api",
        ] {
            assert_eq!(own_page(other), "/ui/", "{other}");
        }
    }

    #[test]
    fn the_cookie_is_out_of_reach_for_scripts_and_other_sites() {
        let cookie = cookie("s", 60, true);
        for part in [
            "HttpOnly",
            "SameSite=Strict",
            "Secure",
            "Max-Age=60",
            "Path=/",
            "__Host-muster_session=",
        ] {
            assert!(cookie.contains(part), "{part}");
        }
    }

    fn prop_redirects(to: &str) -> proptest::test_runner::TestCaseResult {
        proptest::prop_assert!(to.starts_with("/ui/") || to.starts_with("/proxy/"));
        let answer = Redirect::to(to).into_response();
        proptest::prop_assert!(answer.status().is_redirection(), "{:?}", to);
        Ok(())
    }

    #[test]
    fn a_page_with_a_control_character_is_not_our_own() {
        assert_eq!(own_page("/ui/jobs\n"), "/ui/");
        prop_redirects(own_page("/ui/a\u{7f}b")).unwrap();
    }

    proptest::proptest! {
        #[test]
        fn no_page_after_signing_in_panics(next in "(/ui/)?[/\\\\a-z:.?&%#@\\PC]{0,24}", damage in crate::documents::damage()) {
            let to = own_page(&next);
            proptest::prop_assert!(!to.contains("//") && !to.contains('\\'), "{}", to);
            // A header can carry it.
            prop_redirects(to)?;
            let uri = crate::documents::damaged(b"/ui/sign-in?next=%2Fui%2Fjobs".to_vec(), &damage);
            if let Ok(uri) = axum::http::Uri::try_from(uri)
                && let Ok(next) = Query::<NextPage>::try_from_uri(&uri)
            {
                prop_redirects(own_page(&next.next))?;
                prop_redirects(own_page(&format!("/ui/{}", next.next)))?;
            }
        }
    }
}
