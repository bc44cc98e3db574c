//! The in-process client, as Muster's own controllers use it.

use std::collections::BTreeMap;

use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::api::{DeleteParams, ListParams, ObjectMeta, Patch, PatchParams, PostParams};
use kube::core::PartialObjectMeta;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api as Resources, ResourceExt};
use resources::kinds::PyTorchJob;
use serde_json::json;

use crate::harness::{Api, admin, pod, pytorch_job};

fn map(name: &str, value: &str) -> ConfigMap {
    ConfigMap {
        metadata: ObjectMeta {
            name: Some(name.into()),
            ..ObjectMeta::default()
        },
        data: Some(BTreeMap::from([("k".to_string(), value.to_string())])),
        ..ConfigMap::default()
    }
}

#[tokio::test]
async fn typed_objects_go_through_every_verb() {
    let api = Api::new();
    let maps: Resources<ConfigMap> = Resources::namespaced(api.server.client(admin()), "default");
    let made = maps
        .create(&PostParams::default(), &map("a", "1"))
        .await
        .unwrap();
    assert!(made.uid().is_some());
    let mut next = made.clone();
    next.data = map("a", "2").data;
    let changed = maps
        .replace("a", &PostParams::default(), &next)
        .await
        .unwrap();
    assert!(
        maps.replace("a", &PostParams::default(), &next)
            .await
            .is_err()
    );
    assert_ne!(changed.resource_version(), made.resource_version());
    let applied = json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"more": "x"}});
    let applied = maps
        .patch("a", &PatchParams::apply("test"), &Patch::Apply(&applied))
        .await
        .unwrap();
    assert_eq!(applied.data.unwrap().len(), 2);
    assert_eq!(
        maps.list(&ListParams::default()).await.unwrap().items.len(),
        1
    );
    maps.delete("a", &DeleteParams::default()).await.unwrap();
    assert!(maps.get_opt("a").await.unwrap().is_none());
}

#[tokio::test]
async fn a_watcher_sees_creates_changes_and_deletes_in_order() {
    let api = Api::new();
    let maps: Resources<ConfigMap> = Resources::namespaced(api.server.client(admin()), "default");
    maps.create(&PostParams::default(), &map("a", "1"))
        .await
        .unwrap();
    for config in [
        watcher::Config::default(),
        watcher::Config::default().streaming_lists(),
    ] {
        let mut seen = watcher(maps.clone(), config).touched_objects().boxed();
        assert_eq!(seen.try_next().await.unwrap().unwrap().name_any(), "a");
        maps.create(&PostParams::default(), &map("b", "1"))
            .await
            .unwrap();
        assert_eq!(seen.try_next().await.unwrap().unwrap().name_any(), "b");
        maps.delete("b", &DeleteParams::default()).await.unwrap();
        assert_eq!(seen.try_next().await.unwrap().unwrap().name_any(), "b");
    }
}

#[tokio::test]
async fn lists_and_watches_in_process_leave_field_managers_out_and_writes_keep_them() {
    let api = Api::new();
    let maps: Resources<ConfigMap> = Resources::namespaced(api.server.client(admin()), "default");
    maps.create(&PostParams::default(), &map("a", "1"))
        .await
        .unwrap();
    let managers = async || maps.get("a").await.unwrap().managed_fields().len();
    assert_eq!(managers().await, 1);
    let listed = maps.list(&ListParams::default()).await.unwrap().items;
    assert_eq!(listed[0].metadata.managed_fields, None);
    let metadata = maps.list_metadata(&ListParams::default()).await.unwrap();
    assert_eq!(metadata.items[0].metadata.managed_fields, None);
    let config = watcher::Config::default();
    let mut whole = watcher(maps.clone(), config.clone().streaming_lists())
        .touched_objects()
        .boxed();
    let seen = whole.try_next().await.unwrap().unwrap();
    assert_eq!(seen, listed[0]);
    let of_metadata: Resources<PartialObjectMeta<ConfigMap>> =
        Resources::namespaced(api.server.client(admin()), "default");
    let mut metadata = watcher(of_metadata, config.streaming_lists())
        .touched_objects()
        .boxed();
    let seen = metadata.try_next().await.unwrap().unwrap();
    assert_eq!(seen.metadata, listed[0].metadata);
    maps.replace("a", &PostParams::default(), &listed[0])
        .await
        .unwrap();
    assert_eq!(managers().await, 1);
}

#[tokio::test]
async fn typed_kinds_of_muster_itself_come_back_as_they_went() {
    let api = Api::new();
    let jobs: Resources<PyTorchJob> = Resources::namespaced(api.server.client(admin()), "default");
    let job: PyTorchJob = serde_json::from_value(pytorch_job("a", 2)).unwrap();
    let made = jobs.create(&PostParams::default(), &job).await.unwrap();
    assert_eq!(made.metadata.generation, Some(1));
    let pods: Resources<Pod> = Resources::namespaced(api.server.client(admin()), "default");
    let pod: Pod = serde_json::from_value(pod("p")).unwrap();
    let made = pods.create(&PostParams::default(), &pod).await.unwrap();
    assert_eq!(made.status.unwrap().phase.as_deref(), Some("Pending"));
}
