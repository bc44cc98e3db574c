//! Owns the changes of a request's caller between authentication and all handlers: bearer tokens of
//! service accounts, and impersonation by Kubernetes' headers. Another module authenticates users
//! by their own credentials; [`Users`](crate::Users) provides users' groups.

use std::collections::BTreeMap;

use axum::body::Body;
use axum::extract::State;
use axum::middleware::Next;
use http::{HeaderMap, HeaderName, Request, Response, header};
use resources::access::{
    ANONYMOUS_USER, AUTHENTICATED_GROUP, COMPONENTS_GROUP, Caller, Credential, Impersonator,
    RequestAttributes, UNAUTHENTICATED_GROUP, bearer_token, service_account_groups,
    service_account_of,
};
use resources::audit::{Impersonated, UserInfo};

use crate::path::decode;
use crate::server::ApiServer;
use crate::service_account::{ISSUER, is_jwt};
use crate::status::Failure;
use crate::training_progress::{self, ProgressReport};

const USER: HeaderName = HeaderName::from_static("impersonate-user");
const GROUP: HeaderName = HeaderName::from_static("impersonate-group");
const UID: HeaderName = HeaderName::from_static("impersonate-uid");
/// The common prefix of these headers' names.
const PREFIX: &str = "impersonate-";
/// The prefix of the headers for extra fields; the percent-encoded key follows.
const EXTRA: &str = "impersonate-extra-";
const AUTHENTICATION: &str = "authentication.k8s.io";

/// Middleware before the authentication of users: a service account's bearer token sets that
/// account as the request's caller. An invalid or expired token is answered with 401.
pub async fn authenticate(
    State(server): State<ApiServer>,
    mut request: Request<Body>,
    next: Next,
) -> Response<Body> {
    if request.extensions().get::<Caller>().is_some() {
        return next.run(request).await;
    }
    let Some(token) = bearer(request.headers()).filter(|token| is_jwt(token)) else {
        return next.run(request).await;
    };
    let token = token.to_owned();
    if let Some((caller, audiences)) = server.service_account(&token)
        && training_progress::permits(&caller, &audiences, request.method(), request.uri().path())
    {
        request.extensions_mut().insert(caller);
        request.extensions_mut().insert(ProgressReport);
        return next.run(request).await;
    }
    let Some(caller) = account(&server, &token) else {
        return Failure::unauthorized().into_response();
    };
    request.extensions_mut().insert(caller);
    let credential = Credential::new(move || account(&server, &token));
    request.extensions_mut().insert(credential);
    next.run(request).await
}

/// The service account that this token authenticates to this API.
fn account(server: &ApiServer, token: &str) -> Option<Caller> {
    let (caller, audiences) = server.service_account(token)?;
    audiences.iter().any(|one| one == ISSUER).then_some(caller)
}

/// Middleware behind the authentication of users: executes a request as another user if its headers
/// ask for that and its caller is permitted to. The [`Caller`] is then the impersonated user, and
/// [`Impersonator`] contains the authenticated one.
pub async fn impersonate(
    State(server): State<ApiServer>,
    mut request: Request<Body>,
    next: Next,
) -> Response<Body> {
    if !is_requested(request.headers()) {
        return next.run(request).await;
    }
    let Some(caller) = request.extensions().get::<Caller>().cloned() else {
        return refused(
            None,
            "a request without credentials cannot impersonate; sign in, or send a bearer token",
        )
        .into_response();
    };
    let grpc = request
        .headers()
        .get(header::CONTENT_TYPE)
        .is_some_and(|media| media.as_bytes().starts_with(b"application/grpc"));
    if grpc {
        return refused(
            Some(&caller),
            "agents' own connections take no impersonation headers",
        )
        .into_response();
    }
    let verdict = impersonated(&server, &caller, request.headers());
    match verdict {
        Ok(other) => {
            let credential = still(&server, &caller, &request);
            request.extensions_mut().insert(credential);
            let names: Vec<HeaderName> = request
                .headers()
                .keys()
                .filter(|name| is_ours(name))
                .cloned()
                .collect();
            for name in names {
                request.headers_mut().remove(name);
            }
            let named = Impersonated(UserInfo::from(&other));
            request.extensions_mut().insert(other);
            request.extensions_mut().insert(Impersonator(caller));
            let mut answer = next.run(request).await;
            answer.extensions_mut().insert(named);
            answer
        }
        Err(failure) => failure.into_response(),
    }
}

/// The credential of an impersonated request: valid while the caller's own credential is valid and
/// the caller may impersonate the user.
fn still(server: &ApiServer, caller: &Caller, request: &Request<Body>) -> Credential {
    let (server, caller) = (server.clone(), caller.clone());
    let own = request.extensions().get::<Credential>().cloned();
    let headers = request.headers().clone();
    Credential::new(move || {
        let caller = match &own {
            Some(own) => own.caller()?,
            None => caller.clone(),
        };
        impersonated(&server, &caller, &headers).ok()
    })
}

/// True if a request asks for impersonation.
pub(crate) fn is_requested(headers: &HeaderMap) -> bool {
    headers.keys().any(is_ours)
}

fn is_ours(name: &HeaderName) -> bool {
    name.as_str().starts_with(PREFIX)
}

/// 403 for a request that cannot impersonate any user.
pub(crate) fn refused(caller: Option<&Caller>, why: &str) -> Failure {
    let user = caller.map_or(ANONYMOUS_USER, |caller| caller.user.as_str());
    Failure::not_impersonating(user, why)
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    bearer_token(headers.get(header::AUTHORIZATION)?.to_str().ok()?)
}

