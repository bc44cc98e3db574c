//! Signing in from a terminal (`muster login`), as a user, another user and an attacker meet it: the code, the page, the
//! kubeconfig, `muster whoami`, `muster logout`, and what is refused.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use e2e::{Platform, Ran, Reply, eventually, muster, run, send};
use serde_json::Value;

const SOON: Duration = Duration::from_secs(60);
const PASSWORD: &str = "four random words";

/// A user's browser, signed in.
struct Browser<'a> {
    platform: &'a Platform,
    session: String,
}

impl<'a> Browser<'a> {
    /// Creates a user, and signs it in.
    fn of_new_user(platform: &'a Platform, name: &str) -> Browser<'a> {
        let file = platform
            .manifest("password", PASSWORD)
            .display()
            .to_string();
        let create = ["user", "create", name, "--namespaces", "default"];
        let create = [&create[..], &["--password-file", &file]].concat();
        platform.cli(&create).ok();
        let body = format!("user={name}&password={}", PASSWORD.replace(' ', "+"));
        let signed_in = send(platform, "POST /ui/sign-in", &[], &body);
        Browser {
            platform,
            session: signed_in.session().expect("a session"),
        }
    }

    fn cookie(&self) -> String {
        format!("Cookie: muster_session={}", self.session)
    }

    fn get(&self, path: &str) -> Reply {
        send(self.platform, &format!("GET {path}"), &[self.cookie()], "")
    }

    /// Sends a form as the server's own page does.
    fn post(&self, path: &str, body: &str) -> Reply {
        let origin = format!("Origin: http://{}", self.platform.listen);
        let lines = [self.cookie(), origin];
        send(self.platform, &format!("POST {path}"), &lines, body)
    }

    /// Approves or refuses on the page.
    fn decide(&self, code: &str, decision: &str) -> Reply {
        self.post(
            "/ui/device",
            &format!("user_code={code}&decision={decision}"),
        )
    }
}

/// `muster login` in a process of its own.
struct Login {
    child: Child,
    /// The code that it shows.
    code: String,
    /// The rest of what it says on standard error, once it has ended.
    rest: mpsc::Receiver<String>,
}

impl Login {
    fn start(laptop: &Laptop, arguments: &[&str]) -> Login {
        let server = format!("https://{}", laptop.platform.listen);
        let all = ["login", "--no-browser", "--server", &server];
        let all = [&all[..], arguments].concat();
        let mut command = laptop.command(&all);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut told = BufReader::new(child.stderr.take().unwrap());
        let (mut line, mut before) = (String::new(), String::new());
        let code = loop {
            line.clear();
            let read = told.read_line(&mut line).unwrap();
            assert!(read > 0, "muster login ended: {before}");
            before.push_str(&line);
            if let Some((_, code)) = line.trim().split_once("user_code=") {
                break code.to_owned();
            }
        };
        let (sender, rest) = mpsc::channel();
        std::thread::spawn(move || {
            let mut text = String::new();
            let _ = told.read_to_string(&mut text);
            let _ = sender.send(text);
        });
        Login { child, code, rest }
    }

    /// Its output after its end.
    fn end(self) -> Ran {
        let output = self.child.wait_with_output().unwrap();
        Ran {
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: self.rest.recv().unwrap_or_default(),
            code: output.status.code(),
        }
    }
}

/// A machine of a user without any file of the server.
struct Laptop<'a> {
    platform: &'a Platform,
    home: tempfile::TempDir,
}

