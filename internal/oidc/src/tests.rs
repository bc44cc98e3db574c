//! The whole flow against a provider whose answers the test forges: keys, tokens, rotation, errors.

use std::collections::VecDeque;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use futures::FutureExt;
use futures::future::BoxFuture;
use http::{Request, StatusCode};
use jiff::Timestamp;
use parking_lot::Mutex;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _};
use serde_json::{Value, json};

use crate::claim_names::ClaimNames;
use crate::keys::KeySet;
use crate::provider::{Exchange, ExchangeError};
use crate::settings::{ClientSecret, OidcSettings};
use crate::token::UnverifiedToken;
use crate::{Callback, Mapping, Oidc, OidcError};

const ISSUER: &str = "https://idp.example";
const REDIRECT: &str = "https://muster.example/ui/oidc/callback";

/// The value of a future that waits for nothing: the scripted provider answers at once.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    future.now_or_never().unwrap()
}

struct SigningKey {
    id: &'static str,
    pair: EcdsaKeyPair,
}

impl SigningKey {
    fn new(id: &'static str) -> SigningKey {
        let random = SystemRandom::new();
        let method = &ECDSA_P256_SHA256_FIXED_SIGNING;
        let document = EcdsaKeyPair::generate_pkcs8(method, &random).unwrap();
        let pair = EcdsaKeyPair::from_pkcs8(method, document.as_ref(), &random).unwrap();
        SigningKey { id, pair }
    }

    fn public(&self) -> Value {
        let point = self.pair.public_key().as_ref();
        let part = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        json!({
            "kty": "EC", "crv": "P-256", "use": "sig", "kid": self.id,
            "x": part(&point[1..33]), "y": part(&point[33..]),
        })
    }

    fn token(&self, header: Value, claims: &Value) -> String {
        let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let signed = format!("{}.{}", part(&header), part(claims));
        let random = SystemRandom::new();
        let signature = self.pair.sign(&random, signed.as_bytes()).unwrap();
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature))
    }

    fn signed(&self, claims: &Value) -> String {
        self.token(json!({"alg": "ES256", "kid": self.id}), claims)
    }
}

/// What the provider answers, and what it was asked.
#[derive(Default)]
struct Script {
    discovery: Value,
    keys: Value,
    tokens: VecDeque<(u16, Value)>,
    down: Option<ExchangeError>,
    asked: Vec<String>,
    forms: Vec<String>,
}

#[derive(Clone, Default)]
struct ScriptedProvider(Arc<Mutex<Script>>);

impl Exchange for ScriptedProvider {
    fn send(
        &self,
        request: Request<String>,
    ) -> BoxFuture<'static, Result<(StatusCode, Vec<u8>), ExchangeError>> {
        let mut script = self.0.lock();
        let path = request.uri().path().to_owned();
        script.asked.push(path.clone());
        let answer = match (&script.down, path.as_str()) {
            (Some(error), _) => Err(error.clone()),
            (None, "/.well-known/openid-configuration") => Ok((200, script.discovery.clone())),
            (None, "/keys") => Ok((200, script.keys.clone())),
            (None, _) => {
                script.forms.push(request.body().clone());
                Ok(script.tokens.pop_front().unwrap())
            }
        };
        let answer = answer.map(|(status, body)| {
            let status = StatusCode::from_u16(status).unwrap();
            (status, body.to_string().into_bytes())
        });
        Box::pin(std::future::ready(answer))
    }
}

struct Ground {
    provider: ScriptedProvider,
    oidc: Oidc,
    key: SigningKey,
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(2_000_000 + second).unwrap()
}

impl Ground {
    fn new() -> Ground {
        let provider = ScriptedProvider::default();
        let key = SigningKey::new("first");
        {
            let mut script = provider.0.lock();
            script.discovery = json!({
                "issuer": ISSUER,
                "authorization_endpoint": format!("{ISSUER}/authorize?tenant=a"),
                "token_endpoint": format!("{ISSUER}/token"),
                "jwks_uri": format!("{ISSUER}/keys"),
                "scopes_supported": ["openid", "groups", "email"],
            });
            script.keys = json!({"keys": [{"kty": "oct"}, key.public()]});
        }
        let names = ClaimNames {
            username: "preferred_username".to_owned(),
            groups: "groups".to_owned(),
            required: Vec::new(),
        };
        let mapping = "[[rule]]\ngroup = \"ml\"\nteam = \"vision\"\n";
        let settings = OidcSettings::new(
            ISSUER,
            "muster",
            Some(ClientSecret::of_text("s3cret:/\n").unwrap()),
            names,
            None,
            Mapping::parse(mapping).unwrap(),
        );
        let oidc = Oidc::new(settings.unwrap(), Box::new(provider.clone()));
        Ground {
            provider,
            oidc,
            key,
        }
    }

