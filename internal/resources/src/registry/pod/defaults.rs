//! The defaults that kube-apiserver sets in a pod. Images are optional in Muster (a container without one runs its
//! command on the host), so only a container with an image gets a pull policy.

use serde_json::{Value, json};

use crate::json;

/// Seconds that a pod stays on an unreachable node, as in Kubernetes' DefaultTolerationSeconds.
const TOLERATION_SECONDS: i64 = 300;
const GRACE_SECONDS: i64 = 30;
/// 0644 in octal.
const FILE_MODE: i64 = 420;
const SERVICE_ACCOUNT_TOKEN_SECONDS: i64 = 3600;

/// Sets the defaults of a pod.
pub(super) fn pod(pod: &mut Value) {
    let Some(spec) = json::object(pod, "spec") else {
        return;
    };
    pod_spec(spec);
    let host_network = json::truth(spec, &["hostNetwork"]);
    for list in ["containers", "initContainers"] {
        for container in json::list(spec, list) {
            requests_from_limits(container);
            if host_network {
                for port in json::list(container, "ports") {
                    let number = json::at(port, &["containerPort"]).clone();
                    if json::int(port, &["hostPort"]).unwrap_or(0) == 0 && !number.is_null() {
                        port["hostPort"] = number;
                    }
                }
            }
        }
    }
    json::fill(spec, "enableServiceLinks", true);
    tolerations(spec);
}

/// Sets the defaults of a pod spec, also in a template.
pub(super) fn pod_spec(spec: &mut Value) {
    json::fill_text(spec, "dnsPolicy", "ClusterFirst");
    json::fill_text(spec, "restartPolicy", "Always");
    json::fill(spec, "securityContext", json!({}));
    json::fill(spec, "terminationGracePeriodSeconds", GRACE_SECONDS);
    json::fill_text(spec, "schedulerName", "default-scheduler");
    // `serviceAccount` is the older name of the field; a value under either name is stored under both.
    let old_account = json::text(spec, &["serviceAccount"]).to_owned();
    let account = json::text(spec, &["serviceAccountName"]).to_owned();
    if account.is_empty() && !old_account.is_empty() {
        json::fill_text(spec, "serviceAccountName", &old_account);
    } else if !account.is_empty() && old_account.is_empty() {
        json::fill_text(spec, "serviceAccount", &account);
    }
    for list in ["containers", "initContainers", "ephemeralContainers"] {
        for one in json::list(spec, list) {
            container(one);
        }
    }
    for one in json::list(spec, "volumes") {
        volume(one);
    }
    json::canonical_quantities(spec, "overhead");
    if let Some(resources) = json::child(spec, "resources") {
        json::canonical_quantities(resources, "limits");
        json::canonical_quantities(resources, "requests");
    }
}

fn container(container: &mut Value) {
    if !container.is_object() {
        return;
    }
    let image = json::text(container, &["image"]);
    if !image.is_empty() {
        let policy = if tag_is_latest(image) {
            "Always"
        } else {
            "IfNotPresent"
        };
        json::fill_text(container, "imagePullPolicy", policy);
    }
    json::fill_text(container, "terminationMessagePath", "/dev/termination-log");
    json::fill_text(container, "terminationMessagePolicy", "File");
    json::fill(container, "resources", json!({}));
    if let Some(resources) = json::child(container, "resources") {
        json::canonical_quantities(resources, "limits");
        json::canonical_quantities(resources, "requests");
    }
    for port in json::list(container, "ports") {
        json::fill_text(port, "protocol", "TCP");
    }
    for env in json::list(container, "env") {
        if let Some(from) = json::child(env, "valueFrom") {
            downward(from);
        }
    }
    for key in ["livenessProbe", "readinessProbe", "startupProbe"] {
        if let Some(one) = json::child(container, key) {
            probe(one);
        }
    }
    if let Some(lifecycle) = json::child(container, "lifecycle") {
        for key in ["postStart", "preStop"] {
            if let Some(get) =
                json::child(lifecycle, key).and_then(|hook| json::child(hook, "httpGet"))
            {
                http_get(get);
            }
        }
    }
}

