//! The bounds of requests and their effects: each attack that once crashed or stalled the server,
//! and each bound at its limit.

use apiserver::ApiConfig;
use apiserver::limits::{
    JSON_PATCH, MOST_OBJECT_DEPTH, MOST_REQUIREMENTS, MOST_STORED_BYTES, MOST_WARNINGS,
};
use resources::access::{Caller, UserRole};
use resources::registry;
use serde_json::{Map, Value, json};
use store::Options;

use crate::harness::{Api, CONFIG_MAPS, PODS, config_map, pod, request, user};

const JSON: &str = "application/json-patch+json";
const STRATEGIC: &str = "application/strategic-merge-patch+json";
const APPLY: &str = "application/apply-patch+yaml";
const SCALED_OBJECTS: &str = "/apis/keda.sh/v1alpha1/namespaces/default/scaledobjects";
const REVIEWS: &str = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";

fn text(bytes: usize) -> String {
    "x".repeat(bytes)
}

async fn patched(api: &Api, patch: &Value) -> (u16, Value) {
    let path = format!("{CONFIG_MAPS}/a?dryRun=All");
    let answer = api.call("PATCH", &path, JSON, patch.to_string()).await;
    (answer.status.as_u16(), answer.json())
}

/// Every object is in the server's memory: without a bound, a member could fill it.
#[tokio::test]
async fn a_namespace_has_only_so_many_bytes_and_deletions_make_room() {
    let config = ApiConfig {
        namespace_bytes: 25_000,
        ..ApiConfig::default()
    };
    let api = Api::with(Options::default(), config);
    let ann = || user("ann", UserRole::Member, None);
    let large = |name: &str| {
        let mut object = config_map(name);
        object["data"] = json!({"text": text(9_000)});
        object.to_string()
    };
    let post = async |caller: Caller, name: &str| {
        api.send_as(
            caller,
            request("POST", CONFIG_MAPS, "application/json", large(name)),
        )
        .await
    };
    post(ann(), "one").await.is(201);
    post(ann(), "two").await.is(201);
    let message = post(ann(), "three").await.refused(403, "Forbidden");
    assert!(message.contains("are the most of a namespace"), "{message}");
    // A change that makes it grow is refused too, and one that does not goes on.
    let grow = json!({"data": {"more": text(9_000)}}).to_string();
    let path = format!("{CONFIG_MAPS}/one");
    let merge = "application/merge-patch+json";
    let answer = api
        .send_as(ann(), request("PATCH", &path, merge, grow))
        .await;
    answer.refused(403, "Forbidden");
    let shrink = json!({"data": {"text": "short"}}).to_string();
    let answer = api
        .send_as(ann(), request("PATCH", &path, merge, shrink))
        .await;
    answer.is(200);
    post(ann(), "three").await.is(201);
    // Administrators can act in a full namespace, and other namespaces have their own room.
    api.post(CONFIG_MAPS, &serde_json::from_str(&large("four")).unwrap())
        .await
        .is(201);
    api.delete(CONFIG_MAPS, None).await.is(200);
    post(ann(), "five").await.is(201);
}

#[tokio::test]
async fn sixteen_copies_that_nest_the_last_into_itself_are_refused() {
    let api = Api::new();
    api.post(CONFIG_MAPS, &config_map("a")).await.is(201);
    let deep = (0..100).fold(json!({}), |inner, _| json!({"n": inner}));
    let mut patch = vec![json!({"op": "add", "path": "/data/d", "value": deep})];
    let inside = "/n".repeat(100);
    for at in 0..16 {
        let (from, path) = ("/data/d", format!("/data/d{inside}/c{at}"));
        patch.push(json!({"op": "copy", "from": from, "path": path}));
    }
    // As large as the previous one: the bound of depth, not of bytes, refuses it.
    patch.push(json!({"op": "test", "path": "/data/d", "value": text(125_000)}));
    let (code, status) = patched(&api, &patch.into()).await;
    assert_eq!(code, 422, "{status}");
    let message = status["message"].as_str().unwrap();
    assert!(message.contains("deeper than"), "{message}");
}

