//! The claims of an ID token: how they are read, and which name, groups and required values they have.

use jiff::Timestamp;
use serde_json::{Map, Value};

use crate::claim_names::{ClaimNames, RequiredClaim};
use crate::error::{OidcError, shortened};
use crate::limits::{CLOCK_SKEW, GROUPS_MAX, SUBJECT_MAX};

/// The longest name of a user, as in its record.
const NAME_MAX: usize = 40;

/// The names of groups that a refusal lists.
const GROUPS_SHOWN: usize = 10;

/// The claims of a token.
#[derive(Clone, Debug, PartialEq)]
pub struct Claims(Map<String, Value>);

/// What a token must be for.
pub(crate) struct Expected<'a> {
    pub(crate) issuer: &'a str,
    pub(crate) client: &'a str,
    pub(crate) nonce: &'a str,
    pub(crate) now: Timestamp,
}

impl Claims {
    /// The claims in a JSON object; none if the value is no object.
    pub fn of(value: Value) -> Option<Claims> {
        match value {
            Value::Object(claims) => Some(Claims(claims)),
            _ => None,
        }
    }

    pub(crate) fn text(&self, claim: &str) -> Option<&str> {
        self.0.get(claim).and_then(Value::as_str)
    }

    /// The values of a claim as texts: one if it is a text, a number or a truth value, several if it is a list of such.
    pub(crate) fn values(&self, claim: &str) -> Vec<String> {
        let one = |value: &Value| match value {
            Value::String(text) => Some(text.clone()),
            Value::Bool(_) | Value::Number(_) => Some(value.to_string()),
            _ => None,
        };
        match self.0.get(claim) {
            Some(Value::Array(all)) => all.iter().filter_map(one).collect(),
            Some(value) => one(value).into_iter().collect(),
            None => Vec::new(),
        }
    }

    fn time(&self, claim: &str) -> Option<Timestamp> {
        let value = self.0.get(claim)?;
        // Some providers send fractions.
        let whole = || value.as_f64().map(|seconds| seconds.floor() as i64);
        let seconds = value.as_i64().or_else(whole)?;
        Timestamp::from_second(seconds).ok()
    }

    /// Checks that the token is of this provider, for this client and this sign-in, and valid now.
    pub(crate) fn check(&self, expected: &Expected<'_>) -> Result<(), OidcError> {
        let invalid = |problem: String| Err(OidcError::Token { problem });
        match self.text("iss") {
            Some(issuer) if issuer == expected.issuer => {}
            found => {
                let found = shortened(found.unwrap_or_default());
                return invalid(format!(
                    "its issuer is {found:?}, and --oidc-issuer-url is {:?}",
                    expected.issuer
                ));
            }
        }
        let audience = self.values("aud");
        if !audience.iter().any(|one| one == expected.client) {
            return invalid(format!("it is not for this client ({:?})", expected.client));
        }
        match self.0.get("azp").map(Value::as_str) {
            Some(Some(client)) if client == expected.client => {}
            Some(_) => return invalid("another client asked for it (azp)".to_owned()),
            None if audience.len() > 1 => {
                return invalid(
                    "it is for several clients and does not name its own (azp)".to_owned(),
                );
            }
            None => {}
        }
        let nonce = self.text("nonce").unwrap_or_default();
        if !same(nonce, expected.nonce) {
            return invalid("it is of another sign-in (nonce)".to_owned());
        }
        self.check_times(expected.now)?;
        match self.text("sub") {
            Some(subject) if (1..=SUBJECT_MAX).contains(&subject.len()) => Ok(()),
            _ => invalid(format!(
                "its subject (sub) is missing, or is over {SUBJECT_MAX} bytes long"
            )),
        }
    }

    fn check_times(&self, now: Timestamp) -> Result<(), OidcError> {
        let skew = i64::try_from(CLOCK_SKEW).unwrap_or_default();
        let clock = |problem, token| {
            Err(OidcError::Clock {
                problem,
                token,
                now,
            })
        };
        let missing = |claim: &str| OidcError::Token {
            problem: format!("its time {claim} is missing or no number"),
        };
        let expires = self.time("exp").ok_or_else(|| missing("exp"))?;
        if expires.as_second().saturating_add(skew) <= now.as_second() {
            return clock("expired", expires);
        }
        let issued = self.time("iat").ok_or_else(|| missing("iat"))?;
        if issued.as_second() > now.as_second().saturating_add(skew) {
            return clock("was issued", issued);
        }
        if self.0.contains_key("nbf") {
            let begins = self.time("nbf").ok_or_else(|| missing("nbf"))?;
            if begins.as_second() > now.as_second().saturating_add(skew) {
                return clock("becomes valid", begins);
            }
        }
        Ok(())
    }

