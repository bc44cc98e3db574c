//! Fields that admission adds and objects that it refuses: priorities and limit ranges.

use resources::access::UserRole;
use serde_json::{Value, json};

use crate::harness::{Api, PODS, pod, request, user};

#[tokio::test]
async fn a_pods_priority_is_its_classs() {
    let api = Api::new();
    let classes = "/apis/scheduling.k8s.io/v1/priorityclasses";
    let class = json!({
        "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "high"}, "value": 1000,
    });
    api.post(classes, &class).await.is(201);
    let mut object = pod("a");
    object["spec"]["priorityClassName"] = "high".into();
    assert_eq!(
        api.post(PODS, &object).await.is(201)["spec"]["priority"],
        1000
    );
    object["spec"]["priorityClassName"] = "none".into();
    object["metadata"]["name"] = "b".into();
    let message = api.post(PODS, &object).await.refused(403, "Forbidden");
    assert_eq!(
        message,
        "pods \"b\" is forbidden: no PriorityClass with name none was found"
    );
    api.post(PODS, &pod("c")).await.is(201);
}

#[tokio::test]
async fn a_workload_runs_for_its_creator() {
    let api = Api::new();
    let ann = || user("ann", UserRole::Member, None);
    let send = async |method: &str, path: &str, object: &Value| {
        let media = match method {
            "PATCH" => "application/merge-patch+json",
            _ => "application/json",
        };
        let request = request(method, path, media, object.to_string());
        api.send_as(ann(), request).await
    };
    let made = send("POST", PODS, &pod("a")).await.is(201);
    assert_eq!(made["metadata"]["annotations"]["muster.io/user"], "ann");
    let mut other = pod("b");
    other["metadata"]["annotations"] = json!({"muster.io/user": "bob"});
    let message = send("POST", PODS, &other).await.refused(403, "Forbidden");
    assert_eq!(
        message,
        "pods \"b\" is forbidden: metadata.annotations[muster.io/user]: \"bob\" is not the user that creates the object; leave the annotation out, write \"ann\", or have an administrator set another user"
    );
    let path = format!("{PODS}/a");
    let handed = json!({"metadata": {"annotations": {"muster.io/user": "bob"}}});
    send("PATCH", &path, &handed)
        .await
        .refused(403, "Forbidden");
    let taken = json!({"metadata": {"annotations": {"muster.io/user": null}}});
    let kept = send("PATCH", &path, &taken).await.is(200);
    assert_eq!(kept["metadata"]["annotations"]["muster.io/user"], "ann");
    // An administrator may set another user for a workload; a service's workload has no user.
    let given = api.merge(&path, &handed).await.is(200);
    assert_eq!(given["metadata"]["annotations"]["muster.io/user"], "bob");
    let made = api.post(PODS, &other).await.is(201);
    assert_eq!(made["metadata"]["annotations"]["muster.io/user"], "bob");
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"},
        "spec": {"clusterIP": "None"}});
    let services = "/api/v1/namespaces/default/services";
    let made = send("POST", services, &service).await.is(201);
    assert!(made["metadata"]["annotations"].is_null());
}

#[tokio::test]
async fn a_limit_range_fills_in_and_bounds() {
    let api = Api::new();
    let range = json!({
        "apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "l"},
        "spec": {"limits": [{"type": "Container", "default": {"cpu": "1"}, "defaultRequest": {"cpu": "500m"}, "max": {"cpu": "2"}}]},
    });
    api.post("/api/v1/namespaces/default/limitranges", &range)
        .await
        .is(201);
    let made = api.post(PODS, &pod("a")).await.is(201);
    let resources = &made["spec"]["containers"][0]["resources"];
    assert_eq!(
        resources,
        &json!({"requests": {"cpu": "500m"}, "limits": {"cpu": "1"}})
    );
    let mut object = pod("b");
    object["spec"]["containers"][0]["resources"] = json!({"limits": {"cpu": "3"}});
    let message = api.post(PODS, &object).await.refused(403, "Forbidden");
    assert_eq!(
        message,
        "pods \"b\" is forbidden: maximum cpu usage per Container is 2, but limit is 3"
    );
}