#[tokio::test]
async fn twenty_copies_of_the_data_into_itself_are_refused() {
    let api = Api::new();
    let mut object = config_map("a");
    object["data"]["a"] = text(100).into();
    api.post(CONFIG_MAPS, &object).await.is(201);
    let copy = |at: u32| json!({"op": "copy", "from": "/data", "path": format!("/data/k{at}")});
    let (code, status) = patched(&api, &(0..20).map(copy).collect()).await;
    assert_eq!(code, 422, "{status}");
}

#[tokio::test]
async fn the_most_operations_are_taken_and_one_more_is_refused() {
    let api = Api::new();
    api.post(CONFIG_MAPS, &config_map("a")).await.is(201);
    let patch = |count: usize| {
        let operation = json!({"op": "add", "path": "/data/b", "value": "2"});
        Value::Array(vec![operation; count])
    };
    assert_eq!(patched(&api, &patch(JSON_PATCH.operations)).await.0, 200);
    let (code, status) = patched(&api, &patch(JSON_PATCH.operations + 1)).await;
    assert_eq!(
        (code, &status["reason"]),
        (413, &json!("RequestEntityTooLarge"))
    );
}

#[tokio::test]
async fn yaml_that_nests_without_end_is_refused_wherever_yaml_is_taken() {
    let api = Api::new();
    api.post(PODS, &pod("a")).await.is(201);
    api.post(CONFIG_MAPS, &config_map("a")).await.is(201);
    let mut places = vec![
        ("POST", REVIEWS.to_owned(), "application/yaml"),
        ("POST", CONFIG_MAPS.to_owned(), "application/yaml"),
        ("PUT", format!("{CONFIG_MAPS}/a"), "application/yaml"),
        ("DELETE", format!("{CONFIG_MAPS}/a"), "application/yaml"),
        ("DELETE", CONFIG_MAPS.to_owned(), "application/yaml"),
        ("PATCH", format!("{CONFIG_MAPS}/a?fieldManager=m"), APPLY),
        ("POST", format!("{PODS}/a/binding"), "application/yaml"),
        ("POST", format!("{PODS}/a/eviction"), "application/yaml"),
        (
            "POST",
            "/api/v1/namespaces/default/bindings".to_owned(),
            "application/yaml",
        ),
    ];
    places.push((
        "PUT",
        "/api/v1/namespaces/default/finalize".to_owned(),
        "application/yaml",
    ));
    for opening in ["{a: ", "[", "{? ", "- ", "? "] {
        for (method, path, media) in &places {
            let answer = api.call(method, path, media, opening.repeat(150_000)).await;
            let message = answer.refused(400, "BadRequest");
            assert!(message.contains("nested deeper than"), "{path}: {message}");
        }
    }
}

#[tokio::test]
async fn aliases_end_at_the_bound_of_what_they_expand_to() {
    let api = Api::new();
    let aliases = "*a,".repeat(10_000);
    let body = format!("spec:\n  a: &a {}\n  b: [{aliases}]\n", text(2000));
    let answer = api.call("POST", REVIEWS, "application/yaml", body).await;
    answer.refused(413, "RequestEntityTooLarge");
}

#[tokio::test]
async fn a_long_key_around_many_duplicates_costs_an_answer_of_few_bytes() {
    let api = Api::new();
    let inner = vec!["\"a\":\"1\""; 500].join(",");
    let body = format!(
        "{{\"metadata\":{{\"name\":\"a\"}},\"{}\":{{{inner}}}}}",
        text(1_000_000)
    );
    let answer = api
        .call("POST", CONFIG_MAPS, "application/json", body)
        .await;
    let warnings: usize = answer.warnings().iter().map(String::len).sum();
    assert!(warnings < 8192, "{warnings}");
    answer.is(201);
}

