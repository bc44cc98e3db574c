//! Users of the embedded engine, as an administrator, a new user and an attacker meet them: creation by the command
//! line, a link for the password, sign-in, sessions, disabling, deletion.

use std::process::Stdio;
use std::time::Duration;

use e2e::{Platform, Reply, eventually, send};

const SOON: Duration = Duration::from_secs(60);
const FIRST: &str = "four random words";
const SECOND: &str = "walnut tray by the sea";

fn form(fields: &[(&str, &str)]) -> String {
    let one = |(name, value): &(&str, &str)| format!("{name}={}", value.replace(' ', "+"));
    fields.iter().map(one).collect::<Vec<_>>().join("&")
}

fn sign_in(platform: &Platform, user: &str, password: &str) -> Reply {
    let body = form(&[("user", user), ("password", password)]);
    send(platform, "POST /ui/sign-in", &[], &body)
}

/// A request with a session, as the server's own page sends it.
fn with_session(platform: &Platform, cookie: &str, request: &str, body: &str) -> Reply {
    let lines = [
        format!("Cookie: muster_session={cookie}"),
        format!("Origin: http://{}", platform.listen),
    ];
    send(platform, request, &lines, body)
}

fn whoami(platform: &Platform, cookie: &str) -> u16 {
    with_session(platform, cookie, "GET /api/v1/whoami", "").code
}

/// Creates a user by the command line and sets its password by the printed link.
fn create(platform: &Platform, arguments: &[&str]) {
    let create = ["user", "create"];
    let link = platform.cli(&[&create[..], arguments].concat()).ok();
    let (secret, _) = secret_of(&link);
    let body = form(&[("link", &secret), ("new", FIRST), ("again", FIRST)]);
    let set = send(platform, "POST /ui/reset", &[], &body);
    assert_eq!(set.code, 200, "{}", set.whole);
}

/// The secret of a printed link, and its path.
fn secret_of(link: &str) -> (String, String) {
    let secret = link.trim().split("/ui/reset/").nth(1).expect("a link");
    (secret.to_owned(), format!("/ui/reset/{secret}"))
}

#[test]
fn an_administrator_creates_a_user_that_sets_its_password_by_a_link_once() {
    let platform = Platform::server(&[]);
    platform.cli(&["get", "nodes"]).ok();
    let created = platform.cli(&[
        "user",
        "create",
        "ann",
        "--namespaces",
        "default",
        "--display-name",
        "Ann Example",
        "--email",
        "ann@example.org",
    ]);
    assert!(created.err.contains("user ann created"), "{}", created.err);
    let (secret, page) = secret_of(&created.ok());
    for password in ["none", "", FIRST] {
        assert_eq!(sign_in(&platform, "ann", password).code, 401, "{password}");
    }
    // The link is no credential.
    let bearer = [format!("Authorization: Bearer {secret}")];
    assert_eq!(send(&platform, "GET /api/v1/whoami", &bearer, "").code, 401);
    assert_eq!(whoami(&platform, &secret), 401);

    let shown = send(&platform, &format!("GET {page}"), &[], "");
    assert!(
        shown.code == 200 && shown.body().contains("<b>ann</b>"),
        "{}",
        shown.whole
    );
    let set = |new: &str, again: &str| {
        let body = form(&[("link", &secret), ("new", new), ("again", again)]);
        send(&platform, "POST /ui/reset", &[], &body)
    };
    for (new, again, reason) in [
        ("short", "short", "use at least 12"),
        ("password1234", "password1234", "most common"),
        (FIRST, SECOND, "differ"),
    ] {
        let refused = set(new, again);
        assert!(
            refused.code == 422 && refused.body().contains(reason),
            "{}",
            refused.whole
        );
    }
    let other = ["Origin: https://evil.example".to_owned()];
    let body = form(&[("link", &secret), ("new", SECOND), ("again", SECOND)]);
    assert_eq!(send(&platform, "POST /ui/reset", &other, &body).code, 403);
    let done = set(FIRST, FIRST);
    assert!(
        done.code == 200 && done.body().contains("is set"),
        "{}",
        done.whole
    );
    let used = set(SECOND, SECOND);
    assert!(
        used.code == 404 && used.body().contains("was used already"),
        "{}",
        used.whole
    );

    let session = sign_in(&platform, "ann", FIRST);
    assert_eq!(session.code, 303, "{}", session.whole);
    let own = with_session(
        &platform,
        &session.session().expect("a session"),
        "GET /api/v1/users/ann",
        "",
    );
    assert!(own.body().contains("ann@example.org"), "{}", own.whole);
    let listed = platform.cli(&["user", "list"]).ok();
    assert!(
        listed.contains("ann") && listed.contains("enabled") && listed.contains("Ann Example"),
        "{listed}"
    );

    // Neither the password nor the link's secret is in a log.
    let log = platform.logged();
    let key = secret.rsplit('_').next().expect("a secret");
    assert!(!log.contains(key) && !log.contains(FIRST), "{log}");
    let audit = std::process::Command::new("grep")
        .args(["-rlF", key])
        .arg(platform.data.join("audit"))
        .output()
        .expect("grep");
    assert_eq!(
        audit.status.code(),
        Some(1),
        "{}",
        String::from_utf8_lossy(&audit.stdout)
    );
}

