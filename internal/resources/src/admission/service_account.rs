//! A pod's service account, as Kubernetes' ServiceAccount admission sets it: the account's name, and the volume with
//! which the pod's containers reach the API (a token of the account, the authority's certificate, the namespace).

use k8s_openapi::api::core::v1::ServiceAccount;
use serde_json::{Value, json};

use crate::json;
use crate::names::{API_ACCESS_PATH, ROOT_CA_CONFIG_MAP};

/// The account of a pod that names none.
pub const DEFAULT_ACCOUNT: &str = "default";
/// The names of the volumes begin so; a pod that brings such a volume keeps it.
const VOLUME_PREFIX: &str = "kube-api-access-";
/// How long a token lives, in seconds: an hour and some seconds, as in Kubernetes, where this number marks tokens that
/// admission asked for.
const TOKEN_SECONDS: i64 = 3607;
/// The mode of the volume's files: 0644.
const FILE_MODE: i64 = 420;

/// The pod's service account: what it names, else the default one.
pub fn account_name(pod: &Value) -> &str {
    let named = json::text(pod, &["spec", "serviceAccountName"]);
    if named.is_empty() {
        DEFAULT_ACCOUNT
    } else {
        named
    }
}

/// Names the account in a new pod, takes over the account's pull secrets if the pod has none, and adds the volume with
/// its mounts unless pod or account decline them (`automountServiceAccountToken`). `suffix` ends the volume's name.
pub fn service_account(pod: &mut Value, account: &ServiceAccount, suffix: &str) {
    let name = account_name(pod).to_owned();
    let Some(spec) = json::child(pod, "spec") else {
        return;
    };
    json::fill_text(spec, "serviceAccountName", &name);
    json::fill_text(spec, "serviceAccount", &name);
    if json::items(spec, &["imagePullSecrets"]).is_empty()
        && let Some(secrets) = account
            .image_pull_secrets
            .as_ref()
            .filter(|secrets| !secrets.is_empty())
        && let (Some(spec), Ok(secrets)) = (spec.as_object_mut(), serde_json::to_value(secrets))
    {
        spec.insert("imagePullSecrets".to_owned(), secrets);
    }
    let wanted = json::at(spec, &["automountServiceAccountToken"])
        .as_bool()
        .or(account.automount_service_account_token)
        .unwrap_or(true);
    if wanted {
        mount_access(spec, suffix);
    }
}

/// Mounts the volume in every container that has nothing else at its place.
fn mount_access(spec: &mut Value, suffix: &str) {
    let brought = json::items(spec, &["volumes"])
        .iter()
        .map(|volume| json::text(volume, &["name"]))
        .find(|name| name.starts_with(VOLUME_PREFIX))
        .map(str::to_owned);
    let volume = brought
        .clone()
        .unwrap_or_else(|| format!("{VOLUME_PREFIX}{suffix}"));
    let mut mounted = false;
    for list in ["initContainers", "containers"] {
        for container in json::list(spec, list) {
            let taken = json::items(container, &["volumeMounts"])
                .iter()
                .any(|mount| json::text(mount, &["mountPath"]) == API_ACCESS_PATH);
            if taken {
                continue;
            }
            let mount = json!({"name": volume, "readOnly": true, "mountPath": API_ACCESS_PATH});
            mounted |= append(container, "volumeMounts", mount);
        }
    }
    if mounted && brought.is_none() {
        append(spec, "volumes", access_volume(&volume));
    }
}

fn access_volume(name: &str) -> Value {
    json!({
        "name": name,
        "projected": {
            "defaultMode": FILE_MODE,
            "sources": [
                {"serviceAccountToken": {"expirationSeconds": TOKEN_SECONDS, "path": "token"}},
                {"configMap": {
                    "name": ROOT_CA_CONFIG_MAP,
                    "items": [{"key": "ca.crt", "path": "ca.crt"}],
                }},
                {"downwardAPI": {"items": [{
                    "path": "namespace",
                    "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"},
                }]}},
            ],
        },
    })
}

