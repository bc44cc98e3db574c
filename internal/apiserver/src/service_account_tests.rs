//! Tokens that a caller made up or damaged, with a right signature or without, name no service account and never panic.

use std::sync::LazyLock;

use proptest::prelude::*;

use super::*;
use crate::documents::{changed, damage, damaged};
use crate::start::start;

/// A server, and what it needs while it lives.
struct Served {
    server: ApiServer,
    _runtime: tokio::runtime::Runtime,
    _directory: tempfile::TempDir,
}

static SERVED: LazyLock<Served> = LazyLock::new(|| {
    let (server, runtime, directory) = start(1);
    Served {
        server,
        _runtime: runtime,
        _directory: directory,
    }
});

fn claims() -> Value {
    json!({
        "iss": ISSUER, "sub": "system:serviceaccount:ns:builder", "aud": [ISSUER],
        "exp": i64::MAX, "iat": 0, "nbf": 0, "jti": "1",
        "kubernetes.io": {
            "namespace": "ns",
            "serviceaccount": {"name": "builder", "uid": "u"},
            "pod": {"name": "p", "uid": "v"},
            "secret": {"name": "s", "uid": "w"},
        },
    })
}

/// A token of this payload with this server's own signature.
fn token_of(payload: &[u8]) -> String {
    let signed = format!(
        "{}.{}",
        URL_SAFE_NO_PAD.encode(HEADER),
        URL_SAFE_NO_PAD.encode(payload)
    );
    let signature = token_key::sign(&SERVED.server.0.store, &signed).unwrap();
    format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature))
}

#[test]
fn claims_that_this_server_signed_are_read() {
    let token = token_of(claims().to_string().as_bytes());
    let payload = token.split('.').nth(1).unwrap();
    let read: TokenClaims =
        serde_json::from_slice(&URL_SAFE_NO_PAD.decode(payload).unwrap()).unwrap();
    assert_eq!(read.bound.serviceaccount.name, "builder");
    // The account is nowhere.
    assert!(SERVED.server.service_account(&token).is_none());
}

proptest! {
    #[test]
    fn no_token_of_a_service_account_panics(
        document in changed(vec![claims()]),
        inside in damage(),
        outside in damage(),
        text in "[A-Za-z0-9_.=\\PC-]{0,60}",
    ) {
        // Nothing here names an account that exists.
        let payload = damaged(document.to_string().into_bytes(), &inside);
        let signed = token_of(&payload);
        prop_assert!(SERVED.server.service_account(&signed).is_none());
        let damaged = damaged(signed.into_bytes(), &outside);
        let damaged = String::from_utf8_lossy(&damaged);
        prop_assert!(SERVED.server.service_account(&damaged).is_none());
        prop_assert!(SERVED.server.service_account(&text).is_none());
    }
}