    fn claims(nonce: &str) -> Value {
        json!({
            "iss": ISSUER, "aud": "muster", "sub": "u1", "nonce": nonce,
            "iat": at(0).as_second(), "exp": at(300).as_second(),
            "preferred_username": "Ann", "name": "Ann Example", "email": "ann@example.org",
            "groups": ["ml"],
        })
    }

    /// Begins a sign-in: its state, nonce and cookie.
    fn begin(&self, second: i64) -> (String, String, String) {
        let begun = block_on(self.oidc.begin(REDIRECT, "/ui/jobs", None, at(second))).unwrap();
        let part = |name: &str| {
            let (_, rest) = begun.url.split_once(&format!("&{name}=")).unwrap();
            rest.split('&').next().unwrap().to_owned()
        };
        (part("state"), part("nonce"), begun.cookie.clone())
    }

    fn finish(&self, state: &str, cookie: &str, second: i64) -> Result<crate::Finished, OidcError> {
        let callback = Callback {
            state: state.to_owned(),
            code: Some("c0de".to_owned()),
            cookie: cookie.to_owned(),
            ..Callback::default()
        };
        block_on(self.oidc.finish(callback, at(second)))
    }

    /// A whole sign-in in which the provider answers with this token.
    fn with(
        &self,
        second: i64,
        token: impl FnOnce(&str) -> String,
    ) -> Result<crate::Finished, OidcError> {
        let (state, nonce, cookie) = self.begin(second);
        let answer = json!({"id_token": token(&nonce)});
        self.provider.0.lock().tokens.push_back((200, answer));
        self.finish(&state, &cookie, second + 1)
    }

    fn asked(&self, path: &str) -> usize {
        let script = self.provider.0.lock();
        script.asked.iter().filter(|asked| *asked == path).count()
    }
}

#[test]
fn a_user_signs_in_with_pkce_and_the_clients_secret() {
    let ground = Ground::new();
    let begun = block_on(ground.oidc.begin(REDIRECT, "/ui/", None, at(0))).unwrap();
    let begin = "https://idp.example/authorize?tenant=a&response_type=code&client_id=muster&redirect_uri=https%3A%2F%2Fmuster.example%2Fui%2Foidc%2Fcallback&scope=openid%20email%20groups&state=";
    assert!(begun.url.starts_with(begin), "{}", begun.url);
    assert!(begun.url.ends_with("&code_challenge_method=S256"));
    let finished = ground
        .with(0, |nonce| ground.key.signed(&Ground::claims(nonce)))
        .unwrap();
    assert_eq!(finished.next, "/ui/jobs");
    let person = finished.person;
    assert_eq!(
        (person.subject.as_str(), person.name.as_str()),
        ("u1", "ann")
    );
    assert_eq!(person.email.as_deref(), Some("ann@example.org"));
    assert!(person.granted.unwrap().teams.contains_key("vision"));
    let form = ground.provider.0.lock().forms[0].clone();
    assert!(form.contains("code=c0de&redirect_uri=https%3A") && form.contains("code_verifier="));
    assert!(!form.contains("s3cret"), "{form}");
    // A second sign-in reads neither document again.
    ground
        .with(5, |nonce| ground.key.signed(&Ground::claims(nonce)))
        .unwrap();
    assert_eq!(ground.asked("/keys"), 1);
    assert_eq!(ground.asked("/.well-known/openid-configuration"), 1);
}

type Forge<'a> = Box<dyn Fn(&str) -> String + 'a>;

fn forge<'a>(make: impl Fn(&str) -> String + 'a) -> Forge<'a> {
    Box::new(make)
}

