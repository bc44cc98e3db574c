//! The certificate for browsers and clients, with real programs: openssl, kubectl, the Python client, curl, and pebble,
//! Let's Encrypt's ACME server for tests. It changes while the server, an agent and a pod run.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use e2e::{Platform, eventually, muster, part, python, require_root, run};

const SOON: Duration = Duration::from_secs(90);
const NAME: &str = "muster.test";

/// A directory with keys and certificates that openssl made.
struct Keys(tempfile::TempDir);

impl Keys {
    /// With an authority in `ca.pem` and `ca.key`.
    fn new() -> Keys {
        let keys = Keys(tempfile::tempdir().expect("a directory"));
        keys.authority("ca");
        keys
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    fn openssl(&self, script: &str) {
        let mut command = Command::new("sh");
        command.args(["-ec", script]).current_dir(self.0.path());
        run(&mut command).ok();
    }

    fn authority(&self, name: &str) {
        self.openssl(&format!(
            "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30 -subj '/CN={name} of the site' \
             -keyout {name}.key -out {name}.pem -addext keyUsage=critical,keyCertSign,digitalSignature"
        ));
    }

    /// A certificate of the authority for a DNS name, in `FILE.pem` with `FILE.key`, by these further options.
    fn issue(&self, file: &str, name: &str, common_name: &str, options: &str) {
        self.openssl(&format!(
            "openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj '/CN={common_name}' -keyout {file}.key \
             -out {file}.csr 2>/dev/null
             printf 'subjectAltName=DNS:{name}\\nextendedKeyUsage=serverAuth\\n' >{file}.ext
             openssl x509 -req -in {file}.csr -CA ca.pem -CAkey ca.key -CAcreateserial -extfile {file}.ext -out {file}.pem \
             {options}"
        ));
    }

    /// Puts a certificate and its key in the place of the server's.
    fn install(&self, certificate: &str, key: &str) {
        for (from, to) in [(certificate, "server.pem"), (key, "server.key")] {
            std::fs::copy(self.path(from), self.path("next")).expect("a copy");
            std::fs::rename(self.path("next"), self.path(to)).expect("a move");
        }
    }
}

/// Subject and issuer of the certificate that a handshake gets, by openssl; these options choose name and protocols.
fn presented(listen: &str, options: &[&str]) -> String {
    let mut script = format!("openssl s_client -connect {listen} </dev/null 2>/dev/null");
    for option in options {
        script.push(' ');
        script.push_str(option);
    }
    script.push_str(
        " | openssl x509 -noout -nameopt RFC2253 -subject -issuer -ext subjectAltName 2>&1",
    );
    let mut command = Command::new("sh");
    run(command.args(["-c", &script])).out
}

fn by_name(listen: &str) -> String {
    presented(listen, &["-servername", NAME])
}

fn hang_up(pid: u32) {
    run(Command::new("kill").args(["-HUP", &pid.to_string()])).ok();
}

fn token(platform: &Platform) -> String {
    let text = std::fs::read_to_string(platform.kubeconfig()).expect("the kubeconfig");
    let line = text
        .lines()
        .find_map(|line| line.trim().strip_prefix("token: "));
    line.expect("a token").to_owned()
}

/// kubectl by the name and the authority, without the server's kubeconfig.
fn kubectl(platform: &Platform, authority: &Path, name: &str) -> e2e::Ran {
    let mut command = Command::new(e2e::kubectl());
    command
        .args([
            "--kubeconfig",
            "/dev/null",
            "get",
            "namespaces",
            "-o",
            "name",
        ])
        .args(["--server", &format!("https://{}", platform.listen)])
        .args(["--tls-server-name", name, "--token", &token(platform)])
        .arg("--certificate-authority")
        .arg(authority);
    run(&mut command)
}

const POD: &str = r#"apiVersion: v1
kind: Pod
metadata: {name: counter}
spec:
  restartPolicy: Never
  containers:
    - name: c
      command: [/bin/sh, -c, "i=0; while sleep 0.2; do i=$((i+1)); echo count $i; done"]
      resources: {requests: {cpu: 10m, memory: 16Mi}}
"#;

/// The Python client, by the configured name and authority.
const PYTHON: &str = r#"
import sys
from kubernetes import client
configuration = client.Configuration(host=sys.argv[1])
configuration.ssl_ca_cert = sys.argv[2]
configuration.tls_server_name = sys.argv[3]
configuration.api_key = {"authorization": "Bearer " + sys.argv[4]}
api = client.CoreV1Api(client.ApiClient(configuration))
print([one.metadata.name for one in api.list_namespace().items])
"#;

#[test]
fn files_are_served_by_their_name_and_replaced_under_load_while_an_agent_and_a_pod_run() {
    require_root();
    let keys = Keys::new();
    keys.issue("first", NAME, "first", "-days 30");
    keys.issue("second", NAME, "second", "-days 30");
    keys.issue("expired", NAME, "expired", "-days 0");
    keys.install("first.pem", "first.key");
    let (certificate, key) = (keys.text("server.pem"), keys.text("server.key"));
    let platform = Arc::new(Platform::server(&[
        "--tls-cert",
        &certificate,
        "--tls-key",
        &key,
    ]));
    let agent = platform.agent("n1", None, &["--metrics", "off"]);
    platform.await_nodes(1);
    platform.apply(POD);
    eventually("the pod runs", SOON, || {
        (platform.phase("counter") == "Running").then_some(())
    });
    let (started, pid, agent_pid) = (platform.started_at("counter"), platform.pid(), agent.pid());

    // Clients by the name get the files' certificate; all others get the one of Muster's own CA.
    let listen = &platform.listen;
    let first = by_name(listen);
    assert!(
        first.contains("CN=first") && first.contains("CN=ca of the site"),
        "{first}"
    );
    let browser = presented(listen, &["-servername", NAME, "-alpn", "h2,http/1.1"]);
    assert!(browser.contains("CN=first"), "{browser}");
    for options in [
        &["-noservername"][..],
        &["-servername", "localhost"],
        &["-servername", "agents.muster.internal"],
        // An agent before that name, which trusts Muster's own CA only, when it joined by the configured name.
        &["-servername", NAME, "-alpn", "h2"],
    ] {
        let own = presented(listen, options);
        assert!(
            own.contains("CN=muster certificate authority"),
            "{options:?}: {own}"
        );
    }
    let authority = keys.path("ca.pem");
    let listed = kubectl(&platform, &authority, NAME).ok();
    assert!(listed.contains("namespace/default"), "{listed}");
    let own = kubectl(&platform, &platform.data.join("server/ca.pem"), "localhost");
    assert_eq!(own.code, Some(0), "{}", own.err);
    let mut program = Command::new(python());
    program.args(["-c", PYTHON, &format!("https://{listen}")]);
    program.arg(&authority).args([NAME, &token(&platform)]);
    let listed = run(&mut program).ok();
    assert!(listed.contains("'default'"), "{listed}");

    // Requests by the name go on while the files change.
    let stop = Arc::new(AtomicBool::new(false));
    let answered = Arc::new(AtomicUsize::new(0));
    let load: Vec<_> = (0..2)
        .map(|_| {
            let (platform, stop, answered) = (platform.clone(), stop.clone(), answered.clone());
            let authority = authority.clone();
            std::thread::spawn(move || {
                let port = platform
                    .listen
                    .rsplit_once(':')
                    .expect("a port")
                    .1
                    .to_owned();
                while !stop.load(Ordering::SeqCst) {
                    let mut curl = Command::new("curl");
                    curl.args([
                        "-sSf",
                        "--resolve",
                        &format!("{NAME}:{port}:127.0.0.1"),
                        "--cacert",
                    ]);
                    curl.arg(&authority)
                        .arg(format!("https://{NAME}:{port}/healthz"));
                    run(&mut curl).ok();
                    answered.fetch_add(1, Ordering::SeqCst);
                }
            })
        })
        .collect();
    let more = |count: usize| {
        let until = answered.load(Ordering::SeqCst) + count;
        eventually("requests are answered", SOON, || {
            (answered.load(Ordering::SeqCst) >= until).then_some(())
        });
    };
    more(5);
    keys.install("second.pem", "second.key");
    hang_up(pid);
    eventually("the second certificate is served", SOON, || {
        by_name(listen).contains("CN=second").then_some(())
    });
    more(5);

    // What clients would refuse is refused with the reason, and the certificate in use stays.
    for (certificate, key, reason) in [
        (
            "first.pem",
            "second.key",
            "the key does not belong to the certificate",
        ),
        ("expired.pem", "expired.key", "the certificate expired at "),
        (
            "second.key",
            "second.key",
            "the file has no certificate in PEM",
        ),
    ] {
        keys.install(certificate, key);
        hang_up(pid);
        eventually(reason, SOON, || {
            platform.logged().contains(reason).then_some(())
        });
        assert!(by_name(listen).contains("CN=second"), "{reason}");
    }
    // Without a signal, the change is found when the files are looked at again.
    keys.install("first.pem", "first.key");
    eventually("the first certificate is served again", SOON, || {
        by_name(listen).contains("CN=first").then_some(())
    });
    more(5);
    stop.store(true, Ordering::SeqCst);
    for one in load {
        one.join().expect("each request was answered");
    }

    assert_eq!(platform.pid(), pid);
    assert_eq!(agent.pid(), agent_pid);
    assert_eq!(platform.phase("counter"), "Running");
    assert_eq!(platform.started_at("counter"), started);
    let log = agent.logged();
    assert!(
        !log.contains("session ended") && !log.contains("no session"),
        "{log}"
    );
    let count = platform.cli(&["logs", "counter"]).ok();
    assert!(count.contains("count "), "{count}");
}

#[test]
fn sighup_takes_another_source_of_the_certificate_and_refuses_one_that_is_unusable() {
    let keys = Keys::new();
    keys.issue("first", NAME, "first", "-days 30");
    let file = keys.path("muster.toml");
    let configure = |settings: &[(&str, &str)]| {
        let lines: String = settings
            .iter()
            .map(|(key, value)| format!("{key} = {value}\n"))
            .collect();
        std::fs::write(&file, format!("[server]\n{lines}")).expect("the configuration");
    };
    configure(&[]);
    let path = file.display().to_string();
    let listen = &format!("127.0.0.1:{}", free_port());
    let port = listen.rsplit_once(':').expect("a port").1;
    let pebble = Pebble::start(&keys, 86_400, free_port(), port.parse().expect("a port"));
    let platform = Platform::server_on(listen, &["--config", &path, "--advertise", NAME]);
    let pid = platform.pid();
    let issuer = || by_name(listen);
    let becomes = |what: &str, part: &str| {
        hang_up(pid);
        eventually(what, SOON, || issuer().contains(part).then_some(()));
    };
    assert!(issuer().contains("CN=muster certificate authority"));

    let [certificate, key, ca, ca_key] =
        ["first.pem", "first.key", "ca.pem", "ca.key"].map(|file| format!("{:?}", keys.path(file)));
    let files = [("tls-cert", certificate.as_str()), ("tls-key", &key)];
    let authority = [("tls-ca-cert", ca.as_str()), ("tls-ca-key", &ca_key)];
    configure(&files);
    becomes("the files are served", "CN=first");
    configure(&authority);
    becomes("the own CA's certificate is served", "CN=ca of the site");
    assert!(!issuer().contains("CN=first"));

    // What a start would refuse is refused with the same reason, and the source in use stays.
    for (settings, reason) in [
        (
            [files, authority].concat(),
            "--tls-cert, --tls-ca-cert: the certificate has one source; keep one of them",
        ),
        (
            vec![("tls-cert", "'/none.pem'"), ("tls-key", "'/none.key'")],
            "/none.pem: the file cannot be read",
        ),
        (vec![("tls-certt", "1")], "unknown key"),
    ] {
        configure(&settings);
        hang_up(pid);
        eventually(reason, SOON, || {
            platform.logged().contains(reason).then_some(())
        });
        assert!(issuer().contains("CN=ca of the site"), "{reason}");
    }
    // An ACME server's certificate is served as soon as it is issued, although the one before it is good for longer.
    let directory = format!("{:?}", pebble.directory);
    configure(&[
        ("acme-domain", &format!("[{NAME:?}]")),
        ("acme-directory", &directory),
        ("acme-root", &ca),
        ("acme-agree-tos", "true"),
    ]);
    becomes("the ACME server's is served", "Pebble Intermediate CA");
    configure(&[]);
    becomes(
        "the server's own CA alone is left",
        "CN=muster certificate authority",
    );
    assert_eq!(platform.pid(), pid);
}

#[test]
fn unusable_options_and_files_are_refused_at_the_start_and_by_config_check() {
    let keys = Keys::new();
    keys.issue("good", NAME, "good", "-days 30");
    keys.issue("other", NAME, "other", "-days 30");
    keys.issue("expired", NAME, "expired", "-days 0");
    let text = |file: &str| keys.text(file);
    let cases: [(&[(&str, String)], &str); 6] = [
        (
            &[("tls-cert", text("good.pem"))],
            "the option needs --tls-key too",
        ),
        (
            &[
                ("tls-cert", text("expired.pem")),
                ("tls-key", text("expired.key")),
            ],
            "expired.pem: the certificate expired at ",
        ),
        (
            &[
                ("tls-cert", text("good.pem")),
                ("tls-key", text("other.key")),
            ],
            "other.key: the key does not belong to the certificate",
        ),
        (
            &[
                ("tls-cert", text("none.pem")),
                ("tls-key", text("other.key")),
            ],
            "none.pem: the file cannot be read",
        ),
        (
            &[
                ("tls-ca-cert", text("good.pem")),
                ("tls-ca-key", text("good.key")),
            ],
            "good.pem: the certificate is not a CA's",
        ),
        (
            &[("acme-root", text("none.pem"))],
            "the option is ACME's, which needs --acme-domain NAME",
        ),
    ];
    for (options, reason) in cases {
        let mut server = Command::new(muster());
        server.arg("--data").arg(keys.path("data"));
        server.args(["server", "--listen", "127.0.0.1:0", "--config", "/dev/null"]);
        let mut lines = "[server]\n".to_owned();
        for (option, value) in options {
            server.arg(format!("--{option}={value}"));
            lines.push_str(&format!("{option} = \"{value}\"\n"));
        }
        let started = run(&mut server);
        assert!(
            started.code != Some(0) && started.err.contains(reason),
            "{}",
            started.err
        );
        assert!(!keys.path("data/store").exists(), "nothing was changed");
        let file = keys.path("muster.toml");
        std::fs::write(&file, lines).expect("the file");
        let checked = run(Command::new(muster())
            .args(["config", "check", "--file"])
            .arg(&file));
        assert!(
            checked.code != Some(0) && checked.err.contains(reason),
            "{}",
            checked.err
        );
    }
}

#[test]
fn an_own_ca_issues_the_certificate_for_the_servers_names() {
    let keys = Keys::new();
    let (certificate, key) = (keys.text("ca.pem"), keys.text("ca.key"));
    let options = [
        "--tls-ca-cert",
        &certificate,
        "--tls-ca-key",
        &key,
        "--advertise",
        NAME,
    ];
    let platform = Platform::server(&options);
    let issued = by_name(&platform.listen);
    assert!(
        issued.contains("CN=ca of the site") && issued.contains("DNS:muster.test"),
        "{issued}"
    );
    assert!(!issued.contains("agents.muster.internal"), "{issued}");
    kubectl(&platform, &keys.path("ca.pem"), NAME).ok();
    let agents = presented(&platform.listen, &["-servername", "agents.muster.internal"]);
    assert!(
        agents.contains("CN=muster certificate authority"),
        "{agents}"
    );
    // Another CA in its place is taken without a restart.
    keys.authority("next");
    for suffix in ["pem", "key"] {
        let (from, to) = (
            keys.path(&format!("next.{suffix}")),
            keys.path(&format!("ca.{suffix}")),
        );
        std::fs::rename(from, to).expect("a move");
    }
    hang_up(platform.pid());
    eventually("the next CA issued", SOON, || {
        by_name(&platform.listen)
            .contains("CN=next of the site")
            .then_some(())
    });
    kubectl(&platform, &keys.path("ca.pem"), NAME).ok();
}

/// A program that ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("it has an address").port()
}

