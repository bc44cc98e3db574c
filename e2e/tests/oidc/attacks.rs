//! What attackers try: users of this server, and answers that belong to another sign-in.

use serde_json::Value;

use crate::browser::Browser;
use crate::provider::RETURN;
use crate::{ground, record};

#[test]
fn no_user_of_this_server_is_taken_over() {
    let (provider, platform) = ground(&[]);
    let file = platform.data.join("bobs-password");
    std::fs::write(&file, "four random words\n").unwrap();
    let password = file.display().to_string();
    platform
        .cli(&["user", "create", "bob", "--password-file", &password])
        .ok();
    let before = record(&platform, "bob");
    for name in ["bob", "Bob", "bob@evil.example", "admin"] {
        provider.user("u2", name, &["ops"]);
        let browser = Browser::new(&platform, &provider);
        let refused = browser.sign_in(name);
        assert_eq!(refused.code, 403, "{name}: {}", refused.head);
        assert!(
            refused.body.contains("is not linked to your account"),
            "{name}: {}",
            refused.body
        );
        assert_eq!(browser.whoami()["user"], Value::Null, "{name}");
    }
    assert_eq!(record(&platform, "bob"), before);
    // Another subject of the same name is another account.
    provider.user("u1", "ann", &["ml"]);
    assert_eq!(Browser::new(&platform, &provider).sign_in("ann").code, 200);
    provider.user("u3", "ann", &["ops"]);
    let refused = Browser::new(&platform, &provider).sign_in("ann");
    assert_eq!(refused.code, 403, "{}", refused.head);
    assert_eq!(record(&platform, "ann")["role"], "lead");
    // The remedy that the refusal names.
    platform.cli(&["user", "delete", "ann"]).ok();
    assert_eq!(Browser::new(&platform, &provider).sign_in("ann").code, 200);
    assert_eq!(record(&platform, "ann")["oidc"]["subject"], "u3");
}

#[test]
fn answers_that_belong_to_another_sign_in_are_refused() {
    let (provider, platform) = ground(&[]);
    provider.user("u1", "ann", &["ml"]);
    let (ann, eve) = (
        Browser::new(&platform, &provider),
        Browser::new(&platform, &provider),
    );
    let refused = |browser: &Browser<'_>, url: &str, code: u16| {
        let reply = browser.ask(url, &[]);
        assert_eq!(reply.code, code, "{url}: {}{}", reply.head, reply.body);
        assert!(
            !reply.sets("__host-muster_session"),
            "{url}: {}",
            reply.head
        );
        assert_eq!(browser.whoami()["user"], Value::Null, "{url}");
        reply.body
    };
    // Without a sign-in, with one of another browser, and again.
    refused(&ann, &format!("{}{RETURN}", ann.muster()), 403);
    refused(
        &ann,
        &format!("{}{RETURN}?state=x&code=y", ann.muster()),
        403,
    );
    let eves = eve.at_provider(&eve.begin("").leads_to(), "ann");
    ann.begin("");
    refused(&ann, &eves, 403);
    refused(&eve, &eves, 403);
    let back = ann.at_provider(&ann.begin("").leads_to(), "ann");
    assert_eq!(ann.ask(&back, &[]).code, 200);
    let replayed = ann.ask(&back, &[]);
    assert_eq!(replayed.code, 403, "{}", replayed.head);

    // The code of another browser's sign-in: its PKCE verifier and nonce are others.
    let part = |url: &str, name: &str| {
        let (_, query) = url.split_once('?').unwrap();
        let mut parts = query.split('&').filter_map(|part| part.split_once('='));
        parts.find(|(part, _)| *part == name).unwrap().1.to_owned()
    };
    let (ann, eve) = (
        Browser::new(&platform, &provider),
        Browser::new(&platform, &provider),
    );
    let (anns, eves) = (ann.begin("").leads_to(), eve.begin("").leads_to());
    let code = part(&eve.at_provider(&eves, "ann"), "code");
    let mixed = format!(
        "{}{RETURN}?state={}&code={code}",
        ann.muster(),
        part(&anns, "state")
    );
    let words = refused(&ann, &mixed, 502);
    assert!(
        words.contains("refused the server&#39;s request for a token"),
        "{words}"
    );

    // The code of another client.
    let begun = ann.begin("").leads_to();
    let others = begun.replace("client_id=muster", "client_id=other");
    let code = part(&ann.at_provider(&others, "ann"), "code");
    let foreign = format!(
        "{}{RETURN}?state={}&code={code}",
        ann.muster(),
        part(&begun, "state")
    );
    refused(&ann, &foreign, 502);

    // The provider's own refusal.
    let begun = ann.begin("").leads_to();
    let denied = format!(
        "{}{RETURN}?state={}&error=access_denied&error_description=%3Cb%3Eno",
        ann.muster(),
        part(&begun, "state")
    );
    let words = refused(&ann, &denied, 403);
    assert!(
        words.contains("access_denied") && !words.contains("<b>no"),
        "{words}"
    );
}
