//! The tests of what is read from the Secrets of users and tokens.

use super::*;

#[test]
fn a_user_survives_being_stored_and_a_damaged_one_is_named() {
    let user = User {
        namespaces: Some(vec!["vision".to_string()]),
        ..NewUser::new("ann", UserRole::Lead).user
    };
    let mut secret = secret_of(user_secret("ann"), USER_TYPE, &user, "hash");
    let (known, hash) = read_secret::<User>(&secret).unwrap();
    assert_eq!((known.name.as_str(), hash.as_str()), ("ann", "hash"));
    assert_eq!(known.namespaces, user.namespaces);
    assert!(matches!(read(&secret), SecretContent::User(_)));
    secret.data = None;
    let error = read_secret::<User>(&secret).unwrap_err().to_string();
    assert!(error.contains("\"user-ann\""), "{error}");
    assert!(matches!(read(&secret), SecretContent::Damaged(_)));
}

#[test]
fn a_second_factor_is_stored_beside_the_hash_and_a_damaged_one_is_not_a_missing_one() {
    let user = NewUser::new("ann", UserRole::Lead).user;
    let secret = crate::totp::TotpSecret::new([7; 20]);
    let factor = SecondFactor::new(&secret, 7, &[], Timestamp::UNIX_EPOCH);
    let mut stored = secret_of_user(&user, "hash", Some(&factor));
    let (_, hash, read_back) = read_user(&stored).unwrap();
    assert!(hash == "hash" && read_back == Some(factor));
    let record = String::from_utf8(stored.data.as_ref().unwrap()[RECORD].0.clone());
    assert!(!record.unwrap().contains(&secret.base32()));
    for broken in [
        "",
        "{}",
        r#"{"secret": "x", "since": "2026-01-01T00:00:00Z", "step": 7, "recovery": []}"#,
    ] {
        let data = stored.data.as_mut().unwrap();
        data.insert(FACTOR.to_owned(), ByteString(broken.as_bytes().to_vec()));
        assert!(
            matches!(read(&stored), SecretContent::Damaged(_)),
            "{broken}"
        );
    }
    let without = secret_of_user(&user, "hash", None);
    assert!(read_user(&without).unwrap().2.is_none());
}

#[test]
fn the_last_use_is_apart_from_the_record_and_a_damaged_one_is_none() {
    let info: TokenInfo = serde_json::from_value(records().remove(2)).unwrap();
    let mut secret = secret_of(token_secret(&info.id), TOKEN_TYPE, &info, "digest");
    let stored = secret.data.as_ref().unwrap()[RECORD].0.clone();
    assert!(!String::from_utf8(stored).unwrap().contains("lastUsed"));
    for (text, expected) in [
        (None, None),
        (Some("2026-01-05T10:00:00Z"), Some("2026-01-05T10:00:00Z")),
        (Some("yesterday"), None),
        (Some(""), None),
    ] {
        if let Some(text) = text {
            let data = secret.data.as_mut().unwrap();
            data.insert(LAST_USED.to_owned(), ByteString(text.as_bytes().to_vec()));
        }
        let SecretContent::Token(known) = read(&secret) else {
            panic!("{text:?}: the token is not read");
        };
        let expected = expected.map(|text| text.parse::<Timestamp>().unwrap());
        assert_eq!(known.info.last_used, expected, "{text:?}");
        assert_eq!(
            (known.info.from.len(), known.digest.as_str()),
            (2, "digest")
        );
    }
}

#[test]
fn a_token_with_a_range_that_cannot_be_read_is_damaged() {
    let mut record = records().remove(2);
    record["from"] = serde_json::json!(["10.0.0.0/8", "anywhere"]);
    let secret = secret_of(
        "token-0123456789ab".to_owned(),
        TOKEN_TYPE,
        &record,
        "digest",
    );
    assert!(matches!(read(&secret), SecretContent::Damaged(_)));
}

