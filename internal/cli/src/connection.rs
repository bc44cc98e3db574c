//! Finds the server's address and the user's credentials.

use std::io::ErrorKind::NotFound;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};

use super::exit::ExitCause;
use super::failure;
use crate::arguments::Global;

/// How long a server may take to accept a connection.
const CONNECT: Duration = Duration::from_secs(10);

/// A server, a user and a namespace.
pub struct ServerConnection {
    /// The resource API.
    pub client: kube::Client,
    /// The namespace to work in.
    pub namespace: String,
    /// The server's address, for messages.
    pub server: String,
    /// The kubeconfig that was used.
    pub kubeconfig: Kubeconfig,
    /// The path of that kubeconfig, for messages.
    pub origin: String,
}

/// The data directory if no option names one.
pub fn default_data() -> PathBuf {
    let here = PathBuf::from(".muster");
    if here.is_dir() {
        here
    } else {
        PathBuf::from("/var/lib/muster")
    }
}

/// The default data directory of a server or agent: the packages' directory if this user may use it, else one in the
/// working directory.
pub fn default_data_to_make() -> PathBuf {
    let packaged = PathBuf::from("/var/lib/muster");
    let usable = std::fs::read_dir(&packaged).is_ok();
    if usable && !Path::new(".muster").is_dir() {
        packaged
    } else {
        PathBuf::from(".muster")
    }
}

/// The kubeconfig that options or the data directory name; none for the one that kubectl would use.
pub fn kubeconfig_file(global: &Global) -> Option<PathBuf> {
    if let Some(file) = &global.kubeconfig {
        return Some(file.clone());
    }
    let data = global.data.clone().unwrap_or_else(default_data);
    let file = data.join("server").join("admin.kubeconfig");
    (global.data.is_some() || file.is_file()).then_some(file)
}

/// Reads the kubeconfig and returns the path it came from.
fn read(global: &Global) -> Result<(Kubeconfig, String)> {
    let Some(file) = kubeconfig_file(global) else {
        let kubeconfig = Kubeconfig::read().map_err(|error| {
            let reason = match &error {
                KubeconfigError::ReadConfig(cause, path) if cause.kind() == NotFound => {
                    let here = default_data();
                    format!("there is neither {} nor {}", here.display(), path.display())
                }
                other => other.to_string(),
            };
            let text = format!(
                "no server is known: {reason}\n  start one with `muster up`, sign in at one with `muster login --server URL`, or name a kubeconfig with --kubeconfig"
            );
            failure::with(ExitCause::Unreachable, text)
        })?;
        let origin = match std::env::var("KUBECONFIG") {
            Ok(files) => format!("KUBECONFIG ({files})"),
            Err(_) => "~/.kube/config".to_string(),
        };
        return Ok((kubeconfig, origin));
    };
    let shown = file.display().to_string();
    if !file.is_file() {
        let (exit, advice) = match &global.kubeconfig {
            Some(_) => (
                ExitCause::Usage,
                "--kubeconfig (or MUSTER_KUBECONFIG) must name a file that exists",
            ),
            None => (
                ExitCause::Unreachable,
                "no server has been started with this data directory: `muster up` starts one",
            ),
        };
        let text = format!("there is no kubeconfig at {shown}\n  {advice}");
        return Err(failure::with(exit, text));
    }
    // The error already names the file.
    Ok((Kubeconfig::read_from(&file)?, shown))
}

/// The client's configuration by a kubeconfig.
pub async fn config_of(kubeconfig: Kubeconfig) -> Result<kube::Config> {
    let mut config =
        kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
            .await
            .context("the kubeconfig names no usable server")?;
    config.connect_timeout = Some(CONNECT);
    Ok(config)
}

impl ServerConnection {
    /// Reads the kubeconfig and prepares the client without sending a request.
    pub async fn open(global: &Global) -> Result<ServerConnection> {
        let (kubeconfig, origin) = read(global)?;
        ServerConnection::of(kubeconfig, origin, global.namespace.clone()).await
    }

