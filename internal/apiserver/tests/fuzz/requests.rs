//! Paths, parameters and headers, of requests without a body and with a plain one.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::{BoxedStrategy, Strategy, any, prop_oneof};
use proptest::sample::select;
use resources::registry;

use crate::ground::{Asked, BASE, Ground, NAMESPACE, collection, object, try_all};
use crate::texts::text;

/// A number of cases that every run has time for.
const CASES: u32 = 512;

/// A text as a part of a path or query: with all special bytes escaped, or hardly any.
fn escaped(text: &str, all: bool) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~=,!()*".contains(&byte);
    text.bytes()
        .map(
            |byte| match plain(byte) || !all && byte.is_ascii_graphic() {
                true => char::from(byte).to_string(),
                false => format!("%{byte:02x}"),
            },
        )
        .collect()
}

fn segment() -> impl Strategy<Value = String> {
    let known = select(vec![
        "api",
        "apis",
        "v1",
        "v1beta1",
        "batch",
        "namespaces",
        NAMESPACE,
        "pods",
        "jobs",
        BASE,
        "status",
        "scale",
        "log",
        "eviction",
        "binding",
        "finalize",
        "token",
        "exec",
        "attach",
        "portforward",
        "proxy",
        "",
        ".",
        "..",
        "%",
        "%2f",
        "%ff",
        "%00",
    ]);
    prop_oneof![
        4 => known.prop_map(str::to_owned),
        1 => (text(), any::<bool>()).prop_map(|(text, all)| escaped(&text, all)),
    ]
}

fn path() -> BoxedStrategy<String> {
    let mut known = Vec::new();
    for kind in registry::served() {
        let object = object(kind, BASE);
        known.extend([collection(kind), object.clone(), format!("{object}/status")]);
        known.extend(["log", "scale", "finalize", "exec"].map(|sub| format!("{object}/{sub}")));
        known.push(collection(kind).replace(&format!("/namespaces/{NAMESPACE}"), ""));
    }
    let any_path = (select(vec!["/api/", "/apis/"]), vec(segment(), 0..7))
        .prop_map(|(root, segments)| format!("{root}{}", segments.join("/")));
    prop_oneof![3 => select(known), 1 => any_path].boxed()
}

/// A label or field selector.
fn selector() -> impl Strategy<Value = String> {
    let word = || {
        let known = select(vec![
            "a",
            "metadata.name",
            "spec.nodeName",
            "status.phase",
            BASE,
            "x/y",
            "in",
            "notin",
            "exists",
            "",
        ]);
        prop_oneof![3 => known.prop_map(str::to_owned), 1 => text()]
    };
    let sign = select(vec![
        "=", "==", "!=", " in ", " notin ", ">", "<", "!", ",", "(", ")", "\\", " ", "=~",
    ]);
    vec((word(), sign), 0..8).prop_map(|all| {
        let words = all.into_iter().map(|(word, sign)| format!("{word}{sign}"));
        words.collect::<String>()
    })
}

fn parameter() -> impl Strategy<Value = String> {
    let names = select(vec![
        "labelSelector",
        "fieldSelector",
        "limit",
        "continue",
        "resourceVersion",
        "resourceVersionMatch",
        "watch",
        "timeoutSeconds",
        "allowWatchBookmarks",
        "sendInitialEvents",
        "dryRun",
        "fieldManager",
        "fieldValidation",
        "force",
        "gracePeriodSeconds",
        "propagationPolicy",
        "orphanDependents",
        "pretty",
        "container",
        "tailLines",
        "sinceSeconds",
        "sinceTime",
        "limitBytes",
        "previous",
        "timestamps",
        "command",
        "stdin",
        "stdout",
        "tty",
        "x",
    ]);
    let values = prop_oneof![
        2 => select(vec![
            "", "true", "false", "0", "1", "-1", "9223372036854775807", "18446744073709551616", "All", "Exact",
            "NotOlderThan", "Strict", "Background", "eyJ2IjoibWV0YS5rOHMuaW8vdjEifQ", "2026-01-01T00:00:00Z", "1e9",
        ])
        .prop_map(str::to_owned),
        2 => selector(),
        1 => text(),
    ];
    (names, values, any::<bool>())
        .prop_map(|(name, value, all)| format!("{name}={}", escaped(&value, all)))
}

fn header() -> impl Strategy<Value = (String, String)> {
    let names = select(vec![
        "accept",
        "content-type",
        "user-agent",
        "if-match",
        "if-none-match",
        "content-encoding",
        "accept-encoding",
        "range",
        "expect",
        "host",
        "x-http-method-override",
        "impersonate-user",
        "impersonate-group",
        "authorization",
        "upgrade",
        "connection",
        "sec-websocket-protocol",
        "sec-websocket-key",
        "sec-websocket-version",
    ]);
    let values = prop_oneof![
        4 => select(vec![
            "*/*", "application/json", "application/yaml", "application/vnd.kubernetes.protobuf", "text/html",
            "application/json;as=Table;v=v1;g=meta.k8s.io", "application/json;as=Table;v=v1beta1;g=meta.k8s.io",
            "application/yaml;as=Table;v=v1;g=meta.k8s.io", "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io",
            "application/yaml;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io", "application/json;q=nan,*/*;q=2",
            "application/json;as=APIGroupDiscoveryList;v=v2;g=apidiscovery.k8s.io", "application/json;stream=watch",
            ";;;", ",,,", "gzip", "bytes=0-1", "100-continue", "Bearer x", "a/b (c) d",
            "application/merge-patch+json", "application/apply-patch+yaml", "application/json; charset=utf-16",
            "websocket", "SPDY/3.1", "Upgrade", "v5.channel.k8s.io", "v4.channel.k8s.io, x", "13",
        ])
        .prop_map(str::to_owned),
        1 => text(),
    ];
    (names, values).prop_map(|(name, value)| (name.to_owned(), value))
}

pub(crate) fn asked() -> impl Strategy<Value = Asked> {
    let method = prop_oneof![
        6 => select(vec!["GET"]),
        2 => select(vec!["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "QUERY"]),
    ];
    let body = option::of(select(vec![
        "",
        "{}",
        "[]",
        "null",
        "{\"metadata\":{}}",
        "a: b",
        "k8s\0",
    ]));
    let parts = (
        method,
        path(),
        vec(parameter(), 0..5),
        vec(header(), 0..3),
        body,
    );
    parts.prop_map(|(method, path, parameters, headers, body)| Asked {
        method: method.to_owned(),
        path: match parameters.is_empty() {
            true => path,
            false => format!("{path}?{}", parameters.join("&")),
        },
        headers,
        body: body.unwrap_or_default().as_bytes().to_vec(),
    })
}

#[test]
fn whatever_is_asked_is_answered_well() {
    let ground = Ground::new();
    try_all("requests", CASES, &asked(), |asked| {
        ground.try_out(&asked)?;
        if asked.method == "DELETE" {
            registry::all().iter().for_each(|kind| ground.restore(kind));
        }
        ground.stands("/api/v1/namespaces/default")
    });
}
