//! Tables and metadata alone.

use crate::harness::{Api, CONFIG_MAPS, PODS, config_map, pod};

const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";
const METADATA: &str = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io";

#[tokio::test]
async fn a_list_is_printed_with_the_kinds_columns() {
    let api = Api::new();
    api.post(PODS, &pod("a")).await.is(201);
    let table = api.get_as(PODS, TABLE).await.is(200);
    assert_eq!(
        (table["kind"].as_str(), table["apiVersion"].as_str()),
        (Some("Table"), Some("meta.k8s.io/v1"))
    );
    let columns: Vec<&str> = table["columnDefinitions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|column| column["name"].as_str().unwrap())
        .collect();
    assert_eq!(columns[..3], ["Name", "Ready", "Status"]);
    let row = &table["rows"][0];
    assert_eq!(
        (row["cells"][0].as_str(), row["cells"][2].as_str()),
        (Some("a"), Some("Pending"))
    );
    assert_eq!(row["object"]["kind"], "PartialObjectMetadata");
    assert!(table["metadata"]["resourceVersion"].is_string());
}

#[tokio::test]
async fn a_row_carries_as_much_of_the_object_as_is_asked() {
    let api = Api::new();
    api.post(PODS, &pod("a")).await.is(201);
    let object = api
        .get_as(&format!("{PODS}/a?includeObject=Object"), TABLE)
        .await
        .is(200);
    assert_eq!(object["rows"][0]["object"]["kind"], "Pod");
    let none = api
        .get_as(&format!("{PODS}?includeObject=None"), TABLE)
        .await
        .is(200);
    assert!(none["rows"][0].get("object").is_none());
    api.get_as(&format!("{PODS}?includeObject=Some"), TABLE)
        .await
        .refused(400, "BadRequest");
}

#[tokio::test]
async fn metadata_comes_alone_when_asked() {
    let api = Api::new();
    api.post(CONFIG_MAPS, &config_map("a")).await.is(201);
    let list = api.get_as(CONFIG_MAPS, METADATA).await.is(200);
    assert_eq!(list["kind"], "PartialObjectMetadataList");
    assert_eq!(list["items"][0]["metadata"]["name"], "a");
    assert!(list["items"][0].get("data").is_none());
}
