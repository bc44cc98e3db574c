//! Watches whose callers lose their credential or their right: they end, and other watches
//! continue.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use apiserver::ApiConfig;
use parking_lot::Mutex;
use resources::access::{Caller, Credential};
use serde_json::{Value, json};
use store::Options;

use crate::harness::{Api, CONFIG_MAPS, Frames, admin, config_map};

const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1/namespaces/default";
const ACCOUNTS: &str = "/api/v1/namespaces/default/serviceaccounts";

/// Long enough that a watch that does not end fails the test.
const PATIENCE: Duration = Duration::from_secs(30);

/// An API whose watches check their rights again at once, with a role that reads ConfigMaps.
async fn api() -> Api {
    let config = ApiConfig {
        watch_recheck: Duration::from_millis(10),
        ..ApiConfig::default()
    };
    let api = Api::with(Options::default(), config);
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "reader"},
        "rules": [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["watch"]}],
    });
    api.post(&format!("{RBAC}/roles"), &role).await.is(201);
    api
}

fn user(name: &str) -> Value {
    json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": name})
}

/// Binds the role to this subject.
async fn bind(api: &Api, name: &str, subject: Value) {
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reader"},
        "subjects": [subject],
    });
    api.post(&format!("{RBAC}/rolebindings"), &binding)
        .await
        .is(201);
}

/// A credential that is always valid for this caller.
fn lasting(caller: &Caller) -> Credential {
    let caller = caller.clone();
    Credential::new(move || Some(caller.clone()))
}

async fn watch(api: &Api, caller: &Caller, credential: Credential) -> Frames {
    let path = format!("{CONFIG_MAPS}?watch=true");
    api.watch_by(caller.clone(), credential, &path).await
}

/// Reads until the watch ends, which happens without an error.
async fn ends(frames: &mut Frames) {
    let reading = async {
        while let Some(frame) = frames.next().await {
            assert_ne!(frame["type"], "ERROR", "{frame}");
        }
    };
    tokio::time::timeout(PATIENCE, reading)
        .await
        .expect("the watch ends");
}

/// The watch reports an object created now.
async fn goes_on(api: &Api, frames: &mut Frames, name: &str) {
    api.post(CONFIG_MAPS, &config_map(name)).await.is(201);
    loop {
        let (what, object) = frames.pair().await;
        if object == name {
            assert_eq!(what, "ADDED");
            return;
        }
    }
}

#[tokio::test]
async fn a_watch_ends_with_its_credential_and_others_go_on() {
    let api = api().await;
    let (good, admin) = (Arc::new(AtomicBool::new(true)), admin());
    let revoked = {
        let (good, admin) = (good.clone(), admin.clone());
        Credential::new(move || good.load(Ordering::SeqCst).then(|| admin.clone()))
    };
    let mut ending = watch(&api, &admin, revoked).await;
    let mut other = watch(&api, &admin, lasting(&admin)).await;
    goes_on(&api, &mut ending, "before").await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    goes_on(&api, &mut ending, "after-looks").await;
    good.store(false, Ordering::SeqCst);
    ends(&mut ending).await;
    goes_on(&api, &mut other, "later").await;
}

#[tokio::test]
async fn a_watch_ends_with_the_binding_that_permitted_it() {
    let api = api().await;
    bind(&api, "ann", user("ann")).await;
    bind(&api, "bob", user("bob")).await;
    let (ann, bob) = (Caller::user("ann", []), Caller::user("bob", []));
    let mut of_ann = watch(&api, &ann, lasting(&ann)).await;
    let mut of_bob = watch(&api, &bob, lasting(&bob)).await;
    goes_on(&api, &mut of_ann, "before").await;
    api.delete(&format!("{RBAC}/rolebindings/ann"), None)
        .await
        .is(200);
    ends(&mut of_ann).await;
    goes_on(&api, &mut of_bob, "later").await;
}

#[tokio::test]
async fn a_watch_ends_when_its_user_loses_the_group_that_was_bound() {
    let api = api().await;
    let group =
        json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "readers"});
    bind(&api, "readers", group).await;
    let ann = Caller::user("ann", ["readers".to_owned()]);
    let now = Arc::new(Mutex::new(ann.clone()));
    let credential = {
        let now = now.clone();
        Credential::new(move || Some(now.lock().clone()))
    };
    let mut frames = watch(&api, &ann, credential).await;
    goes_on(&api, &mut frames, "before").await;
    // Another group beside it changes nothing.
    *now.lock() = Caller::user("ann", ["readers".to_owned(), "others".to_owned()]);
    tokio::time::sleep(Duration::from_millis(50)).await;
    goes_on(&api, &mut frames, "still").await;
    *now.lock() = Caller::user("ann", ["others".to_owned()]);
    ends(&mut frames).await;
}

#[tokio::test]
async fn a_watch_ends_with_its_service_account() {
    let api = api().await;
    let account =
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "reader"}});
    api.post(ACCOUNTS, &account).await.is(201);
    let subject = json!({"kind": "ServiceAccount", "namespace": "default", "name": "reader"});
    bind(&api, "reader", subject).await;
    let token = api
        .post(&format!("{ACCOUNTS}/reader/token"), &json!({"spec": {}}))
        .await
        .is(201);
    let token = token["status"]["token"].as_str().unwrap();
    let path = format!("{CONFIG_MAPS}?watch=true");
    let mut frames = api.watch_with_token(token, &path).await;
    goes_on(&api, &mut frames, "before").await;
    api.delete(&format!("{ACCOUNTS}/reader"), None)
        .await
        .is(200);
    ends(&mut frames).await;
}