/// The caller in the headers, if this caller may impersonate it.
fn impersonated(
    server: &ApiServer,
    caller: &Caller,
    headers: &HeaderMap,
) -> Result<Caller, Failure> {
    let wanted = ImpersonatedUser::read(headers)?;
    wanted.require(server, caller)?;
    let groups = match (service_account_of(&wanted.user), wanted.groups.is_empty()) {
        (_, false) => wanted.groups,
        (Some((namespace, _)), true) => service_account_groups(namespace).into(),
        (None, true) => server.groups_of(&wanted.user),
    };
    let mut other = Caller {
        user: wanted.user,
        groups,
        uid: wanted.uid,
        extra: wanted.extra,
    };
    let known = match other.user.as_str() {
        ANONYMOUS_USER => UNAUTHENTICATED_GROUP,
        _ => AUTHENTICATED_GROUP,
    };
    let has_group = other.is_in(AUTHENTICATED_GROUP) || other.is_in(UNAUTHENTICATED_GROUP);
    if !has_group {
        other.groups.push(known.to_owned());
    }
    Ok(other)
}

/// The content of the headers.
#[derive(Debug, Default, PartialEq)]
struct ImpersonatedUser {
    user: String,
    groups: Vec<String>,
    uid: String,
    extra: BTreeMap<String, Vec<String>>,
}

impl ImpersonatedUser {
    fn read(headers: &HeaderMap) -> Result<ImpersonatedUser, Failure> {
        let mut wanted = ImpersonatedUser::default();
        for (name, value) in headers.iter().filter(|(name, _)| is_ours(name)) {
            let value = value.to_str().map_err(|_| {
                Failure::bad_request(format!("{name}: the value must be printable ASCII"))
            })?;
            if name == USER {
                wanted.user = once(name, &wanted.user, value)?;
            } else if name == UID {
                wanted.uid = once(name, &wanted.uid, value)?;
            } else if name == GROUP {
                wanted.groups.push(value.to_owned());
            } else if let Some(key) = name.as_str().strip_prefix(EXTRA) {
                let values = wanted.extra.entry(decode(key).into_owned()).or_default();
                values.push(value.to_owned());
            } else {
                return Err(Failure::bad_request(format!(
                    "{name}: unknown header; use Impersonate-User, -Group, -Uid or -Extra-KEY"
                )));
            }
        }
        if wanted.user.is_empty() {
            return Err(Failure::bad_request(
                "the headers ask to impersonate without a user; name one in Impersonate-User",
            ));
        }
        Ok(wanted)
    }

    /// Refuses the first part of this that the caller may not impersonate.
    fn require(&self, server: &ApiServer, caller: &Caller) -> Result<(), Failure> {
        let may = |attributes: RequestAttributes<'_>| {
            server.require(
                caller,
                &RequestAttributes {
                    verb: "impersonate",
                    ..attributes
                },
            )
        };
        match service_account_of(&self.user) {
            Some((namespace, name)) => may(RequestAttributes {
                namespace: Some(namespace),
                ..of("", "serviceaccounts", name)
            })?,
            None => may(of("", "users", &self.user))?,
        }
        for group in &self.groups {
            if group == COMPONENTS_GROUP {
                return Err(refused(
                    Some(caller),
                    "Muster's own components cannot be impersonated; name another user",
                ));
            }
            may(of("", "groups", group))?;
        }
        if !self.uid.is_empty() {
            may(of(AUTHENTICATION, "uids", &self.uid))?;
        }
        for (key, values) in &self.extra {
            for value in values {
                may(RequestAttributes {
                    subresource: Some(key),
                    ..of(AUTHENTICATION, "userextras", value)
                })?;
            }
        }
        Ok(())
    }
}

fn of<'a>(group: &'a str, resource: &'a str, name: &'a str) -> RequestAttributes<'a> {
    RequestAttributes {
        group,
        resource,
        name: Some(name),
        ..RequestAttributes::default()
    }
}

fn once(name: &HeaderName, had: &str, value: &str) -> Result<String, Failure> {
    if !had.is_empty() || value.is_empty() {
        return Err(Failure::bad_request(format!(
            "{name}: must be given once, with a value"
        )));
    }
    Ok(value.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::headers::headers;

    #[test]
    fn headers_contain_the_impersonated_user() {
        let wanted = ImpersonatedUser::read(&headers(&[
            ("impersonate-user", "ann"),
            ("impersonate-group", "a"),
            ("impersonate-group", "b"),
            ("impersonate-uid", "u-1"),
            ("impersonate-extra-example.com%2fscopes", "x"),
            ("impersonate-extra-example.com%2fscopes", "y"),
            ("accept", "*/*"),
        ]))
        .unwrap();
        assert_eq!(wanted.user, "ann");
        assert_eq!(wanted.groups, ["a", "b"]);
        assert_eq!(wanted.uid, "u-1");
        assert_eq!(wanted.extra["example.com/scopes"], ["x", "y"]);
    }

    #[test]
    fn headers_that_say_it_badly_are_refused_and_not_ignored() {
        for bad in [
            vec![("impersonate-group", "a")],
            vec![("impersonate-user", "")],
            vec![("impersonate-user", "ann"), ("impersonate-user", "bob")],
            vec![("impersonate-user", "ann"), ("impersonate-usr", "bob")],
        ] {
            assert!(is_requested(&headers(&bad)), "{bad:?}");
            assert!(ImpersonatedUser::read(&headers(&bad)).is_err(), "{bad:?}");
        }
        assert!(!is_requested(&headers(&[("accept", "*/*")])));
    }
}