    /// Prepares the client of a kubeconfig, which came from `origin`.
    pub async fn of(
        kubeconfig: Kubeconfig,
        origin: String,
        namespace: Option<String>,
    ) -> Result<ServerConnection> {
        let mut config = config_of(kubeconfig.clone()).await?;
        // Followed logs and watches stay open without limit.
        config.read_timeout = None;
        let namespace = namespace.unwrap_or_else(|| config.default_namespace.clone());
        let server = config.cluster_url.to_string();
        let client = kube::Client::try_from(config).context("the client could not be made")?;
        Ok(ServerConnection {
            client,
            namespace,
            server: server.trim_end_matches('/').to_string(),
            kubeconfig,
            origin,
        })
    }

    /// A client that returns an answer 429 at once instead of asking again for minutes.
    pub async fn without_retries(&self) -> Result<kube::Client> {
        let options = KubeConfigOptions::default();
        let mut config =
            kube::Config::from_custom_kubeconfig(self.kubeconfig.clone(), &options).await?;
        config.default_retry = false;
        config.connect_timeout = Some(CONNECT);
        Ok(kube::Client::try_from(config)?)
    }

    /// The certificate authority that the kubeconfig trusts, in PEM; none if it leaves that to the machine.
    pub fn authority(&self) -> Result<Option<String>> {
        let Kubeconfig {
            clusters,
            contexts,
            current_context,
            ..
        } = &self.kubeconfig;
        let named = contexts
            .iter()
            .find(|context| Some(&context.name) == current_context.as_ref())
            .and_then(|context| Some(&context.context.as_ref()?.cluster));
        let cluster = clusters
            .iter()
            .find(|cluster| named.is_none_or(|name| *name == cluster.name))
            .and_then(|cluster| cluster.cluster.as_ref());
        let Some(cluster) = cluster else {
            bail!("the kubeconfig names no cluster");
        };
        if let Some(file) = &cluster.certificate_authority {
            return std::fs::read_to_string(file)
                .with_context(|| format!("the certificate authority {file} cannot be read"))
                .map(Some);
        }
        let data = cluster.certificate_authority_data.as_deref();
        data.map(from_base64).transpose()
    }
}

fn from_base64(data: &str) -> Result<String> {
    // k8s-openapi's ByteString reads base64, so no further crate is needed for it.
    let bytes: k8s_openapi::ByteString = serde_json::from_value(serde_json::json!(data))
        .context("certificate-authority-data is not base64")?;
    String::from_utf8(bytes.0).context("certificate-authority-data is not PEM")
}

/// A kubeconfig for one server, one user with a bearer token, one context. Without an authority, clients verify the
/// server by their machine's CA certificates.
pub fn kubeconfig_text(server: &str, authority: Option<&str>, user: &str, token: &str) -> String {
    let document = document(
        server,
        authority,
        user,
        &serde_json::json!({"token": token}),
    );
    serde_norway::to_string(&document).expect("plain JSON is always YAML")
}

/// A kubeconfig in memory, with this token or without credentials.
pub fn kubeconfig_of(
    server: &str,
    authority: Option<&str>,
    token: Option<&str>,
) -> Result<Kubeconfig> {
    let credentials = match token {
        Some(token) => serde_json::json!({"token": token}),
        None => serde_json::json!({}),
    };
    let document = document(server, authority, "user", &credentials);
    serde_json::from_value(document).context("the server cannot be used")
}

fn document(
    server: &str,
    authority: Option<&str>,
    user: &str,
    credentials: &serde_json::Value,
) -> serde_json::Value {
    let mut cluster = serde_json::json!({"server": server});
    if let Some(pem) = authority {
        cluster["certificate-authority-data"] =
            serde_json::to_value(k8s_openapi::ByteString(pem.as_bytes().to_vec()))
                .expect("bytes are always JSON");
    }
    serde_json::json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "muster", "cluster": cluster}],
        "users": [{"name": user, "user": credentials}],
        "contexts": [{"name": "muster", "context": {"cluster": "muster", "user": user}}],
        "current-context": "muster",
    })
}

/// Makes a path absolute; the path need not exist.
pub fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf())
}
