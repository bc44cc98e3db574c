//! Owns the tokens of service accounts. POST to `serviceaccounts/NAME/token` issues one
//! (TokenRequest), bound to the account, to a pod or Secret if the request names one, to its
//! audiences and to a lifetime; [`ApiServer::service_account`] finds the account of a token. A
//! token is a JWT signed with this server's own key (HS256). Each use checks in the store that the
//! bound objects still exist, so that deleting the account or the pod revokes the token.

use axum::body::Body;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::{Response, StatusCode};
use jiff::{SignedDuration, Timestamp};
use resources::access::{Caller, TOKEN_EXTRA};
use resources::admission::enter_work;
use resources::times;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::call::Call;
use crate::core_kinds::kind_of;
use crate::object::{self, meta_text};
use crate::server::ApiServer;
use crate::status::{Cause, Failure};
use crate::{decode, fields, request, respond, token_key};

/// The issuer of the tokens, and the default audience.
pub(crate) const ISSUER: &str = "https://kubernetes.default.svc";
/// The JWT's header: type and algorithm. No other header is accepted.
const HEADER: &str = r#"{"alg":"HS256","typ":"JWT"}"#;
/// The default lifetime of a token, in seconds.
const LIFE: i64 = 3600;
/// The bounds of a requested lifetime, in seconds: as in Kubernetes.
const LIVES: std::ops::RangeInclusive<i64> = 600..=(1 << 32);
/// The maximum length of a token, in bytes; an issued one with a few audiences has under 2,000.
const LONGEST: usize = 16 * 1024;
/// The maximum number of a token's audiences.
const MOST_AUDIENCES: usize = 32;

/// An object that a token is bound to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Named {
    name: String,
    uid: String,
}

/// Kubernetes' claims, in addition to the standard ones.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct KubernetesClaims {
    namespace: String,
    serviceaccount: Named,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pod: Option<Named>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    secret: Option<Named>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct TokenClaims {
    iss: String,
    sub: String,
    aud: Vec<String>,
    exp: i64,
    iat: i64,
    nbf: i64,
    jti: String,
    #[serde(rename = "kubernetes.io")]
    bound: KubernetesClaims,
}

/// True if a bearer token has the form of these tokens (and not of Muster's own).
pub(crate) fn is_jwt(token: &str) -> bool {
    token.len() <= LONGEST && token.split('.').count() == 3
}

impl ApiServer {
    /// The service account of a token, with the token's audiences: none if this server did not
    /// issue the token, if it has expired, or if the account or another bound object is gone.
    pub(crate) fn service_account(&self, token: &str) -> Option<(Caller, Vec<String>)> {
        if !is_jwt(token) {
            return None;
        }
        let (signed, signature) = token.rsplit_once('.')?;
        let (header, payload) = signed.split_once('.')?;
        if header != URL_SAFE_NO_PAD.encode(HEADER) {
            return None;
        }
        let signature = URL_SAFE_NO_PAD.decode(signature).ok()?;
        if !token_key::signed(&self.0.store, signed, &signature) {
            return None;
        }
        let payload = URL_SAFE_NO_PAD.decode(payload).ok()?;
        let claims: TokenClaims = serde_json::from_slice(&payload).ok()?;
        let now = self.now().as_second();
        if claims.iss != ISSUER || now < claims.nbf || now >= claims.exp {
            return None;
        }
        let bound = &claims.bound;
        let lives = |kind: &str, named: &Named| {
            self.live(kind, &bound.namespace, &named.name)
                .is_some_and(|live| meta_text(&live, "uid") == named.uid)
        };
        let others = [("Pod", &bound.pod), ("Secret", &bound.secret)];
        let whole = lives("ServiceAccount", &bound.serviceaccount)
            && others.into_iter().all(|(kind, named)| match named {
                None => true,
                Some(named) => lives(kind, named),
            });
        whole.then(|| (caller_of(&claims), claims.aud.clone()))
    }

    /// An object of the core group that exists and is not being deleted.
    fn live(&self, kind: &str, namespace: &str, name: &str) -> Option<Value> {
        let key = kind_of("", kind).key(Some(namespace), name);
        let stored = self.0.store.get(&key)?;
        let live = object::parse(&stored).ok()?;
        // A pod that is being deleted runs during its grace, and keeps its rights.
        (kind == "Pod" || !object::deleting(&live)).then_some(live)
    }
}

