//! The search: it finds what its reader may see.

use e2e::{Platform, eventually};

use super::{SOON, ask, found, pod, token, user};

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
