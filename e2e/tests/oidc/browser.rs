//! A browser that signs in: its cookies, and the pages of server and provider that it visits.

use std::process::Command;

use e2e::{Platform, run};
use serde_json::Value;

use crate::provider::{PASSWORD, Provider};

/// An answer to a browser.
pub struct Reply {
    pub code: u16,
    pub head: String,
    pub body: String,
}

impl Reply {
    pub fn location(&self) -> String {
        let mut lines = self.head.lines();
        let found = lines.find_map(|line| {
            let (name, value) = line.split_once(": ")?;
            name.eq_ignore_ascii_case("location").then_some(value)
        });
        found
            .unwrap_or_else(|| panic!("no location: {}", self.head))
            .to_owned()
    }

    /// Where a page leads at once.
    pub fn leads_to(&self) -> String {
        let (_, rest) = self
            .body
            .split_once("<a href=\"")
            .unwrap_or_else(|| panic!("{}", self.body));
        let escaped = rest.split('"').next().unwrap();
        escaped.replace("&#38;", "&").replace("&amp;", "&")
    }

    pub fn sets(&self, cookie: &str) -> bool {
        let begin = format!("set-cookie: {cookie}=");
        let mut lines = self.head.lines();
        lines.any(|line| line.to_lowercase().starts_with(&begin) && !line.contains("Max-Age=0"))
    }
}

/// A browser with cookies of its own.
pub struct Browser<'a> {
    platform: &'a Platform,
    provider: &'a Provider,
    jar: tempfile::NamedTempFile,
}

impl<'a> Browser<'a> {
    pub fn new(platform: &'a Platform, provider: &'a Provider) -> Browser<'a> {
        Browser {
            platform,
            provider,
            jar: tempfile::NamedTempFile::new().unwrap(),
        }
    }

    pub fn muster(&self) -> String {
        format!("https://{}", self.platform.listen)
    }

    pub fn ask(&self, url: &str, options: &[&str]) -> Reply {
        let mut curl = Command::new("curl");
        curl.args(["-sSki", "--http1.1", "-b"])
            .arg(self.jar.path())
            .arg("-c")
            .arg(self.jar.path())
            .args(options)
            .arg(url);
        let whole = run(&mut curl).ok();
        let (head, body) = whole.split_once("\r\n\r\n").unwrap();
        Reply {
            code: head.split(' ').nth(1).unwrap().parse().unwrap(),
            head: head.to_owned(),
            body: body.to_owned(),
        }
    }

    /// The button on the sign-in page.
    pub fn begin(&self, next: &str) -> Reply {
        let (origin, next) = (format!("Origin: {}", self.muster()), format!("next={next}"));
        let url = format!("{}/ui/oidc/start", self.muster());
        self.ask(&url, &["-H", &origin, "--data-urlencode", &next])
    }

    /// Signs in at the provider, and returns the address to which it sends the browser back.
    pub fn at_provider(&self, url: &str, user: &str) -> String {
        let form = self.ask(url, &[]);
        assert_eq!(form.code, 302, "{url}: {}{}", form.head, form.body);
        let (_, request) = form
            .location()
            .split_once("authRequestID=")
            .map(|(a, b)| (a.to_owned(), b.to_owned()))
            .unwrap();
        let (id, name) = (format!("id={request}"), format!("username={user}"));
        let password = format!("password={PASSWORD}");
        let base = format!("https://{}", self.provider.listen);
        let signed = self.ask(
            &format!("{base}/login/username"),
            &[
                "--data-urlencode",
                &id,
                "--data-urlencode",
                &name,
                "--data-urlencode",
                &password,
            ],
        );
        assert_eq!(signed.code, 302, "{}{}", signed.head, signed.body);
        let next = signed.location();
        let next = if next.starts_with('/') {
            format!("{base}{next}")
        } else {
            next
        };
        self.ask(&next, &[]).location()
    }

    /// A whole sign-in.
    pub fn sign_in(&self, user: &str) -> Reply {
        let begun = self.begin("/ui/jobs");
        assert_eq!(begun.code, 200, "{}{}", begun.head, begun.body);
        let back = self.at_provider(&begun.leads_to(), user);
        self.ask(&back, &[])
    }

    /// Who the server says the browser's user is.
    pub fn whoami(&self) -> Value {
        let answer = self.ask(&format!("{}/api/v1/whoami", self.muster()), &[]);
        serde_json::from_str(&answer.body).unwrap_or_default()
    }
}
