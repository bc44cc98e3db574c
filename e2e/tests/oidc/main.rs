//! Signing in by OpenID Connect with a real provider: what claims give at each sign-in, what attackers try, and what a
//! provider that is down or changes its keys does.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod attacks;
mod browser;
mod provider;
mod settings;

use std::process::Command;

use e2e::{Platform, eventually, free_address, python, repository, run};
use serde_json::{Value, json};

use browser::Browser;
use provider::{PASSWORD, Provider, RETURN, SOON};

/// A provider, and a server that uses it.
fn ground(more: &[&str]) -> (Provider, Platform) {
    let listen = free_address();
    let provider = Provider::started(&[format!("https://{listen}")]);
    let options = provider.options();
    let options: Vec<&str> = options
        .iter()
        .map(String::as_str)
        .chain(more.iter().copied())
        .collect();
    let platform = Platform::server_on(&listen, &options);
    (provider, platform)
}

fn record(platform: &Platform, user: &str) -> Value {
    let shown = platform.cli(&["user", "show", user, "-o", "json"]).ok();
    serde_json::from_str(&shown).unwrap()
}

/// The role that a user has in a team; empty if it has none.
fn role_in(platform: &Platform, team: &str, user: &str) -> String {
    let has = |role: &&str| {
        let binding = format!("muster-team-{role}");
        let get = ["get", "rolebinding", &binding, "-n", team, "-o", "json"];
        let binding: Value = serde_json::from_str(&platform.kubectl(&get).ok()).unwrap();
        let subjects = binding["subjects"].as_array();
        let mut subjects = subjects.into_iter().flatten();
        subjects.any(|subject| subject["name"] == user)
    };
    let found = ["lead", "member", "viewer"].into_iter().find(has);
    found.unwrap_or_default().to_owned()
}

#[test]
fn claims_give_role_and_teams_anew_at_each_sign_in() {
    let (provider, platform) = ground(&[]);
    platform.cli(&["team", "create", "vision"]).ok();
    platform.cli(&["team", "create", "speech"]).ok();
    let browser = Browser::new(&platform, &provider);
    let page = browser.ask(&format!("{}/ui/sign-in", browser.muster()), &[]);
    assert!(
        page.body.contains("Sign in with Example ID"),
        "{}",
        page.body
    );

    provider.user("u1", "Ann.Example", &["ml", "vision", "others"]);
    let begun = browser.begin("/ui/jobs");
    assert!(begun.sets("__host-muster_oidc"), "{}", begun.head);
    let signed = browser.sign_in("Ann.Example");
    assert_eq!(signed.code, 200, "{}{}", signed.head, signed.body);
    assert_eq!(signed.leads_to(), "/ui/jobs");
    assert!(signed.sets("__host-muster_session"), "{}", signed.head);
    let own = browser.whoami();
    assert_eq!(
        (&own["user"], &own["role"]),
        (&json!("ann-example"), &json!("lead")),
        "{own}"
    );
    assert_eq!(own["namespaces"], json!(["default"]), "{own}");
    let user = record(&platform, "ann-example");
    assert_eq!(user["oidc"]["subject"], "u1", "{user}");
    assert_eq!(user["oidc"]["teams"], json!(["vision"]), "{user}");
    assert_eq!(user["displayName"], "Ann Example", "{user}");
    let role = |team: &str| role_in(&platform, team, "ann-example");
    assert_eq!(role("vision"), "member");
    let event = eventually("the sign-in is in the audit log", SOON, || {
        let events = platform.audited(RETURN).into_iter();
        let mut good = events.filter(|event| event["responseStatus"]["code"] == 200);
        good.next()
    });
    assert_eq!(event["user"]["username"], "ann-example", "{event}");
    assert_eq!(event["requestURI"], RETURN, "{event}");

    // An administrator adds her to another team; the claims change.
    platform
        .cli(&["team", "add-member", "speech", "ann-example"])
        .ok();
    provider.user("u1", "Ann.Example", &["vision-leads"]);
    assert_eq!(browser.sign_in("Ann.Example").code, 200);
    assert_eq!(browser.whoami()["namespaces"], json!([]));
    assert_eq!(
        (role("vision"), role("speech")),
        ("lead".to_owned(), "member".to_owned())
    );
    provider.user("u1", "renamed", &["ops"]);
    assert_eq!(browser.sign_in("renamed").code, 200);
    let own = browser.whoami();
    assert_eq!(
        (&own["user"], &own["role"]),
        (&json!("ann-example"), &json!("admin")),
        "{own}"
    );
    assert_eq!(
        (role("vision"), role("speech")),
        (String::new(), "member".to_owned())
    );

    // Her session ends with what the claims gave.
    provider.user("u1", "renamed", &["others"]);
    let other = Browser::new(&platform, &provider);
    let refused = other.sign_in("renamed");
    assert_eq!(refused.code, 403, "{}", refused.head);
    assert!(
        refused.body.contains("the provider sent the groups others"),
        "{}",
        refused.body
    );
    assert!(!refused.sets("__host-muster_session"), "{}", refused.head);
    let user = record(&platform, "ann-example");
    assert_eq!(
        (&user["role"], &user["namespaces"]),
        (&json!("member"), &json!([])),
        "{user}"
    );
    assert_eq!(browser.whoami()["user"], Value::Null);

    // The last local administrator stays, and no link sets a password beside the provider.
    provider.user("u1", "renamed", &["ops"]);
    assert_eq!(browser.sign_in("renamed").code, 200);
    let disabled = platform.cli(&["user", "disable", "admin"]);
    assert!(
        disabled.err.contains("last administrator"),
        "{}",
        disabled.err
    );
    let link = platform.cli(&["user", "reset-password", "ann-example"]);
    assert!(
        link.err.contains("signs in by OpenID Connect"),
        "{}",
        link.err
    );
    platform.cli(&["user", "disable", "ann-example"]).ok();
    assert_eq!(browser.whoami()["user"], Value::Null);
    let refused = browser.sign_in("renamed");
    assert_eq!(refused.code, 409, "{}{}", refused.head, refused.body);
}

