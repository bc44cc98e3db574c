//! Administration in the web UI, over HTTP, by page: what administrators change by forms, what members see of it, and
//! that they may do none of it. This file asks the pages; each module tests one.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod idle_gpus;
mod nodes;
mod queues;
mod saved_views;
mod search;
mod teams;

use std::time::Duration;

use e2e::{Platform, Reply, send};

use serde_json::Value;

const SOON: Duration = Duration::from_secs(60);

fn ask(platform: &Platform, token: &str, request: &str, body: &str) -> Reply {
    let bearer = format!("Authorization: Bearer {token}");
    send(platform, request, &[bearer], body)
}

/// A form that is expected to succeed; the answer is the page that it leads to.
fn done(platform: &Platform, token: &str, path: &str, body: &str) -> String {
    let reply = ask(platform, token, &format!("POST {path}"), body);
    assert_eq!(reply.code, 303, "POST {path}: {}", reply.whole);
    reply.location().to_owned()
}

/// A form that is expected to be refused with this status and these words.
#[track_caller]
fn refused(platform: &Platform, token: &str, path: &str, body: &str, (code, words): (u16, &str)) {
    let reply = ask(platform, token, &format!("POST {path}"), body);
    assert!(reply.code == code && reply.has(words), "{}", reply.whole);
}

/// A token of a user's that no record grants anything.
fn user(platform: &Platform, name: &str) -> String {
    platform
        .cli(&["user", "create", name, "--no-namespaces"])
        .ok();
    token(platform, name)
}

fn token(platform: &Platform, name: &str) -> String {
    let token = platform.cli(&["token", "create", "--user", name]).ok();
    token.trim().to_owned()
}

/// The addresses that the search finds, by its JSON.
fn found(platform: &Platform, token: &str, question: &str) -> Vec<String> {
    let path = format!("/ui/find?format=json&q={question}");
    let reply = ask(platform, token, &format!("GET {path}"), "");
    assert_eq!(reply.code, 200, "{path}: {}", reply.whole);
    let body = reply.whole.split_once("\r\n\r\n").unwrap().1;
    let body = &body[body.find('{').unwrap()..=body.rfind('}').unwrap()];
    let answer: Value = serde_json::from_str(body).unwrap();
    let groups = answer["groups"].as_array().unwrap().iter();
    let rows = groups.flat_map(|group| group["rows"].as_array().unwrap());
    rows.map(|row| row["href"].as_str().unwrap().to_owned())
        .collect()
}

fn pod(platform: &Platform, namespace: &str, name: &str, more: &str) {
    platform.apply(&format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: {namespace}}}\nspec:\n  terminationGracePeriodSeconds: 1\n  \
         {more}\n  containers: [{{name: main, command: [sleep, '600'], resources: {{requests: {{cpu: 100m, memory: 32Mi}}}}}}]\n"
    ));
}
