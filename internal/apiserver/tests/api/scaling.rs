//! The scale subresource.

use serde_json::json;

use crate::harness::{Api, CONFIG_MAPS, JOBS, pytorch_job};

#[tokio::test]
async fn a_scale_is_read_and_written() {
    let api = Api::new();
    api.post(JOBS, &pytorch_job("a", 2)).await.is(201);
    let path = format!("{JOBS}/a/scale");
    let mut scale = api.get(&path).await.is(200);
    assert_eq!(
        (&scale["kind"], &scale["apiVersion"]),
        (&json!("Scale"), &json!("autoscaling/v1"))
    );
    assert_eq!(scale["spec"]["replicas"], 2);
    scale["spec"]["replicas"] = 3.into();
    assert_eq!(api.put(&path, &scale).await.is(200)["spec"]["replicas"], 3);
    api.put(&path, &scale).await.refused(409, "Conflict");
    assert_eq!(
        api.merge(&path, &json!({"spec": {"replicas": 4}}))
            .await
            .is(200)["spec"]["replicas"],
        4
    );
    let job = api.get(&format!("{JOBS}/a")).await.is(200);
    assert_eq!(job["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"], 4);
    assert_eq!(job["metadata"]["generation"], 3);
    api.merge(&path, &json!({"spec": {"replicas": -1}}))
        .await
        .refused(422, "Invalid");
    api.get(&format!("{CONFIG_MAPS}/a/scale"))
        .await
        .refused(404, "NotFound");
}
