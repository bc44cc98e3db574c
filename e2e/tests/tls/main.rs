//! The certificate for browsers and clients, with real programs: openssl, kubectl, the Python client, curl, and pebble,
//! Let's Encrypt's ACME server for tests. It changes while the server, an agent and a pod run. This file asks; the modules
//! test certificates of files and of the own CA, and those of an ACME server.

mod acme;
mod files;
mod pebble;

use std::net::TcpListener;

use std::path::{Path, PathBuf};
use std::process::Command;

use std::time::Duration;

use e2e::{Platform, run};

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

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("it has an address").port()
}
