//! The page of idle GPUs: a team's limit, set by a form.

use e2e::{Platform, eventually};

use super::{SOON, ask, done, token, user};

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