/// Let's Encrypt's ACME server for tests, which resolves every name to 127.0.0.1.
struct Pebble {
    directory: String,
    management: String,
    _programs: [Running; 2],
}

impl Pebble {
    /// Issues certificates for so many seconds, and validates at these ports.
    fn start(keys: &Keys, seconds: u64, http: u16, tls: u16) -> Pebble {
        keys.issue("pebble", "localhost", "pebble", "-days 30");
        let [acme, management, dns, unused] = [(); 4].map(|()| free_port());
        let profile = serde_json::json!({"description": "short", "validityPeriod": seconds});
        let config = serde_json::json!({"pebble": {
            "listenAddress": format!("127.0.0.1:{acme}"),
            "managementListenAddress": format!("127.0.0.1:{management}"),
            "certificate": keys.path("pebble.pem"), "privateKey": keys.path("pebble.key"),
            "httpPort": http, "tlsPort": tls, "profiles": {"default": profile},
        }});
        std::fs::write(keys.path("pebble.json"), config.to_string()).expect("the file");
        let quiet = |command: &mut Command| {
            let command = command.stdout(Stdio::null()).stderr(Stdio::null());
            Running(command.spawn().expect("the program starts"))
        };
        let mut names = Command::new(part("pebble-challtestsrv"));
        names.args([
            "-dnsserver",
            &format!("127.0.0.1:{dns}"),
            "-defaultIPv6",
            "",
            "-doh",
            "",
        ]);
        names.args(["-http01", "", "-https01", "", "-tlsalpn01", ""]);
        names.args(["-management", &format!("127.0.0.1:{unused}")]);
        let mut server = Command::new(part("pebble"));
        server.arg("-config").arg(keys.path("pebble.json"));
        server.args(["-dnsserver", &format!("127.0.0.1:{dns}")]);
        server.env("PEBBLE_VA_NOSLEEP", "1");
        let pebble = Pebble {
            directory: format!("https://localhost:{acme}/dir"),
            management: format!("https://127.0.0.1:{management}"),
            _programs: [quiet(&mut names), quiet(&mut server)],
        };
        eventually("pebble answers", SOON, || {
            let asked = pebble.root();
            asked.contains("BEGIN CERTIFICATE").then_some(())
        });
        pebble
    }

