//! Saved views of the list of jobs.

use e2e::Platform;

use super::{ask, done, found, refused, user};

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
    refused(
        &platform,
        &bob,
        &format!("{views}?whose=mine"),
        "name=%0A",
        (422, "use 1 to 40 characters"),
    );
    for number in 1..20 {
        done(&platform, &bob, views, &format!("name=v{number}"));
    }
    refused(
        &platform,
        &bob,
        views,
        "name=another",
        (422, "remove one first"),
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
