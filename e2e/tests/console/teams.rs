//! The pages of teams: a form makes and changes a team as the command line does, and others see nothing of it.

use e2e::{Platform, eventually, repository};
use serde_json::Value;

use super::{SOON, ask, done, pod, refused, token, user};

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
        ("/ui/teams/vision/network", "network=isolated"),
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
    refused(
        &platform,
        &admin,
        &format!("{team}/remove-member"),
        "user=eve",
        (404, "is no member of team"),
    );
    done(&platform, &admin, &format!("{team}/quota"), "gpus=3&quota=");
    assert!(
        show().contains("requests.nvidia.com/gpu 0 of 3"),
        "{}",
        show()
    );
    refused(
        &platform,
        &admin,
        &format!("{team}/quota"),
        "gpus=&quota=pods",
        (422, "write NAME=AMOUNT"),
    );
    let network = format!("{team}/network");
    let page = done(&platform, &admin, &network, "network=isolated");
    assert_eq!(page, "/ui/teams/vision?flash=network-isolated");
    assert!(show().contains("isolated in vision"), "{}", show());
    for reader in [&admin, &bob] {
        let shown = ask(&platform, reader, &format!("GET {team}"), "");
        let words = "The network is isolated in vision";
        assert!(shown.has(words), "{}", shown.whole);
    }
    refused(
        &platform,
        &admin,
        &network,
        "network=closed",
        (422, "use isolated or open"),
    );
    let page = done(&platform, &admin, &network, "network=open");
    let opened = ask(&platform, &admin, &format!("GET {page}"), "");
    assert!(
        opened.has("network is open") && !show().contains("isolated"),
        "{}",
        opened.whole
    );
    refused(
        &platform,
        &admin,
        "/ui/teams",
        "name=default",
        (422, "choose another name"),
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
