//! Owns the parsing of API paths: text to a [`RequestTarget`]. Does not look up resources or decide verbs.

use std::borrow::Cow;

use percent_encoding::percent_decode_str;

/// The target of a request path.
#[derive(Debug, PartialEq)]
pub enum RequestTarget {
    /// `/api`: the legacy group's versions.
    LegacyVersions,
    /// `/apis`: the list of named groups.
    Groups,
    /// `/apis/GROUP`.
    Group(String),
    /// `/api/v1` or `/apis/GROUP/VERSION`.
    Resources {
        /// Empty for the core group.
        group: String,
        /// Such as `v1`.
        version: String,
    },
    /// A resource, or one of its objects, or a subresource of one.
    Resource(ResourcePath),
    /// An unknown path.
    Unknown,
}

/// The parts of a path below a group and version.
#[derive(Debug, Default, PartialEq)]
pub struct ResourcePath {
    /// Empty for the core group.
    pub group: String,
    /// Such as `v1`.
    pub version: String,
    /// The namespace, if the path has one.
    pub namespace: Option<String>,
    /// The plural name.
    pub resource: String,
    /// The object's name; none for a collection.
    pub name: Option<String>,
    /// The part after the name, such as `status`.
    pub subresource: Option<String>,
}

/// Reads a URI's path.
pub fn parse(path: &str) -> RequestTarget {
    let mut parts = path.trim_matches('/').split('/').map(decode);
    let first = parts.next();
    let rest: Vec<Cow<'_, str>> = parts.collect();
    match first.as_deref() {
        Some("api") => match rest.split_first() {
            None => RequestTarget::LegacyVersions,
            Some((version, rest)) => below_version("", version, rest),
        },
        Some("apis") => match rest.as_slice() {
            [] => RequestTarget::Groups,
            [group] => RequestTarget::Group(group.to_string()),
            [group, version, rest @ ..] => below_version(group, version, rest),
        },
        _ => RequestTarget::Unknown,
    }
}

fn below_version(group: &str, version: &str, rest: &[Cow<'_, str>]) -> RequestTarget {
    let (group, version) = (group.to_string(), version.to_string());
    let (namespace, rest) = match rest {
        [] => return RequestTarget::Resources { group, version },
        // `/namespaces/NAME` is the Namespace itself, and so are its two subresources.
        [scope, _] if scope == "namespaces" => (None, rest),
        [scope, _, sub] if scope == "namespaces" && (sub == "status" || sub == "finalize") => {
            (None, rest)
        }
        [scope, namespace, rest @ ..] if scope == "namespaces" => {
            (Some(namespace.to_string()), rest)
        }
        _ => (None, rest),
    };
    let (resource, name, subresource) = match rest {
        // What follows is the path of a program in a pod.
        [resource, name, sub, ..] if sub == "proxy" => {
            (resource, Some(name.to_string()), Some(sub.to_string()))
        }
        [resource] => (resource, None, None),
        [resource, name] => (resource, Some(name.to_string()), None),
        [resource, name, sub] => (resource, Some(name.to_string()), Some(sub.to_string())),
        _ => return RequestTarget::Unknown,
    };
    if resource.is_empty() || name.as_deref() == Some("") {
        return RequestTarget::Unknown;
    }
    let resource = resource.to_string();
    RequestTarget::Resource(ResourcePath {
        group,
        version,
        namespace,
        resource,
        name,
        subresource,
    })
}

/// Percent-decodes one segment; a malformed escape stays unchanged, and then matches nothing.
pub fn decode(text: &str) -> Cow<'_, str> {
    percent_decode_str(text).decode_utf8_lossy()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resource(text: &str) -> ResourcePath {
        match parse(text) {
            RequestTarget::Resource(path) => path,
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn paths_have_kubernetes_targets() {
        assert_eq!(parse("/api"), RequestTarget::LegacyVersions);
        assert_eq!(parse("/apis/"), RequestTarget::Groups);
        assert_eq!(parse("/apis/batch"), RequestTarget::Group("batch".into()));
        assert_eq!(
            parse("/apis/batch/v1"),
            RequestTarget::Resources {
                group: "batch".into(),
                version: "v1".into()
            }
        );
        assert_eq!(parse("/nothing"), RequestTarget::Unknown);
        assert_eq!(
            parse("/api/v1/namespaces/a/pods/b/log/more"),
            RequestTarget::Unknown
        );

        let pod = resource("/api/v1/namespaces/a/pods/b/log");
        assert_eq!(
            (
                pod.namespace.as_deref(),
                pod.resource.as_str(),
                pod.name.as_deref(),
                pod.subresource.as_deref()
            ),
            (Some("a"), "pods", Some("b"), Some("log"))
        );
        let all = resource("/api/v1/pods");
        assert_eq!((all.namespace, all.name), (None, None));
        let namespace = resource("/api/v1/namespaces/a");
        assert_eq!(
            (namespace.resource.as_str(), namespace.name.as_deref()),
            ("namespaces", Some("a"))
        );
        let finalize = resource("/api/v1/namespaces/a/finalize");
        assert_eq!(finalize.subresource.as_deref(), Some("finalize"));
        let listed = resource("/api/v1/namespaces/a/pods");
        assert_eq!(
            (listed.namespace.as_deref(), listed.name),
            (Some("a"), None)
        );
    }

    #[test]
    fn a_proxied_path_is_its_objects() {
        for more in ["", "/", "/x%2Fy//z/", "/namespaces/b"] {
            let found = resource(&format!("/api/v1/namespaces/a/services/web:80/proxy{more}"));
            assert_eq!(found.subresource.as_deref(), Some("proxy"), "{more}");
            assert_eq!(found.name.as_deref(), Some("web:80"), "{more}");
            assert_eq!(found.namespace.as_deref(), Some("a"), "{more}");
        }
    }

    #[test]
    fn escaped_names_are_decoded_and_bad_escapes_are_left_alone() {
        assert_eq!(resource("/api/v1/nodes/a%3Ab").name.as_deref(), Some("a:b"));
        for (text, wanted) in [
            ("plain", "plain"),
            ("a%2fb%2Fc", "a/b/c"),
            ("%C3%A9", "é"),
            ("%C3", "\u{fffd}"),
            ("100%zz%4", "100%zz%4"),
            ("%+1%-1%é", "%+1%-1%é"),
            ("%2541", "%41"),
        ] {
            assert_eq!(decode(text), wanted, "{text}");
        }
    }
}