fn downward(source: &mut Value) {
    if let Some(field) = json::child(source, "fieldRef") {
        json::fill_text(field, "apiVersion", "v1");
    }
    if let Some(resource) = json::child(source, "resourceFieldRef") {
        json::fill_text(resource, "divisor", "0");
        if let Some(divisor) = resource.get_mut("divisor") {
            json::canonical_quantity(divisor);
        }
    }
}

fn probe(probe: &mut Value) {
    for (key, value) in [
        ("timeoutSeconds", 1),
        ("periodSeconds", 10),
        ("successThreshold", 1),
        ("failureThreshold", 3),
    ] {
        json::fill_number(probe, key, value);
    }
    if let Some(get) = json::child(probe, "httpGet") {
        http_get(get);
    }
    if let Some(grpc) = json::child(probe, "grpc") {
        json::fill(grpc, "service", "");
    }
}

fn http_get(get: &mut Value) {
    json::fill_text(get, "path", "/");
    json::fill_text(get, "scheme", "HTTP");
}

fn volume(volume: &mut Value) {
    let has_source = volume.as_object().is_none_or(|map| {
        map.iter()
            .any(|(key, value)| key != "name" && !value.is_null())
    });
    if !has_source {
        json::fill(volume, "emptyDir", json!({}));
    }
    for key in ["secret", "configMap", "downwardAPI", "projected"] {
        if let Some(source) = json::child(volume, key) {
            json::fill(source, "defaultMode", FILE_MODE);
            if key == "downwardAPI" {
                json::list(source, "items").for_each(downward);
            }
        }
    }
    if let Some(path) = json::child(volume, "hostPath") {
        json::fill(path, "type", "");
    }
    if let Some(limit) = json::child(volume, "emptyDir").and_then(|dir| dir.get_mut("sizeLimit")) {
        json::canonical_quantity(limit);
    }
    if let Some(projected) = json::child(volume, "projected") {
        for source in json::list(projected, "sources") {
            if let Some(token) = json::child(source, "serviceAccountToken") {
                json::fill(token, "expirationSeconds", SERVICE_ACCOUNT_TOKEN_SECONDS);
            }
            if let Some(api) = json::child(source, "downwardAPI") {
                json::list(api, "items").for_each(downward);
            }
        }
    }
}

fn requests_from_limits(container: &mut Value) {
    let Some(resources) = json::child(container, "resources") else {
        return;
    };
    let limits: Vec<(String, Value)> = json::members(resources, &["limits"])
        .map(|(k, v)| (k.clone(), v.clone()))
        .collect();
    if limits.is_empty() {
        return;
    }
    if let Some(requests) = json::object(resources, "requests") {
        for (name, limit) in limits {
            json::fill(requests, &name, limit);
        }
    }
}

fn tolerations(spec: &mut Value) {
    let tolerated = |key: &str| {
        json::items(spec, &["tolerations"]).iter().any(|t| {
            let (k, effect) = (json::text(t, &["key"]), json::text(t, &["effect"]));
            (k == key || k.is_empty()) && (effect == "NoExecute" || effect.is_empty())
        })
    };
    let missing: Vec<Value> = ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"]
        .into_iter()
        .filter(|key| !tolerated(key))
        .map(|key| {
            json!({ "key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": TOLERATION_SECONDS })
        })
        .collect();
    if missing.is_empty() {
        return;
    }
    json::fill(spec, "tolerations", json!([]));
    if let Some(list) = spec.get_mut("tolerations").and_then(Value::as_array_mut) {
        list.extend(missing);
    }
}

/// True if an image's name means `latest`: it has no tag and no digest.
fn tag_is_latest(image: &str) -> bool {
    let (name, digest) = image
        .split_once('@')
        .map_or((image, false), |(name, _)| (name, true));
    let last = name.rsplit('/').next().unwrap_or(name);
    match last.split_once(':') {
        Some((_, tag)) => tag == "latest",
        None => !digest,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_without_tag_or_digest_means_latest() {
        let table = [
            ("busybox", true),
            ("busybox:latest", true),
            ("busybox:1.36", false),
            ("registry:5000/busybox", true),
            ("registry:5000/busybox:1", false),
            ("busybox@sha256:0123", false),
        ];
        for (image, latest) in table {
            assert_eq!(tag_is_latest(image), latest, "{image}");
        }
    }
}
