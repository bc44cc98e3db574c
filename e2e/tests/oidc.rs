//! Signing in by OpenID Connect with a real provider: what claims give at each sign-in, what attackers try, and what a
//! provider that is down or changes its keys does.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use e2e::{Platform, eventually, free_address, part, python, repository, run};
use serde_json::{Value, json};

const SOON: Duration = Duration::from_secs(60);
const PASSWORD: &str = "walnut tray";
const RETURN: &str = "/ui/oidc/callback";

const MAPPING: &str = r#"
[[rule]]
group = "ops"
role = "admin"

[[rule]]
group = "ml"
role = "lead"
namespaces = ["default"]

[[rule]]
group = ["vision", "vision-leads"]
team = "vision"

[[rule]]
group = "vision-leads"
team = "vision"
team-role = "lead"
"#;

/// The provider, with its users in a file.
struct Provider {
    directory: tempfile::TempDir,
    listen: String,
    redirects: String,
    process: Option<Child>,
}

impl Provider {
    /// A provider that sends browsers back to servers at these origins, without its process.
    fn prepared(origins: &[String]) -> Provider {
        let directory = tempfile::tempdir().unwrap();
        let openssl = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30 -subj '/CN=ca' \
             -keyout ca.key -out ca.pem -addext keyUsage=critical,keyCertSign,digitalSignature
             openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj '/CN=idp' -keyout idp.key -out idp.csr
             printf 'subjectAltName=IP:127.0.0.1\\nextendedKeyUsage=serverAuth\\n' >idp.ext
             openssl x509 -req -in idp.csr -CA ca.pem -CAkey ca.key -CAcreateserial -extfile idp.ext -out idp.pem";
        let mut command = Command::new("sh");
        run(command.args(["-ec", openssl]).current_dir(directory.path())).ok();
        let redirects: Vec<String> = origins
            .iter()
            .map(|origin| format!("{origin}{RETURN}"))
            .collect();
        let provider = Provider {
            directory,
            listen: free_address(),
            redirects: redirects.join(","),
            process: None,
        };
        provider.write("mapping.toml", MAPPING);
        provider.write("secret", "secret-of-muster\n");
        provider.users(json!({}));
        provider
    }

    fn started(origins: &[String]) -> Provider {
        let mut provider = Provider::prepared(origins);
        provider.start();
        provider
    }

    fn start(&mut self) {
        let process = Command::new(part("openid-provider"))
            .args(["-listen", &self.listen, "-redirects", &self.redirects])
            .arg("-certificate")
            .arg(self.path("idp.pem"))
            .arg("-key")
            .arg(self.path("idp.key"))
            .arg("-users")
            .arg(self.path("users.json"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        self.process = Some(process);
        eventually("the provider listens", SOON, || {
            std::net::TcpStream::connect(&self.listen).ok()
        });
    }

    fn stop(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().unwrap();
            process.wait().unwrap();
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        // In one step: the provider may read it now.
        std::fs::write(self.path("next"), text).unwrap();
        std::fs::rename(self.path("next"), self.path(name)).unwrap();
    }

    fn users(&self, users: Value) {
        self.write("users.json", &users.to_string());
    }

    /// The only user, with these groups.
    fn user(&self, subject: &str, name: &str, groups: &[&str]) {
        self.users(json!({subject: {
            "Username": name, "Password": PASSWORD, "FirstName": "Ann", "LastName": "Example",
            "Email": format!("{name}@example.org"), "EmailVerified": true, "Groups": groups,
        }}));
    }

    /// The options of a server that uses this provider.
    fn options(&self) -> Vec<String> {
        let file = |option: &str, name: &str| format!("{option}={}", self.path(name).display());
        vec![
            format!("--oidc-issuer-url=https://{}", self.listen),
            "--oidc-client-id=muster".to_owned(),
            "--oidc-name=Example ID".to_owned(),
            file("--oidc-client-secret-file", "secret"),
            file("--oidc-ca-file", "ca.pem"),
            file("--oidc-mapping", "mapping.toml"),
        ]
    }
}

impl Drop for Provider {
    fn drop(&mut self) {
        self.stop();
    }
}

/// An answer to a browser.
struct Reply {
    code: u16,
    head: String,
    body: String,
}

impl Reply {
    fn location(&self) -> String {
        let mut lines = self.head.lines();
        let found = lines.find_map(|line| {
            let (name, value) = line.split_once(": ")?;
            name.eq_ignore_ascii_case("location").then_some(value)
        });
        found
            .unwrap_or_else(|| panic!("no location: {}", self.head))
            .to_owned()
    }

    /// Where a page leads at once.
    fn leads_to(&self) -> String {
        let (_, rest) = self
            .body
            .split_once("<a href=\"")
            .unwrap_or_else(|| panic!("{}", self.body));
        let escaped = rest.split('"').next().unwrap();
        escaped.replace("&#38;", "&").replace("&amp;", "&")
    }

    fn sets(&self, cookie: &str) -> bool {
        let begin = format!("set-cookie: {cookie}=");
        let mut lines = self.head.lines();
        lines.any(|line| line.to_lowercase().starts_with(&begin) && !line.contains("Max-Age=0"))
    }
}

/// A browser with cookies of its own.
struct Browser<'a> {
    platform: &'a Platform,
    provider: &'a Provider,
    jar: tempfile::NamedTempFile,
}

impl<'a> Browser<'a> {
    fn new(platform: &'a Platform, provider: &'a Provider) -> Browser<'a> {
        Browser {
            platform,
            provider,
            jar: tempfile::NamedTempFile::new().unwrap(),
        }
    }

