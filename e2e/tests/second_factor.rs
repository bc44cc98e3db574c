//! The second factor of signing in with a password, as its user, an administrator and an attacker with the password meet
//! it: set-up, sign-in by code and by recovery code, wrong and used codes, removal.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use e2e::{Platform, Reply, eventually, send};
use ring::hmac;

const SOON: Duration = Duration::from_secs(60);
const PASSWORD: &str = "four random words";

/// The text of the element that begins with this tag.
fn inner(page: &Reply, tag: &str) -> String {
    let rest = page.whole.split(tag).nth(1);
    let rest = rest.unwrap_or_else(|| panic!("no {tag}: {}", page.whole));
    rest.split('<').next().unwrap().to_owned()
}

/// The secret of the form that asks for a code.
fn wait_of(page: &Reply) -> String {
    let rest = page.whole.split("name=\"wait\" value=\"").nth(1);
    let rest = rest.unwrap_or_else(|| panic!("no form: {}", page.whole));
    rest.split('"').next().unwrap().to_owned()
}

fn post(platform: &Platform, path: &str, lines: &[String], body: &str) -> Reply {
    send(platform, &format!("POST {path}"), lines, body)
}

fn escaped(text: &str) -> String {
    text.replace(' ', "+")
}

fn sign_in(platform: &Platform, user: &str) -> Reply {
    let body = format!("user={user}&password={}&next=/ui/jobs", escaped(PASSWORD));
    post(platform, "/ui/sign-in", &[], &body)
}

fn give(platform: &Platform, wait: &str, code: &str) -> Reply {
    let body = format!("wait={wait}&code={}&next=/ui/jobs", escaped(code));
    post(platform, "/ui/sign-in/code", &[], &body)
}

/// A form of the account's page, as that page sends it.
fn account(platform: &Platform, session: &str, action: &str, body: &str) -> Reply {
    let lines = [
        format!("Cookie: muster_session={session}"),
        format!("Origin: http://{}", platform.listen),
    ];
    let path = format!("/ui/account/second-factor{action}");
    post(platform, &path, &lines, body)
}

/// An authenticator app.
struct App {
    key: hmac::Key,
    /// The last step whose code was given.
    last: u64,
}

