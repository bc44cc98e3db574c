//! Owns the configuration files of pod security: Kubernetes' PodSecurityConfiguration, alone or as a plugin of an
//! AdmissionConfiguration, and Muster's PodSecurityAllowList. Reads parsed documents and opens no files. Returns all
//! errors at once, each with its field.

use std::collections::BTreeSet;

use k8s_openapi::apimachinery::pkg::apis::meta::v1 as meta;
use serde_json::Value;

use super::allow::{AllowList, AllowedCapabilities, HostDirectory, Namespaces, clean};
use super::{Exemptions, PodSecurity};
use crate::field::{FieldError, Path};
use crate::json;
use crate::pod_security_level::{
    LEVELS, MODES, NamespaceLevels, PodSecurityLevel, StandardsVersion, VERSIONS,
};
use crate::selector::LabelSelector;
use crate::syntax;

const ADMISSION_VERSION: &str = "apiserver.config.k8s.io/v1";
const CONFIGURATION_VERSIONS: [&str; 3] = [
    "pod-security.admission.config.k8s.io/v1",
    "pod-security.admission.config.k8s.io/v1beta1",
    "pod-security.admission.config.k8s.io/v1alpha1",
];
const PLUGIN: &str = "PodSecurity";
const ALLOW_LIST_VERSION: &str = "muster.io/v1alpha1";
const ALLOW_LIST: &str = "PodSecurityAllowList";

type Errors = Vec<FieldError>;

/// A member of a document or of a value in it.
fn child<'a>(of: Option<&'a Path<'a>>, name: &'a str) -> Path<'a> {
    match of {
        Some(path) => path.child(name),
        None => Path::new(name),
    }
}

/// Reports unknown members; a mistyped name must not leave its default in force.
fn only(value: &Value, known: &[&str], at: Option<&Path<'_>>, errors: &mut Errors) {
    for (name, _) in json::members(value, &[]) {
        if !known.contains(&name.as_str()) {
            let path = child(at, name);
            let detail = format!("the field is unknown; write one of {}", known.join(", "));
            errors.push(FieldError::forbidden(&path, detail));
        }
    }
}

/// The items of an optional list.
fn list<'a>(value: &'a Value, path: &Path<'_>, errors: &mut Errors) -> &'a [Value] {
    match value {
        Value::Null => &[],
        Value::Array(items) => items,
        other => {
            let detail = "must be a list";
            errors.push(FieldError::type_invalid(path, other.clone(), detail));
            &[]
        }
    }
}

/// An optional text; an empty one counts as absent.
fn text<'a>(value: &'a Value, path: &Path<'_>, errors: &mut Errors) -> Option<&'a str> {
    match value {
        Value::Null => None,
        Value::String(text) => Some(text.as_str()).filter(|text| !text.is_empty()),
        other => {
            let detail = "must be a text";
            errors.push(FieldError::type_invalid(path, other.clone(), detail));
            None
        }
    }
}

/// A list of names; reports malformed and repeated ones.
fn names(
    value: &Value,
    path: &Path<'_>,
    rule: impl Fn(&str) -> Vec<String>,
    errors: &mut Errors,
) -> Vec<String> {
    let mut seen = BTreeSet::new();
    for (i, item) in list(value, path, errors).iter().enumerate() {
        let path = path.index(i);
        let Some(name) = text(item, &path, errors) else {
            errors.push(FieldError::required(&path, "a name"));
            continue;
        };
        for fault in rule(name) {
            errors.push(FieldError::invalid(&path, name, fault));
        }
        if !seen.insert(name.to_owned()) {
            errors.push(FieldError::duplicate(&path, name));
        }
    }
    seen.into_iter().collect()
}

fn finish<T>(read: T, errors: Errors) -> Result<T, Errors> {
    if errors.is_empty() {
        Ok(read)
    } else {
        Err(errors)
    }
}

impl PodSecurity {
    /// Reads Kubernetes' configuration of pod security. Absent settings keep Muster's defaults; Kubernetes would leave
    /// namespaces without labels unprotected.
    ///
    /// # Errors
    /// Every invalid field.
    pub fn configured(mut self, document: &Value) -> Result<PodSecurity, Vec<FieldError>> {
        let mut errors = Errors::new();
        match json::text(document, &["kind"]) {
            "PodSecurityConfiguration" => self.configuration(document, None, &mut errors),
            "AdmissionConfiguration" => self.plugins(document, &mut errors),
            other => errors.push(FieldError::not_supported(
                "kind",
                other,
                &["PodSecurityConfiguration", "AdmissionConfiguration"],
            )),
        }
        finish(self, errors)
    }