fn caller_of(claims: &TokenClaims) -> Caller {
    let bound = &claims.bound;
    let mut caller = Caller::service_account(&bound.namespace, &bound.serviceaccount.name);
    caller.uid = bound.serviceaccount.uid.clone();
    let mut say = |key: &str, value: &str| {
        let key = format!("{TOKEN_EXTRA}{key}");
        caller.extra.insert(key, vec![value.to_owned()]);
    };
    say("credential-id", &format!("JTI={}", claims.jti));
    if let Some(pod) = &bound.pod {
        say("pod-name", &pod.name);
        say("pod-uid", &pod.uid);
    }
    caller
}

fn encode(server: &ApiServer, claims: &TokenClaims) -> Result<String, Failure> {
    let payload = serde_json::to_vec(claims).map_err(Failure::internal)?;
    let signed = format!(
        "{}.{}",
        URL_SAFE_NO_PAD.encode(HEADER),
        URL_SAFE_NO_PAD.encode(payload)
    );
    let signature = token_key::sign(&server.0.store, &signed).ok_or_else(|| {
        Failure::unavailable(
            "the key that service accounts' tokens are signed with (Secret muster-system/service-account-key) is missing or damaged; delete that Secret if it exists, and restart the server, which creates a new key",
        )
    })?;
    Ok(format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature)))
}

/// Answers POST to `serviceaccounts/NAME/token`.
pub(crate) async fn token(call: &Call, body: Body) -> Result<Response<Body>, Failure> {
    let format = request::object_format(&call.headers)?;
    let mut sent = decode::object(&request::read(body).await?, format)?.value;
    let definition = "io.k8s.api.authentication.v1.TokenRequest";
    fields::typed(&call.server, definition, "TokenRequest", &sent)?;
    let namespace = call.namespace.as_deref().unwrap_or_default();
    let account = call
        .server
        .live("ServiceAccount", namespace, call.object_name())
        .ok_or_else(|| Failure::not_found(call.kind, call.object_name()))?;
    let now = call.server.now();
    let claims = claims(call, &sent["spec"], &account, now)?;
    refuse_unbound(call, &claims.bound)?;
    let token = match call.dry_run {
        true => String::new(),
        false => encode(&call.server, &claims)?,
    };
    let expires = Timestamp::from_second(claims.exp).map_err(Failure::internal)?;
    sent["apiVersion"] = "authentication.k8s.io/v1".into();
    sent["kind"] = "TokenRequest".into();
    let meta = object::meta_mut(&mut sent);
    meta.insert("name".into(), call.object_name().into());
    meta.insert("namespace".into(), namespace.into());
    meta.insert("creationTimestamp".into(), times::seconds(now).into());
    let spec = object::member_mut(&mut sent, "spec");
    spec.insert("audiences".into(), claims.aud.into());
    spec.insert("expirationSeconds".into(), (claims.exp - claims.iat).into());
    sent["status"] = json!({"token": token, "expirationTimestamp": times::seconds(expires)});
    let mut response = respond::json(&sent);
    *response.status_mut() = StatusCode::CREATED;
    Ok(response)
}

fn claims(
    call: &Call,
    spec: &Value,
    account: &Value,
    now: Timestamp,
) -> Result<TokenClaims, Failure> {
    let mut bound = KubernetesClaims {
        namespace: call.namespace.clone().unwrap_or_default(),
        serviceaccount: Named {
            name: call.object_name().to_owned(),
            uid: meta_text(account, "uid").to_owned(),
        },
        pod: None,
        secret: None,
    };
    match &spec["boundObjectRef"] {
        Value::Null => {}
        reference => bind(call, &mut bound, reference)?,
    }
    let life = expiration(call, spec)?;
    let expires = now
        .checked_add(SignedDuration::from_secs(life))
        .map_err(Failure::internal)?;
    Ok(TokenClaims {
        iss: ISSUER.to_owned(),
        sub: Caller::service_account(&bound.namespace, call.object_name()).user,
        aud: audiences(call, spec)?,
        exp: expires.as_second(),
        iat: now.as_second(),
        nbf: now.as_second(),
        jti: Uuid::new_v4().to_string(),
        bound,
    })
}

