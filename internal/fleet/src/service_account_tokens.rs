//! The tokens of service accounts that pods' projected volumes contain: requests each from the API, bound to the pod,
//! and says when the next ones are due. The agent writes them into the pod's volume.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{Pod, ServiceAccount, ServiceAccountTokenProjection, Volume};
use kube::Client;
use kube::api::{Api, PostParams};

use crate::node::valid_name;

/// The lifetime of a token whose projection names none, in seconds, as in Kubernetes.
const LIFE: i64 = 3600;
/// A token is renewed after so many hundredths of its lifetime, as by a kubelet.
const RENEW_AT_HUNDREDTHS: i64 = 80;

/// What distinguishes the tokens of a pod: the audience (the API's own if absent) and the lifetime in seconds.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TokenTerms {
    audience: Option<String>,
    seconds: i64,
}

impl TokenTerms {
    /// The terms of a projection.
    pub fn of(projection: &ServiceAccountTokenProjection) -> TokenTerms {
        let audience = projection.audience.clone();
        TokenTerms {
            audience: audience.filter(|audience| !audience.is_empty()),
            seconds: projection.expiration_seconds.unwrap_or(LIFE),
        }
    }
}

/// Why a pod has no token yet; the pod's status shows the text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// The API refused it.
    #[error("no token for serviceaccount {account:?}: {detail}")]
    Refused {
        /// The account.
        account: String,
        /// The API's answer.
        detail: String,
    },
}

/// The tokens of one pod.
#[derive(Debug, Default)]
pub struct PodTokens {
    tokens: BTreeMap<TokenTerms, Result<String, TokenError>>,
    renew_at: Option<Timestamp>,
}

impl PodTokens {
    /// Requests every token that the pod's volumes contain.
    pub async fn request(client: &Client, pod: &Pod, now: Timestamp) -> PodTokens {
        let mut found = PodTokens::default();
        for terms in wanted(pod) {
            let token = match one(client, pod, &terms).await {
                Ok(issued) => {
                    let due = renewal(now, issued.expires);
                    found.renew_at = Some(found.renew_at.map_or(due, |other| other.min(due)));
                    Ok(issued.token)
                }
                Err(error) => Err(error),
            };
            found.tokens.insert(terms, token);
        }
        found
    }

    /// The token of a projection.
    pub fn token(
        &self,
        projection: &ServiceAccountTokenProjection,
    ) -> Option<Result<&str, TokenError>> {
        let found = self.tokens.get(&TokenTerms::of(projection))?;
        Some(found.as_deref().map_err(Clone::clone))
    }

    /// When the first of the tokens has to be replaced.
    pub fn renew_at(&self) -> Option<Timestamp> {
        self.renew_at
    }

    /// Tokens as the API would have issued them.
    #[cfg(test)]
    pub fn given(projection: &ServiceAccountTokenProjection, token: &str) -> PodTokens {
        PodTokens {
            tokens: BTreeMap::from([(TokenTerms::of(projection), Ok(token.to_owned()))]),
            renew_at: None,
        }
    }
}

/// The distinct tokens that a pod's volumes contain.
fn wanted(pod: &Pod) -> Vec<TokenTerms> {
    let volumes = pod.spec.as_ref().and_then(|spec| spec.volumes.as_ref());
    let mut terms: Vec<TokenTerms> = volumes
        .into_iter()
        .flatten()
        .flat_map(projections)
        .map(TokenTerms::of)
        .collect();
    terms.sort();
    terms.dedup();
    terms
}

fn projections(volume: &Volume) -> impl Iterator<Item = &ServiceAccountTokenProjection> {
    let sources = volume
        .projected
        .as_ref()
        .and_then(|projected| projected.sources.as_ref());
    sources
        .into_iter()
        .flatten()
        .filter_map(|source| source.service_account_token.as_ref())
}

struct IssuedToken {
    token: String,
    expires: Timestamp,
}

async fn one(client: &Client, pod: &Pod, terms: &TokenTerms) -> Result<IssuedToken, TokenError> {
    let spec = pod.spec.as_ref();
    let named = spec.and_then(|spec| spec.service_account_name.clone());
    let account = named
        .filter(|name| !name.is_empty())
        .unwrap_or_else(|| resources::admission::DEFAULT_ACCOUNT.to_owned());
    let refused = |detail: String| TokenError::Refused {
        account: account.clone(),
        detail,
    };
    // An invalid name could change the request's path.
    if !valid_name(&account) {
        return Err(refused("no object has such a name".to_owned()));
    }
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let api: Api<ServiceAccount> = Api::namespaced(client.clone(), namespace);
    let request = TokenRequest {
        spec: TokenRequestSpec {
            audiences: terms.audience.iter().cloned().collect(),
            expiration_seconds: Some(terms.seconds),
            bound_object_ref: Some(BoundObjectReference {
                api_version: Some("v1".to_owned()),
                kind: Some("Pod".to_owned()),
                name: pod.metadata.name.clone(),
                uid: pod.metadata.uid.clone(),
            }),
        },
        ..TokenRequest::default()
    };
    let issued = api
        .create_token_request(&account, &PostParams::default(), &request)
        .await
        .map_err(|error| refused(error.to_string()))?;
    let status = issued
        .status
        .ok_or_else(|| refused("the API's answer has no token".to_owned()))?;
    Ok(IssuedToken {
        token: status.token,
        expires: status.expiration_timestamp.0,
    })
}

/// When a token that is issued now is replaced.
fn renewal(now: Timestamp, expires: Timestamp) -> Timestamp {
    let left = expires.as_second().saturating_sub(now.as_second()).max(0);
    let wait = left.saturating_mul(RENEW_AT_HUNDREDTHS) / 100;
    now.checked_add(SignedDuration::from_secs(wait))
        .unwrap_or(expires)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn each_audience_and_lifetime_is_one_token() {
        let token = |audience: &str, seconds: i64| json!({"serviceAccountToken": {"audience": audience, "expirationSeconds": seconds, "path": "t"}});
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "p"},
            "spec": {"containers": [], "volumes": [
                {"name": "a", "projected": {"sources": [token("", 3607), token("vault", 600)]}},
                {"name": "b", "projected": {"sources": [token("", 3607), {"configMap": {"name": "c"}}]}},
                {"name": "c", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}},
            ]},
        }))
        .unwrap();
        let terms: Vec<(Option<String>, i64)> = wanted(&pod)
            .into_iter()
            .map(|terms| (terms.audience, terms.seconds))
            .collect();
        assert_eq!(
            terms,
            [(None, LIFE), (None, 3607), (Some("vault".to_owned()), 600)]
        );
    }

    #[test]
    fn a_token_is_replaced_after_four_fifths_of_its_life() {
        let at = |second| Timestamp::from_second(second).unwrap();
        for (now, expires, due) in [
            (0, 3600, 2880),
            (100, 700, 580),
            (100, 100, 100),
            (100, 50, 100),
        ] {
            assert_eq!(renewal(at(now), at(expires)), at(due), "{now} {expires}");
        }
    }
}