#[test]
fn a_record_in_a_secret_of_another_name_is_ignored() {
    let user = NewUser::new("admin", UserRole::Admin).user;
    let secret = secret_of(user_secret("ann"), USER_TYPE, &user, "hash");
    assert!(matches!(read(&secret), SecretContent::Damaged(_)));
    let others = secret_of(user_secret("ann"), "Opaque", &user, "hash");
    assert!(matches!(read(&others), SecretContent::Other));
}

fn records() -> Vec<serde_json::Value> {
    vec![
        serde_json::json!({"name": "ann", "role": "lead", "namespaces": ["vision"]}),
        serde_json::json!({
            "id": "0123456789ab", "user": "ann", "label": "l", "purpose": "access",
            "created": "2026-01-01T00:00:00Z", "expires": "2026-02-01T00:00:00Z",
        }),
        serde_json::json!({
            "id": "0123456789ab", "user": "ann", "label": "l", "purpose": "access",
            "created": "2026-01-01T00:00:00Z", "expires": "2026-02-01T00:00:00Z",
            "from": ["10.0.0.0/8", "2001:db8::/64"], "replacedBy": "ba9876543210",
        }),
    ]
}

proptest::proptest! {
    #[test]
    fn no_record_of_a_user_or_token_panics(
        record in crate::documents::changed(records()),
        damage in crate::documents::damage(),
        hash in proptest::prelude::any::<Vec<u8>>(),
        factor in proptest::option::of(crate::documents::changed(vec![serde_json::json!({
            "secret": "GEZDGNBVGY3TQOJQGEZDGNBVGY3TQOJQ", "since": "2026-01-01T00:00:00Z", "step": 7, "recovery": ["a"],
        })])),
        (kind, name) in (0..3_usize, "[a-z0-9-]{0,12}"),
        token in "\\PC{0,40}",
    ) {
        let kind = [USER_TYPE, TOKEN_TYPE, "Opaque"][kind];
        let record = crate::documents::damaged(record.to_string().into_bytes(), &damage);
        let named = ["user-ann", "token-0123456789ab", &name];
        for name in named {
            let mut secret = secret_of(name.to_owned(), kind, &(), "");
            let data = secret.data.get_or_insert_default();
            data.insert(RECORD.to_owned(), ByteString(record.clone()));
            data.insert(HASH.to_owned(), ByteString(hash.clone()));
            if let Some(factor) = &factor {
                data.insert(FACTOR.to_owned(), ByteString(factor.to_string().into_bytes()));
            }
            match read(&secret) {
                // What was read is stored as it was.
                SecretContent::User(known) => {
                    proptest::prop_assert_eq!(user_secret(&known.user.name), name);
                    let factor = known.factor.as_ref();
                    let again = secret_of_user(&known.user, &known.hash, factor);
                    let (user, hash, factor) = read_user(&again).unwrap();
                    proptest::prop_assert!(factor == known.factor);
                    proptest::prop_assert_eq!(user.caller(), known.user.caller());
                    proptest::prop_assert_eq!(hash, known.hash);
                }
                SecretContent::Token(known) => {
                    proptest::prop_assert_eq!(token_secret(&known.info.id), name);
                    let again = secret_of(name.to_owned(), kind, &known.info, &known.digest);
                    let (info, digest) = read_secret::<TokenInfo>(&again).unwrap();
                    proptest::prop_assert_eq!(info.expires, known.info.expires);
                    proptest::prop_assert_eq!(digest, known.digest);
                }
                SecretContent::Damaged(error) => {
                    proptest::prop_assert!(error.to_string().contains(name));
                }
                SecretContent::Other => proptest::prop_assert_eq!(kind, "Opaque"),
            }
        }
        for text in [token.clone(), format!("muster_{token}"), format!("muster_0123456789ab_{token}")] {
            let _ = tokens::id_of(&text);
        }
    }
}