    /// Checks that the claims have the required values.
    ///
    /// # Errors
    /// One has not.
    pub fn require(&self, required: &[RequiredClaim]) -> Result<(), OidcError> {
        for wanted in required {
            if !self.values(&wanted.claim).contains(&wanted.value) {
                return Err(OidcError::RequiredClaim {
                    claim: wanted.claim.clone(),
                    value: wanted.value.clone(),
                });
            }
        }
        Ok(())
    }

    /// The user's name in Muster: the claim in lower case up to an `@`, with `-` for `.`, `_` and spaces.
    ///
    /// # Errors
    /// The claim is missing, or has no usable name in it; or it is an e-mail address that the provider has not verified.
    pub fn username(&self, names: &ClaimNames) -> Result<String, OidcError> {
        let claim = &names.username;
        let unusable = |problem: String| OidcError::Username {
            claim: claim.clone(),
            problem,
        };
        let text = self
            .text(claim)
            .ok_or_else(|| unusable("is missing or no text".to_owned()))?;
        if claim == "email"
            && self.0.get("email_verified").is_some_and(|verified| {
                verified != &Value::Bool(true) && verified.as_str() != Some("true")
            })
        {
            return Err(OidcError::UnverifiedEmail {
                email: shortened(text),
            });
        }
        let first = text.split('@').next().unwrap_or_default();
        let name: String = first
            .chars()
            .map(|c| match c {
                '.' | '_' | ' ' => '-',
                other => other.to_ascii_lowercase(),
            })
            .collect();
        let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
        let usable = (1..=NAME_MAX).contains(&name.len())
            && name.chars().all(|c| inner(c) || c == '-')
            && name.starts_with(inner)
            && name.ends_with(inner);
        match usable {
            true => Ok(name),
            false => Err(unusable(format!(
                "is {:?}, from which no user name of 1 to {NAME_MAX} letters, digits and '-' can be made",
                shortened(text)
            ))),
        }
    }

    /// The user's groups; none if the claim is missing.
    ///
    /// # Errors
    /// The provider left the groups out because they are too many, or sent too many.
    pub fn groups(&self, names: &ClaimNames) -> Result<Vec<String>, OidcError> {
        let claim = &names.groups;
        // A distributed claim (OpenID Connect Core, section 5.6.2): Entra ID sends it above 200 groups.
        let elsewhere = self.0.get("_claim_names").and_then(|all| all.get(claim));
        let groups = self.values(claim);
        if elsewhere.is_some() || groups.len() > GROUPS_MAX {
            return Err(OidcError::TooManyGroups {
                claim: claim.clone(),
            });
        }
        Ok(groups)
    }

    /// The refusal if no rule applies to the user.
    pub(crate) fn no_rule(&self, name: String, names: &ClaimNames, groups: &[String]) -> OidcError {
        let shown: Vec<String> = groups
            .iter()
            .take(GROUPS_SHOWN)
            .map(|group| shortened(group))
            .collect();
        let groups = match (groups.len(), self.0.contains_key(&names.groups)) {
            (0, false) => format!("no claim {:?}", names.groups),
            (0, true) => "no group".to_owned(),
            (count, _) if count > GROUPS_SHOWN => {
                format!(
                    "the groups {}, and {} more",
                    shown.join(", "),
                    count - GROUPS_SHOWN
                )
            }
            _ => format!("the groups {}", shown.join(", ")),
        };
        OidcError::NoRule { name, groups }
    }
}