#[tokio::test]
async fn what_must_exist_from_the_start_does() {
    let api = Api::new();
    for path in [
        "/api/v1/namespaces/default",
        "/api/v1/namespaces/muster-system",
        "/apis/scheduling.volcano.sh/v1beta1/queues/default",
        "/apis/scheduling.k8s.io/v1/priorityclasses/system-node-critical",
    ] {
        api.get(path).await.is(200);
    }
}

#[tokio::test]
async fn what_runs_for_one_member_is_not_changed_by_another() {
    let api = Api::new();
    let as_user = async |name: &str, method: &str, path: &str, body: &Value| {
        let media = match method {
            "PATCH" => "application/strategic-merge-patch+json",
            _ => "application/json",
        };
        let caller = user(name, UserRole::Member, Some(&["default"]));
        let asked = request(method, path, media, body.to_string());
        api.send_as(caller, asked).await
    };
    as_user("bob", "POST", PODS, &pod("p")).await.is(201);
    let path = format!("{PODS}/p");
    let name = pod("p")["spec"]["containers"][0]["name"].clone();
    let image = json!({"spec": {"containers": [{"name": name, "image": "ann/own"}]}});
    let message = as_user("ann", "PATCH", &path, &image)
        .await
        .refused(403, "Forbidden");
    assert!(message.contains("muster.io/user"), "{message}");
    let label = json!({"metadata": {"labels": {"a": "b"}}});
    as_user("ann", "PATCH", &path, &label).await.is(200);
    as_user("bob", "PATCH", &path, &image).await.is(200);
}

/// Usage and limits of a team count what its namespaces run, and nothing that others submit in its name.
#[tokio::test]
async fn work_counts_for_the_team_of_its_namespace_and_no_other() {
    let api = Api::new();
    for (name, team) in [("red", Some("red")), ("own", None)] {
        let labels = team.map_or_else(|| json!({}), |team| json!({"muster.io/team": team}));
        let object = json!({"metadata": {"name": name, "labels": labels}});
        api.post("/api/v1/namespaces", &object).await.is(201);
    }
    let member = || user("eve", UserRole::Member, None);
    let create = async |namespace: &str, team: Option<&str>| {
        let annotations = team.map_or_else(|| json!({}), |team| json!({"muster.io/team": team}));
        let pod = json!({
            "metadata": {"generateName": "p-", "annotations": annotations},
            "spec": {"containers": [{"name": "c", "command": ["true"]}]},
        });
        let path = format!("/api/v1/namespaces/{namespace}/pods");
        let request = request("POST", &path, "application/json", pod.to_string());
        api.send_as(member(), request).await
    };
    for team in [None, Some("blue"), Some("red")] {
        let pod = create("red", team).await.is(201);
        assert_eq!(pod["metadata"]["annotations"]["muster.io/team"], "red");
    }
    // A name that no team has is the submitter's own word.
    let pod = create("own", Some("club")).await.is(201);
    assert_eq!(pod["metadata"]["annotations"]["muster.io/team"], "club");
    let message = create("own", Some("red")).await.refused(403, "Forbidden");
    assert!(
        message.contains("namespace \"own\" does not belong to team \"red\""),
        "{message}"
    );
    let name = pod["metadata"]["name"].as_str().unwrap();
    let path = format!("/api/v1/namespaces/own/pods/{name}");
    let change = json!({"metadata": {"annotations": {"muster.io/team": "red"}}});
    let media = "application/merge-patch+json";
    let request = request("PATCH", &path, media, change.to_string());
    api.send_as(member(), request)
        .await
        .refused(403, "Forbidden");
}
