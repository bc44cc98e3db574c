//! Administration in the web UI, over HTTP: teams made and changed by forms, nodes emptied and removed, queues changed;
//! what members see of it, and that they may do none of it.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::io::{Read, Write};
use std::time::Duration;

use e2e::{Platform, eventually, repository};
use serde_json::Value;

const SOON: Duration = Duration::from_secs(60);

/// An answer of the web UI.
struct Reply {
    code: u16,
    whole: String,
}

impl Reply {
    /// The page that a form leads to.
    fn location(&self) -> &str {
        let mut lines = self.whole.lines();
        let found = lines.find_map(|line| line.strip_prefix("location: "));
        found.unwrap_or_default()
    }

    fn has(&self, words: &str) -> bool {
        self.whole.contains(words)
    }
}

fn ask(platform: &Platform, token: &str, request: &str, body: &str) -> Reply {
    let mut stream = std::net::TcpStream::connect(&platform.listen).unwrap();
    let text = format!(
        "{request} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nAuthorization: Bearer {token}\r\n\
         Content-Type: application/x-www-form-urlencoded\r\nContent-Length: {}\r\n\r\n{body}",
        platform.listen,
        body.len()
    );
    stream.write_all(text.as_bytes()).unwrap();
    let mut whole = String::new();
    stream.read_to_string(&mut whole).unwrap();
    let code = whole.split(' ').nth(1).and_then(|code| code.parse().ok());
    Reply {
        code: code.unwrap_or_else(|| panic!("no answer: {whole:?}")),
        whole,
    }
}

/// A form that is expected to succeed; the answer is the page that it leads to.
fn done(platform: &Platform, token: &str, path: &str, body: &str) -> String {
    let reply = ask(platform, token, &format!("POST {path}"), body);
    assert_eq!(reply.code, 303, "POST {path}: {}", reply.whole);
    reply.location().to_owned()
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

/// The objects that make a team, without what differs between two teams.
fn made_of(platform: &Platform, team: &str) -> Vec<String> {
    let mut all = Vec::new();
    for kind in ["queues", "namespaces", "resourcequotas", "rolebindings"] {
        let label = format!("muster.io/team={team}");
        let list = platform
            .kubectl(&["get", kind, "-A", "-l", &label, "-o", "json"])
            .ok();
        let list: Value = serde_json::from_str(&list).unwrap();
        for object in list["items"].as_array().unwrap() {
            let meta = &object["metadata"];
            let kept = serde_json::json!([
                object["kind"],
                meta["name"],
                meta["namespace"],
                meta["labels"],
                object["spec"],
                object["roleRef"],
                object["subjects"],
            ]);
            all.push(kept.to_string().replace(team, "TEAM"));
        }
    }
    all.sort();
    all
}

fn pod(platform: &Platform, namespace: &str, name: &str, more: &str) {
    platform.apply(&format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: {namespace}}}\nspec:\n  terminationGracePeriodSeconds: 1\n  \
         {more}\n  containers: [{{name: main, command: [sleep, '600'], resources: {{requests: {{cpu: 100m, memory: 32Mi}}}}}}]\n"
    ));
}

