//! Settings: what is refused at the start, and how a mapping is explained.

use std::process::Command;

use e2e::{free_address, run};
use serde_json::{Value, json};

use crate::provider::Provider;

#[test]
fn invalid_settings_are_named_and_a_mapping_is_explained_without_a_provider() {
    let provider = Provider::prepared(&[]);
    let claims = provider.path("claims.json");
    let explain = |value: Value, more: &[&str]| {
        std::fs::write(&claims, value.to_string()).unwrap();
        let mut muster = Command::new(e2e::muster());
        muster
            .args(["user", "explain-sign-in", "--claims"])
            .arg(&claims)
            .arg("--oidc-mapping")
            .arg(provider.path("mapping.toml"))
            .args(more);
        run(&mut muster)
    };
    let all = json!({"preferred_username": "Ann", "groups": ["ml", "vision-leads"]});
    let explained = explain(all.clone(), &[]).ok();
    for words in [
        "User:    ann",
        "rule 2: group \"ml\": role lead in default",
        "Gets:    role lead in default",
        "Gets:    lead of team vision",
    ] {
        assert!(explained.contains(words), "{words}: {explained}");
    }
    let refused = explain(json!({"preferred_username": "ann"}), &[]);
    assert_eq!(refused.code, Some(1), "{}", refused.err);
    assert!(
        refused
            .out
            .contains("the provider sent no claim \"groups\""),
        "{}",
        refused.out
    );
    let refused = explain(all, &["--oidc-required-claim", "hd=example.org"]);
    assert!(
        refused.out.contains("is not \"example.org\""),
        "{}",
        refused.out
    );

    let start = |change: &dyn Fn(&mut Vec<String>)| {
        let mut options = provider.options();
        change(&mut options);
        let data = tempfile::tempdir().unwrap();
        let mut muster = Command::new(e2e::muster());
        muster.args(["--data"]).arg(data.path()).arg("server");
        muster.args(["--listen", &free_address()]).args(options);
        let ran = run(&mut muster);
        assert_ne!(ran.code, Some(0));
        ran.err
    };
    provider.write("bad.toml", "[[rule]]\ngroup = \"x\"\nrole = \"member\"\n");
    let bad = format!("--oidc-mapping={}", provider.path("bad.toml").display());
    let issuer = "--oidc-issuer-url=http://127.0.0.1:1".to_owned();
    for (place, option, words) in [
        (5, bad, "rule 1: role: it needs namespaces"),
        (0, issuer, "write https://HOST/PATH"),
        (
            4,
            "--oidc-ca-file=/nowhere".to_owned(),
            "--oidc-ca-file = /nowhere",
        ),
    ] {
        let error = start(&|options| options[place] = option.clone());
        assert!(error.contains(words), "{option}: {error}");
    }
    let error = start(&|options| drop(options.remove(1)));
    assert!(error.contains("needs --oidc-client-id too"), "{error}");
    let checked = |mapping: &str| {
        let mapping = provider.path(mapping).display().to_string();
        let text = format!(
            "[server]\noidc-issuer-url = \"https://id.example.org\"\noidc-client-id = \"muster\"\noidc-mapping = {mapping:?}\n"
        );
        provider.write("muster.toml", &text);
        let mut muster = Command::new(e2e::muster());
        muster.args(["config", "check", "--file"]);
        run(muster.arg(provider.path("muster.toml")))
    };
    checked("mapping.toml").ok();
    let refused = checked("bad.toml");
    assert_eq!(refused.code, Some(2), "{}", refused.err);
    assert!(
        refused.err.contains("rule 1: role: it needs namespaces"),
        "{}",
        refused.err
    );
}