    fn plugins(&mut self, document: &Value, errors: &mut Errors) {
        only(document, &["apiVersion", "kind", "plugins"], None, errors);
        let version = json::text(document, &["apiVersion"]);
        if version != ADMISSION_VERSION {
            errors.push(FieldError::not_supported(
                "apiVersion",
                version,
                &[ADMISSION_VERSION],
            ));
        }
        let path = Path::new("plugins");
        let plugins = list(json::at(document, &["plugins"]), &path, errors);
        if plugins.is_empty() {
            errors.push(FieldError::required(&path, "the plugin PodSecurity"));
        }
        let mut seen = false;
        for (i, plugin) in plugins.iter().enumerate() {
            let path = path.index(i);
            only(plugin, &["name", "configuration"], Some(&path), errors);
            let name = json::text(plugin, &["name"]);
            if name != PLUGIN {
                errors.push(FieldError::not_supported(
                    &path.child("name"),
                    name,
                    &[PLUGIN],
                ));
                continue;
            }
            if seen {
                errors.push(FieldError::duplicate(&path.child("name"), name));
                continue;
            }
            seen = true;
            let inner = json::at(plugin, &["configuration"]);
            let path = path.child("configuration");
            if inner.is_null() {
                let detail = "the PodSecurityConfiguration itself; a path to it is not followed";
                errors.push(FieldError::required(&path, detail));
                continue;
            }
            let kind = json::text(inner, &["kind"]);
            if kind != "PodSecurityConfiguration" {
                errors.push(FieldError::not_supported(
                    &path.child("kind"),
                    kind,
                    &["PodSecurityConfiguration"],
                ));
                continue;
            }
            self.configuration(inner, Some(&path), errors);
        }
    }

    fn configuration(&mut self, document: &Value, at: Option<&Path<'_>>, errors: &mut Errors) {
        let known = ["apiVersion", "kind", "defaults", "exemptions"];
        only(document, &known, at, errors);
        let version = json::text(document, &["apiVersion"]);
        if !CONFIGURATION_VERSIONS.contains(&version) {
            let path = child(at, "apiVersion");
            errors.push(FieldError::not_supported(
                &path,
                version,
                &CONFIGURATION_VERSIONS,
            ));
        }
        let path = child(at, "defaults");
        defaults(
            json::at(document, &["defaults"]),
            &path,
            &mut self.defaults,
            errors,
        );
        let path = child(at, "exemptions");
        let exemptions = json::at(document, &["exemptions"]);
        let known = ["usernames", "runtimeClasses", "namespaces"];
        only(exemptions, &known, Some(&path), errors);
        let mut of = |key: &str, rule: fn(&str) -> Vec<String>| {
            names(json::at(exemptions, &[key]), &path.child(key), rule, errors)
        };
        self.exemptions = Exemptions {
            usernames: of("usernames", |_| Vec::new()),
            runtime_classes: of("runtimeClasses", syntax::dns1123_subdomain),
            namespaces: of("namespaces", syntax::dns1123_label),
        };
    }
}

fn defaults(value: &Value, path: &Path<'_>, policy: &mut NamespaceLevels, errors: &mut Errors) {
    let versions = MODES.map(|mode| format!("{mode}-version"));
    let known: Vec<&str> = MODES
        .into_iter()
        .chain(versions.iter().map(String::as_str))
        .collect();
    only(value, &known, Some(path), errors);
    for (mode, version) in MODES.into_iter().zip(versions.iter().map(String::as_str)) {
        let at = path.child(mode);
        if let Some(word) = text(json::at(value, &[mode]), &at, errors) {
            match PodSecurityLevel::parse(word) {
                Some(level) => policy.mode_mut(mode).level = level,
                None => errors.push(FieldError::invalid(&at, word, LEVELS)),
            }
        }
        let at = path.child(version);
        if let Some(word) = text(json::at(value, &[version]), &at, errors) {
            match StandardsVersion::parse(word) {
                Some(version) => policy.mode_mut(mode).version = version,
                None => errors.push(FieldError::invalid(&at, word, VERSIONS)),
            }
        }
    }
}

impl AllowList {
    /// Reads a PodSecurityAllowList. An absent list keeps its default; an empty list allows nothing.
    ///
    /// # Errors
    /// Every invalid field.
    pub fn read(document: &Value) -> Result<AllowList, Vec<FieldError>> {
        let mut errors = Errors::new();
        only(document, &["apiVersion", "kind", "spec"], None, &mut errors);
        for (key, wanted) in [("apiVersion", ALLOW_LIST_VERSION), ("kind", ALLOW_LIST)] {
            let found = json::text(document, &[key]);
            if found != wanted {
                errors.push(FieldError::not_supported(key, found, &[wanted]));
            }
        }
        let spec = json::at(document, &["spec"]);
        let path = Path::new("spec");
        let known = ["hostPaths", "hostNetwork", "capabilities"];
        only(spec, &known, Some(&path), &mut errors);
        let mut read = AllowList::default();
        if let Some(found) = entries(spec, "hostPaths", &path, host_directory, &mut errors) {
            read.host_paths = found;
        }
        if let Some(found) = entries(spec, "hostNetwork", &path, host_network, &mut errors) {
            read.host_network = Some(found);
        }
        if let Some(found) = entries(spec, "capabilities", &path, capabilities, &mut errors) {
            read.capabilities = found;
        }
        finish(read, errors)
    }
}

