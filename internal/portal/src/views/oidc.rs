//! Signing in by OpenID Connect in a browser: to the provider and back. A cookie binds the sign-in to the browser in which
//! it began, so that a page of another site cannot end its own sign-in here.

use std::net::{IpAddr, SocketAddr};

use ::oidc::{Callback, SIGN_IN_TTL};
use administration::team::Teams;
use axum::Form;
use axum::extract::{ConnectInfo, Query, State};
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use identity::SESSION_TTL;
use identity::audit::SignInName;
use jiff::Timestamp;
use resources::access::Caller;
use serde::Deserialize;

use super::sign_in::{self, NextPage, lead_on, own_page};
use crate::oidc_sign_in::OidcSignIn;
use crate::problem::Problem;
use crate::state::Portal;

/// The path to which the provider sends the browser back. The provider's settings have it as the redirect URI.
const RETURN: &str = "/ui/oidc/callback";

/// The cookie of a sign-in that has begun over TLS. Its prefix keeps other hosts of the domain from setting it.
const SECURE_COOKIE: &str = "__Host-muster_oidc";

/// The same over plain HTTP, which only browsers on this machine use.
const COOKIE: &str = "muster_oidc";

type Peer = Option<axum::Extension<ConnectInfo<SocketAddr>>>;

/// What the provider puts in the address.
#[derive(Deserialize, Default)]
#[serde(default)]
pub struct Returned {
    state: String,
    code: Option<String>,
    error: Option<String>,
    error_description: Option<String>,
    iss: Option<String>,
}

fn address(peer: Peer) -> Option<IpAddr> {
    peer.map(|axum::Extension(ConnectInfo(address))| address.ip())
}

fn configured(portal: &Portal) -> Result<&OidcSignIn, Problem> {
    portal.oidc.as_deref().ok_or_else(|| {
        let detail = "this server has no identity provider; sign in with a password, or ask an administrator to set \
                      --oidc-issuer-url";
        Problem::new(StatusCode::NOT_FOUND, "not-found", detail)
    })
}

/// Begins a sign-in: sets its cookie and leads to the provider.
pub async fn begin(
    State(portal): State<Portal>,
    peer: Peer,
    uri: Uri,
    headers: HeaderMap,
    Form(form): Form<NextPage>,
) -> Response {
    let sign_in = match configured(&portal) {
        Ok(sign_in) => sign_in,
        Err(problem) => return problem.into_response(),
    };
    let origin = headers
        .get(header::ORIGIN)
        .and_then(|origin| origin.to_str().ok());
    let Some(origin) = origin.filter(|_| !identity::is_cross_site(&headers, &uri)) else {
        let detail = "the sign-in form must be sent from Muster's own page; open it and try again";
        return Problem::forbidden(detail).into_response();
    };
    // The origin is the host that the request is for, and the provider permits its own list of addresses only.
    let redirect = format!("{origin}{RETURN}");
    let next = own_page(&form.next);
    let begun = sign_in
        .oidc()
        .begin(&redirect, next, address(peer), Timestamp::now())
        .await;
    match begun {
        Ok(begun) => {
            let https = sign_in::is_https(&headers);
            let cookie = cookie(&begun.cookie, SIGN_IN_TTL.as_secs(), https);
            ([(header::SET_COOKIE, cookie)], lead_on(&begun.url)).into_response()
        }
        Err(error) => sign_in::refused(&portal, &Problem::from(error), "", next),
    }
}

/// Ends a sign-in: the provider has sent the browser back.
pub async fn end(
    State(portal): State<Portal>,
    headers: HeaderMap,
    Query(returned): Query<Returned>,
) -> Response {
    let sign_in = match configured(&portal) {
        Ok(sign_in) => sign_in,
        Err(problem) => return problem.into_response(),
    };
    let (held, https) = match identity::cookie_named(&headers, SECURE_COOKIE) {
        Some(held) => (Some(held), true),
        None => (identity::cookie_named(&headers, COOKIE), false),
    };
    let callback = Callback {
        state: returned.state,
        code: returned.code,
        error: returned.error,
        error_description: returned.error_description,
        iss: returned.iss,
        cookie: held.unwrap_or_default().to_owned(),
    };
    let mut answer = ended(&portal, sign_in, callback, https).await;
    // The sign-in has ended, whatever became of it.
    if let Ok(gone) = cookie("", 0, https).parse() {
        answer.headers_mut().append(header::SET_COOKIE, gone);
    }
    answer
}

async fn ended(portal: &Portal, sign_in: &OidcSignIn, callback: Callback, https: bool) -> Response {
    let refused = |problem: &Problem, name: String| {
        tracing::info!(
            user = name,
            reason = problem.detail(),
            "a sign-in by OpenID Connect was refused"
        );
        let mut page = sign_in::refused(portal, problem, "", "");
        page.extensions_mut().insert(SignInName(name));
        page
    };
    let finished = match sign_in.oidc().finish(callback, Timestamp::now()).await {
        Ok(finished) => finished,
        Err(error) => return refused(&Problem::from(error), String::new()),
    };
    let name = finished.person.name.clone();
    let teams = Teams::new(portal.client(&Caller::component("oidc")));
    let admitted = sign_in
        .admit(&portal.identity, &teams, finished.person)
        .await;
    let (user, session) = match admitted {
        Ok(admitted) => admitted,
        Err(problem) => return refused(&problem, name),
    };
    tracing::info!(user = user.name, "a user signed in by OpenID Connect");
    let cookie = sign_in::cookie(&session.secret, SESSION_TTL.as_secs(), https);
    // Not a redirect: the browser would count it as the provider's, and keep the new cookie back (SameSite=Strict).
    let page = lead_on(own_page(&finished.next));
    let mut answer = ([(header::SET_COOKIE, cookie)], page).into_response();
    answer.extensions_mut().insert(SignInName(user.name));
    answer
}

/// The cookie of a sign-in. The provider's page leads back here, for which `SameSite=Strict` would keep it back.
fn cookie(secret: &str, seconds: u64, https: bool) -> String {
    let (name, secure) = match https {
        true => (SECURE_COOKIE, "; Secure"),
        false => (COOKIE, ""),
    };
    format!("{name}={secret}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Lax{secure}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cookie_comes_back_from_the_provider_and_to_no_other_host() {
        let cookie = cookie("s", 600, true);
        for part in [
            "__Host-muster_oidc=s;",
            "HttpOnly",
            "SameSite=Lax",
            "Secure",
            "Path=/",
            "Max-Age=600",
        ] {
            assert!(cookie.contains(part), "{part}");
        }
        assert!(!cookie.contains("Domain"));
    }
}