/// Refuses a node a token that is not bound to a pod on it, as Kubernetes' NodeRestriction does:
/// such a token would outlive the pod, and the node's own certificate.
fn refuse_unbound(call: &Call, bound: &KubernetesClaims) -> Result<(), Failure> {
    let Some(node) = call.caller.node_name() else {
        return Ok(());
    };
    let runs_here = |named: &Named| {
        let pod = call.server.live("Pod", &bound.namespace, &named.name);
        pod.is_some_and(|pod| {
            meta_text(&pod, "uid") == named.uid && pod["spec"]["nodeName"] == node
        })
    };
    if bound.pod.as_ref().is_some_and(runs_here) {
        return Ok(());
    }
    let why = format!(
        "spec.boundObjectRef: node {node:?} gets only tokens that are bound to a pod on it; name that pod"
    );
    Err(Failure::forbidden(call.kind, call.object_name(), &why))
}

fn invalid(call: &Call, field: &str, message: String) -> Failure {
    let cause = Cause {
        reason: "FieldValueInvalid".into(),
        message,
        field: field.into(),
    };
    Failure::invalid(call.kind, call.object_name(), vec![cause])
}

fn expiration(call: &Call, spec: &Value) -> Result<i64, Failure> {
    let given = match &spec["expirationSeconds"] {
        Value::Null => return Ok(LIFE),
        given => given,
    };
    match given.as_i64() {
        Some(seconds) if LIVES.contains(&seconds) => Ok(seconds),
        _ => Err(invalid(
            call,
            "spec.expirationSeconds",
            format!(
                "Invalid value: {given}: may not specify a duration less than 10 minutes or larger than 2^32 seconds"
            ),
        )),
    }
}

fn audiences(call: &Call, spec: &Value) -> Result<Vec<String>, Failure> {
    let list = spec["audiences"].as_array();
    let named: Vec<String> = list
        .into_iter()
        .flatten()
        .filter_map(|one| one.as_str().map(str::to_owned))
        .collect();
    let bytes: usize = named.iter().map(String::len).sum();
    if named.len() > MOST_AUDIENCES || bytes > LONGEST / 4 {
        let why = format!(
            "Invalid value: {} audiences of {bytes} bytes: at most {MOST_AUDIENCES} of {} bytes together may be named",
            named.len(),
            LONGEST / 4
        );
        return Err(invalid(call, "spec.audiences", why));
    }
    Ok(match named.is_empty() {
        true => vec![ISSUER.to_owned()],
        false => named,
    })
}

/// Binds a token to the pod or Secret in the request.
fn bind(call: &Call, bound: &mut KubernetesClaims, reference: &Value) -> Result<(), Failure> {
    let text = |field: &str| reference[field].as_str().unwrap_or_default();
    let (kind, name, uid) = (text("kind"), text("name"), text("uid"));
    if !matches!((text("apiVersion"), kind), ("v1", "Pod" | "Secret")) {
        let why = format!("Invalid value: {kind:?}: must be a Pod or Secret of v1");
        return Err(invalid(call, "spec.boundObjectRef.kind", why));
    }
    let live = call
        .server
        .live(kind, &bound.namespace, name)
        .ok_or_else(|| Failure::not_found(kind_of("", kind), name))?;
    let found = meta_text(&live, "uid").to_owned();
    if !uid.is_empty() && uid != found {
        let why = format!(
            "the UID in the bound object reference ({uid}) does not match the UID in record ({found}). The object might have been deleted and then recreated"
        );
        return Err(Failure::conflict(call.kind, call.object_name(), &why));
    }
    if kind == "Pod" {
        let runs_as = live["spec"]["serviceAccountName"].as_str();
        let runs_as = runs_as.filter(|name| !name.is_empty()).unwrap_or("default");
        if runs_as != call.object_name() {
            let why = format!(
                "cannot bind token for serviceaccount {:?} to pod running with different serviceaccount name",
                call.object_name()
            );
            return Err(Failure::bad_request(why));
        }
        // Its token acts as the pod, also towards the other pods of its job.
        if call.caller.node_name().is_none() && !call.caller.is_component() {
            enter_work(&call.caller, |user| call.impersonates(user), &live).map_err(|error| {
                Failure::forbidden(call.kind, call.object_name(), &error.to_string())
            })?;
        }
    }
    let named = Some(Named {
        name: name.to_owned(),
        uid: found,
    });
    match kind {
        "Pod" => bound.pod = named,
        _ => bound.secret = named,
    }
    Ok(())
}

#[cfg(test)]
#[path = "service_account_tests.rs"]
mod tests;