/// Appends an item to a list, which is created if absent; false if the member is something else, which validation
/// reports.
fn append(value: &mut Value, key: &str, item: Value) -> bool {
    let Some(map) = value.as_object_mut() else {
        return false;
    };
    let list = map.entry(key).or_insert(Value::Null);
    if list.is_null() {
        *list = Value::Array(Vec::new());
    }
    let Some(items) = list.as_array_mut() else {
        return false;
    };
    items.push(item);
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn account(json: Value) -> ServiceAccount {
        serde_json::from_value(json).unwrap()
    }

    fn admitted(pod: Value, of: Value) -> Value {
        let mut pod = pod;
        service_account(&mut pod, &account(of), "abcde");
        pod
    }

    fn mounts(pod: &Value) -> Vec<String> {
        ["initContainers", "containers"]
            .into_iter()
            .flat_map(|list| json::items(pod, &["spec", list]))
            .flat_map(|container| json::items(container, &["volumeMounts"]))
            .map(|mount| {
                format!(
                    "{} {}",
                    json::text(mount, &["name"]),
                    json::text(mount, &["mountPath"])
                )
            })
            .collect()
    }

    #[test]
    fn every_container_gets_the_volume_once() {
        let pod = json!({"spec": {
            "initContainers": [{"name": "i"}],
            "containers": [{"name": "a"}, {"name": "b", "volumeMounts": [{"name": "x", "mountPath": "/x"}]}],
        }});
        let pod = admitted(pod, json!({}));
        let mount = format!("kube-api-access-abcde {API_ACCESS_PATH}");
        assert_eq!(mounts(&pod), [&mount, &mount, "x /x", &mount]);
        assert_eq!(json::items(&pod, &["spec", "volumes"]).len(), 1);
        assert_eq!(
            json::text(&pod, &["spec", "serviceAccountName"]),
            DEFAULT_ACCOUNT
        );
        assert_eq!(
            json::text(&pod, &["spec", "serviceAccount"]),
            DEFAULT_ACCOUNT
        );
        let again = admitted(pod.clone(), json!({}));
        assert_eq!(again, pod);
    }

    #[test]
    fn the_pod_decides_before_the_account() {
        let pod = |word: Value| json!({"spec": {"automountServiceAccountToken": word, "containers": [{"name": "a"}]}});
        for (of_pod, of_account, volumes) in [
            (json!(null), json!({}), 1),
            (
                json!(null),
                json!({"automountServiceAccountToken": false}),
                0,
            ),
            (
                json!(true),
                json!({"automountServiceAccountToken": false}),
                1,
            ),
            (json!(false), json!({}), 0),
            (
                json!(false),
                json!({"automountServiceAccountToken": true}),
                0,
            ),
        ] {
            let admitted = admitted(pod(of_pod.clone()), of_account.clone());
            let found = json::items(&admitted, &["spec", "volumes"]).len();
            assert_eq!(found, volumes, "{of_pod} {of_account}");
        }
    }

    #[test]
    fn a_mount_at_the_place_and_a_volume_of_the_name_are_kept() {
        let own = json!({"spec": {"containers": [
            {"name": "a", "volumeMounts": [{"name": "own", "mountPath": API_ACCESS_PATH}]},
        ]}});
        let pod = admitted(own, json!({}));
        assert_eq!(mounts(&pod), [format!("own {API_ACCESS_PATH}")]);
        assert!(json::items(&pod, &["spec", "volumes"]).is_empty());
        let brought = json!({"spec": {
            "containers": [{"name": "a"}],
            "volumes": [{"name": "kube-api-access-mine", "emptyDir": {}}],
        }});
        let pod = admitted(brought, json!({}));
        assert_eq!(
            mounts(&pod),
            [format!("kube-api-access-mine {API_ACCESS_PATH}")]
        );
        assert_eq!(json::items(&pod, &["spec", "volumes"]).len(), 1);
    }

    #[test]
    fn pull_secrets_come_from_the_account_if_the_pod_has_none() {
        let of = json!({"imagePullSecrets": [{"name": "registry"}]});
        let pod = admitted(
            json!({"spec": {"serviceAccountName": "ci", "containers": []}}),
            of.clone(),
        );
        assert_eq!(
            json::at(&pod, &["spec", "imagePullSecrets"]),
            &json!([{"name": "registry"}])
        );
        assert_eq!(json::text(&pod, &["spec", "serviceAccount"]), "ci");
        let own = json!({"spec": {"imagePullSecrets": [{"name": "own"}], "containers": []}});
        let pod = admitted(own, of);
        assert_eq!(
            json::at(&pod, &["spec", "imagePullSecrets"]),
            &json!([{"name": "own"}])
        );
    }

    #[test]
    fn odd_shapes_are_left_for_validation() {
        for pod in [
            json!({}),
            json!({"spec": 1}),
            json!({"spec": {"containers": 1, "volumes": {}}}),
            json!({"spec": {"containers": ["x", {"volumeMounts": "y"}]}}),
        ] {
            let _ = admitted(pod, json!({}));
        }
    }
}
