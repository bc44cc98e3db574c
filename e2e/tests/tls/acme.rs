//! Certificates of an ACME server: Let's Encrypt's for tests issues them, and the server renews them.

use std::net::TcpListener;
use std::process::Command;

use e2e::{Platform, eventually, run};

use super::pebble::Pebble;
use super::{Keys, NAME, SOON, by_name, free_port, kubectl, presented};

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
