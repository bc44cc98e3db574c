//! The pages of nodes: a node is drained with a preview, and removed by its name.

use e2e::{Platform, eventually};

use super::{SOON, ask, done, pod, refused, token, user};

const WEB: &str = "
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: default}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 1
      containers: [{name: main, command: [sleep, '600'], resources: {requests: {cpu: 100m, memory: 32Mi}}}]
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: keep-web, namespace: default}
spec: {minAvailable: 2, selector: {matchLabels: {app: web}}}
---
apiVersion: batch/v1
kind: Job
metadata: {name: train, namespace: default}
spec:
  template:
    spec:
      restartPolicy: Never
      terminationGracePeriodSeconds: 1
      containers: [{name: main, command: [sleep, '600'], resources: {requests: {cpu: 100m, memory: 32Mi}}}]
";

#[test]
fn a_node_is_drained_with_a_preview_and_removed_by_its_name() {
    let platform = Platform::server(&[]);
    let agent = platform.agent("n1", None, &[]);
    platform.await_nodes(1);
    let (admin, eve) = (token(&platform, "admin"), user(&platform, "eve"));
    platform.apply(WEB);
    pod(&platform, "default", "alone", "");
    eventually("all pods run", SOON, || {
        let pods = platform.kubectl(&["get", "pods", "--no-headers"]).out;
        (pods.matches("Running").count() == 4).then_some(())
    });
    eventually("the budget counts its pods", SOON, || {
        let budget = platform.get("pdb", "keep-web");
        (budget["status"]["currentHealthy"] == 2).then_some(())
    });

    // The preview is that of the command line.
    let drain = "/ui/nodes/n1/drain";
    let preview = ask(&platform, &admin, &format!("GET {drain}"), "");
    let table = platform.cli(&["node", "drain", "n1", "--dry-run"]).out;
    for (pod, words) in [
        ("web-", "evict later"),
        ("train-", "evict"),
        ("alone", "cannot move"),
    ] {
        let row = table.lines().find(|line| line.contains(&format!(" {pod}")));
        assert!(row.is_some_and(|row| row.contains(words)), "{table}");
        let rows = preview.whole.split("<tr>");
        let row = rows
            .into_iter()
            .find(|row| row.contains(&format!("pods/{pod}")));
        assert!(
            row.is_some_and(|row| row.contains(&format!("<td>{words}</td>"))),
            "{}",
            preview.whole
        );
    }
    assert!(
        preview.has("PodDisruptionBudget keep-web allows no eviction now"),
        "{}",
        preview.whole
    );
    for request in [
        format!("GET {drain}"),
        format!("POST {drain}"),
        "POST /ui/nodes/n1/remove".to_owned(),
        "POST /ui/nodes/n1/cordon".to_owned(),
        "POST /ui/nodes/n1/uncordon".to_owned(),
    ] {
        let body = if request.starts_with("GET") {
            ""
        } else {
            "confirm=n1&reason=x"
        };
        let refused = ask(&platform, &eve, &request, body);
        assert_eq!(refused.code, 403, "{request}: {}", refused.whole);
        assert!(!refused.has("alone") && !refused.has("train-"), "{request}");
    }

    // What nothing creates again is named first, and the budget holds.
    refused(&platform, &admin, drain, "", (409, "default/alone"));
    assert!(platform.get("node", "n1")["spec"]["unschedulable"].is_null());
    let drained = ask(&platform, &admin, &format!("POST {drain}"), "force=on");
    assert_eq!(drained.code, 200, "{}", drained.whole);
    let notices = [
        "default/alone",
        "ends within 1 s",
        "allows no eviction now; drain again",
        "takes no new work",
    ];
    for words in notices {
        assert!(drained.has(words), "{words}: {}", drained.whole);
    }
    eventually("the others are gone", SOON, || {
        let pods = platform.kubectl(&["get", "pods", "--no-headers"]).out;
        let web = pods
            .lines()
            .filter(|line| line.starts_with("web-") && line.contains("Running"));
        (web.count() == 2 && !pods.contains("alone")).then_some(())
    });
    let node = platform.get("node", "n1");
    assert_eq!(node["spec"]["unschedulable"], true);
    let shown = ask(&platform, &admin, "GET /ui/nodes/n1", "");
    assert!(shown.has("drained (admin)"), "{}", shown.whole);
    platform.kubectl(&["delete", "pdb", "keep-web"]).ok();
    ask(&platform, &admin, &format!("POST {drain}"), "force=on");
    eventually("nothing is left on the node", SOON, || {
        // Pods that are ending are still there: kubectl's table calls them Terminating.
        let on = [
            "get",
            "pods",
            "--field-selector",
            "spec.nodeName=n1",
            "-o",
            "name",
        ];
        let pods = platform.kubectl(&on).ok();
        pods.trim().is_empty().then_some(())
    });
    let page = done(&platform, &admin, drain, "force=on");
    assert_eq!(page, "/ui/nodes/n1?flash=drained");

    let page = done(&platform, &admin, "/ui/nodes/n1/uncordon", "");
    assert_eq!(page, "/ui/nodes/n1?flash=uncordoned");
    drop(agent);
    refused(
        &platform,
        &admin,
        "/ui/nodes/n1/remove",
        "confirm=n2",
        (422, "type the node"),
    );
    let page = done(&platform, &admin, "/ui/nodes/n1/remove", "confirm=n1");
    assert_eq!(page, "/ui/nodes?flash=node-removed");
    assert!(ask(&platform, &admin, &format!("GET {page}"), "").has("The node is removed"));
    assert!(!platform.kubectl(&["get", "nodes"]).out.contains("n1"));
}
