//! Access tokens from their issue to their end: mistyped ones, the time of the last use, rotation by the command line
//! and on the page, address ranges, and tokens from before there were checksums.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::time::Duration;

use e2e::{Platform, Reply, eventually, send};
use serde_json::{Value, json};

const SOON: Duration = Duration::from_secs(60);
const PASSWORD: &str = "four random words";

/// A request with a bearer token.
fn ask(platform: &Platform, token: &str, request: &str, body: &str) -> Reply {
    let bearer = [format!("Authorization: Bearer {token}")];
    send(platform, request, &bearer, body)
}

fn whoami(platform: &Platform, token: &str) -> u16 {
    ask(platform, token, "GET /api/v1/whoami", "").code
}

/// The public id in a token.
fn id_of(token: &str) -> &str {
    token.split('_').nth(1).unwrap()
}

/// Creates the user ann with a password.
fn create_ann(platform: &Platform) {
    let file = platform.manifest("password", PASSWORD);
    let file = file.display().to_string();
    let create = ["user", "create", "ann", "--namespaces", "default"];
    let options = ["--password-file", file.as_str()];
    platform.cli(&[&create[..], &options[..]].concat()).ok();
}

/// Issues a token of ann's with these options.
fn issue(platform: &Platform, options: &[&str]) -> String {
    let create = ["token", "create", "--user", "ann"];
    let out = platform.cli(&[&create[..], options].concat()).ok();
    out.trim().to_owned()
}

/// The line of a token in `muster token list`.
fn listed(platform: &Platform, id: &str) -> String {
    let list = platform.cli(&["token", "list"]).ok();
    let line = list.lines().find(|line| line.starts_with(id));
    line.unwrap_or_else(|| panic!("{id} is not listed: {list}"))
        .to_owned()
}

/// A token with the last character replaced by another one of the alphabet.
fn mistyped(token: &str) -> String {
    let other = if token.ends_with('0') { '1' } else { '0' };
    format!("{}{other}", &token[..token.len() - 1])
}

#[test]
fn a_token_shows_its_last_use_is_rotated_with_an_overlap_and_refused_when_mistyped() {
    let mut platform = Platform::server(&[]);
    create_ann(&platform);
    let old = issue(&platform, &["--label", "ci"]);
    let old_id = id_of(&old).to_owned();
    assert!(listed(&platform, &old_id).contains("never"));

    let refused = ask(&platform, &mistyped(&old), "GET /api/v1/whoami", "");
    assert!(
        refused.code == 401 && refused.whole.contains("mistyped"),
        "{}",
        refused.whole
    );
    assert!(listed(&platform, &old_id).contains("never"));

    // The use is shown at once, and stored without a further one.
    assert_eq!(whoami(&platform, &old), 200);
    assert!(!listed(&platform, &old_id).contains("never"));
    let secret = format!("token-{old_id}");
    let get = [
        "-n",
        "muster-system",
        "get",
        "secret",
        &secret,
        "-o",
        "json",
    ];
    eventually("the last use is stored", SOON, || {
        let stored: Value = serde_json::from_str(&platform.kubectl(&get).ok()).unwrap();
        stored["data"]["last-used"].is_string().then_some(())
    });
    platform.stop();
    platform.restart();
    assert!(!listed(&platform, &old_id).contains("never"));

    // A token of a user that is no administrator rotates nothing, not even itself.
    let own = format!("POST /api/v1/tokens/{old_id}/rotation");
    let refused = ask(&platform, &old, &own, "{}");
    assert!(
        refused.code == 403 && refused.whole.contains("cannot issue"),
        "{}",
        refused.whole
    );
    let long = platform.cli(&["token", "rotate", "ci", "--overlap", "31d"]);
    assert!(
        long.code == Some(4) && long.err.contains("overlapSeconds"),
        "{}",
        long.err
    );

    let rotated = platform.cli(&["token", "rotate", "ci", "--overlap", "1h"]);
    let told = rotated.err.clone();
    let new = rotated.ok().trim().to_owned();
    let new_id = id_of(&new).to_owned();
    assert!(
        told.contains(&new_id) && told.contains(&old_id) && new_id != old_id,
        "{told}"
    );
    assert_eq!(
        (whoami(&platform, &old), whoami(&platform, &new)),
        (200, 200)
    );
    let line = listed(&platform, &old_id);
    assert!(line.trim_end().ends_with(&new_id), "{line}");
    let again = platform.cli(&["token", "rotate", &old_id]);
    assert!(
        again.code == Some(4) && again.err.contains("was replaced by"),
        "{}",
        again.err
    );

    // The label names the new token; without an overlap the replaced one ends at once.
    let rotated = platform.cli(&["token", "rotate", "ci", "--overlap", "0s"]);
    let newest = rotated.ok().trim().to_owned();
    assert_eq!(
        (
            whoami(&platform, &old),
            whoami(&platform, &new),
            whoami(&platform, &newest)
        ),
        (200, 401, 200)
    );

    // The page of the account does the same in a session.
    let fields = format!("user=ann&password={}", PASSWORD.replace(' ', "+"));
    let signed = send(&platform, "POST /ui/sign-in", &[], &fields);
    let cookie = signed.whole.split("muster_session=").nth(1).unwrap();
    let cookie = cookie.split(';').next().unwrap();
    let session = [
        format!("Cookie: muster_session={cookie}"),
        format!("Origin: http://{}", platform.listen),
    ];
    let account = send(&platform, "GET /ui/account", &session, "");
    let action = format!("/ui/account/tokens/{}/rotation", id_of(&newest));
    assert!(account.whole.contains(&action), "{}", account.whole);
    let page = send(&platform, &format!("POST {action}"), &session, "");
    let shown = page.whole.split("id=\"new-token\">").nth(1);
    let shown = shown.unwrap_or_else(|| panic!("{}", page.whole));
    let shown = shown.split('<').next().unwrap();
    assert_eq!(
        (whoami(&platform, shown), whoami(&platform, &newest)),
        (200, 200)
    );
    // Another user's token is not ann's to rotate.
    let admins = platform.cli(&["token", "create", "--label", "admins"]).ok();
    let foreign = format!("POST /ui/account/tokens/{}/rotation", id_of(admins.trim()));
    assert_eq!(send(&platform, &foreign, &session, "").code, 404);
}