    /// The certificate of its root CA.
    fn root(&self) -> String {
        let url = format!("{}/roots/0", self.management);
        run(Command::new("curl").args(["-sk", &url])).out
    }
}

fn serial(listen: &str) -> String {
    let script = format!(
        "openssl s_client -connect {listen} -servername {NAME} </dev/null 2>/dev/null | openssl x509 -noout -serial"
    );
    run(Command::new("sh").args(["-c", &script])).out
}

fn issued_by_pebble(listen: &str) -> Option<()> {
    by_name(listen)
        .contains("Pebble Intermediate CA")
        .then_some(())
}

#[test]
fn an_acme_server_issues_the_certificate_by_tls_and_renews_it_while_the_server_runs() {
    let keys = Keys::new();
    let listen = format!("127.0.0.1:{}", free_port());
    let port = listen.rsplit_once(':').expect("a port").1;
    // A life of 45 seconds ends in the test: the certificate is renewed after 30.
    let pebble = Pebble::start(&keys, 45, free_port(), port.parse().expect("a port"));
    let root = keys.text("ca.pem");
    let options = [
        "--acme-domain",
        NAME,
        "--acme-directory",
        &pebble.directory,
        "--acme-root",
        &root,
        "--acme-contact",
        "admin@muster.test",
        "--acme-agree-tos",
    ];
    let mut platform = Platform::server_on(&listen, &options);
    eventually("the certificate is issued", SOON, || {
        issued_by_pebble(&listen)
    });
    std::fs::write(keys.path("root.pem"), pebble.root()).expect("the file");
    kubectl(&platform, &keys.path("root.pem"), NAME).ok();
    // The agents' certificate stays the one of Muster's own CA.
    let agents = presented(&listen, &["-servername", "agents.muster.internal"]);
    assert!(
        agents.contains("CN=muster certificate authority"),
        "{agents}"
    );
    let first = serial(&listen);
    eventually("the certificate is renewed", SOON, || {
        let now = serial(&listen);
        (now != first && !now.is_empty()).then_some(())
    });
    kubectl(&platform, &keys.path("root.pem"), NAME).ok();
    for file in ["account.json", "certificate.pem"] {
        use std::os::unix::fs::PermissionsExt;
        let meta = std::fs::metadata(platform.data.join("server/acme").join(file)).expect(file);
        assert_eq!(meta.permissions().mode() & 0o777, 0o600, "{file}");
    }
    // A restart takes the kept certificate, and needs no ACME server.
    let kept = serial(&listen);
    drop(pebble);
    platform.stop();
    platform.restart();
    assert_eq!(serial(&listen), kept);
    // Without the ACME server, the renewal fails with the reason and the next attempt's time.
    eventually("the failure is reported", SOON, || {
        let log = platform.logged();
        let reported = log.contains("the ACME server issued no certificate");
        (reported && log.contains("next_attempt_seconds")).then_some(())
    });
    platform.cli(&["get", "namespaces"]).ok();
}