#[test]
fn a_user_changes_its_own_password_and_nothing_else() {
    let platform = Platform::server(&[]);
    create(&platform, &["ann", "--namespaces", "default"]);
    // A session that a caller brings along is not taken over by the sign-in.
    let fixed = ["Cookie: muster_session=fixed".to_owned()];
    let body = form(&[("user", "ann"), ("password", FIRST)]);
    let first = send(&platform, "POST /ui/sign-in", &fixed, &body)
        .session()
        .expect("a session");
    let second = sign_in(&platform, "ann", FIRST)
        .session()
        .expect("a session");
    assert!(first != "fixed" && first != second);

    for (request, body) in [
        ("GET /api/v1/users", ""),
        ("POST /api/v1/users", r#"{"name": "eve", "role": "admin"}"#),
        ("PATCH /api/v1/users/ann", r#"{"role": "admin"}"#),
        ("PATCH /api/v1/users/admin", r#"{"disabled": true}"#),
        ("DELETE /api/v1/users/ann", ""),
        ("POST /api/v1/users/admin/reset-link", "{}"),
        ("POST /api/v1/users/ann/reset-link", "{}"),
        (
            "POST /api/v1/users/admin/password",
            r#"{"old": "x", "new": "y"}"#,
        ),
        ("DELETE /api/v1/users/admin/sessions", ""),
        ("POST /ui/users", "name=eve&role=admin"),
        ("POST /ui/users/admin/reset", ""),
        ("POST /ui/users/ann/enable", ""),
        ("GET /ui/users", ""),
    ] {
        let answer = with_session(&platform, &first, request, body);
        assert_eq!(answer.code, 403, "{request}: {}", answer.whole);
    }
    // Whether another user exists is not told.
    let ask =
        |name: &str| with_session(&platform, &first, &format!("GET /api/v1/users/{name}"), "");
    assert_eq!(ask("admin").code, 403);
    assert_eq!(ask("admin").body(), ask("nobody").body());

    // A form of another site changes nothing.
    let fields = form(&[("old", FIRST), ("new", SECOND), ("again", SECOND)]);
    let foreign = [
        format!("Cookie: muster_session={first}"),
        "Origin: https://evil.example".to_owned(),
    ];
    let refused = send(&platform, "POST /ui/account/password", &foreign, &fields);
    assert_eq!(refused.code, 403, "{}", refused.whole);

    let change = |old: &str, new: &str| {
        let fields = form(&[("old", old), ("new", new), ("again", new)]);
        with_session(&platform, &first, "POST /ui/account/password", &fields)
    };
    let wrong = change("not the old one", SECOND);
    assert!(
        wrong.code == 422 && wrong.body().contains("old password is wrong"),
        "{}",
        wrong.whole
    );
    assert_eq!(whoami(&platform, &second), 200);
    let changed = change(FIRST, SECOND);
    assert!(
        changed.code == 200 && changed.body().contains("is changed"),
        "{}",
        changed.whole
    );
    assert_eq!(
        (whoami(&platform, &first), whoami(&platform, &second)),
        (200, 401)
    );
    // The watch of the users delivers the change again, and the session stays.
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(whoami(&platform, &first), 200);
    assert_eq!(sign_in(&platform, "ann", FIRST).code, 401);
    let third = sign_in(&platform, "ann", SECOND)
        .session()
        .expect("a session");

    // Sessions are listed and ended.
    let listed = with_session(&platform, &first, "GET /api/v1/users/ann/sessions", "");
    assert_eq!(
        listed.body().matches("\"id\"").count(),
        2,
        "{}",
        listed.whole
    );
    let ended = platform.cli(&["user", "end-sessions", "ann"]).ok();
    assert_eq!(ended, "2 session(s) of user ann ended\n");
    assert_eq!(
        (whoami(&platform, &first), whoami(&platform, &third)),
        (401, 401)
    );
}

#[test]
fn a_disabled_user_is_out_at_once_and_the_last_administrator_stays() {
    let mut platform = Platform::server(&[]);
    create(&platform, &["ann", "--namespaces", "default"]);
    let session = sign_in(&platform, "ann", FIRST)
        .session()
        .expect("a session");
    let token = platform.cli(&["token", "create", "--user", "ann"]).ok();
    let token = token.trim().to_owned();
    platform.kubectl_by(&token, &["get", "pods"]).ok();
    let mut watch = platform
        .command(
            &e2e::kubectl(),
            &[
                "get",
                "pods",
                "--watch",
                "--server",
                &format!("https://{}", platform.listen),
                "--token",
                &token,
                "--insecure-skip-tls-verify",
            ],
        )
        .env("KUBECONFIG", "/dev/null")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("kubectl");
    std::thread::sleep(Duration::from_secs(1));
    assert!(watch.try_wait().expect("kubectl").is_none(), "it watches");

    platform.cli(&["user", "disable", "ann"]).ok();
    assert_eq!(whoami(&platform, &session), 401);
    assert_ne!(platform.kubectl_by(&token, &["get", "pods"]).code, Some(0));
    let refused = sign_in(&platform, "ann", FIRST);
    let unknown = sign_in(&platform, "nobody", FIRST);
    assert_eq!((refused.code, unknown.code), (401, 401));
    assert_eq!(
        refused.body().replace("\"ann\"", ""),
        unknown.body().replace("\"nobody\"", ""),
        "a disabled user looks like an unknown one"
    );
    let link = platform.cli(&["user", "reset-password", "ann"]);
    assert!(
        link.code != Some(0) && link.err.contains("muster user enable ann"),
        "{}",
        link.err
    );
    eventually("the watch has ended", SOON, || {
        watch.try_wait().expect("kubectl")
    });

    // The record outlives a restart.
    platform.stop();
    platform.restart();
    assert_ne!(platform.kubectl_by(&token, &["get", "pods"]).code, Some(0));
    platform.cli(&["user", "enable", "ann"]).ok();
    platform.kubectl_by(&token, &["get", "pods"]).ok();
    assert_eq!(sign_in(&platform, "ann", FIRST).code, 303);

    for arguments in [["disable", "admin"], ["delete", "admin"]] {
        let refused = platform.cli(&[&["user"], &arguments[..]].concat());
        assert!(
            refused.code != Some(0) && refused.err.contains("last administrator"),
            "{}",
            refused.err
        );
    }
    let demoted = platform.cli(&["user", "set-role", "admin", "member"]);
    assert!(
        demoted.err.contains("last administrator"),
        "{}",
        demoted.err
    );
    let role = platform.cli(&[
        "user",
        "set-role",
        "ann",
        "lead",
        "--namespaces",
        "default,kube-public",
    ]);
    assert_eq!(role.ok(), "user ann is lead in default,kube-public\n");

    // A role that holds nowhere; a binding grants the rest.
    let nowhere = platform.cli(&["user", "set-role", "ann", "member", "--no-namespaces"]);
    assert_eq!(nowhere.ok(), "user ann is member in no namespace\n");
    assert_ne!(platform.kubectl_by(&token, &["get", "pods"]).code, Some(0));
    platform.kubectl_by(&token, &["get", "queues"]).ok();
    let bind = [
        "create",
        "rolebinding",
        "ann",
        "--clusterrole=edit",
        "--user=ann",
    ];
    platform.kubectl(&bind).ok();
    platform.kubectl_by(&token, &["get", "pods"]).ok();

    platform.cli(&["user", "delete", "ann"]).ok();
    assert_ne!(platform.kubectl_by(&token, &["get", "pods"]).code, Some(0));
    assert_eq!(sign_in(&platform, "ann", FIRST).code, 401);
    assert!(!platform.cli(&["user", "list"]).ok().contains("ann"));
}

#[test]
fn a_user_that_was_made_by_hand_before_is_managed_like_others() {
    let platform = Platform::server(&[]);
    // The password `four random words` under an argon2id hash of 8 MiB and one pass.
    platform.apply(
        "apiVersion: v1\nkind: Secret\nmetadata: {name: user-old, namespace: muster-system}\ntype: muster.io/user\n\
         stringData:\n  record: '{\"name\": \"old\", \"role\": \"member\", \"namespaces\": [\"default\"]}'\n  \
         hash: $argon2id$v=19$m=8192,t=1,p=1$BwcHBwcHBwcHBwcHBwcHBw$qZSuPM+SetrZQB7rh5JoGmUnCdkatt/Vk4P/GHkP758\n",
    );
    let first = eventually("the user is known", SOON, || {
        let answer = sign_in(&platform, "old", FIRST);
        (answer.code == 303).then(|| answer.session().expect("a session"))
    });
    // The sign-in replaced the hash; the session that it opened stays.
    let hash = [
        "-n",
        "muster-system",
        "get",
        "secret",
        "user-old",
        "-o",
        "jsonpath={.data.hash}",
    ];
    let kept = platform.kubectl(&hash).ok();
    let begin = [
        "-n",
        "muster-system",
        "get",
        "secret",
        "user-old",
        "-o",
        "go-template={{.data.hash | base64decode}}",
    ];
    let kept_text = platform.kubectl(&begin).ok();
    assert!(
        kept_text.starts_with("$argon2id$v=19$m=19456,t=2,p=1$"),
        "{kept_text}"
    );
    let second = sign_in(&platform, "old", FIRST)
        .session()
        .expect("a session");
    assert_eq!(platform.kubectl(&hash).ok(), kept, "a present hash stays");
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(
        (whoami(&platform, &first), whoami(&platform, &second)),
        (200, 200)
    );
    let shown = platform.cli(&["user", "show", "old"]).ok();
    assert!(
        shown.contains("member") && shown.contains("default"),
        "{shown}"
    );
    platform.cli(&["user", "reset-password", "old"]).ok();
}
