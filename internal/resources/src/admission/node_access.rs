//! Owns what a node's certificate may request from the API, as Kubernetes' Node authorizer defines it: its own Node and
//! lease, the pods bound to it, and the objects that these pods refer to, each by name. Returns the condition of a
//! request; the API server knows which pods are bound to which node.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::access::RequestAttributes;
use crate::json;
use crate::names;
use crate::selector::FieldSelector;

/// The kind of an object that a pod refers to in its own namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ReferenceKind {
    /// A Secret.
    Secret,
    /// A ConfigMap.
    ConfigMap,
    /// A PersistentVolumeClaim.
    Claim,
    /// The service account that the pod runs as.
    ServiceAccount,
}

/// An object that a pod refers to.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ReferencedObject {
    /// Its kind.
    pub source: ReferenceKind,
    /// Its name.
    pub name: String,
}

/// The condition under which a node's request is permitted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AccessCondition<'a> {
    /// No condition: the request is permitted.
    Nothing,
    /// The request is never permitted.
    Never,
    /// This pod must be bound to the node.
    Bound {
        /// The pod's namespace.
        namespace: &'a str,
        /// The pod's name.
        pod: &'a str,
    },
    /// A pod of this namespace that is bound to the node and has not ended must refer to this object.
    Referred {
        /// The namespace of both.
        namespace: &'a str,
        /// The object.
        to: ReferencedObject,
    },
}

impl AccessCondition<'_> {
    fn nothing_if(permitted: bool) -> Self {
        if permitted {
            AccessCondition::Nothing
        } else {
            AccessCondition::Never
        }
    }
}

/// The condition for a request of the node. `selector` is the request's field selector, empty if it has none: a list is
/// permitted only if the field selector restricts it.
pub fn need<'a>(
    node: &str,
    request: &RequestAttributes<'a>,
    selector: &str,
) -> AccessCondition<'a> {
    if node.is_empty() {
        return AccessCondition::Never;
    }
    let verb = request.verb;
    let reads = matches!(verb, "get" | "list" | "watch");
    let changes = matches!(verb, "update" | "patch");
    let own = request.name == Some(node);
    match (request.group, request.resource, request.subresource) {
        ("authorization.k8s.io", "selfsubjectaccessreviews" | "selfsubjectrulesreviews", None)
        | ("authentication.k8s.io", "selfsubjectreviews", None) => {
            AccessCondition::nothing_if(verb == "create")
        }
        // The name of a new Node is in the body: `node_restriction` looks at it.
        ("", "nodes", None) => AccessCondition::nothing_if(match verb {
            "create" => true,
            "list" | "watch" => {
                selected(request, selector, "metadata.name").as_deref() == Some(node)
            }
            _ => own && (reads || changes),
        }),
        ("", "nodes", Some("status")) => {
            AccessCondition::nothing_if(own && (verb == "get" || changes))
        }
        ("", "pods", None) => match verb {
            "list" | "watch" if request.name.is_none() => AccessCondition::nothing_if(
                exactly(selector, "spec.nodeName").as_deref() == Some(node),
            ),
            "get" | "watch" | "delete" => bound(request),
            _ => AccessCondition::Never,
        },
        ("", "pods", Some("status")) if verb == "get" || changes => bound(request),
        ("", "pods", Some("eviction")) if verb == "create" => bound(request),
        ("", "secrets", None) if reads => referred(request, selector, ReferenceKind::Secret),
        ("", "configmaps", None) if reads => referred(request, selector, ReferenceKind::ConfigMap),
        ("", "persistentvolumeclaims", None) if verb == "get" => {
            referred(request, selector, ReferenceKind::Claim)
        }
        ("", "serviceaccounts", Some("token")) if verb == "create" => {
            referred(request, selector, ReferenceKind::ServiceAccount)
        }
        ("", "events", None) => AccessCondition::nothing_if(changes || verb == "create"),
        ("", "services", None) | ("node.k8s.io", "runtimeclasses", None) => {
            AccessCondition::nothing_if(reads)
        }
        ("coordination.k8s.io", "leases", None) => AccessCondition::nothing_if(
            request.namespace == Some(names::NODE_LEASES)
                && (verb == "create" || own && (verb == "get" || verb == "delete" || changes)),
        ),
        _ => AccessCondition::Never,
    }
}

fn bound<'a>(request: &RequestAttributes<'a>) -> AccessCondition<'a> {
    match (request.namespace, request.name) {
        (Some(namespace), Some(pod)) => AccessCondition::Bound { namespace, pod },
        _ => AccessCondition::Never,
    }
}

fn referred<'a>(
    request: &RequestAttributes<'a>,
    selector: &str,
    source: ReferenceKind,
) -> AccessCondition<'a> {
    let Some(namespace) = request.namespace else {
        return AccessCondition::Never;
    };
    match selected(request, selector, "metadata.name") {
        Some(name) => AccessCondition::Referred {
            namespace,
            to: ReferencedObject { source, name },
        },
        None => AccessCondition::Never,
    }
}

