//! The entries of `muster login` in a kubeconfig: a cluster, a user and a context of one name. Pure. Fields that this
//! client does not know stay, as do the entries of other clusters.

use std::path::Path;

use anyhow::{Context, Result, bail};
use k8s_openapi::ByteString;
use serde_json::{Map, Value, json};

/// What a kubeconfig needs to use a server.
pub struct LoginEntry<'a> {
    /// The name of the three entries.
    pub name: &'a str,
    /// The server's address.
    pub server: &'a str,
    /// Its authority in PEM; none if this machine trusts it.
    pub authority: Option<&'a str>,
    /// The token.
    pub token: &'a str,
    /// The namespace of commands that name none.
    pub namespace: Option<&'a str>,
}

/// What a sign-out needs to know of the current context.
#[derive(Debug, PartialEq, Eq)]
pub struct CurrentLogin {
    /// The name of the user's entry.
    pub user: String,
    /// The user's token.
    pub token: String,
    /// The server's address.
    pub server: String,
}

/// The entry of a name in one of a kubeconfig's lists.
fn entry<'a>(document: &'a Value, list: &str, name: &str) -> Option<&'a Value> {
    let all = document[list].as_array()?;
    all.iter().find(|one| one["name"] == name)
}

fn current(document: &Value) -> Option<&Value> {
    let name = document["current-context"].as_str()?;
    Some(&entry(document, "contexts", name)?["context"])
}

fn current_cluster(document: &Value) -> Option<&Value> {
    let name = current(document)?["cluster"].as_str()?;
    Some(&entry(document, "clusters", name)?["cluster"])
}

/// The server of the current context.
pub fn current_server(document: &Value) -> Option<String> {
    let server = current_cluster(document)?["server"].as_str()?;
    server.starts_with("https://").then(|| server.to_owned())
}

/// The login of the current context; none if its user has no token.
pub fn current_login(document: &Value) -> Option<CurrentLogin> {
    let user = current(document)?["user"].as_str()?.to_owned();
    Some(CurrentLogin {
        token: token_of_user(document, &user)?,
        server: current_server(document)?,
        user,
    })
}

/// The token of a user's entry.
pub fn token_of_user(document: &Value, user: &str) -> Option<String> {
    let token = entry(document, "users", user)?["user"]["token"].as_str()?;
    Some(token.to_owned())
}

/// The authority in PEM that the kubeconfig has for a server; files are named relative to its directory.
///
/// # Errors
/// The file cannot be read, or the data are no PEM in base64.
pub fn authority(document: &Value, server: &str, directory: &Path) -> Result<Option<String>> {
    let all = document["clusters"].as_array().into_iter().flatten();
    let of_server = |cluster: &&Value| {
        let address = cluster["server"].as_str();
        address.is_some_and(|address| address.trim_end_matches('/') == server)
    };
    let Some(cluster) = all.map(|one| &one["cluster"]).find(of_server) else {
        return Ok(None);
    };
    if let Some(data) = cluster.get("certificate-authority-data") {
        let bytes: ByteString = serde_json::from_value(data.clone())
            .context("certificate-authority-data is not base64")?;
        let pem = String::from_utf8(bytes.0).context("certificate-authority-data is not PEM")?;
        return Ok(Some(pem));
    }
    let Some(file) = cluster["certificate-authority"].as_str() else {
        return Ok(None);
    };
    let file = directory.join(file);
    let pem = std::fs::read_to_string(&file).with_context(|| {
        format!(
            "the certificate authority {} cannot be read",
            file.display()
        )
    })?;
    Ok(Some(pem))
}

/// A list of a kubeconfig, which is created if it is missing.
fn list<'a>(whole: &'a mut Map<String, Value>, name: &str) -> Result<&'a mut Vec<Value>> {
    let list = whole.entry(name).or_insert(Value::Null);
    if list.is_null() {
        *list = json!([]);
    }
    list.as_array_mut()
        .with_context(|| format!("{name} is not a list"))
}

/// Replaces the entry of a name, or adds one.
fn set(whole: &mut Map<String, Value>, name: &str, of: &str, new: Value) -> Result<()> {
    let list = list(whole, name)?;
    match list.iter_mut().find(|one| one["name"] == of) {
        Some(there) => *there = new,
        None => list.push(new),
    }
    Ok(())
}

fn whole(document: &mut Value) -> Result<&mut Map<String, Value>> {
    if document.is_null() {
        *document = json!({"apiVersion": "v1", "kind": "Config"});
    }
    match document.as_object_mut() {
        Some(whole) => Ok(whole),
        None => bail!("it is not a kubeconfig"),
    }
}

/// Writes the entries and makes their context the current one.
///
/// # Errors
/// The document is no kubeconfig.
pub fn put(document: &mut Value, new: &LoginEntry<'_>) -> Result<()> {
    let name = new.name;
    let mut cluster = json!({"server": new.server});
    if let Some(pem) = new.authority {
        let data = ByteString(pem.as_bytes().to_vec());
        cluster["certificate-authority-data"] = serde_json::to_value(data)?;
    }
    let mut context = json!({"cluster": name, "user": name});
    if let Some(namespace) = new.namespace {
        context["namespace"] = json!(namespace);
    }
    let user = json!({"token": new.token});
    let whole = whole(document)?;
    set(
        whole,
        "clusters",
        name,
        json!({"name": name, "cluster": cluster}),
    )?;
    set(whole, "users", name, json!({"name": name, "user": user}))?;
    set(
        whole,
        "contexts",
        name,
        json!({"name": name, "context": context}),
    )?;
    whole.insert("current-context".to_owned(), json!(name));
    Ok(())
}

/// Removes a user's entry, the contexts with it, and the clusters that were in these contexts only.
///
/// # Errors
/// The document is no kubeconfig.
pub fn remove(document: &mut Value, user: &str) -> Result<()> {
    let whole = whole(document)?;
    list(whole, "users")?.retain(|one| one["name"] != user);
    let contexts = list(whole, "contexts")?;
    let (gone, left): (Vec<Value>, Vec<Value>) = std::mem::take(contexts)
        .into_iter()
        .partition(|one| one["context"]["user"] == user);
    let without_context = |one: &Value| {
        let cluster = &one["name"];
        gone.iter()
            .any(|context| context["context"]["cluster"] == *cluster)
            && !left
                .iter()
                .any(|context| context["context"]["cluster"] == *cluster)
    };
    list(whole, "clusters")?.retain(|one| !without_context(one));
    let current = whole.get("current-context").unwrap_or(&Value::Null);
    if gone.iter().any(|context| context["name"] == *current) {
        whole.insert("current-context".to_owned(), json!(""));
    }
    *list(whole, "contexts")? = left;
    Ok(())
}

#[cfg(test)]
#[path = "merge_tests.rs"]
mod tests;