#[test]
fn a_token_with_address_ranges_is_refused_from_elsewhere() {
    let platform = Platform::server(&[]);
    create_ann(&platform);
    let far = issue(&platform, &["--from", "10.0.0.0/8"]);
    let refused = ask(&platform, &far, "GET /api/v1/whoami", "");
    assert!(
        refused.code == 403 && refused.whole.contains("address 127.0.0.1"),
        "{}",
        refused.whole
    );
    assert!(!refused.whole.contains("10.0.0.0"), "{}", refused.whole);
    // A header is no address.
    let lines = [
        format!("Authorization: Bearer {far}"),
        "X-Forwarded-For: 10.0.0.1".to_owned(),
    ];
    assert_eq!(send(&platform, "GET /api/v1/whoami", &lines, "").code, 403);
    let line = listed(&platform, id_of(&far));
    assert!(
        line.contains("10.0.0.0/8") && line.contains("never"),
        "{line}"
    );
    eventually(
        "the refusal is recorded, with the token's user",
        SOON,
        || {
            let events = platform.audited("/api/v1/whoami");
            let of_ann = |event: &Value| event["user"]["username"] == "ann";
            events.iter().any(of_ann).then_some(())
        },
    );

    let near = issue(&platform, &["--from", "10.0.0.0/8,127.0.0.0/8"]);
    assert_eq!(whoami(&platform, &near), 200);
    // The ranges outlive a rotation.
    let rotated = platform.cli(&["token", "rotate", id_of(&far)]).ok();
    assert_eq!(whoami(&platform, rotated.trim()), 403);

    let wrong = ["token", "create", "--from", "10.1.2.3/8"];
    let wrong = platform.cli(&wrong);
    assert!(
        wrong.code == Some(4) && wrong.err.contains("write 10.0.0.0/8"),
        "{}",
        wrong.err
    );
}

#[test]
fn a_token_from_before_there_were_checksums_is_valid() {
    let platform = Platform::server(&[]);
    create_ann(&platform);
    let old = format!("muster_0123456789ab_{}", "5a".repeat(32));
    let digest = ring::digest::digest(&ring::digest::SHA256, old.as_bytes());
    let digest: String = digest.as_ref().iter().map(|b| format!("{b:02x}")).collect();
    let record = json!({
        "id": "0123456789ab", "user": "ann", "label": "old", "purpose": "access",
        "created": "2026-01-01T00:00:00Z", "expires": "2999-01-01T00:00:00Z",
    });
    platform.apply(&format!(
        "apiVersion: v1\nkind: Secret\nmetadata: {{name: token-0123456789ab, namespace: muster-system}}\n\
         type: muster.io/token\nstringData:\n  record: '{record}'\n  hash: {digest}\n"
    ));
    eventually("the token is known", SOON, || {
        (whoami(&platform, &old) == 200).then_some(())
    });
    assert!(!listed(&platform, "0123456789ab").contains("never"));
    assert_eq!(whoami(&platform, &mistyped(&old)), 401);
}
