//! ResourceQuota: enforced in the transaction that writes.

use serde_json::{Value, json};

use crate::harness::{Api, CONFIG_MAPS, PODS, config_map, pod};

const QUOTAS: &str = "/api/v1/namespaces/default/resourcequotas";

fn quota(hard: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q"}, "spec": {"hard": hard}})
}

async fn used(api: &Api) -> Value {
    api.get(&format!("{QUOTAS}/q")).await.is(200)["status"]["used"].clone()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn sixty_four_creates_at_once_against_a_quota_of_ten_make_exactly_ten() {
    let api = Api::new();
    api.post(QUOTAS, &quota(json!({"pods": "10"})))
        .await
        .is(201);
    let creations = (0..64).map(|index| {
        let api = &api;
        async move {
            api.post(PODS, &pod(&format!("p{index}")))
                .await
                .status
                .as_u16()
        }
    });
    let codes = futures::future::join_all(creations).await;
    assert_eq!(codes.iter().filter(|code| **code == 201).count(), 10);
    assert_eq!(codes.iter().filter(|code| **code == 403).count(), 54);
    assert_eq!(used(&api).await, json!({"pods": "10"}));
}

#[tokio::test]
async fn a_full_quota_is_reported_with_kubernetes_text() {
    let api = Api::new();
    api.post(QUOTAS, &quota(json!({"pods": "1"}))).await.is(201);
    api.post(PODS, &pod("a")).await.is(201);
    let message = api.post(PODS, &pod("b")).await.refused(403, "Forbidden");
    assert_eq!(
        message,
        "pods \"b\" is forbidden: exceeded quota: q, requested: pods=1, used: pods=1, limited: pods=1"
    );
    let message = api
        .post(&format!("{PODS}?dryRun=All"), &pod("b"))
        .await
        .refused(403, "Forbidden");
    assert!(message.contains("exceeded quota"), "{message}");
}

#[tokio::test]
async fn what_is_deleted_or_has_ended_gives_its_share_back() {
    let api = Api::new();
    api.post(
        QUOTAS,
        &quota(json!({"pods": "2", "count/configmaps": "1"})),
    )
    .await
    .is(201);
    api.post(PODS, &pod("a")).await.is(201);
    api.post(PODS, &pod("b")).await.is(201);
    api.post(PODS, &pod("c")).await.refused(403, "Forbidden");
    api.delete(&format!("{PODS}/a"), None).await.is(200);
    assert_eq!(used(&api).await["pods"], "1");
    api.merge(
        &format!("{PODS}/b/status"),
        &json!({"status": {"phase": "Succeeded"}}),
    )
    .await
    .is(200);
    assert_eq!(used(&api).await["pods"], "0");
    api.post(CONFIG_MAPS, &config_map("a")).await.is(201);
    assert_eq!(used(&api).await["count/configmaps"], "1");
    api.post(CONFIG_MAPS, &config_map("b"))
        .await
        .refused(403, "Forbidden");
}

#[tokio::test]
async fn a_new_or_changed_quota_counts_what_is_already_there() {
    let api = Api::new();
    let mut object = pod("a");
    object["spec"]["containers"][0]["resources"] = json!({"requests": {"cpu": "500m", "nvidia.com/gpu": "2"}, "limits": {"nvidia.com/gpu": "2"}});
    api.post(PODS, &object).await.is(201);
    let made = api
        .post(QUOTAS, &quota(json!({"requests.cpu": "1"})))
        .await
        .is(201);
    assert_eq!(
        made["status"],
        json!({"hard": {"requests.cpu": "1"}, "used": {"requests.cpu": "500m"}})
    );
    let more = json!({"spec": {"hard": {"requests.nvidia.com/gpu": "2", "pods": "5"}}});
    let changed = api.merge(&format!("{QUOTAS}/q"), &more).await.is(200);
    assert_eq!(
        changed["status"]["used"],
        json!({"requests.cpu": "500m", "requests.nvidia.com/gpu": "2", "pods": "1"})
    );
    object["metadata"]["name"] = "b".into();
    let message = api.post(PODS, &object).await.refused(403, "Forbidden");
    assert!(
        message.contains("requested: requests.nvidia.com/gpu=2, used: requests.nvidia.com/gpu=2"),
        "{message}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_quota_created_among_creates_counts_every_one_of_them() {
    let api = Api::new();
    let creations = (0..32).map(|index| {
        let api = &api;
        async move {
            if index == 8 {
                api.post(QUOTAS, &quota(json!({"pods": "100"})))
                    .await
                    .is(201);
            }
            api.post(PODS, &pod(&format!("p{index}"))).await.is(201);
        }
    });
    futures::future::join_all(creations).await;
    assert_eq!(used(&api).await["pods"], "32");
}
