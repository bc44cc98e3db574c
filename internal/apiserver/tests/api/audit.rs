//! The audit events of requests for resources.

use std::sync::Arc;

use apiserver::Auditor;
use axum::body::Body;
use resources::access::UserRole;
use resources::audit::{API_VERSION, AuditEvent, AuditLevel, AuditPolicy};
use serde_json::json;
use tokio::sync::mpsc;

use crate::harness::{Api, admin, request, user};

const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";

fn recording(policy: AuditPolicy) -> (Api, mpsc::Receiver<AuditEvent>) {
    let (api, (events, recorded)) = (Api::new(), mpsc::channel(64));
    api.server.set_auditor(Some(Auditor {
        policy: Arc::new(policy),
        events,
    }));
    (api, recorded)
}

#[tokio::test]
async fn a_change_is_recorded_with_user_object_and_response_and_a_read_is_not() {
    let (api, mut recorded) = recording(AuditPolicy::built_in());
    let sent = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"generateName": "c-"}});
    let made = api.post(CONFIG_MAPS, &sent).await.is(201);
    let event = recorded.try_recv().unwrap();
    assert_eq!(
        (event.verb.as_str(), event.user.username.as_str()),
        ("create", "root")
    );
    assert_eq!(event.response_status.code, 201);
    assert_eq!(event.level, AuditLevel::Metadata);
    assert_eq!((event.request_object, event.response_object), (None, None));
    let about = event.object_ref.unwrap();
    assert_eq!(
        about.name, made["metadata"]["name"],
        "the name that was drawn"
    );
    assert_eq!(
        (about.resource.as_str(), about.namespace.as_str()),
        ("configmaps", "default")
    );
    api.get(CONFIG_MAPS).await.is(200);
    assert!(recorded.try_recv().is_err(), "a read");
}

#[tokio::test]
async fn a_refusal_is_recorded_under_every_policy() {
    let nothing =
        json!({"apiVersion": API_VERSION, "kind": "Policy", "rules": [{"level": "None"}]});
    let (api, mut recorded) = recording(AuditPolicy::read(&nothing).unwrap());
    let viewer = user("eve", UserRole::Viewer, Some(&["default"]));
    let read = request(
        "GET",
        "/api/v1/namespaces/muster-system/secrets",
        "",
        Body::empty(),
    );
    api.send_as(viewer, read).await.refused(403, "Forbidden");
    let event = recorded.try_recv().unwrap();
    assert_eq!(
        (event.user.username.as_str(), event.verb.as_str()),
        ("eve", "list")
    );
    assert_eq!(event.response_status.code, 403);
    assert_eq!(event.response_status.reason, "Forbidden");
    assert!(
        event.response_status.message.contains("cannot list"),
        "{:?}",
        event.response_status
    );
    let unknown = request("GET", CONFIG_MAPS, "", Body::empty());
    api.send_unknown(unknown).await.refused(401, "Unauthorized");
    let event = recorded.try_recv().unwrap();
    assert_eq!(
        (event.user.username.as_str(), event.response_status.code),
        ("", 401)
    );
    api.post(
        CONFIG_MAPS,
        &json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "c"}}),
    )
    .await
    .is(201);
    assert!(
        recorded.try_recv().is_err(),
        "the policy leaves changes out"
    );
}

#[tokio::test]
async fn objects_are_recorded_from_level_request_on_and_large_ones_are_left_out() {
    let all = json!({"apiVersion": API_VERSION, "kind": "Policy", "rules": [{"level": "RequestResponse"}]});
    let (api, mut recorded) = recording(AuditPolicy::read(&all).unwrap());
    let sent = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"a": "b"}});
    api.post(CONFIG_MAPS, &sent).await.is(201);
    let event = recorded.try_recv().unwrap();
    assert_eq!(event.request_object.unwrap(), sent);
    assert_eq!(event.response_object.unwrap()["data"]["a"], "b");
    let large = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "d"},
        "data": {"a": "x".repeat(300 << 10)}});
    api.post(CONFIG_MAPS, &large).await.is(201);
    let event = recorded.try_recv().unwrap();
    assert_eq!((event.request_object, event.response_object), (None, None));
    assert!(
        event
            .annotations
            .contains_key("audit.muster.io/object-omitted")
    );
}

#[tokio::test]
async fn an_impersonated_request_is_recorded_with_its_authenticated_user() {
    let (api, mut recorded) = recording(AuditPolicy::built_in());
    let groups = UserRole::Member.groups(Some(&["default".to_owned()]));
    let sent = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}});
    for code in [201, 403] {
        let text = sent.to_string();
        let mut asked = request("POST", CONFIG_MAPS, "application/json", text);
        let headers = asked.headers_mut();
        headers.insert("impersonate-user", "bob".parse().unwrap());
        let groups = groups.iter().filter(|_| code == 201);
        for group in groups {
            headers.append("impersonate-group", group.parse().unwrap());
        }
        api.send_as(admin(), asked).await.is(code);
        let event = recorded.try_recv().unwrap();
        assert_eq!(event.response_status.code, code);
        assert_eq!(event.user.username, "root");
        let other = event.impersonated_user.unwrap();
        assert_eq!(other.username, "bob");
    }
}
