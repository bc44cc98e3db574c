//! Certificates of files, and those of the own CA: they are served by their name, replaced, and refused if unusable.

use std::process::Command;

use std::sync::Arc;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use e2e::{Platform, eventually, muster, python, require_root, run};

use super::pebble::Pebble;
use super::{Keys, NAME, SOON, by_name, free_port, hang_up, kubectl, presented, token};

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
