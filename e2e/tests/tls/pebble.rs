//! Let's Encrypt's ACME server for tests.

use std::process::{Child, Command, Stdio};

use e2e::{eventually, part, run};

use super::{Keys, SOON, free_port};

/// A program that ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Let's Encrypt's ACME server for tests, which resolves every name to 127.0.0.1.
pub struct Pebble {
    pub directory: String,
    management: String,
    _programs: [Running; 2],
}

impl Pebble {
    /// Issues certificates for so many seconds, and validates at these ports.
    pub fn start(keys: &Keys, seconds: u64, http: u16, tls: u16) -> Pebble {
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
    pub fn root(&self) -> String {
        let url = format!("{}/roots/0", self.management);
        run(Command::new("curl").args(["-sk", &url])).out
    }
}