#[test]
fn a_sign_in_begins_on_the_servers_own_page_and_leads_to_its_own_pages() {
    let (provider, platform) = ground(&[]);
    provider.user("u1", "ann", &["ml"]);
    let browser = Browser::new(&platform, &provider);
    let start = format!("{}/ui/oidc/start", browser.muster());
    for options in [
        &["-d", "next="][..],
        &["-d", "next=", "-H", "Origin: https://evil.example"],
        &["-d", "next=", "-H", "Origin: null"],
    ] {
        let reply = browser.ask(&start, options);
        assert_eq!(reply.code, 403, "{options:?}: {}", reply.head);
        assert!(
            !reply.sets("__host-muster_oidc"),
            "{options:?}: {}",
            reply.head
        );
    }
    for next in [
        "https://evil.example/",
        "//evil.example",
        "/ui//evil.example",
        "javascript:alert(1)",
    ] {
        let begun = browser.begin(next);
        let back = browser.at_provider(&begun.leads_to(), "ann");
        assert_eq!(browser.ask(&back, &[]).leads_to(), "/ui/", "{next}");
    }
    // Another name for the server: the provider does not know it.
    let options = [
        "-d",
        "next=",
        "-H",
        "Host: evil.example",
        "-H",
        "Origin: https://evil.example",
    ];
    let begun = browser.ask(&start, &options);
    assert!(
        begun
            .leads_to()
            .contains("redirect_uri=https%3A%2F%2Fevil.example"),
        "{}",
        begun.body
    );
    let reply = browser.ask(&begun.leads_to(), &[]);
    assert_eq!(reply.code, 400, "{}{}", reply.head, reply.body);
}

#[test]
fn passwords_work_while_the_provider_is_down_and_new_keys_are_taken() {
    let listen = free_address();
    let provider = Provider::prepared(&[format!("https://{listen}")]);
    let options = provider.options();
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    let platform = Platform::server_on(&listen, &options);
    let by_password = || {
        let browser = Browser::new(&platform, &provider);
        let password = format!("password={}", platform.password());
        let origin = format!("Origin: {}", browser.muster());
        let url = format!("{}/ui/sign-in", browser.muster());
        let fields = [
            "-H",
            &origin,
            "-d",
            "user=admin",
            "--data-urlencode",
            &password,
        ];
        browser.ask(&url, &fields).code
    };
    let begin = || {
        let begun = Browser::new(&platform, &provider).begin("");
        (begun.code, begun.body)
    };
    let (code, body) = begin();
    assert_eq!(code, 502, "{body}");
    assert!(
        body.contains("cannot be reached") && body.contains("name=\"password\""),
        "{body}"
    );
    assert_eq!(by_password(), 303);
    platform.cli(&["get", "nodes"]).ok();

    // A certificate of another authority.
    let own = std::fs::read_to_string(provider.path("idp.pem")).unwrap();
    let other = Provider::prepared(&[]);
    for name in ["idp.pem", "idp.key"] {
        std::fs::copy(other.path(name), provider.path(name)).unwrap();
    }
    assert_ne!(
        std::fs::read_to_string(provider.path("idp.pem")).unwrap(),
        own
    );
    let (mut platform, mut provider) = (platform, provider);
    provider.start();
    eventually("the certificate is named", SOON, || {
        let begun = Browser::new(&platform, &provider).begin("");
        assert_eq!(begun.code, 502, "{}", begun.body);
        begun.body.contains("--oidc-ca-file").then_some(())
    });
    platform.stop();
    provider.stop();

    // The same provider with new keys.
    let (mut provider, platform) = ground(&[]);
    provider.user("u1", "ann", &["ml"]);
    assert_eq!(Browser::new(&platform, &provider).sign_in("ann").code, 200);
    provider.stop();
    provider.start();
    eventually("the new keys are taken", SOON, || {
        let browser = Browser::new(&platform, &provider);
        (browser.sign_in("ann").code == 200).then_some(())
    });
}

#[test]
fn in_a_browser_a_user_signs_in_at_the_provider_and_is_led_back() {
    let listen = free_address();
    let port = listen.rsplit(':').next().unwrap();
    let url = format!("https://muster.site.example:{port}");
    let provider = Provider::started(std::slice::from_ref(&url));
    provider.user("u1", "ann", &["ml"]);
    let mut options = provider.options();
    options.push("--advertise=muster.site.example".to_owned());
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    let _platform = Platform::server_on(&listen, &options);
    let mut walk = Command::new(python());
    walk.arg(repository().join("e2e/clients/oidc.py"))
        .args([&url, "ann", PASSWORD]);
    run(&mut walk).ok();
}