#[test]
fn a_forged_token_is_refused_with_its_fault() {
    let ground = Ground::new();
    let other = SigningKey::new("first");
    let key = &ground.key;
    let claims = Ground::claims;
    let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let none = |nonce: &str| {
        let header = part(&json!({"alg": "none"}));
        format!("{header}.{}.", part(&claims(nonce)))
    };
    let changed = |nonce: &str| {
        let token = key.signed(&claims(nonce));
        let parts: Vec<&str> = token.split('.').collect();
        let mut forged = claims(nonce);
        forged["groups"] = json!(["admins"]);
        format!("{}.{}.{}", parts[0], part(&forged), parts[2])
    };
    let with = |change: fn(&mut Value)| {
        move |nonce: &str| {
            let mut forged = claims(nonce);
            change(&mut forged);
            key.signed(&forged)
        }
    };
    let cases: Vec<(Forge<'_>, &str)> = vec![
        (forge(none), "its algorithm \"none\""),
        (
            forge(|n| key.token(json!({"alg": "HS256"}), &claims(n))),
            "its algorithm \"HS256\"",
        ),
        (
            forge(|n| key.token(json!({"alg": "RS256", "kid": "first"}), &claims(n))),
            "none of the provider's keys",
        ),
        (
            forge(|n| key.token(json!({"alg": "ES256", "crit": ["b64"]}), &claims(n))),
            "(crit)",
        ),
        (
            forge(|n| other.signed(&claims(n))),
            "none of the provider's keys",
        ),
        (forge(changed), "none of the provider's keys"),
        (forge(|_| key.signed(&claims("another"))), "(nonce)"),
        (
            forge(with(|v| v["aud"] = json!("another-client"))),
            "not for this client",
        ),
        (
            forge(with(|v| v["iss"] = json!("https://evil.example"))),
            "its issuer is",
        ),
        (
            forge(with(|v| v["exp"] = json!(at(-61).as_second()))),
            "expired",
        ),
        (
            forge(with(|v| v["iat"] = json!(at(3600).as_second()))),
            "clock says",
        ),
        (forge(|_| "a.b".to_owned()), "three parts"),
        (forge(|_| "a.b.c.d".to_owned()), "three parts"),
        (forge(|_| "%.%.%".to_owned()), "base64url"),
    ];
    for (number, (make, words)) in cases.into_iter().enumerate() {
        let second = i64::try_from(number).unwrap();
        let error = ground
            .with(second, |nonce| make(nonce))
            .unwrap_err()
            .to_string();
        assert!(error.contains(words), "{words}: {error}");
    }
}

#[test]
fn a_user_without_a_rule_is_known_and_gets_nothing() {
    let ground = Ground::new();
    let token = |nonce: &str| {
        let mut claims = Ground::claims(nonce);
        claims["groups"] = json!(["none"]);
        ground.key.signed(&claims)
    };
    let person = ground.with(0, token).unwrap().person;
    assert_eq!(person.subject, "u1");
    let error = person.granted.unwrap_err().to_string();
    let words = "no rule of this server gives \"ann\" access (the provider sent the groups none)";
    assert!(error.starts_with(words), "{error}");
}

#[test]
fn new_keys_of_the_provider_are_read_and_an_unknown_key_asks_for_them_seldom() {
    let ground = Ground::new();
    let good = |nonce: &str| ground.key.signed(&Ground::claims(nonce));
    ground.with(0, good).unwrap();
    let second = SigningKey::new("second");
    let rotated = |nonce: &str| second.signed(&Ground::claims(nonce));
    // Not published yet, and within ten seconds of the last look.
    assert!(ground.with(2, rotated).is_err());
    assert_eq!(ground.asked("/keys"), 1);
    ground.provider.0.lock().keys = json!({"keys": [second.public()]});
    ground.with(20, rotated).unwrap();
    assert_eq!(ground.asked("/keys"), 2);
    assert!(ground.with(22, good).is_err());
    assert!(ground.with(24, good).is_err());
    assert_eq!(ground.asked("/keys"), 2);
}

#[test]
fn a_sign_in_that_is_none_of_this_browser_asks_the_provider_nothing() {
    let ground = Ground::new();
    let (state, _, cookie) = ground.begin(0);
    let asked = ground.provider.0.lock().asked.len();
    for (state, cookie) in [
        ("", ""),
        ("x", cookie.as_str()),
        (state.as_str(), "x"),
        (state.as_str(), cookie.as_str()),
    ] {
        let error = ground.finish(state, cookie, 1).unwrap_err();
        assert_eq!(error, OidcError::UnknownState);
    }
    assert_eq!(ground.provider.0.lock().asked.len(), asked);
}