/// The one name that a request is restricted to: from its path, or from the selector of a list.
fn selected(request: &RequestAttributes<'_>, selector: &str, path: &str) -> Option<String> {
    match request.name {
        Some(name) => Some(name.to_owned()),
        None => exactly(selector, path),
    }
}

fn exactly(selector: &str, path: &str) -> Option<String> {
    let selector = FieldSelector::parse(selector).ok()?;
    selector
        .exact(path)
        .filter(|value| !value.is_empty())
        .map(str::to_owned)
}

/// The volume sources that name a Secret, with the path of the name in each.
const VOLUME_SECRETS: [&[&str]; 10] = [
    &["secret", "secretName"],
    &["azureFile", "secretName"],
    &["cephfs", "secretRef", "name"],
    &["cinder", "secretRef", "name"],
    &["csi", "nodePublishSecretRef", "name"],
    &["flexVolume", "secretRef", "name"],
    &["iscsi", "secretRef", "name"],
    &["rbd", "secretRef", "name"],
    &["scaleIO", "secretRef", "name"],
    &["storageos", "secretRef", "name"],
];

/// Everything that a pod refers to, without repeats.
pub fn references(pod: &Value) -> BTreeSet<ReferencedObject> {
    let mut all = BTreeSet::new();
    let mut add = |source: ReferenceKind, name: &str| {
        if !name.is_empty() {
            let name = name.to_owned();
            all.insert(ReferencedObject { source, name });
        }
    };
    let spec = json::at(pod, &["spec"]);
    add(
        ReferenceKind::ServiceAccount,
        json::text(spec, &["serviceAccountName"]),
    );
    for secret in json::items(spec, &["imagePullSecrets"]) {
        add(ReferenceKind::Secret, json::text(secret, &["name"]));
    }
    for list in ["initContainers", "containers", "ephemeralContainers"] {
        for container in json::items(spec, &[list]) {
            for env in json::items(container, &["env"]) {
                let from = json::at(env, &["valueFrom"]);
                add(
                    ReferenceKind::Secret,
                    json::text(from, &["secretKeyRef", "name"]),
                );
                add(
                    ReferenceKind::ConfigMap,
                    json::text(from, &["configMapKeyRef", "name"]),
                );
            }
            for from in json::items(container, &["envFrom"]) {
                add(
                    ReferenceKind::Secret,
                    json::text(from, &["secretRef", "name"]),
                );
                add(
                    ReferenceKind::ConfigMap,
                    json::text(from, &["configMapRef", "name"]),
                );
            }
        }
    }
    for volume in json::items(spec, &["volumes"]) {
        for path in VOLUME_SECRETS {
            add(ReferenceKind::Secret, json::text(volume, path));
        }
        add(
            ReferenceKind::ConfigMap,
            json::text(volume, &["configMap", "name"]),
        );
        let claim = json::text(volume, &["persistentVolumeClaim", "claimName"]);
        add(ReferenceKind::Claim, claim);
        if json::has(volume, &["ephemeral"]) {
            // The claim that is created for the pod.
            let pod = json::text(pod, &["metadata", "name"]);
            let volume = json::text(volume, &["name"]);
            add(ReferenceKind::Claim, &format!("{pod}-{volume}"));
        }
        for projected in json::items(volume, &["projected", "sources"]) {
            add(
                ReferenceKind::Secret,
                json::text(projected, &["secret", "name"]),
            );
            add(
                ReferenceKind::ConfigMap,
                json::text(projected, &["configMap", "name"]),
            );
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// `verb group/resource[/subresource] [@namespace] [#name] [?selector]`
    fn asked(text: &str) -> String {
        let mut words = text.split(' ');
        let verb = words.next().unwrap();
        let mut parts = words.next().unwrap().split('/');
        let mut request = RequestAttributes {
            verb,
            group: parts.next().unwrap(),
            resource: parts.next().unwrap(),
            subresource: parts.next(),
            ..RequestAttributes::default()
        };
        let mut selector = "";
        for word in words {
            match word.split_at(1) {
                ("@", namespace) => request.namespace = Some(namespace),
                ("?", given) => selector = given,
                (_, name) => request.name = Some(name),
            }
        }
        match need("n1", &request, selector) {
            AccessCondition::Nothing => "yes".to_owned(),
            AccessCondition::Never => "no".to_owned(),
            AccessCondition::Bound { namespace, pod } => format!("bound {namespace}/{pod}"),
            AccessCondition::Referred { namespace, to } => {
                format!("{:?} {namespace}/{}", to.source, to.name)
            }
        }
    }

    #[test]
    fn a_node_keeps_to_itself_its_pods_and_what_they_refer_to() {
        let table = [
            ("create /nodes", "yes"),
            ("get /nodes #n1", "yes"),
            ("get /nodes #n2", "no"),
            ("list /nodes", "no"),
            ("list /nodes ?metadata.name=n1", "yes"),
            ("watch /nodes ?metadata.name=n2", "no"),
            ("patch /nodes #n1", "yes"),
            ("patch /nodes #n2", "no"),
            ("delete /nodes #n1", "no"),
            ("patch /nodes/status #n1", "yes"),
            ("patch /nodes/status #n2", "no"),
            ("list /pods", "no"),
            ("list /pods @a", "no"),
            ("watch /pods ?spec.nodeName=n1", "yes"),
            ("list /pods ?spec.nodeName=n1,status.phase!=Failed", "yes"),
            ("list /pods ?spec.nodeName=n2", "no"),
            ("list /pods ?spec.nodeName!=n1", "no"),
            ("get /pods @a #p", "bound a/p"),
            ("watch /pods @a #p ?spec.nodeName=n1", "bound a/p"),
            ("delete /pods @a #p", "bound a/p"),
            ("deletecollection /pods @a ?spec.nodeName=n1", "no"),
            ("create /pods @a", "no"),
            ("update /pods @a #p", "no"),
            ("patch /pods/status @a #p", "bound a/p"),
            ("create /pods/eviction @a #p", "bound a/p"),
            ("create /pods/binding @a #p", "no"),
            ("get /pods/log @a #p", "no"),
            ("get /secrets @a #s", "Secret a/s"),
            ("list /secrets @a", "no"),
            ("list /secrets @a ?metadata.name=s", "Secret a/s"),
            ("watch /secrets ?metadata.name=s", "no"),
            ("update /secrets @a #s", "no"),
            ("get /configmaps @a #c", "ConfigMap a/c"),
            ("create /configmaps @a", "no"),
            ("get /persistentvolumeclaims @a #c", "Claim a/c"),
            ("list /persistentvolumeclaims @a ?metadata.name=c", "no"),
            ("create /serviceaccounts/token @a #x", "ServiceAccount a/x"),
            ("get /serviceaccounts @a #x", "no"),
            ("create /events @a", "yes"),
            ("list /events @a", "no"),
            ("list /services", "yes"),
            ("delete /services @a #s", "no"),
            ("get node.k8s.io/runtimeclasses #r", "yes"),
            ("list /namespaces", "no"),
            ("create coordination.k8s.io/leases @kube-node-lease", "yes"),
            (
                "update coordination.k8s.io/leases @kube-node-lease #n1",
                "yes",
            ),
            (
                "update coordination.k8s.io/leases @kube-node-lease #n2",
                "no",
            ),
            ("update coordination.k8s.io/leases @kube-system #n1", "no"),
            ("create kubeflow.org/pytorchjobs @a", "no"),
            (
                "create authorization.k8s.io/selfsubjectaccessreviews",
                "yes",
            ),
            ("create authentication.k8s.io/tokenreviews", "no"),
        ];
        for (text, want) in table {
            assert_eq!(asked(text), want, "{text}");
        }
    }

    #[test]
    fn a_node_without_a_name_may_do_nothing() {
        let request = RequestAttributes {
            verb: "list",
            resource: "pods",
            ..RequestAttributes::default()
        };
        assert_eq!(need("", &request, "spec.nodeName="), AccessCondition::Never);
        assert_eq!(
            need("n1", &request, "spec.nodeName="),
            AccessCondition::Never
        );
    }

    #[test]
    fn every_way_in_which_a_pod_refers_to_an_object_is_found() {
        let pod = json!({"metadata": {"name": "p"}, "spec": {
            "serviceAccountName": "account",
            "imagePullSecrets": [{"name": "s1"}],
            "initContainers": [{"env": [{"valueFrom": {"secretKeyRef": {"name": "s2"}}}]}],
            "containers": [{
                "env": [{"name": "A", "value": "none"}, {"valueFrom": {"configMapKeyRef": {"name": "c1"}}}],
                "envFrom": [{"secretRef": {"name": "s3"}}, {"configMapRef": {"name": "c2"}}],
            }],
            "ephemeralContainers": [{"envFrom": [{"secretRef": {"name": "s4"}}]}],
            "volumes": [
                {"secret": {"secretName": "s5"}},
                {"configMap": {"name": "c3"}},
                {"persistentVolumeClaim": {"claimName": "v1"}},
                {"name": "own", "ephemeral": {}},
                {"projected": {"sources": [{"secret": {"name": "s6"}}, {"configMap": {"name": "c4"}}]}},
                {"rbd": {"secretRef": {"name": "s7"}}},
                {"emptyDir": {}},
            ],
        }});
        let of = |source: ReferenceKind| -> Vec<String> {
            let all = references(&pod).into_iter();
            all.filter(|one| one.source == source)
                .map(|one| one.name)
                .collect()
        };
        assert_eq!(
            of(ReferenceKind::Secret),
            ["s1", "s2", "s3", "s4", "s5", "s6", "s7"]
        );
        assert_eq!(of(ReferenceKind::ConfigMap), ["c1", "c2", "c3", "c4"]);
        assert_eq!(of(ReferenceKind::Claim), ["p-own", "v1"]);
        assert_eq!(of(ReferenceKind::ServiceAccount), ["account"]);
        assert_eq!(references(&json!({"spec": [7]})), BTreeSet::new());
    }
}