#[tokio::test]
async fn unknown_fields_make_few_warnings_and_the_last_counts_the_rest() {
    let api = Api::new();
    let mut object = config_map("a");
    for at in 0..90 {
        object[format!("unknown{at:02}")] = at.into();
    }
    let warnings = api.post(CONFIG_MAPS, &object).await.warnings();
    assert_eq!(warnings.len(), MOST_WARNINGS);
    let more = 90 - (MOST_WARNINGS - 1);
    assert_eq!(
        warnings[MOST_WARNINGS - 1],
        format!("299 - \"{more} more warnings are not shown\"")
    );
}

/// An object of a kind with a free-form field.
fn scaled_object(kept: Value) -> Value {
    json!({
        "apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject", "metadata": {"name": "a"},
        "spec": {
            "scaleTargetRef": {"name": "d"}, "advanced": kept,
            "triggers": [{"type": "cron", "metadata": {"timezone": "UTC"}}],
        },
    })
}

#[tokio::test]
async fn an_object_is_stored_up_to_its_bound_however_it_is_written() {
    const TOO_LARGE: (u16, &str) = (413, "RequestEntityTooLarge");
    let api = Api::new();
    let filled = |bytes: usize| scaled_object(json!({"a": text(bytes)}));
    // More than the server adds to the object: identity, times, managers.
    let added = 4000;
    let fits = filled(MOST_STORED_BYTES - added);
    let mut over = filled(MOST_STORED_BYTES);
    let path = format!("{SCALED_OBJECTS}/a");
    let applying = format!("{path}?fieldManager=m&force=true");
    let (code, reason) = TOO_LARGE;
    api.post(SCALED_OBJECTS, &over).await.refused(code, reason);
    api.apply(&applying, &over).await.refused(code, reason);
    let made = api.post(SCALED_OBJECTS, &fits).await.is(201);
    api.apply(&applying, &over).await.refused(code, reason);
    over["metadata"]["resourceVersion"] = made["metadata"]["resourceVersion"].clone();
    api.put(&path, &over).await.refused(code, reason);
    let more = json!({"spec": {"advanced": {"b": text(added)}}});
    api.merge(&path, &more).await.refused(code, reason);
    let add = json!([{"op": "add", "path": "/spec/advanced/b", "value": text(added)}]);
    api.call("PATCH", &path, JSON, add.to_string())
        .await
        .refused(code, reason);
    let less = json!({"spec": {"advanced": {"a": "small"}}});
    api.merge(&path, &less).await.is(200);

    api.post(PODS, &pod("p")).await.is(201);
    let status = json!({"status": {"message": text(MOST_STORED_BYTES)}}).to_string();
    api.call("PATCH", &format!("{PODS}/p/status"), STRATEGIC, status)
        .await
        .refused(code, reason);
}

#[tokio::test]
async fn an_object_near_the_bound_of_bytes_can_be_deleted() {
    let api = Api::new();
    let mut fits = scaled_object(json!({"a": text(MOST_STORED_BYTES - 4000)}));
    fits["metadata"]["finalizers"] = json!(["example.org/hold"]);
    api.post(SCALED_OBJECTS, &fits).await.is(201);
    let path = format!("{SCALED_OBJECTS}/a");
    let going = api.delete(&path, None).await.is(200);
    assert!(going["metadata"]["deletionTimestamp"].is_string());
    api.merge(&path, &json!({"metadata": {"finalizers": null}}))
        .await
        .is(200);
    api.get(&path).await.is(404);
}

#[tokio::test]
async fn an_object_nests_up_to_its_bound_and_comes_back() {
    let api = Api::new();
    // The object and its spec add two levels.
    let deep =
        |levels: usize| scaled_object((3..levels).fold(json!({}), |inner, _| json!({"a": inner})));
    api.post(SCALED_OBJECTS, &deep(MOST_OBJECT_DEPTH + 1))
        .await
        .refused(422, "Invalid");
    let made = api
        .post(SCALED_OBJECTS, &deep(MOST_OBJECT_DEPTH))
        .await
        .is(201);
    let path = format!("{SCALED_OBJECTS}/a");
    assert_eq!(api.get(&path).await.is(200), made);
    // Its field managers are deeper than the object and may be sent back.
    let mut same = made.clone();
    same["spec"]["pollingInterval"] = 7.into();
    let put = api.put(&path, &same).await.is(200);
    assert_eq!(put["spec"]["advanced"], made["spec"]["advanced"]);
    let table = "application/json;as=Table;v=v1;g=meta.k8s.io";
    api.get_as(SCALED_OBJECTS, table).await.is(200);
}

