//! Who may open a page, and for how long.

use e2e::{Platform, eventually};

use super::{Opened, SOON, open, send, started, ticket, token, web};

#[test]
fn only_who_may_opens_a_page_and_only_for_as_long() {
    let platform = Platform::up(&[]);
    let port = started(&platform, "web");
    let path = format!("default/pods/web/{port}/");
    // Without a sign-in.
    let nobody = send(
        &platform,
        &platform.listen,
        &format!("GET /proxy/{path}"),
        &[],
        "",
    );
    assert_eq!(nobody.code, 303);
    assert!(
        nobody
            .header("location")
            .starts_with("/ui/sign-in?next=/proxy/default/"),
        "{}",
        nobody.head
    );
    // Another team's member, a viewer, and a member of the team whose pod it is not.
    for (user, role, namespace) in [
        ("eve", "member", "other"),
        ("vi", "viewer", "default"),
        ("mo", "member", "default"),
    ] {
        let words = [
            "user",
            "create",
            user,
            "--role",
            role,
            "--namespaces",
            namespace,
        ];
        platform.cli(&words).ok();
        let refused = ticket(&platform, &token(&platform, user), &path);
        assert_eq!(refused.code, 403, "{user}: {}", refused.body);
    }
    eventually("each refusal is recorded", SOON, || {
        let mut refused = platform.audited("\"subresource\":\"proxy\"");
        refused.retain(|event| event["responseStatus"]["code"] == 403);
        (refused.len() == 3).then_some(())
    });

    let admin = token(&platform, "admin");
    let page = open(&platform, &admin, &path);
    let code = |opened: &Opened| opened.send(&platform, "GET /headers", &[], "").code;
    assert_eq!(code(&page), 200);
    // Another port's host takes neither the cookie nor the ticket.
    let other_port = started(&platform, "second");
    let other = open(
        &platform,
        &admin,
        &format!("default/pods/second/{other_port}/"),
    );
    assert_ne!(page.host, other.host);
    let mixed = Opened {
        host: other.host.clone(),
        cookie: page.cookie.clone(),
    };
    assert_eq!(code(&mixed), 401);
    let reply = ticket(&platform, &admin, &path);
    let location = reply.header("location").strip_prefix("http://").unwrap();
    let (host, rest) = location.split_once('/').unwrap();
    assert_eq!(
        send(&platform, &other.host, &format!("GET /{rest}"), &[], "").code,
        403
    );
    // It was used, though at the wrong host.
    assert_eq!(
        send(&platform, host, &format!("GET /{rest}"), &[], "").code,
        403
    );
    assert_eq!(
        send(&platform, &page.host, "GET /headers", &[], "").code,
        401
    );
    // Pages of other origins.
    for lines in [
        vec!["Origin: http://evil.example"],
        vec!["Sec-Fetch-Site: same-site", "Sec-Fetch-Mode: no-cors"],
        vec![
            "Sec-Fetch-Site: cross-site",
            "Sec-Fetch-Mode: navigate",
            "Sec-Fetch-Dest: iframe",
        ],
    ] {
        assert_eq!(
            page.send(&platform, "GET /headers", &lines, "").code,
            403,
            "{lines:?}"
        );
    }
    let links = [
        "Sec-Fetch-Site: same-site",
        "Sec-Fetch-Mode: navigate",
        "Sec-Fetch-Dest: document",
        "Accept: text/html",
    ];
    let link = page.send(&platform, "GET /delete?all", &links, "");
    assert_eq!(link.code, 303);
    let entry = format!("/proxy/default/pods/web/{port}/delete?all");
    assert!(link.header("location").ends_with(&entry), "{}", link.head);
    let bearer = format!("Authorization: Bearer {admin}");
    let asked = send(
        &platform,
        &platform.listen,
        &format!("GET {entry}"),
        &[&links[..], &[bearer.as_str()]].concat(),
        "",
    );
    assert!(
        asked.code == 200 && asked.body.contains("Open a page of pod web?"),
        "{}",
        asked.body
    );

    // A pod of the same name is another pod.
    platform
        .kubectl(&["delete", "pod", "web", "--wait=true"])
        .ok();
    platform.apply(&web("web", port));
    platform.until_ready("web");
    assert_eq!(code(&page), 409);
    let again = open(&platform, &admin, &path);
    assert_ne!(again.host, page.host);
    assert_eq!(code(&again), 200);
    // The token behind it is revoked.
    let list = platform.cli(&["token", "list"]).ok();
    for line in list.lines().skip(1) {
        let id = line.split_whitespace().next().unwrap();
        if admin.contains(id) {
            platform.cli(&["token", "revoke", id]).ok();
        }
    }
    assert_eq!(code(&again), 401);
    assert_eq!(code(&other), 401);
}