#[test]
fn an_acme_server_issues_the_certificate_by_http_and_names_what_it_could_not_validate() {
    let keys = Keys::new();
    let (http, wrong) = (free_port(), free_port());
    let pebble = Pebble::start(&keys, 86_400, http, free_port());
    let root = keys.text("ca.pem");
    let address = format!("127.0.0.1:{http}");
    let elsewhere = format!("127.0.0.1:{wrong}");
    let acme = |address: &str| {
        let words = [
            "--acme-domain",
            NAME,
            "--acme-directory",
            &pebble.directory,
            "--acme-root",
            &root,
            "--acme-agree-tos",
            "--acme-http",
            address,
        ];
        words.map(str::to_owned)
    };
    let options = acme(&address);
    let platform = Platform::server(&options.each_ref().map(String::as_str));
    eventually("the certificate is issued", SOON, || {
        issued_by_pebble(&platform.listen)
    });
    // The address is closed again when the order has ended.
    assert!(TcpListener::bind(&address).is_ok(), "port {http} is free");
    let options = acme(&elsewhere);
    let platform = Platform::server(&options.each_ref().map(String::as_str));
    eventually("the reason is reported", SOON, || {
        let log = platform.logged();
        let reported = log.contains("could not validate the names: ");
        (reported && log.contains("connection refused")).then_some(())
    });
    let own = by_name(&platform.listen);
    assert!(own.contains("CN=muster certificate authority"), "{own}");
}
