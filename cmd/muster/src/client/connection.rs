//! Finds the server to talk to, and as whom.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use kube::config::{KubeConfigOptions, Kubeconfig};

use crate::arguments::Global;

/// A server, a user and a namespace.
pub struct Connection {
    /// The resource API.
    pub client: kube::Client,
    /// The namespace to work in.
    pub namespace: String,
    /// The server's address, for words to people.
    pub server: String,
    /// The kubeconfig that was used.
    pub kubeconfig: Kubeconfig,
}

/// The data directory when none was named.
pub fn default_data() -> PathBuf {
    let here = PathBuf::from(".muster");
    if here.is_dir() {
        here
    } else {
        PathBuf::from("/var/lib/muster")
    }
}

/// The data directory of a server or agent when none was named: where packages put it for
/// root's services, else here.
pub fn default_data_to_make() -> PathBuf {
    let packaged = PathBuf::from("/var/lib/muster");
    if packaged.is_dir() && !Path::new(".muster").is_dir() {
        packaged
    } else {
        PathBuf::from(".muster")
    }
}

fn kubeconfig_file(global: &Global) -> Option<PathBuf> {
    if let Some(file) = &global.kubeconfig {
        return Some(file.clone());
    }
    let data = global.data.clone().unwrap_or_else(default_data);
    let file = data.join("server").join("admin.kubeconfig");
    (global.data.is_some() || file.is_file()).then_some(file)
}

impl Connection {
    /// Reads the kubeconfig and prepares the client; nothing is sent yet.
    pub async fn open(global: &Global) -> Result<Connection> {
        let kubeconfig = match kubeconfig_file(global) {
            Some(file) => Kubeconfig::read_from(&file).with_context(|| {
                format!(
                    "no usable kubeconfig at {}: is a server started with this data directory (`muster up`)?",
                    file.display()
                )
            })?,
            None => Kubeconfig::read().context(
                "no server is known: start one with `muster up`, or name a kubeconfig with --kubeconfig",
            )?,
        };
        let mut config =
            kube::Config::from_custom_kubeconfig(kubeconfig.clone(), &KubeConfigOptions::default())
                .await
                .context("the kubeconfig names no usable server")?;
        // Logs are followed and watches stay open for as long as they are wanted.
        config.read_timeout = None;
        let namespace = global
            .namespace
            .clone()
            .unwrap_or_else(|| config.default_namespace.clone());
        let server = config.cluster_url.to_string();
        let client = kube::Client::try_from(config).context("the client could not be made")?;
        Ok(Connection {
            client,
            namespace,
            server: server.trim_end_matches('/').to_string(),
            kubeconfig,
        })
    }

    /// The certificate authority that the kubeconfig trusts, in PEM.
    pub fn authority(&self) -> Result<String> {
        let cluster = self
            .kubeconfig
            .clusters
            .first()
            .and_then(|c| c.cluster.as_ref());
        let Some(cluster) = cluster else {
            bail!("the kubeconfig names no cluster");
        };
        if let Some(file) = &cluster.certificate_authority {
            return std::fs::read_to_string(file)
                .with_context(|| format!("the certificate authority {file} can't be read"));
        }
        let Some(data) = &cluster.certificate_authority_data else {
            bail!("the kubeconfig trusts no certificate authority");
        };
        from_base64(data)
    }
}

fn from_base64(data: &str) -> Result<String> {
    // k8s-openapi's ByteString reads base64, so no further crate is needed for it.
    let bytes: k8s_openapi::ByteString = serde_json::from_value(serde_json::json!(data))
        .context("certificate-authority-data is not base64")?;
    String::from_utf8(bytes.0).context("certificate-authority-data is not PEM")
}

/// A kubeconfig for one server, one user with a bearer token, one context.
pub fn kubeconfig_text(server: &str, authority_pem: &str, user: &str, token: &str) -> String {
    let authority =
        serde_json::to_value(k8s_openapi::ByteString(authority_pem.as_bytes().to_vec()))
            .expect("bytes are always JSON");
    let document = serde_json::json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "muster", "cluster": {"server": server, "certificate-authority-data": authority}}],
        "users": [{"name": user, "user": {"token": token}}],
        "contexts": [{"name": "muster", "context": {"cluster": "muster", "user": user}}],
        "current-context": "muster",
    });
    serde_norway::to_string(&document).expect("plain JSON is always YAML")
}

/// Makes a path absolute without asking that it exists.
pub fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf())
}
