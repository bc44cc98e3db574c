//! The provider: its process, its certificate, its users and the options of a server that uses it.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use e2e::{eventually, free_address, part, run};
use serde_json::{Value, json};

pub const SOON: Duration = Duration::from_secs(60);
pub const PASSWORD: &str = "walnut tray";
pub const RETURN: &str = "/ui/oidc/callback";

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
pub struct Provider {
    directory: tempfile::TempDir,
    pub listen: String,
    redirects: String,
    process: Option<Child>,
}

impl Provider {
    /// A provider that sends browsers back to servers at these origins, without its process.
    pub fn prepared(origins: &[String]) -> Provider {
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

    pub fn started(origins: &[String]) -> Provider {
        let mut provider = Provider::prepared(origins);
        provider.start();
        provider
    }

    pub fn start(&mut self) {
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

    pub fn stop(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().unwrap();
            process.wait().unwrap();
        }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub fn write(&self, name: &str, text: &str) {
        // In one step: the provider may read it now.
        std::fs::write(self.path("next"), text).unwrap();
        std::fs::rename(self.path("next"), self.path(name)).unwrap();
    }

    pub fn users(&self, users: Value) {
        self.write("users.json", &users.to_string());
    }

    /// The only user, with these groups.
    pub fn user(&self, subject: &str, name: &str, groups: &[&str]) {
        self.users(json!({subject: {
            "Username": name, "Password": PASSWORD, "FirstName": "Ann", "LastName": "Example",
            "Email": format!("{name}@example.org"), "EmailVerified": true, "Groups": groups,
        }}));
    }

    /// The options of a server that uses this provider.
    pub fn options(&self) -> Vec<String> {
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