#[test]
fn what_the_provider_refuses_or_garbles_is_named() {
    let ground = Ground::new();
    let (state, _, cookie) = ground.begin(0);
    let error = json!({"error": "invalid_grant", "error_description": "wrong\u{7} code"});
    ground.provider.0.lock().tokens.push_back((400, error));
    let error = ground.finish(&state, &cookie, 1).unwrap_err();
    assert!(error.is_of_provider());
    assert!(
        error
            .to_string()
            .contains("400 Bad Request invalid_grant wrong  code"),
        "{error}"
    );
    let (state, _, cookie) = ground.begin(0);
    let callback = |iss: Option<&str>, error: Option<&str>| Callback {
        state: state.clone(),
        error: error.map(str::to_owned),
        iss: iss.map(str::to_owned),
        cookie: cookie.clone(),
        ..Callback::default()
    };
    let refused = callback(Some(ISSUER), Some("access_denied"));
    let error = block_on(ground.oidc.finish(refused, at(1))).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the identity provider refused the sign-in: access_denied"
    );
    let (state, _, cookie) = ground.begin(0);
    let mixed = Callback {
        state,
        cookie,
        code: Some("c".to_owned()),
        iss: Some("https://evil.example".to_owned()),
        ..Callback::default()
    };
    let error = block_on(ground.oidc.finish(mixed, at(1))).unwrap_err();
    assert!(matches!(error, OidcError::OtherProvider { .. }));

    for (change, words) in [
        (json!({"issuer": "https://idp.example/"}), "its issuer is"),
        (
            json!({"token_endpoint": "http://idp.example/token"}),
            "token_endpoint is no https URL",
        ),
        (
            json!({"code_challenge_methods_supported": ["plain"]}),
            "no PKCE",
        ),
    ] {
        let ground = Ground::new();
        for (field, value) in change.as_object().unwrap() {
            ground.provider.0.lock().discovery[field] = value.clone();
        }
        let error = block_on(ground.oidc.begin(REDIRECT, "", None, at(0))).unwrap_err();
        assert!(error.to_string().contains(words), "{error}");
    }
    let down = ExchangeError::Certificate("unknown issuer".to_owned());
    let ground = Ground::new();
    ground.provider.0.lock().down = Some(down);
    let error = block_on(ground.oidc.begin(REDIRECT, "", None, at(0))).unwrap_err();
    assert!(error.to_string().contains("--oidc-ca-file"), "{error}");
    // It is not asked again at once.
    ground.provider.0.lock().down = None;
    let begin = |second| block_on(ground.oidc.begin(REDIRECT, "", None, at(second)));
    assert_eq!(begin(11), Err(error));
    assert_eq!(ground.asked("/.well-known/openid-configuration"), 1);
    assert!(begin(12).is_ok());
}

#[test]
fn settings_that_no_provider_can_have_are_refused() {
    let of = |issuer: &str, client: &str, button: Option<&str>| {
        let names = ClaimNames {
            username: "sub".to_owned(),
            groups: "groups".to_owned(),
            required: Vec::new(),
        };
        let mapping = Mapping::default();
        OidcSettings::new(issuer, client, None, names, button, mapping)
    };
    assert_eq!(
        of("https://a/b", "c", None).unwrap().button(),
        "single sign-on"
    );
    for issuer in [
        "",
        "http://a",
        "a",
        "https://a?x=y",
        "https://a#b",
        "ftp://a",
    ] {
        assert!(of(issuer, "c", None).is_err(), "{issuer}");
    }
    assert!(of("https://a", " ", None).is_err());
    assert!(of("https://a", "c", Some("")).is_err());
    assert!(ClientSecret::of_text("\nx").is_err());
}

proptest::proptest! {
    #[test]
    fn no_token_and_no_key_set_panics(
        text in "(\\PC{0,40}\\.){0,3}\\PC{0,40}",
        header in "[{}\":a-zA-Z0-9, ]{0,60}",
        (kty, crv, part) in ("(RSA|EC|OKP|oct)", "(P-256|P-384|Ed25519|x)", "[A-Za-z0-9_=-]{0,90}"),
    ) {
        let key = json!({"keys": [{"kty": kty, "crv": crv, "n": part, "e": part, "x": part, "y": part}]});
        let keys = KeySet::of_document(&key).unwrap();
        let part = |text: &str| URL_SAFE_NO_PAD.encode(text);
        let header = format!("{}.{}.{}", part(&header), part("{}"), part(&text));
        let good = ["RS256", "ES256", "ES384", "EdDSA"];
        let good = good.map(|name| format!("{}.{}.{}", part(&format!("{{\"alg\":\"{name}\"}}")), part("{}"), part(&text)));
        for token in good.iter().chain([&text, &header]) {
            if let Ok(token) = UnverifiedToken::of_text(token) {
                proptest::prop_assert!(token.verified(&keys).is_err());
            }
        }
    }
}