impl<'a> Laptop<'a> {
    fn new(platform: &'a Platform) -> Laptop<'a> {
        let home = tempfile::tempdir().unwrap();
        Laptop { platform, home }
    }

    fn kubeconfig(&self) -> PathBuf {
        self.home.path().join(".kube/config")
    }

    fn command(&self, arguments: &[&str]) -> Command {
        // Whatever the umask is.
        let mut command = Command::new("sh");
        command
            .args(["-c", "umask 000; exec \"$0\" \"$@\""])
            .arg(muster())
            .args(arguments)
            .current_dir(self.home.path())
            .env_remove("MUSTER_DATA")
            .env_remove("MUSTER_KUBECONFIG")
            .env_remove("KUBECONFIG")
            .env("USER", "ann")
            .env("HOME", self.home.path());
        command
    }

    fn run(&self, arguments: &[&str]) -> Ran {
        run(&mut self.command(arguments))
    }
}

/// The fingerprint of the server's authority, as an administrator sees it.
fn pin(platform: &Platform) -> String {
    let me = platform.cli(&["whoami", "-o", "json"]).ok();
    let me: Value = serde_json::from_str(&me).unwrap();
    assert_eq!(me["user"], "admin");
    me["authority"].as_str().unwrap().to_owned()
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn a_user_signs_in_from_a_laptop_works_and_signs_out() {
    let platform = Platform::server(&[]);
    let laptop = Laptop::new(&platform);
    let ann = Browser::of_new_user(&platform, "ann");
    let pin = pin(&platform);

    // Another server than the one that the fingerprint names.
    let wrong = format!("sha256:{}", "0".repeat(64));
    let server = format!("https://{}", platform.listen);
    let refused = laptop.run(&["login", "--server", &server, "--pin", &wrong]);
    assert_eq!(refused.code, Some(5), "{}", refused.err);
    assert!(refused.err.contains("--pin"), "{}", refused.err);
    let untrusted = laptop.run(&["login", "--server", &server]);
    assert!(untrusted.code != Some(0) && !laptop.kubeconfig().exists());

    let login = Login::start(&laptop, &["--pin", &pin, "--days", "7"]);
    let code = login.code.clone();
    // Signed out, the browser is asked to sign in, and then led to the page.
    let page = format!("/ui/device?user_code={code}");
    let out = send(&platform, &format!("GET {page}"), &[], "");
    assert!(
        out.code == 303 && out.whole.contains("/ui/sign-in?next="),
        "{}",
        out.whole
    );
    let shown = ann.get(&page);
    assert_eq!(shown.code, 200, "{}", shown.whole);
    for words in [
        &*code,
        "ann@",
        "as this browser",
        "role is member",
        "default",
        "(7d)",
    ] {
        assert!(shown.body().contains(words), "{words}: {}", shown.body());
    }
    // A form of another site, one without a decision, and a token in place of a session approve nothing.
    let body = format!("user_code={code}&decision=approve");
    let foreign = [ann.cookie(), "Origin: https://evil.example".to_owned()];
    assert_eq!(
        send(&platform, "POST /ui/device", &foreign, &body).code,
        403
    );
    assert_eq!(ann.decide(&code, "").code, 422);
    let token = platform.cli(&["token", "create", "--user", "ann"]).ok();
    let bearer = [format!("Authorization: Bearer {}", token.trim())];
    assert_eq!(send(&platform, "POST /ui/device", &bearer, &body).code, 403);

    let approved = ann.decide(&code.to_lowercase().replace('-', " "), "approve");
    assert!(
        approved.code == 200 && approved.body().contains("is signed in as you"),
        "{}",
        approved.whole
    );
    let again = ann.decide(&code, "approve");
    assert!([404, 409].contains(&again.code), "{}", again.whole);
    let ended = login.end();
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    assert!(ended.out.contains(" as ann until "), "{}", ended.out);
    assert_eq!(mode(&laptop.kubeconfig()), 0o600);
    assert_eq!(mode(laptop.kubeconfig().parent().unwrap()), 0o700);

    // It works, with the user's rights and namespace.
    laptop.run(&["get", "pods"]).ok();
    let text = std::fs::read_to_string(laptop.kubeconfig()).unwrap();
    assert!(text.contains("namespace: default"), "{text}");
    let denied = laptop.run(&["get", "secrets", "-n", "muster-system"]);
    assert_eq!(denied.code, Some(4), "{}", denied.err);
    let me = laptop.run(&["whoami"]).ok();
    assert!(
        me.contains("ann") && me.contains("muster login: ann@") && me.contains(&pin),
        "{me}"
    );
    let listed = platform.cli(&["token", "list"]).ok();
    assert!(listed.contains("muster login: ann@"), "{listed}");
    let account = ann.get("/ui/account");
    assert!(
        account.body().contains("muster login: ann@"),
        "{}",
        account.body()
    );

    // The next sign-in needs neither address nor fingerprint, and replaces the token.
    let tokens = |platform: &Platform| {
        let listed = platform.cli(&["token", "list"]).ok();
        listed.matches("muster login: ann@").count()
    };
    let second = Login::start(&laptop, &[]);
    assert_eq!(ann.decide(&second.code, "approve").code, 200);
    assert_eq!(second.end().code, Some(0));
    assert_eq!(tokens(&platform), 1);
    laptop.run(&["get", "pods"]).ok();

    let kept = std::fs::read_to_string(laptop.kubeconfig()).unwrap();
    let gone = laptop.run(&["logout"]);
    assert!(gone.ok().contains("is revoked"));
    assert_eq!(tokens(&platform), 0);
    let text = std::fs::read_to_string(laptop.kubeconfig()).unwrap();
    assert!(
        !text.contains("muster_") && !text.contains(&platform.listen),
        "{text}"
    );
    assert_ne!(laptop.run(&["get", "pods"]).code, Some(0));
    assert_eq!(laptop.run(&["logout"]).code, Some(3));
    // A copy of the token is of no use.
    std::fs::write(laptop.kubeconfig(), &kept).unwrap();
    assert_eq!(laptop.run(&["get", "pods"]).code, Some(4));
    laptop.run(&["logout"]).ok();
    // The server's own kubeconfig is left alone.
    let own = platform.kubeconfig().display().to_string();
    assert_eq!(laptop.run(&["logout", "--kubeconfig", &own]).code, Some(2));
    platform.cli(&["get", "namespaces"]).ok();

    audited(&platform, &code, &kept);
}

/// The audit log has who approved and what was issued, and neither codes nor tokens.
fn audited(platform: &Platform, code: &str, kubeconfig: &str) {
    let event = |what: &str| {
        let words = format!("\"muster.io/device-login\":\"{what}\"");
        let events = eventually("the event is recorded", SOON, || {
            Some(platform.audited(&words)).filter(|events| !events.is_empty())
        });
        events[0].clone()
    };
    let approved = event("approved");
    assert_eq!(
        (&approved["user"]["username"], &approved["requestURI"]),
        (&"ann".into(), &"/ui/device".into())
    );
    let client = approved["annotations"]["muster.io/client"]
        .as_str()
        .unwrap();
    assert!(client.starts_with("ann@"), "{approved}");
    assert_eq!(
        approved["annotations"]["muster.io/client-address"],
        "127.0.0.1"
    );
    let issued = event("issued");
    assert_eq!(issued["user"]["username"], "ann");
    assert!(
        issued["annotations"]["muster.io/token"].is_string(),
        "{issued}"
    );
    // A question of a program that waits is not recorded.
    let polls = platform.audited("/oauth2/token");
    assert!(
        polls
            .iter()
            .all(|poll| poll["responseStatus"]["code"] != 400),
        "{polls:?}"
    );
    let secret = kubeconfig.split("muster_").nth(1).unwrap();
    let secret: String = secret
        .chars()
        .take_while(char::is_ascii_alphanumeric)
        .collect();
    assert!(kubeconfig.contains(&secret));
    let key = kubeconfig
        .split(&format!("muster_{secret}_"))
        .nth(1)
        .unwrap();
    // A checksum follows the random digits.
    let key = key.chars().take_while(char::is_ascii_hexdigit);
    let key: String = key.take(64).collect();
    for text in [platform.audit_log(), platform.logged()] {
        assert!(key.len() == 64 && !text.contains(&key) && !text.contains(code));
    }
}

#[test]
fn wrong_used_refused_and_forgotten_codes_and_those_of_others_give_no_token() {
    let mut platform = Platform::server(&[]);
    let pin = pin(&platform);
    let (ended, code) = {
        let laptop = Laptop::new(&platform);
        let ann = Browser::of_new_user(&platform, "ann");
        let bob = Browser::of_new_user(&platform, "bob");

        // A person refuses.
        let refused = Login::start(&laptop, &["--pin", &pin]);
        assert_eq!(ann.decide(&refused.code, "refuse").code, 200);
        let code = refused.code.clone();
        let ended = refused.end();
        assert_eq!(ended.code, Some(4), "{}", ended.err);
        assert!(ended.err.contains("refused") && !laptop.kubeconfig().exists());
        assert_eq!(ann.decide(&code, "approve").code, 404);

        // A sign-in for one user, which another cannot take over.
        let of_ann = Login::start(&laptop, &["--pin", &pin, "--user", "ann"]);
        for page in [
            bob.get(&format!("/ui/device?user_code={}", of_ann.code)),
            bob.decide(&of_ann.code, "approve"),
            bob.decide(&of_ann.code, "refuse"),
        ] {
            assert!(
                page.code == 403 && page.body().contains("another user"),
                "{}",
                page.whole
            );
        }
        assert_eq!(ann.decide(&of_ann.code, "approve").code, 200);
        assert!(of_ann.end().ok().contains(" as ann until "));

        // Wrong codes are counted by user.
        for _ in 0..9 {
            assert_eq!(bob.decide("BCDF-GHJK", "approve").code, 404);
        }
        assert_eq!(bob.get("/ui/device?user_code=%3Cscript%3E").code, 404);
        let counted = bob.decide("BCDF-GHJK", "approve");
        assert!(
            counted.code == 429 && counted.body().contains("too many wrong codes"),
            "{}",
            counted.whole
        );
        assert_eq!(ann.decide("BCDF-GHJK", "approve").code, 404);

        // An approval whose user is disabled before the program asks.
        let of_bob = "client_id=muster-cli&login_hint=ann";
        let started = send(&platform, "POST /oauth2/device_authorization", &[], of_bob).json();
        let text = |field: &str| started[field].as_str().unwrap().to_owned();
        assert_eq!(ann.decide(&text("user_code"), "approve").code, 200);
        platform.cli(&["user", "disable", "ann"]).ok();
        let poll = format!(
            "grant_type=urn:ietf:params:oauth:grant-type:device_code&client_id=muster-cli&device_code={}",
            text("device_code")
        );
        let answer = send(&platform, "POST /oauth2/token", &[], &poll);
        assert_eq!(
            (answer.code, &answer.json()["error"]),
            (400, &"access_denied".into())
        );
        platform.cli(&["user", "enable", "ann"]).ok();

        // A code that the server forgets.
        let waits = Login::start(&laptop, &["--pin", &pin]);
        let code = waits.code.clone();
        (waits, code)
    };
    platform.stop();
    platform.restart();
    let over = ended.end();
    assert_eq!(over.code, Some(4), "{}", over.err);
    assert!(over.err.contains("restarted"), "{}", over.err);
    let carl = Browser::of_new_user(&platform, "carl");
    assert_eq!(carl.decide(&code, "approve").code, 404);
}
