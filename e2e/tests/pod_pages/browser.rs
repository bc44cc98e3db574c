//! Pages in a real browser, on the server's machine and elsewhere.

use e2e::{Platform, python, repository, run};

use super::started;

/// Walks through the pages in a browser. `url` is Muster's address, and `site` what all hosts share.
fn walk(platform: &Platform, url: &str, site: &str, others: &[&str]) {
    let port = started(platform, "web").to_string();
    let other = started(platform, "other").to_string();
    let path = repository().join("e2e/clients/pod_pages.py");
    let (path, password) = (path.display().to_string(), platform.password());
    let words = [path.as_str(), url, &password, &port, &other, site];
    let out = run(&mut platform.command(&python(), &[&words[..], others].concat())).ok();
    assert!(out.contains("pod pages done"), "{out}");
}

#[test]
fn in_a_browser_on_the_servers_machine_pages_work_and_hostile_ones_get_nothing() {
    let platform = Platform::up(&[]);
    let port = platform.listen.rsplit(':').next().unwrap();
    let local = format!("http://localhost:{port}");
    walk(
        &platform,
        &format!("http://{}", platform.listen),
        "localhost",
        &[&local],
    );
}

#[test]
fn in_a_browser_elsewhere_pages_of_one_site_with_muster_get_nothing() {
    let words = [
        "--advertise",
        "muster.site.example",
        "--proxy-domain",
        "pods.site.example",
    ];
    let platform = Platform::up(&words);
    let port = platform.listen.rsplit(':').next().unwrap();
    let url = format!("https://muster.site.example:{port}");
    walk(&platform, &url, "site.example", &[]);
}