    fn muster(&self) -> String {
        format!("https://{}", self.platform.listen)
    }

    fn ask(&self, url: &str, options: &[&str]) -> Reply {
        let mut curl = Command::new("curl");
        curl.args(["-sSki", "--http1.1", "-b"])
            .arg(self.jar.path())
            .arg("-c")
            .arg(self.jar.path())
            .args(options)
            .arg(url);
        let whole = run(&mut curl).ok();
        let (head, body) = whole.split_once("\r\n\r\n").unwrap();
        Reply {
            code: head.split(' ').nth(1).unwrap().parse().unwrap(),
            head: head.to_owned(),
            body: body.to_owned(),
        }
    }

    /// The button on the sign-in page.
    fn begin(&self, next: &str) -> Reply {
        let (origin, next) = (format!("Origin: {}", self.muster()), format!("next={next}"));
        let url = format!("{}/ui/oidc/start", self.muster());
        self.ask(&url, &["-H", &origin, "--data-urlencode", &next])
    }

    /// Signs in at the provider, and returns the address to which it sends the browser back.
    fn at_provider(&self, url: &str, user: &str) -> String {
        let form = self.ask(url, &[]);
        assert_eq!(form.code, 302, "{url}: {}{}", form.head, form.body);
        let (_, request) = form
            .location()
            .split_once("authRequestID=")
            .map(|(a, b)| (a.to_owned(), b.to_owned()))
            .unwrap();
        let (id, name) = (format!("id={request}"), format!("username={user}"));
        let password = format!("password={PASSWORD}");
        let base = format!("https://{}", self.provider.listen);
        let signed = self.ask(
            &format!("{base}/login/username"),
            &[
                "--data-urlencode",
                &id,
                "--data-urlencode",
                &name,
                "--data-urlencode",
                &password,
            ],
        );
        assert_eq!(signed.code, 302, "{}{}", signed.head, signed.body);
        let next = signed.location();
        let next = if next.starts_with('/') {
            format!("{base}{next}")
        } else {
            next
        };
        self.ask(&next, &[]).location()
    }

    /// A whole sign-in.
    fn sign_in(&self, user: &str) -> Reply {
        let begun = self.begin("/ui/jobs");
        assert_eq!(begun.code, 200, "{}{}", begun.head, begun.body);
        let back = self.at_provider(&begun.leads_to(), user);
        self.ask(&back, &[])
    }

    /// Who the server says the browser's user is.
    fn whoami(&self) -> Value {
        let answer = self.ask(&format!("{}/api/v1/whoami", self.muster()), &[]);
        serde_json::from_str(&answer.body).unwrap_or_default()
    }
}

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