/// Compares two secrets in a time that does not depend on where they differ.
pub(crate) fn same(one: &str, other: &str) -> bool {
    use subtle::ConstantTimeEq as _;
    one.as_bytes().ct_eq(other.as_bytes()).into()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn names(username: &str) -> ClaimNames {
        ClaimNames {
            username: username.to_owned(),
            groups: "groups".to_owned(),
            required: Vec::new(),
        }
    }

    fn claims(value: Value) -> Claims {
        Claims::of(value).unwrap()
    }

    fn good() -> Value {
        json!({
            "iss": "https://idp.example", "aud": "muster", "sub": "u1", "nonce": "n",
            "iat": 1_000_000, "exp": 1_000_600,
        })
    }

    fn checked(change: impl FnOnce(&mut Value), second: i64) -> Result<(), String> {
        let mut value = good();
        change(&mut value);
        let expected = Expected {
            issuer: "https://idp.example",
            client: "muster",
            nonce: "n",
            now: Timestamp::from_second(second).unwrap(),
        };
        let checked = claims(value).check(&expected);
        checked.map_err(|error| error.to_string())
    }

    #[test]
    fn a_token_is_of_this_provider_for_this_client_and_this_sign_in() {
        let now = 1_000_010;
        assert_eq!(checked(|_| {}, now), Ok(()));
        assert_eq!(checked(|v| v["aud"] = json!(["muster"]), now), Ok(()));
        assert_eq!(checked(|v| v["azp"] = json!("muster"), now), Ok(()));
        let several = |v: &mut Value| {
            v["aud"] = json!(["muster", "other"]);
            v["azp"] = json!("muster");
        };
        assert_eq!(checked(several, now), Ok(()));
        type Change = fn(&mut Value);
        let cases: [(Change, &str); 12] = [
            (
                |v| v["iss"] = json!("https://idp.example/"),
                "its issuer is",
            ),
            (|v| v["iss"] = json!(null), "its issuer is"),
            (|v| v["aud"] = json!("other"), "not for this client"),
            (|v| v["aud"] = json!([]), "not for this client"),
            (|v| v["aud"] = json!(["muster", "other"]), "(azp)"),
            (|v| v["azp"] = json!("other"), "(azp)"),
            (|v| v["azp"] = json!(1), "(azp)"),
            (|v| v["nonce"] = json!("m"), "(nonce)"),
            (|v| v["nonce"] = json!(null), "(nonce)"),
            (|v| v["sub"] = json!(""), "(sub)"),
            (|v| v["sub"] = json!("x".repeat(256)), "(sub)"),
            (|v| v["exp"] = json!("soon"), "exp is missing"),
        ];
        for (change, words) in cases {
            let error = checked(change, now).unwrap_err();
            assert!(error.contains(words), "{words}: {error}");
        }
    }

    #[test]
    fn times_are_compared_with_the_permitted_skew_and_the_clock_is_named() {
        for (second, good) in [
            (1_000_000 - 61, false),
            (1_000_000 - 60, true),
            (1_000_659, true),
            (1_000_660, false),
        ] {
            let answer = checked(|_| {}, second);
            assert_eq!(answer.is_ok(), good, "{second}: {answer:?}");
            if let Err(error) = answer {
                assert!(error.contains("this server's clock says"), "{error}");
            }
        }
        assert!(checked(|v| v["nbf"] = json!(1_000_200), 1_000_000).is_err());
        assert!(checked(|v| v["exp"] = json!(1_000_600.5), 1_000_000).is_ok());
        assert!(checked(|v| v["exp"] = json!(1e300), 1_000_000).is_err());
    }

    #[test]
    fn a_name_is_made_of_the_claim_or_refused() {
        for (text, name) in [
            ("ann", Some("ann")),
            ("Ann.Example@example.org", Some("ann-example")),
            ("ann_b c", Some("ann-b-c")),
            ("@example.org", None),
            ("", None),
            ("-ann", None),
            ("system:masters", None),
            ("änn", None),
            ("../ann", None),
            ("a23456789012345678901234567890123456789012", None),
        ] {
            let found = claims(json!({"preferred_username": text}));
            let found = found.username(&names("preferred_username")).ok();
            assert_eq!(found.as_deref(), name, "{text}");
        }
        let missing = claims(json!({"preferred_username": 5}));
        let error = missing.username(&names("preferred_username")).unwrap_err();
        assert!(error.to_string().contains("--oidc-username-claim"));
    }

    #[test]
    fn an_address_that_the_provider_has_not_verified_names_no_user() {
        let of = |verified: Value| {
            let all = claims(json!({"email": "ann@example.org", "email_verified": verified}));
            all.username(&names("email")).is_ok()
        };
        assert!(of(json!(true)) && of(json!("true")));
        assert!(!of(json!(false)) && !of(json!("false")) && !of(json!(null)));
        assert!(
            claims(json!({"email": "ann@example.org"}))
                .username(&names("email"))
                .is_ok()
        );
    }

    #[test]
    fn groups_are_one_or_several_and_never_silently_cut() {
        let of = |value: Value| claims(value).groups(&names("groups"));
        assert_eq!(of(json!({})).unwrap(), Vec::<String>::new());
        assert_eq!(of(json!({"groups": "a"})).unwrap(), ["a"]);
        assert_eq!(of(json!({"groups": ["a", 1, {}]})).unwrap(), ["a", "1"]);
        assert!(of(json!({"_claim_names": {"groups": "src1"}})).is_err());
        let many = vec!["g"; GROUPS_MAX + 1];
        assert!(of(json!({"groups": many})).is_err());
    }

    #[test]
    fn required_claims_have_their_value() {
        let wanted: RequiredClaim = "hd=example.org".parse().unwrap();
        let wanted = [wanted];
        assert!(
            claims(json!({"hd": "example.org"}))
                .require(&wanted)
                .is_ok()
        );
        assert!(
            claims(json!({"hd": ["x", "example.org"]}))
                .require(&wanted)
                .is_ok()
        );
        assert!(
            claims(json!({"hd": "example.org.evil"}))
                .require(&wanted)
                .is_err()
        );
        assert!(claims(json!({})).require(&wanted).is_err());
        for bad in ["", "hd", "=x", "hd="] {
            assert!(bad.parse::<RequiredClaim>().is_err(), "{bad}");
        }
    }
}
