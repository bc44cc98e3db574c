//! The pages of queues: a queue's form, and who may send it.

use e2e::{Platform, eventually};

use super::{Reply, SOON, ask, done, refused, token, user};

/// The version that a queue's form carries.
fn version(page: &Reply) -> String {
    let rest = page
        .whole
        .split("name=\"version\" value=\"")
        .nth(1)
        .unwrap();
    rest.split('"').next().unwrap().to_owned()
}

#[test]
fn a_queue_is_changed_by_its_form_unless_somebody_changed_it_meanwhile() {
    let platform = Platform::server(&[]);
    let (admin, eve) = (token(&platform, "admin"), user(&platform, "eve"));
    platform.apply(
        "apiVersion: scheduling.volcano.sh/v1beta1\nkind: Queue\nmetadata: {name: blue}\n\
         spec: {weight: 1, capability: {cpu: '4', memory: 8Gi}}\n",
    );
    let queue = "/ui/queues/blue";
    let page = eventually("the queue's page", SOON, || {
        let page = ask(&platform, &admin, &format!("GET {queue}"), "");
        page.has("Change the queue").then_some(page)
    });
    assert!(page.has("cpu=4, memory=8Gi"), "{}", page.whole);
    let first = version(&page);
    let form = format!("version={first}&weight=3&deserved=cpu%3D2&limits=cpu%3D6");
    let led = done(&platform, &admin, queue, &form);
    assert_eq!(led, "/ui/queues/blue?flash=queue-changed");
    let spec = platform.get("queue", "blue")["spec"].clone();
    assert_eq!(spec["weight"], 3);
    assert_eq!(spec["deserved"], serde_json::json!({"cpu": "2"}));
    assert_eq!(spec["capability"], serde_json::json!({"cpu": "6"}));

    // The page that was read before the change.
    let late = ask(
        &platform,
        &admin,
        &format!("POST {queue}"),
        &form.replace("weight=3", "weight=9"),
    );
    assert_eq!(late.code, 409, "{}", late.whole);
    assert!(
        late.has("was changed by another user") && late.has("cpu=6"),
        "{}",
        late.whole
    );
    assert_eq!(platform.get("queue", "blue")["spec"]["weight"], 3);
    let now = version(&late);
    assert_ne!(now, first);
    let bad = format!("version={now}&weight=3&deserved=&limits=cpu%3Dmany");
    refused(&platform, &admin, queue, &bad, (422, "capability"));

    let own = ask(&platform, &eve, &format!("GET {queue}"), "");
    assert!(!own.has("Change the queue"));
    let form = format!("version={now}&weight=7");
    refused(
        &platform,
        &eve,
        queue,
        &form,
        (403, "may not change queues"),
    );
    assert_eq!(platform.get("queue", "blue")["spec"]["weight"], 3);
}