#[test]
fn a_team_made_by_a_form_is_what_the_command_line_makes_and_others_see_nothing_of_it() {
    let machine = repository().join("packaging/examples/machines/4x-h100.toml");
    let platform = Platform::up(&["--machine", &machine.display().to_string()]);
    let (admin, bob, eve) = (
        token(&platform, "admin"),
        user(&platform, "bob"),
        user(&platform, "eve"),
    );
    user(&platform, "annika");
    let form =
        "name=vision&weight=2&gpus=2&quota=pods%3D30&leads=annika&members=bob&parent=&namespaces=";
    let page = done(&platform, &admin, "/ui/teams", form);
    assert_eq!(page, "/ui/teams/vision?flash=team-created");
    let arguments = [
        "team",
        "create",
        "speech",
        "--weight",
        "2",
        "--quota",
        "nvidia.com/gpu=2,pods=30",
        "--leads",
        "annika",
        "--members",
        "bob",
    ];
    platform.cli(&arguments).ok();
    assert_eq!(made_of(&platform, "vision"), made_of(&platform, "speech"));
    assert_eq!(made_of(&platform, "vision").len(), 6);
    platform
        .cli(&["team", "create", "robots", "--members", "eve"])
        .ok();
    let shown = ask(&platform, &admin, &format!("GET {page}"), "");
    for words in [
        "The team is made",
        "requests.nvidia.com/gpu",
        "Change the quota",
        "bob",
    ] {
        assert!(shown.has(words), "{words}: {}", shown.whole);
    }

    // Members see their own team, without a form; others see nothing.
    let own = ask(&platform, &bob, "GET /ui/teams/vision", "");
    assert!(own.code == 200 && own.has("annika") && own.has("requests.nvidia.com/gpu"));
    assert!(
        !own.has("<form class=\"card\"") && !own.has("Delete the team"),
        "{}",
        own.whole
    );
    eventually("eve sees the team", SOON, || {
        let list = ask(&platform, &eve, "GET /ui/teams", "");
        list.has("/ui/teams/robots").then_some(())
    });
    for path in [
        "/ui/teams",
        "/ui/teams/robots",
        "/ui/teams/vision",
        "/ui/",
        "/ui/jobs",
        "/ui/find?q=b&format=json",
    ] {
        let seen = ask(&platform, &eve, &format!("GET {path}"), "");
        // The field of the search is a combobox, as ARIA calls it.
        let text = seen.whole.replace("combobox", "");
        for word in ["speech", "annika", "bob"] {
            assert!(!text.contains(word), "{path} has {word}: {text}");
        }
        assert_eq!(
            seen.code,
            if path == "/ui/teams/vision" { 404 } else { 200 }
        );
    }
    // All users see the queues, so that the search finds the team's queue; but not the team.
    let found = ask(&platform, &eve, "GET /ui/find?q=speech", "");
    assert!(
        found.has("/ui/queues/speech") && !found.has("/ui/teams/speech"),
        "{}",
        found.whole
    );
    for (path, body) in [
        ("/ui/teams", "name=mine"),
        ("/ui/teams/vision/quota", "gpus=4"),
        ("/ui/teams/vision/add-member", "user=eve&role=lead"),
        ("/ui/teams/vision/remove-member", "user=bob"),
        ("/ui/teams/vision/delete", "confirm=vision"),
    ] {
        for token in [&bob, &eve] {
            let refused = ask(&platform, token, &format!("POST {path}"), body);
            assert_eq!(refused.code, 403, "{path}");
            assert!(
                refused.has("may not change teams") && !refused.has("annika"),
                "{path}"
            );
        }
    }

    // Changes are those of the command line.
    let team = "/ui/teams/vision";
    let page = done(
        &platform,
        &admin,
        &format!("{team}/add-member"),
        "user=eve&role=viewer",
    );
    assert_eq!(page, "/ui/teams/vision?flash=member-added");
    assert!(
        ask(&platform, &admin, &format!("GET {page}"), "").has("The user is a member of the team.")
    );
    let show = || platform.cli(&["team", "show", "vision"]).ok();
    assert!(show().contains("eve (viewer)"));
    done(
        &platform,
        &admin,
        &format!("{team}/remove-member"),
        "user=eve",
    );
    assert!(!show().contains("eve"));
    let gone = ask(
        &platform,
        &admin,
        &format!("POST {team}/remove-member"),
        "user=eve",
    );
    assert!(
        gone.code == 404 && gone.has("is no member of team"),
        "{}",
        gone.whole
    );
    done(&platform, &admin, &format!("{team}/quota"), "gpus=3&quota=");
    assert!(
        show().contains("requests.nvidia.com/gpu 0 of 3"),
        "{}",
        show()
    );
    let wrong = ask(
        &platform,
        &admin,
        &format!("POST {team}/quota"),
        "gpus=&quota=pods",
    );
    assert!(
        wrong.code == 422 && wrong.has("write NAME=AMOUNT"),
        "{}",
        wrong.whole
    );
    let taken = ask(&platform, &admin, "POST /ui/teams", "name=default");
    assert!(
        taken.code == 422 && taken.has("choose another name"),
        "{}",
        taken.whole
    );

    // A team with work stays.
    pod(&platform, "vision", "busy", "");
    let delete = format!("POST {team}/delete");
    let wrong = ask(&platform, &admin, &delete, "confirm=Vision");
    assert!(
        wrong.code == 422 && wrong.has("type the team"),
        "{}",
        wrong.whole
    );
    let busy = ask(&platform, &admin, &delete, "confirm=vision");
    assert!(
        busy.code == 409 && busy.has("vision/busy"),
        "{}",
        busy.whole
    );
    platform
        .kubectl(&["-n", "vision", "delete", "pod", "busy"])
        .ok();
    let page = done(
        &platform,
        &admin,
        &format!("{team}/delete"),
        "confirm=vision",
    );
    assert_eq!(page, "/ui/teams?flash=team-deleted");
    assert!(!platform.cli(&["team", "list"]).ok().contains("vision"));
    assert_eq!(ask(&platform, &bob, "GET /ui/teams/vision", "").code, 404);
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

#[test]
fn the_search_finds_what_the_reader_may_see_and_nothing_else() {
    let platform = Platform::server(&[]);
    let agent = platform.agent("secret-node", None, &[]);
    platform.await_nodes(1);
    let (admin, bob, eve) = (
        token(&platform, "admin"),
        user(&platform, "bob"),
        user(&platform, "eve"),
    );
    for (team, member) in [("secret-a", "bob"), ("secret-b", "eve")] {
        platform
            .cli(&["team", "create", team, "--members", member])
            .ok();
        pod(&platform, team, &format!("{team}-pod"), "");
    }
    user(&platform, "secret-user");
    let everything = [
        "/ui/jobs/secret-a/pods/secret-a-pod",
        "/ui/jobs/secret-b/pods/secret-b-pod",
        "/ui/nodes/secret-node",
        "/ui/queues/secret-a",
        "/ui/queues/secret-b",
        "/ui/teams/secret-a",
        "/ui/teams/secret-b",
        "/ui/users#user-secret-user",
    ];
    let sorted = |mut rows: Vec<String>| {
        rows.sort();
        rows
    };
    eventually("all is found", SOON, || {
        let rows = sorted(found(&platform, &admin, "secret"));
        (rows == everything).then_some(())
    });
    // Each member: its own team's pod and team, and what every user may list.
    for (token, own) in [(&bob, "secret-a"), (&eve, "secret-b")] {
        let rows = sorted(found(&platform, token, "secret"));
        let wanted: Vec<&str> = everything
            .into_iter()
            .filter(|href| {
                let common = href.starts_with("/ui/nodes/") || href.starts_with("/ui/queues/");
                common || href.contains(&format!("/{own}"))
            })
            .collect();
        assert_eq!(rows, wanted, "{own}");
    }

    // The words of a question are all in what is found.
    let rows = |question: &str| found(&platform, &admin, question);
    assert_eq!(rows("secret-a/secret%20pod")[0], everything[0]);
    // The page of that name is before the one whose description has the word.
    assert_eq!(rows("submit"), ["/ui/submit", "/ui/jobs?whose=mine"]);
    assert!(rows("").contains(&"/ui/users".to_owned()));
    assert!(!found(&platform, &bob, "").contains(&"/ui/users".to_owned()));
    assert!(rows("no-such-thing").is_empty());

    // The page without a script.
    let page = ask(&platform, &eve, "GET /ui/find?q=secret", "");
    assert!(page.has("href=\"/ui/jobs/secret-b/pods/secret-b-pod\""));
    assert!(
        !page.has("secret-a-pod") && !page.has("secret-user"),
        "{}",
        page.whole
    );
    let page = ask(&platform, &eve, "GET /ui/find?q=%3Cb%3Enone", "");
    assert!(
        page.has("Nothing that you may see") && !page.has("<b>none"),
        "{}",
        page.whole
    );
    drop(agent);
}

#[test]
fn a_user_saves_views_of_the_list_of_jobs_and_has_only_its_own() {
    let mut platform = Platform::server(&[]);
    let (bob, eve) = (user(&platform, "bob"), user(&platform, "eve"));
    let views = "/ui/jobs/views";
    let filters = format!("{views}?state=Failed&sort=gpus&page=3");
    let page = done(&platform, &bob, &filters, "name=lost+work");
    assert_eq!(page, "/ui/jobs?state=Failed&sort=gpus&flash=view-saved");
    let shown = ask(&platform, &bob, &format!("GET {page}"), "");
    let link =
        "<a href=\"/ui/jobs?state=Failed&#38;sort=gpus\" aria-current=\"true\">lost work</a>";
    assert!(
        shown.has("The view is saved") && shown.has(link),
        "{}",
        shown.whole
    );
    let others = ask(&platform, &eve, "GET /ui/jobs", "");
    assert!(others.code == 200 && !others.has("lost work"));
    assert_eq!(
        found(&platform, &bob, "lost"),
        ["/ui/jobs?state=Failed&sort=gpus"]
    );
    assert!(found(&platform, &eve, "lost").is_empty());

    // The same name replaces; names and numbers have bounds.
    done(
        &platform,
        &bob,
        &format!("{views}?whose=mine"),
        "name=lost+work",
    );
    assert_eq!(found(&platform, &bob, "lost"), ["/ui/jobs?whose=mine"]);
    let wrong = ask(
        &platform,
        &bob,
        &format!("POST {views}?whose=mine"),
        "name=%0A",
    );
    assert!(
        wrong.code == 422 && wrong.has("use 1 to 40 characters"),
        "{}",
        wrong.whole
    );
    for number in 1..20 {
        done(&platform, &bob, views, &format!("name=v{number}"));
    }
    let full = ask(&platform, &bob, &format!("POST {views}"), "name=another");
    assert!(
        full.code == 422 && full.has("remove one first"),
        "{}",
        full.whole
    );

    // They outlast the server, and go one by one.
    platform.stop();
    platform.restart();
    assert_eq!(found(&platform, &bob, "lost"), ["/ui/jobs?whose=mine"]);
    let page = done(
        &platform,
        &bob,
        &format!("{views}?whose=mine"),
        "name=lost+work&action=remove",
    );
    assert_eq!(page, "/ui/jobs?whose=mine&flash=view-removed");
    assert!(found(&platform, &bob, "lost").is_empty());
    assert_eq!(found(&platform, &bob, "v19"), ["/ui/jobs?"]);
}

#[test]
fn a_team_gets_a_limit_for_idle_gpus_by_a_form() {
    let platform = Platform::server(&[]);
    let (admin, bob, eve) = (
        token(&platform, "admin"),
        user(&platform, "bob"),
        user(&platform, "eve"),
    );
    let arguments = [
        "team",
        "create",
        "vision",
        "--members",
        "bob",
        "--namespaces",
        "vision,vision-tests",
    ];
    platform.cli(&arguments).ok();
    eventually("the team is listed", SOON, || {
        let page = ask(&platform, &admin, "GET /ui/idle", "");
        page.has("vision-tests").then_some(())
    });
    let annotations = |namespace: &str| {
        let all = platform.get("namespace", namespace)["metadata"]["annotations"].clone();
        ["limit", "action", "exempt-users", "exempt-jobs"].map(|part| {
            let value = &all[format!("muster.io/idle-gpu-{part}")];
            value.as_str().unwrap_or_default().to_owned()
        })
    };

    let form = "limit=2h&action=cancel&users=bob&jobs=demo";
    let page = done(&platform, &admin, "/ui/idle/vision", form);
    assert_eq!(page, "/ui/idle?team=vision&flash=idle-limit-set");
    for namespace in ["vision", "vision-tests"] {
        assert_eq!(annotations(namespace), ["2h", "cancel", "bob", "demo"]);
    }
    let shown = ask(&platform, &admin, &format!("GET {page}"), "");
    for words in [
        "The limit is set in each namespace",
        "the job is cancelled",
        "value=\"2h\"",
        "value=\"demo\"",
    ] {
        assert!(shown.has(words), "{words}: {}", shown.whole);
    }

    // What the API refuses is told with the field, and what was typed stays.
    let wrong = ask(
        &platform,
        &admin,
        "POST /ui/idle/vision",
        "limit=soon&action=warn",
    );
    assert_eq!(wrong.code, 422, "{}", wrong.whole);
    assert!(
        wrong.has("must be a time from 1m to 90d") && wrong.has("value=\"soon\""),
        "{}",
        wrong.whole
    );
    assert_eq!(annotations("vision")[0], "2h");
    let none = ask(&platform, &admin, "POST /ui/idle/none", "limit=2h");
    assert_eq!(none.code, 404, "{}", none.whole);

    // Members see the limit of their own team, without a form.
    let own = ask(&platform, &bob, "GET /ui/idle?team=vision", "");
    assert!(own.has("vision-tests") && own.has("2h"), "{}", own.whole);
    assert!(!own.has("Set the limit") && !own.has("Change…"));
    let others = ask(&platform, &eve, "GET /ui/idle?team=vision", "");
    assert!(
        others.code == 200 && !others.has("vision-tests"),
        "{}",
        others.whole
    );
    for token in [&bob, &eve] {
        let refused = ask(&platform, token, "POST /ui/idle/vision", "limit=1h");
        assert_eq!(refused.code, 403, "{}", refused.whole);
    }

    // An empty time removes the limit.
    done(
        &platform,
        &admin,
        "/ui/idle/vision",
        "limit=&action=cancel&users=bob",
    );
    assert_eq!(annotations("vision-tests"), [const { String::new() }; 4]);
}

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
    let stuck = ask(&platform, &admin, &format!("POST {drain}"), "");
    assert!(
        stuck.code == 409 && stuck.has("default/alone"),
        "{}",
        stuck.whole
    );
    assert!(platform.get("node", "n1")["spec"]["unschedulable"].is_null());
    let drained = ask(&platform, &admin, &format!("POST {drain}"), "force=on");
    assert_eq!(drained.code, 200, "{}", drained.whole);
    let told = [
        "default/alone",
        "ends within 1 s",
        "allows no eviction now; drain again",
        "takes no new work",
    ];
    for words in told {
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
    let wrong = ask(&platform, &admin, "POST /ui/nodes/n1/remove", "confirm=n2");
    assert!(
        wrong.code == 422 && wrong.has("type the node"),
        "{}",
        wrong.whole
    );
    let page = done(&platform, &admin, "/ui/nodes/n1/remove", "confirm=n1");
    assert_eq!(page, "/ui/nodes?flash=node-removed");
    assert!(ask(&platform, &admin, &format!("GET {page}"), "").has("The node is removed"));
    assert!(!platform.kubectl(&["get", "nodes"]).out.contains("n1"));
}

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
    let refused = ask(&platform, &admin, &format!("POST {queue}"), &bad);
    assert!(
        refused.code == 422 && refused.has("capability"),
        "{}",
        refused.whole
    );

    let own = ask(&platform, &eve, &format!("GET {queue}"), "");
    assert!(!own.has("Change the queue"));
    let form = format!("version={now}&weight=7");
    let refused = ask(&platform, &eve, &format!("POST {queue}"), &form);
    assert!(
        refused.code == 403 && refused.has("may not change queues"),
        "{}",
        refused.whole
    );
    assert_eq!(platform.get("queue", "blue")["spec"]["weight"], 3);
}