/// The entries of a list that is present; reports the unreadable ones.
fn entries<T>(
    spec: &Value,
    key: &str,
    path: &Path<'_>,
    read: impl Fn(&Value, &Path<'_>, &mut Errors) -> Option<T>,
    errors: &mut Errors,
) -> Option<Vec<T>> {
    let value = json::at(spec, &[key]);
    if value.is_null() {
        return None;
    }
    let path = path.child(key);
    let mut all = Vec::new();
    for (i, entry) in list(value, &path, errors).iter().enumerate() {
        all.extend(read(entry, &path.index(i), errors));
    }
    Some(all)
}

fn host_directory(entry: &Value, path: &Path<'_>, errors: &mut Errors) -> Option<HostDirectory> {
    let known = ["path", "readOnly", "namespaces", "namespaceSelector"];
    only(entry, &known, Some(path), errors);
    let namespaces = namespaces(entry, path, errors);
    let at = path.child("readOnly");
    let read_only = match json::at(entry, &["readOnly"]) {
        Value::Bool(read_only) => *read_only,
        Value::Null => {
            errors.push(FieldError::required(&at, "true or false"));
            return None;
        }
        other => {
            let detail = "must be true or false";
            errors.push(FieldError::type_invalid(&at, other.clone(), detail));
            return None;
        }
    };
    let at = path.child("path");
    let Some(given) = text(json::at(entry, &["path"]), &at, errors) else {
        errors.push(FieldError::required(&at, "an absolute path"));
        return None;
    };
    match clean(given) {
        Some(cleaned) if cleaned != "/" => Some(HostDirectory {
            path: cleaned,
            read_only,
            namespaces: namespaces?,
        }),
        _ => {
            let detail = "must be an absolute path below / without '..'; for all of the host label the namespace \
                          pod-security.kubernetes.io/enforce=privileged";
            errors.push(FieldError::invalid(&at, given, detail));
            None
        }
    }
}

fn host_network(entry: &Value, path: &Path<'_>, errors: &mut Errors) -> Option<Namespaces> {
    let known = ["namespaces", "namespaceSelector"];
    only(entry, &known, Some(path), errors);
    namespaces(entry, path, errors)
}

fn capabilities(
    entry: &Value,
    path: &Path<'_>,
    errors: &mut Errors,
) -> Option<AllowedCapabilities> {
    let known = ["add", "namespaces", "namespaceSelector"];
    only(entry, &known, Some(path), errors);
    let at = path.child("add");
    let add = names(json::at(entry, &["add"]), &at, capability, errors);
    if add.is_empty() {
        errors.push(FieldError::required(&at, "names of capabilities"));
    }
    let namespaces = namespaces(entry, path, errors)?;
    Some(AllowedCapabilities { add, namespaces })
}

fn capability(name: &str) -> Vec<String> {
    let letters = |byte: u8| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_';
    if !name.bytes().all(letters) || name.starts_with("CAP_") {
        return vec!["must be a capability's name without CAP_, like IPC_LOCK".to_owned()];
    }
    if name == "ALL" {
        return vec![
            "must be one capability; for all of them label the namespace \
             pod-security.kubernetes.io/enforce=privileged"
                .to_owned(),
        ];
    }
    Vec::new()
}

/// The namespaces that an entry applies to. They are required, so that an omission can't allow something everywhere.
fn namespaces(entry: &Value, path: &Path<'_>, errors: &mut Errors) -> Option<Namespaces> {
    let named = json::at(entry, &["namespaces"]);
    let selector = json::at(entry, &["namespaceSelector"]);
    match (named.is_null(), selector.is_null()) {
        (true, true) => {
            let detail = "a list of namespaces, or namespaceSelector in its place ({} for all)";
            errors.push(FieldError::required(&path.child("namespaces"), detail));
            None
        }
        (false, false) => {
            let detail = "may not be given beside namespaces";
            let at = path.child("namespaceSelector");
            errors.push(FieldError::forbidden(&at, detail));
            None
        }
        (false, true) => {
            let at = path.child("namespaces");
            let found = names(named, &at, syntax::dns1123_label, errors);
            Some(Namespaces::Named(found))
        }
        (true, false) => {
            let at = path.child("namespaceSelector");
            let known = ["matchLabels", "matchExpressions"];
            only(selector, &known, Some(&at), errors);
            let read = serde_json::from_value::<meta::LabelSelector>(selector.clone())
                .map_err(|error| error.to_string());
            let read = read.and_then(|selector| {
                LabelSelector::from_k8s(&selector).map_err(|error| error.to_string())
            });
            match read {
                Ok(selector) => Some(Namespaces::Labelled(selector)),
                Err(why) => {
                    errors.push(FieldError::invalid(&at, selector.clone(), why));
                    None
                }
            }
        }
    }
}

#[cfg(test)]
#[path = "config_tests.rs"]
mod tests;