/// As many as an object's field managers have room for; comparing all pairs took seconds.
#[tokio::test]
async fn an_environment_of_eight_thousand_entries_is_patched() {
    let api = Api::new();
    let env: Vec<Value> = (0..8_000)
        .map(|at| json!({"name": format!("N{at}"), "value": "1"}))
        .collect();
    let mut object = pod("a");
    object["spec"]["containers"][0]["env"] = env.clone().into();
    api.post(PODS, &object).await.is(201);
    let patch = json!({"spec": {"containers": [{"name": "main", "env": env}]}});
    let path = format!("{PODS}/a?dryRun=All");
    let same = api.call("PATCH", &path, STRATEGIC, patch.to_string()).await;
    same.is(200);
}

/// For every served kind: an apply patch with an unknown top-level field was answered with 500.
#[tokio::test]
async fn an_unknown_top_level_field_of_an_applied_object_is_the_callers_fault() {
    let api = Api::new();
    for kind in registry::served() {
        let prefix = match kind.group {
            "" => format!("/api/{}", kind.version),
            group => format!("/apis/{group}/{}", kind.version),
        };
        let scope = if kind.namespaced {
            "/namespaces/default"
        } else {
            ""
        };
        let path = format!(
            "{prefix}{scope}/{}/x?fieldManager=m&dryRun=All",
            kind.plural
        );
        let object = json!({
            "apiVersion": kind.api_version(), "kind": kind.kind,
            "metadata": {"name": "x"}, "unheard": {"of": 1},
        });
        let strict = format!("{path}&fieldValidation=Strict");
        let answer = api.apply(&strict, &object).await;
        let text = answer.text.clone();
        let message = answer.refused(400, "BadRequest");
        assert!(
            message.ends_with("strict decoding error: unknown field \"unheard\""),
            "{}: {text}",
            kind.kind
        );
        for (level, warns) in [("Warn", true), ("Ignore", false)] {
            let lenient = format!("{path}&fieldValidation={level}");
            let answer = api.apply(&lenient, &object).await;
            let code = answer.status.as_u16();
            // Some kinds have required fields, which this object lacks.
            assert!(code < 500, "{}: {code} {}", kind.kind, answer.text);
            if code < 300 {
                let warned = answer
                    .warnings()
                    .iter()
                    .any(|text| text.contains("unheard"));
                assert_eq!(warned, warns, "{} {level}", kind.kind);
                assert!(answer.json().get("unheard").is_none(), "{}", kind.kind);
            }
        }
    }
}

#[tokio::test]
async fn a_configuration_of_another_form_than_its_kind_is_the_callers_fault() {
    let api = Api::new();
    let path = format!("{CONFIG_MAPS}/a?fieldManager=m");
    let object = |data: Value| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": data});
    for data in [
        json!("x"),
        json!([1]),
        json!({"a": {"b": 1}}),
        json!({"a": [1]}),
    ] {
        let answer = api.apply(&path, &object(data.clone())).await;
        let text = answer.text.clone();
        assert_eq!(answer.status.as_u16(), 400, "{data}: {text}");
    }
    let ports = json!([{"name": "main", "image": "x", "ports": [{"containerPort": 1}, {"containerPort": 1}]}]);
    let mut twice = pod("a");
    twice["spec"]["containers"] = ports;
    api.apply(&format!("{PODS}/a?fieldManager=m"), &twice)
        .await
        .refused(400, "BadRequest");
}

