//! Pods reach the API with the token of their service account: the Python client's and kubectl's in-cluster
//! configuration work unchanged, and bindings decide what they may do.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use e2e::{Platform, eventually, kubectl, python, run};

const SOON: Duration = Duration::from_secs(60);

/// Lists the pods of its own namespace as an in-cluster program does, and prints what it may see.
const PROGRAM: &str = "
import os
from kubernetes import client, config
config.load_incluster_config()
namespace = open('/var/run/secrets/kubernetes.io/serviceaccount/namespace').read()
api = client.CoreV1Api()
for where in (namespace, 'kube-system'):
    try:
        names = sorted(pod.metadata.name for pod in api.list_namespaced_pod(where).items)
        print(where, 'pods', *names)
    except client.ApiException as error:
        print(where, error.status, error.reason)
";

/// The packages of the Python client, which has no compiled part that it cannot do without.
const PACKAGES: [&str; 12] = [
    "certifi",
    "charset_normalizer",
    "dateutil",
    "durationpy",
    "idna",
    "kubernetes",
    "oauthlib",
    "requests",
    "requests_oauthlib",
    "six.py",
    "urllib3",
    "websocket",
];

/// Copies a part to where pods can read it: they do not run as root, and the repository may be closed to them.
fn copied(platform: &Platform, from: PathBuf) -> String {
    let to = platform.shared("parts");
    run(Command::new("cp")
        .arg("-r")
        .arg("--dereference")
        .arg(from)
        .arg(&to))
    .ok();
    to.display().to_string()
}

/// Copies the Python client, and returns the folder with its packages.
fn python_client(platform: &Platform) -> String {
    let place = "import sysconfig; print(sysconfig.get_path('purelib'))";
    let site = run(Command::new(python()).args(["-c", place])).ok();
    for package in PACKAGES.iter().chain(&["yaml"]) {
        copied(platform, PathBuf::from(site.trim()).join(package));
    }
    platform.shared("parts").display().to_string()
}

fn pod(name: &str, account: &str, command: &[&str]) -> String {
    serde_json::json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {
            "restartPolicy": "Never", "serviceAccountName": account,
            "containers": [{"name": "c", "command": command}],
        },
    })
    .to_string()
}

fn log_of(platform: &Platform, name: &str) -> String {
    let done = format!("pod/{name}");
    let ended = [
        "wait",
        "--for=jsonpath={.status.phase}=Succeeded",
        &done,
        "--timeout=60s",
    ];
    let waited = platform.kubectl(&ended);
    let log = platform.kubectl(&["logs", name]).ok();
    assert!(
        waited.code == Some(0),
        "{log}\n{}",
        platform.kubectl(&["describe", "pod", name]).ok()
    );
    log
}

#[test]
fn a_pods_program_lists_pods_as_its_service_account_may() {
    let platform = Platform::up(&[]);
    let k = |arguments: &[&str]| platform.kubectl(arguments).ok();
    k(&["create", "serviceaccount", "reader"]);
    k(&[
        "create",
        "role",
        "read-pods",
        "--verb=get,list,watch",
        "--resource=pods",
    ]);
    k(&[
        "create",
        "rolebinding",
        "reader",
        "--role=read-pods",
        "--serviceaccount=default:reader",
    ]);
    let packages = python_client(&platform);
    let program = format!("import sys; sys.path.insert(0, {packages:?})\n{PROGRAM}");
    let python = "/usr/bin/python3";

    platform.apply(&pod("stranger", "default", &[python, "-c", &program]));
    let log = log_of(&platform, "stranger");
    assert_eq!(log, "default 403 Forbidden\nkube-system 403 Forbidden\n");

    platform.apply(&pod("lister", "reader", &[python, "-c", &program]));
    let log = log_of(&platform, "lister");
    assert_eq!(
        log,
        "default pods lister stranger\nkube-system 403 Forbidden\n"
    );

    let kubectl = format!("{}/kubectl", copied(&platform, kubectl()));
    platform.apply(&pod(
        "goclient",
        "reader",
        &[&kubectl, "get", "pods", "-o", "name"],
    ));
    let log = log_of(&platform, "goclient");
    assert_eq!(log, "pod/goclient\npod/lister\npod/stranger\n");
}

#[test]
fn a_token_ends_with_its_pod_and_a_pod_that_declines_has_none() {
    let platform = Platform::up(&[]);
    let print = "cat /var/run/secrets/kubernetes.io/serviceaccount/token; echo; sleep 600";
    platform.apply(&pod("holder", "default", &["/bin/sh", "-c", print]));
    let token = eventually("the pod prints its token", SOON, || {
        let log = platform.kubectl(&["logs", "holder"]).out;
        let line = log.lines().next()?.to_owned();
        (line.split('.').count() == 3).then_some(line)
    });
    let whoami = || {
        let name = "jsonpath={.status.userInfo.username}";
        platform.kubectl_by(&token, &["auth", "whoami", "-o", name])
    };
    assert_eq!(whoami().ok(), "system:serviceaccount:default:default");
    platform.kubectl(&["delete", "pod", "holder", "--now"]).ok();
    eventually("the token is refused after its pod is gone", SOON, || {
        (whoami().code != Some(0)).then_some(())
    });

    let mut declines: serde_json::Value = serde_json::from_str(&pod(
        "declines",
        "default",
        &[
            "/bin/sh",
            "-c",
            "ls /var/run/secrets/kubernetes.io/serviceaccount/token || echo none",
        ],
    ))
    .unwrap();
    declines["spec"]["automountServiceAccountToken"] = false.into();
    platform.apply(&declines.to_string());
    assert!(log_of(&platform, "declines").contains("none"));

    let file = platform.manifest("refused.json", &pod("unknown", "missing", &["true"]));
    let refused = platform
        .kubectl(&["apply", "-f", &file.display().to_string()])
        .err;
    assert!(
        refused.contains("serviceaccount \"missing\" not found")
            && refused.contains("kubectl create serviceaccount missing"),
        "{refused}"
    );
}

#[test]
fn the_authoritys_certificate_comes_back_into_a_namespace() {
    let platform = Platform::server(&[]);
    let certificate = || {
        platform.kubectl(&[
            "get",
            "configmap",
            "kube-root-ca.crt",
            "-n",
            "fresh",
            "-o",
            "jsonpath={.data.ca\\.crt}",
        ])
    };
    platform.kubectl(&["create", "namespace", "fresh"]).ok();
    let first = certificate().ok();
    assert!(first.starts_with("-----BEGIN CERTIFICATE-----"), "{first}");
    platform
        .kubectl(&["delete", "configmap", "kube-root-ca.crt", "-n", "fresh"])
        .ok();
    eventually("the certificate is created again", SOON, || {
        (certificate().out == first).then_some(())
    });
    let patch = r#"{"data":{"ca.crt":"another"}}"#;
    platform
        .kubectl(&[
            "patch",
            "configmap",
            "kube-root-ca.crt",
            "-n",
            "fresh",
            "-p",
            patch,
        ])
        .ok();
    eventually("the certificate is corrected", SOON, || {
        (certificate().out == first).then_some(())
    });
    platform
        .kubectl(&["delete", "serviceaccount", "default", "-n", "fresh"])
        .ok();
    eventually("the default account is created again", SOON, || {
        let ran = platform.kubectl(&["get", "serviceaccount", "default", "-n", "fresh"]);
        (ran.code == Some(0)).then_some(())
    });
}