impl App {
    /// With the secret that the page shows.
    fn with(secret: &str) -> App {
        let mut bits = Vec::new();
        for digit in secret.bytes().filter(|byte| *byte != b' ') {
            let value = match digit {
                b'A'..=b'Z' => digit - b'A',
                _ => digit - b'2' + 26,
            };
            bits.extend((0..5).rev().map(|place| value >> place & 1));
        }
        let bytes = bits
            .chunks(8)
            .map(|eight| eight.iter().fold(0_u8, |byte, bit| byte << 1 | bit));
        let bytes: Vec<u8> = bytes.collect();
        assert_eq!(bytes.len(), 20);
        App {
            key: hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, &bytes),
            last: 0,
        }
    }

    fn code_of(&self, step: u64) -> String {
        let tag = hmac::sign(&self.key, &step.to_be_bytes());
        let tag = tag.as_ref();
        let at = usize::from(tag[19] & 15);
        let four = <[u8; 4]>::try_from(&tag[at..at + 4]).unwrap();
        format!(
            "{:06}",
            (u32::from_be_bytes(four) & 0x7fff_ffff) % 1_000_000
        )
    }

    /// The code of the next step, once its predecessors are used: one that the server has not seen.
    fn next(&mut self) -> String {
        loop {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
            let next = now.as_secs() / 30 + 1;
            if next > self.last {
                self.last = next;
                return self.code_of(next);
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// The code that was given last.
    fn used(&self) -> String {
        self.code_of(self.last)
    }

    /// A code of no step around now.
    fn wrong(&self) -> String {
        self.code_of(self.last + 1000)
    }
}

fn create(platform: &Platform, name: &str) {
    let file = platform
        .manifest("password", PASSWORD)
        .display()
        .to_string();
    let create = ["user", "create", name, "--namespaces", "default"];
    let create = [&create[..], &["--password-file", &file]].concat();
    platform.cli(&create).ok();
}

/// Sets up a second factor in a session: the app, the secret, and the recovery codes.
fn set_up(platform: &Platform, session: &str) -> (App, String, Vec<String>) {
    let wrong = account(platform, session, "", "password=wrong");
    assert!(
        wrong.code == 422 && wrong.whole.contains("password: it is wrong"),
        "{}",
        wrong.whole
    );
    let password = format!("password={}", escaped(PASSWORD));
    let begun = account(platform, session, "", &password);
    let secret = inner(&begun, "<code id=\"totp-secret\">");
    let uri = inner(&begun, "<code id=\"totp-uri\">");
    assert!(
        uri.starts_with("otpauth://totp/Muster")
            && uri.contains(&format!("secret={}", secret.replace(' ', ""))),
        "{uri}"
    );
    let mut app = App::with(&secret);
    let refused = account(
        platform,
        session,
        "/confirm",
        &format!("code={}", app.wrong()),
    );
    assert!(
        refused.code == 422 && inner(&refused, "<code id=\"totp-secret\">") == secret,
        "{}",
        refused.whole
    );
    let confirmed = account(
        platform,
        session,
        "/confirm",
        &format!("code={}", app.next()),
    );
    assert_eq!(confirmed.code, 200, "{}", confirmed.whole);
    let codes = inner(&confirmed, "<pre id=\"recovery-codes\">");
    let codes: Vec<String> = codes.lines().map(str::to_owned).collect();
    assert_eq!(codes.len(), 10, "{codes:?}");
    (app, secret, codes)
}

#[test]
fn a_password_alone_signs_no_user_in_that_has_a_second_factor() {
    let mut platform = Platform::server(&[]);
    create(&platform, "ann");
    let first = sign_in(&platform, "ann").session().expect("a session");
    let (mut app, secret, recovery) = set_up(&platform, &first);
    // Not twice, and not by another site's page.
    let again = account(
        &platform,
        &first,
        "",
        &format!("password={}", escaped(PASSWORD)),
    );
    assert_eq!(again.code, 409, "{}", again.whole);
    let shown = platform.cli(&["user", "show", "ann"]).ok();
    assert!(shown.contains("password and code"), "{shown}");

    let asked = sign_in(&platform, "ann");
    assert_eq!((asked.code, asked.session()), (200, None));
    let wait = wait_of(&asked);
    // The form's secret is no credential.
    let bearer = [format!("Authorization: Bearer {wait}")];
    assert_eq!(
        post(&platform, "/ui/account/password", &bearer, "").code,
        401
    );
    for wrong in [app.wrong(), app.used(), String::new(), "x".repeat(5000)] {
        let refused = give(&platform, &wait, &wrong);
        assert_eq!(
            (refused.code, refused.session(), wait_of(&refused)),
            (401, None, wait.clone())
        );
    }
    let foreign = ["Origin: https://evil.example".to_owned()];
    let body = format!("wait={wait}&code={}", app.used());
    assert_eq!(
        post(&platform, "/ui/sign-in/code", &foreign, &body).code,
        403
    );
    let signed_in = give(&platform, &wait, &app.next());
    assert!(
        signed_in.code == 303 && signed_in.session().is_some(),
        "{}",
        signed_in.whole
    );
    assert!(signed_in.whole.contains("/ui/jobs"), "{}", signed_in.whole);
    // The same form again, and a used code in another one.
    assert_eq!(give(&platform, &wait, &app.used()).code, 404);
    let second = wait_of(&sign_in(&platform, "ann"));
    assert_eq!(give(&platform, &second, &app.used()).code, 401);

    // A recovery code works once, also after a restart.
    assert_eq!(give(&platform, &second, &recovery[3]).code, 303);
    platform.stop();
    platform.restart();
    let third = wait_of(&sign_in(&platform, "ann"));
    assert_eq!(give(&platform, &third, &recovery[3]).code, 401);
    // A code that was used before the restart.
    assert_eq!(give(&platform, &third, &app.used()).code, 401);
    let session = give(&platform, &third, &recovery[4].to_uppercase()).session();
    let session = session.expect("a session");
    let renewed = account(
        &platform,
        &session,
        "/recovery",
        &format!("code={}", app.next()),
    );
    assert!(
        renewed.whole.contains("recovery-codes"),
        "{}",
        renewed.whole
    );
    let fourth = wait_of(&sign_in(&platform, "ann"));
    assert_eq!(give(&platform, &fourth, &recovery[5]).code, 401);

    // An administrator removes it; a user that is none does not.
    let token = platform.cli(&["token", "create", "--user", "ann"]).ok();
    let bearer = [format!("Authorization: Bearer {}", token.trim())];
    let by_user = post(&platform, "/ui/users/ann/reset-second-factor", &bearer, "");
    assert_eq!(by_user.code, 403);
    platform.cli(&["user", "reset-totp", "ann"]).ok();
    assert_eq!(give(&platform, &fourth, &app.next()).code, 404);
    let session = sign_in(&platform, "ann").session().expect("a session");

    // The owner sets another one up, and removes it.
    let (mut app, _, _) = set_up(&platform, &session);
    let code = format!("code={}", app.wrong());
    assert_eq!(account(&platform, &session, "/remove", &code).code, 422);
    let code = format!("code={}", app.next());
    assert_eq!(account(&platform, &session, "/remove", &code).code, 200);
    assert!(sign_in(&platform, "ann").session().is_some());

    let noted = eventually("the event is recorded", SOON, || {
        let noted = platform.audited("\"muster.io/second-factor\":\"recovery code\"");
        noted.into_iter().next()
    });
    assert_eq!(noted["user"]["username"], "ann");
    for text in [platform.audit_log(), platform.logged()] {
        for hidden in [&*secret.replace(' ', ""), &*wait, &*recovery[3]] {
            assert!(!text.contains(hidden));
        }
    }
}

#[test]
fn an_attacker_with_the_password_is_slowed_down_and_the_servers_own_way_in_stays() {
    let platform = Platform::server(&[]);
    let body = format!("user=admin&password={}", platform.password());
    let signed_in = || post(&platform, "/ui/sign-in", &[], &body);
    let session = signed_in().session().expect("a session");
    let password = format!("password={}", platform.password());
    let begun = account(&platform, &session, "", &password);
    let mut app = App::with(&inner(&begun, "<code id=\"totp-secret\">"));
    let code = format!("code={}", app.next());
    assert_eq!(account(&platform, &session, "/confirm", &code).code, 200);

    // A right password between the codes gives no new attempts.
    let mut codes = Vec::new();
    for _ in 0..8 {
        let asked = signed_in();
        assert_eq!(asked.code, 200, "{}", asked.whole);
        codes.push(give(&platform, &wait_of(&asked), &app.wrong()).code);
    }
    assert_eq!(codes[..5], [401; 5]);
    assert!(codes[5..].contains(&429), "{codes:?}");
    platform.cli(&["get", "namespaces"]).ok();
    // The administrator removes its own second factor on the server's machine.
    platform.cli(&["user", "reset-totp", "admin"]).ok();
    assert!(signed_in().session().is_some());
}
