//! The requests of the matrix, the objects that they are for, and the judgement of an answer.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use http_body_util::BodyExt;
use serde_json::json;
use tower::ServiceExt;

use super::callers::Is;
use super::routes::{ON_OBJECTS, Route};
use super::{NAME, NODE, OTHERS, TEAM};
use crate::harness::{Api, request};

/// Two teams' namespaces, and in the first one a pod on the node that refers to one object of each
/// kind.
pub(super) async fn with_a_pod_on_the_node() -> Api {
    let api = Api::new();
    for name in [TEAM, OTHERS] {
        let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        api.post("/api/v1/namespaces", &object).await.is(201);
    }
    api.server.set_usage_source(Arc::new(|_| None));
    let at = |plural: &str| format!("/api/v1/namespaces/{TEAM}/{plural}");
    let plain = |kind: &str| json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": NAME}});
    for (plural, kind) in [
        ("secrets", "Secret"),
        ("configmaps", "ConfigMap"),
        ("serviceaccounts", "ServiceAccount"),
    ] {
        api.post(&at(plural), &plain(kind)).await.is(201);
    }
    let mut pod = plain("Pod");
    pod["spec"] = json!({
        "nodeName": NODE, "serviceAccountName": NAME,
        "containers": [{
            "name": "main", "command": ["true"],
            "envFrom": [{"configMapRef": {"name": NAME}}, {"secretRef": {"name": NAME}}],
        }],
        "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": NAME}}],
    });
    api.post(&at("pods"), &pod).await.is(201);
    api
}

/// One request, to be sent by every caller.
pub(super) struct Ask {
    resource: String,
    verb: &'static str,
    namespace: Option<&'static str>,
    method: &'static str,
    path: String,
    media: &'static str,
    body: String,
}

impl Ask {
    pub(super) async fn of(
        api: &Api,
        route: &Route,
        verb: &'static str,
        namespace: Option<&'static str>,
    ) -> Ask {
        let named = route.subresource.is_some() || ON_OBJECTS.contains(&verb);
        let path = route.path(namespace, named);
        let object = "application/json";
        let (method, query, media) = match verb {
            "get" | "list" => ("GET", "", ""),
            "watch" => ("GET", "?watch=1", ""),
            "create" => ("POST", "?dryRun=All", object),
            "update" => ("PUT", "?dryRun=All", object),
            "patch" => ("PATCH", "?dryRun=All", "application/merge-patch+json"),
            _ => ("DELETE", "?dryRun=All", ""),
        };
        let name = match (route.plural.as_str(), verb) {
            ("namespaces", "create") => "new",
            _ => route.object_name(namespace),
        };
        let new = || {
            let mut object = json!({"metadata": {"name": name}});
            if matches!(route.resource().as_str(), "bindings" | "pods/binding") {
                object["target"] = json!({"name": NODE});
            }
            object.to_string()
        };
        let body = match verb {
            "create" if route.subresource.as_deref() == Some("token") => "{}".to_owned(),
            "create" => new(),
            // An existing object replaces itself.
            "update" => match api.get(&path).await {
                live if live.status == 200 => live.text,
                _ => new(),
            },
            "patch" => "{}".to_owned(),
            _ => String::new(),
        };
        Ask {
            resource: route.resource(),
            verb,
            namespace,
            method,
            path: format!("{path}{query}"),
            media,
            body,
        }
    }

    fn request(&self) -> Request<Body> {
        request(self.method, &self.path, self.media, self.body.clone())
    }

    /// The problem with a caller's response.
    pub(super) async fn wrong(&self, who: &str, is: Is, router: &Router) -> Option<String> {
        let response = router.clone().oneshot(self.request()).await.unwrap();
        let code = response.status().as_u16();
        let (right, want) = match is {
            Is::Nobody => (code == 401, "401"),
            _ if is.may(&self.resource, self.verb, self.namespace) => {
                // No agent exists to read a log from, or to reach a program in a pod.
                let of_agent = ["pods/log", "pods/proxy", "services/proxy"];
                let no_agent = code == 503 && of_agent.contains(&self.resource.as_str());
                let carried_out = !matches!(code, 401 | 403) && code < 500;
                (carried_out || no_agent, "permitted")
            }
            _ => (code == 403, "403"),
        };
        if right {
            return None;
        }
        let text = match code {
            // A watch has no end.
            200 => String::new(),
            _ => {
                let bytes = response.into_body().collect().await.unwrap().to_bytes();
                String::from_utf8_lossy(&bytes).into_owned()
            }
        };
        let (verb, resource) = (self.verb, &self.resource);
        let place = self.namespace.unwrap_or("the cluster");
        Some(format!(
            "{who}, {verb} {resource} in {place} ({} {}): {code} in place of {want} {text}",
            self.method, self.path
        ))
    }
}