#[tokio::test]
async fn what_is_not_found_has_details() {
    let api = Api::new();
    let status = api.get(&format!("{CONFIG_MAPS}/none")).await.is(404);
    assert_eq!(
        status["details"],
        json!({"name": "none", "kind": "configmaps"})
    );
    for path in [
        "/apis/none.example/v1/things",
        "/api/v1/things",
        "/api/v1/namespaces/default/pods/a/none",
    ] {
        let status = api.get(path).await.is(404);
        assert_eq!(status["details"], json!({}), "{path}");
        assert_eq!(
            status["message"],
            "the server could not find the requested resource"
        );
    }
}

#[tokio::test]
async fn a_selector_is_compared_up_to_a_bound_of_requirements() {
    let api = Api::new();
    let labels = |count: usize| {
        let terms: Vec<String> = (0..count).map(|at| format!("l{at}%3Dv")).collect();
        format!("{CONFIG_MAPS}?labelSelector={}", terms.join(","))
    };
    api.get(&labels(MOST_REQUIREMENTS)).await.is(200);
    api.get(&labels(MOST_REQUIREMENTS + 1))
        .await
        .refused(400, "BadRequest");
    let fields = |count: usize| {
        let terms = vec!["metadata.name!%3Dv"; count];
        format!("{CONFIG_MAPS}?fieldSelector={}", terms.join(","))
    };
    api.get(&fields(MOST_REQUIREMENTS)).await.is(200);
    api.get(&fields(MOST_REQUIREMENTS + 1))
        .await
        .refused(400, "BadRequest");
}

#[tokio::test]
async fn a_watcher_that_does_not_read_falls_behind_the_history_and_gets_an_error() {
    let options = Options {
        history: 4,
        ..Options::default()
    };
    let api = Api::with(options, ApiConfig::default());
    let list = api.get(CONFIG_MAPS).await.is(200);
    let revision = list["metadata"]["resourceVersion"].as_str().unwrap();
    let mut frames = api
        .watch(&format!(
            "{CONFIG_MAPS}?watch=true&resourceVersion={revision}"
        ))
        .await;
    for at in 0..8 {
        api.post(CONFIG_MAPS, &config_map(&format!("m{at}")))
            .await
            .is(201);
    }
    let frame = frames.next().await.unwrap();
    assert_eq!(
        (&frame["type"], &frame["object"]["code"]),
        (&json!("ERROR"), &json!(410))
    );
    assert!(frames.next().await.is_none());
}

#[tokio::test]
async fn a_watch_of_more_than_one_piece_loses_and_repeats_nothing() {
    let api = Api::new();
    let large = |name: &str| {
        let mut object = config_map(name);
        object["data"]["a"] = text(50_000).into();
        object
    };
    for at in 0..5 {
        api.post(CONFIG_MAPS, &large(&format!("a{at}")))
            .await
            .is(201);
    }
    let path = "watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
    let mut frames = api.watch(&format!("{CONFIG_MAPS}?{path}")).await;
    for at in 0..5 {
        assert_eq!(frames.pair().await, ("ADDED".into(), format!("a{at}")));
    }
    assert_eq!(frames.pair().await.0, "BOOKMARK");
    for at in 0..5 {
        api.post(CONFIG_MAPS, &large(&format!("b{at}")))
            .await
            .is(201);
    }
    for at in 0..5 {
        assert_eq!(frames.pair().await, ("ADDED".into(), format!("b{at}")));
    }
}

#[tokio::test]
async fn manifests_are_read_within_the_bounds_of_a_body() {
    let api = Api::new();
    let caller = Caller::component("test");
    let read = |text: String| api.server.read_manifests(&caller, text);
    let read_two = read("a: 1\n---\n# nothing\n---\nb: 2\n".to_owned()).await;
    assert_eq!(read_two.unwrap(), [json!({"a": 1}), json!({"b": 2})]);
    let deep = read("{a: ".repeat(150_000)).await.unwrap_err().to_string();
    assert!(deep.contains("nested deeper than"), "{deep}");
    let mut large = Map::new();
    for at in 0..5000 {
        large.insert(format!("k{at}"), json!("v"));
    }
    let large = Value::Object(large);
    assert_eq!(read(large.to_string()).await.unwrap(), [large]);
}
