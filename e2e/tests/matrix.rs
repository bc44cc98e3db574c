//! Rights on the one port of a running server, apart from the resources in `apiserver`'s own matrix: every route of
//! the portal, every other path of the API, every procedure of the agents' protocol, each with every method, from
//! every kind of caller; and an agent's port for metrics. The routes are read from the routers and from the protocol's definition; a route without a
//! row fails the test by its name.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use e2e::{Agent, Platform, eventually, free_address, repository};
use kube::config::Kubeconfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use serde_json::{Value, json};

const SOON: Duration = Duration::from_secs(60);
/// How long one answer may take.
const ANSWER: Duration = Duration::from_secs(30);

const METHODS: [&str; 6] = ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];
const FORM: &str = "application/x-www-form-urlencoded";
const GRPC: &str = "application/grpc";

/// The callers that may use a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Who {
    /// All callers, also without credentials.
    All,
    /// All callers with credentials; the answer depends on them.
    Authenticated,
    /// Users with a record in Muster.
    Users,
    /// Users with a role in the team's namespace.
    Team,
    /// Users that may change jobs in the team's namespace.
    Workers,
    /// Administrators.
    Admins,
}

/// The kind of a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Is {
    Nobody,
    Node,
    Account,
    Other,
    Viewer,
    Member,
    Lead,
    Admin,
}

impl Who {
    fn includes(self, is: Is) -> bool {
        match self {
            Who::All => true,
            Who::Authenticated => is > Is::Nobody,
            Who::Users => is > Is::Account,
            Who::Team => is > Is::Other,
            Who::Workers => is > Is::Viewer,
            Who::Admins => is == Is::Admin,
        }
    }
}

/// A route of the portal: method, path in the router, requested path, body, permitted callers, and the answer to
/// other callers with credentials.
type Row = (
    &'static str,
    &'static str,
    &'static str,
    &'static str,
    Who,
    u16,
);

#[rustfmt::skip]
const PORTAL: [Row; 112] = [
    ("GET", "/metrics", "", "", Who::Admins, 403),
    // Programs that sign in have no credentials yet.
    ("POST", "/oauth2/device_authorization", "", "", Who::All, 403),
    ("POST", "/oauth2/token", "", "", Who::All, 403),
    ("GET", "/api/v1/whoami", "", "", Who::Authenticated, 403),
    ("GET", "/api/v1/overview", "", "", Who::Authenticated, 403),
    ("GET", "/api/v1/alerts", "", "", Who::Users, 403),
    ("GET", "/api/v1/alert-receivers", "", "", Who::Admins, 403),
    ("POST", "/api/v1/alert-receivers/{name}/test", "/api/v1/alert-receivers/none/test", "{}", Who::Admins, 403),
    ("GET", "/api/v1/alert-silences", "", "", Who::Admins, 403),
    ("POST", "/api/v1/alert-silences", "", r#"{"seconds": 0}"#, Who::Admins, 403),
    ("DELETE", "/api/v1/alert-silences/{id}", "/api/v1/alert-silences/none", "", Who::Admins, 403),
    ("GET", "/api/v1/jobs", "", "", Who::Authenticated, 403),
    ("GET", "/api/v1/users", "", "", Who::Admins, 403),
    ("POST", "/api/v1/users", "", r#"{"name": "-"}"#, Who::Admins, 403),
    ("GET", "/api/v1/users/{name}", "/api/v1/users/none", "", Who::Admins, 403),
    ("PATCH", "/api/v1/users/{name}", "/api/v1/users/none", "{}", Who::Admins, 403),
    ("DELETE", "/api/v1/users/{name}", "/api/v1/users/none", "", Who::Admins, 403),
    ("POST", "/api/v1/users/{name}/reset-link", "/api/v1/users/none/reset-link", "{}", Who::Admins, 403),
    // No caller changes another user's password; an administrator is told to issue a link.
    ("POST", "/api/v1/users/{name}/password", "/api/v1/users/none/password", r#"{"old": "", "new": ""}"#, Who::Admins, 403),
    ("DELETE", "/api/v1/users/{name}/second-factor", "/api/v1/users/none/second-factor", "", Who::Admins, 403),
    ("GET", "/api/v1/users/{name}/sessions", "/api/v1/users/none/sessions", "", Who::Admins, 403),
    ("DELETE", "/api/v1/users/{name}/sessions", "/api/v1/users/none/sessions", "", Who::Admins, 403),
    ("DELETE", "/api/v1/users/{name}/sessions/{id}", "/api/v1/users/none/sessions/none", "", Who::Admins, 403),
    ("GET", "/api/v1/tokens", "", "", Who::Authenticated, 403),
    ("POST", "/api/v1/tokens", "", r#"{"days": 1, "user": "no-such-user"}"#, Who::Admins, 403),
    ("DELETE", "/api/v1/tokens/{id}", "/api/v1/tokens/none", "", Who::Authenticated, 403),
    // By the rule for issuing one: these callers have access tokens, which issue a token for administrators only.
    ("POST", "/api/v1/tokens/{id}/rotation", "/api/v1/tokens/none/rotation", "{}", Who::Admins, 403),
    ("GET", "/api/v1/join-tokens", "", "", Who::Admins, 403),
    ("POST", "/api/v1/join-tokens", "", r#"{"minutes": 0}"#, Who::Admins, 403),
    ("DELETE", "/api/v1/join-tokens/{id}", "/api/v1/join-tokens/none", "", Who::Admins, 403),
    ("DELETE", "/api/v1/joined-nodes/{name}", "/api/v1/joined-nodes/none", "", Who::Admins, 403),
    ("POST", "/api/v1/backups", "", r#"{"path": "not/absolute"}"#, Who::Admins, 403),
    ("GET", "/api/v1/upgrade", "", "", Who::Admins, 403),
    ("POST", "/api/v1/upgrade/finalization", "", "", Who::Admins, 403),
    ("POST", "/api/v1/upgrade/agents", "", r#"{"maxUnavailable": 0}"#, Who::Admins, 403),
    ("DELETE", "/api/v1/upgrade/agents", "", "", Who::Admins, 403),
    ("POST", "/api/v1/rdma/{node}", "/api/v1/rdma/none", "{}", Who::Admins, 403),
    ("GET", "/api/v1/logs/{namespace}/{pod}", "/api/v1/logs/a/none", "", Who::Team, 403),
    ("GET", "/api/v1/jobs/{namespace}/{kind}/{name}/explain", "/api/v1/jobs/a/jobs/there/explain", "", Who::Team, 403),
    ("GET", "/api/v1/jobs/{namespace}/{kind}/{name}/history", "/api/v1/jobs/a/jobs/there/history", "", Who::Team, 403),
    ("GET", "/api/v1/gangs/{namespace}/{name}/history", "/api/v1/gangs/a/there/history", "", Who::Team, 403),
    ("GET", "/api/v1/gangs/{namespace}/{name}/explain", "/api/v1/gangs/a/there/explain", "", Who::Team, 403),
    ("GET", "/api/v1/queues", "", "", Who::Users, 403),
    ("GET", "/api/v1/queues/{name}", "/api/v1/queues/default", "", Who::Users, 403),
    // The answer has the namespaces whose pods the caller may see.
    ("GET", "/api/v1/history", "/api/v1/history?series=cluster/gpus", "", Who::Users, 403),
    ("GET", "/api/v1/idle-gpus", "", "", Who::Authenticated, 403),
    ("GET", "/api/v1/usage", "", "", Who::Authenticated, 403),
    ("GET", "/api/v1/allocations", "", "", Who::Authenticated, 403),
    ("GET", "/api/v1/defragmentation", "", "", Who::Admins, 403),
    ("GET", "/", "", "", Who::All, 403),
    ("GET", "/ui", "", "", Who::All, 403),
    ("GET", "/ui/", "", "", Who::Authenticated, 403),
    ("GET", "/ui/sign-in", "", "", Who::All, 403),
    // Without a name and a password: not a counted attempt.
    ("POST", "/ui/sign-in", "", "", Who::All, 403),
    // Without a sign-in whose code is awaited: 404.
    ("POST", "/ui/sign-in/code", "", "", Who::All, 403),
    ("POST", "/ui/sign-out", "", "", Who::All, 403),
    // Without an identity provider: 404.
    ("POST", "/ui/oidc/start", "", "", Who::All, 403),
    ("GET", "/ui/oidc/callback", "", "", Who::All, 403),
    // Callers that are no users of Muster have no account.
    ("GET", "/ui/account", "", "", Who::Users, 404),
    ("POST", "/ui/account/password", "", "old=&new=&again=", Who::Users, 404),
    ("POST", "/ui/account/second-factor", "", "password=", Who::Users, 404),
    ("POST", "/ui/account/second-factor/confirm", "", "code=", Who::Users, 404),
    ("POST", "/ui/account/second-factor/recovery", "", "code=", Who::Users, 404),
    ("POST", "/ui/account/second-factor/remove", "", "code=", Who::Users, 404),
    ("POST", "/ui/account/sessions/{id}", "/ui/account/sessions/none", "", Who::Users, 404),
    ("POST", "/ui/account/tokens/{id}", "/ui/account/tokens/none", "", Who::Users, 404),
    // As for the device page below.
    ("POST", "/ui/account/tokens/{id}/rotation", "/ui/account/tokens/none/rotation", "", Who::Admins, 403),
    ("GET", "/ui/device", "", "", Who::Users, 404),
    // Users approve in a session; these callers have access tokens, which issue a token for administrators only.
    ("POST", "/ui/device", "", "user_code=none&decision=approve", Who::Admins, 403),
    ("GET", "/ui/reset/{link}", "/ui/reset/none", "", Who::All, 403),
    ("POST", "/ui/reset", "", "link=none&new=&again=", Who::All, 403),
    ("GET", "/ui/users", "", "", Who::Admins, 403),
    ("POST", "/ui/users", "", "name=-&role=member", Who::Admins, 403),
    ("POST", "/ui/users/{name}/{action}", "/ui/users/none/disable", "", Who::Admins, 403),
    ("GET", "/ui/jobs", "", "", Who::Authenticated, 403),
    // Each job's outcome is told on the page.
    ("POST", "/ui/jobs", "", "action=suspend&job=a/jobs/there", Who::Authenticated, 403),
    // Callers that are no users of Muster keep no views.
    ("POST", "/ui/jobs/views", "/ui/jobs/views?whose=mine", "name=own", Who::Users, 404),
    // A job without read permission looks like a missing one.
    ("GET", "/ui/jobs/{namespace}/{kind}/{name}", "/ui/jobs/a/jobs/there", "", Who::Team, 404),
    ("POST", "/ui/jobs/{namespace}/{kind}/{name}/{action}", "/ui/jobs/a/jobs/there/suspend", "", Who::Workers, 403),
    ("GET", "/ui/usage", "", "", Who::Authenticated, 403),
    ("GET", "/ui/idle", "", "", Who::Authenticated, 403),
    ("POST", "/ui/idle/{team}", "/ui/idle/none", "limit=1h", Who::Admins, 403),
    ("GET", "/ui/alerts", "", "", Who::Users, 403),
    ("POST", "/ui/alerts/silence", "", "rule=&on=&hours=1", Who::Admins, 403),
    ("POST", "/ui/alerts/{what}/{name}", "/ui/alerts/unsilence/none", "", Who::Admins, 403),
    ("GET", "/ui/nodes", "", "", Who::Users, 403),
    ("GET", "/ui/nodes/{name}", "/ui/nodes/none", "", Who::Users, 403),
    ("POST", "/ui/nodes/{name}/cordon", "/ui/nodes/none/cordon", "reason=x", Who::Admins, 403),
    ("POST", "/ui/nodes/{name}/uncordon", "/ui/nodes/none/uncordon", "", Who::Admins, 403),
    ("GET", "/ui/nodes/{name}/drain", "/ui/nodes/none/drain", "", Who::Admins, 403),
    ("POST", "/ui/nodes/{name}/drain", "/ui/nodes/none/drain", "", Who::Admins, 403),
    ("POST", "/ui/nodes/{name}/remove", "/ui/nodes/none/remove", "confirm=none", Who::Admins, 403),
    // The page has the teams that the caller may see.
    ("GET", "/ui/teams", "", "", Who::Authenticated, 403),
    ("POST", "/ui/teams", "", "name=-", Who::Admins, 403),
    ("GET", "/ui/teams/{name}", "/ui/teams/none", "", Who::Authenticated, 403),
    ("POST", "/ui/teams/{name}/{action}", "/ui/teams/none/quota", "gpus=1", Who::Admins, 403),
    ("POST", "/ui/teams/{name}/{action}", "/ui/teams/none/network", "network=isolated", Who::Admins, 403),
    ("GET", "/ui/queues", "", "", Who::Users, 403),
    ("GET", "/ui/queues/{name}", "/ui/queues/default", "", Who::Users, 403),
    ("POST", "/ui/queues/{name}", "/ui/queues/none", "weight=1", Who::Admins, 403),
    ("GET", "/ui/submit", "", "", Who::Authenticated, 403),
    ("POST", "/ui/submit", "", "yaml=", Who::Authenticated, 403),
    ("POST", "/ui/submit/form", "", "", Who::Authenticated, 403),
    // The answer has what the caller may see.
    ("GET", "/ui/find", "/ui/find?q=a&format=json", "", Who::Authenticated, 403),
    ("GET", "/ui/design", "", "", Who::Authenticated, 403),
    ("GET", "/ui/live", "", "", Who::Authenticated, 403),
    ("GET", "/ui/assets/{file}", "/ui/assets/muster.css", "", Who::All, 403),
    // It says which domain pages of pods have.
    ("GET", "/proxy", "", "", Who::All, 403),
    ("GET", "/proxy/{namespace}/{kind}/{name}/{port}", "/proxy/a/pods/none/80", "", Who::Workers, 403),
    ("GET", "/proxy/{namespace}/{kind}/{name}/{port}/", "/proxy/a/pods/none/80/", "", Who::Workers, 403),
    ("GET", "/proxy/{namespace}/{kind}/{name}/{port}/{*path}", "/proxy/a/services/none/80/x", "", Who::Workers, 403),
    ("GET", "/ui/{*path}", "/ui/none", "", Who::Authenticated, 403),
];

/// A path of the resource API that is no resource: in the router, as requested, callers permitted to GET, and callers
/// permitted to use other methods.
const API: [(&str, &str, Who, Who); 14] = [
    ("/api", "", Who::Authenticated, Who::Authenticated),
    ("/api/", "", Who::Authenticated, Who::Authenticated),
    (
        "/api/{*path}",
        "/api/v1",
        Who::Authenticated,
        Who::Authenticated,
    ),
    ("/apis", "", Who::Authenticated, Who::Authenticated),
    ("/apis/", "", Who::Authenticated, Who::Authenticated),
    (
        "/apis/{*path}",
        "/apis/batch/v1",
        Who::Authenticated,
        Who::Authenticated,
    ),
    ("/version", "", Who::All, Who::Admins),
    ("/version/", "", Who::All, Who::Admins),
    ("/healthz", "", Who::All, Who::Admins),
    ("/livez", "", Who::All, Who::Admins),
    ("/readyz", "", Who::All, Who::Admins),
    ("/openapi/v2", "", Who::Authenticated, Who::Admins),
    ("/openapi/v3", "", Who::Authenticated, Who::Admins),
    (
        "/openapi/v3/{*path}",
        "/openapi/v3/api/v1",
        Who::Authenticated,
        Who::Admins,
    ),
];

/// The agents' procedures, and whether callers without a node's certificate may call them: joining needs a token.
const PROCEDURES: [(&str, bool); 4] = [
    ("/muster.agent.v1.Enrollment/Join", true),
    ("/muster.agent.v1.Enrollment/Renew", false),
    ("/muster.agent.v1.Fleet/Exec", false),
    ("/muster.agent.v1.Fleet/Session", false),
];
/// The codes of gRPC that refuse a caller: PERMISSION_DENIED and UNAUTHENTICATED.
const GRPC_REFUSALS: [&str; 2] = ["7", "16"];

/// The procedures that the protocol's definition names.
fn procedures() -> BTreeSet<String> {
    let path = repository().join("api/proto/muster/agent/v1/agent.proto");
    let text = std::fs::read_to_string(path).expect("the protocol's definition");
    let (mut found, mut service) = (BTreeSet::new(), String::new());
    for line in text.lines() {
        let words: Vec<&str> = line
            .split([' ', '('])
            .filter(|word| !word.is_empty())
            .collect();
        match words.as_slice() {
            ["service", name, ..] => service = (*name).to_owned(),
            ["rpc", name, ..] => {
                found.insert(format!("/muster.agent.v1.{service}/{name}"));
            }
            _ => {}
        }
    }
    found
}

/// The credentials of a caller.
enum Credentials {
    None,
    Token(String),
    Certificate(Arc<ClientConfig>),
}

/// A server with two teams, users of every role, a node, and a job of the first team.
struct Ground {
    /// Ended first: it keeps its files in the platform's directory.
    _agent: Agent,
    platform: Platform,
    /// The agent's port for metrics.
    metrics: String,
    /// The administrator's token.
    admin: String,
}

const OBJECTS: &str = "\
apiVersion: v1
kind: Namespace
metadata: {name: a}
---
apiVersion: v1
kind: Namespace
metadata: {name: b}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: robot, namespace: a}
---
apiVersion: batch/v1
kind: Job
metadata: {name: there, namespace: a}
spec:
  suspend: true
  template:
    spec:
      restartPolicy: Never
      containers: [{name: main, command: ['true']}]
";

const USERS: [(&str, &str, &str); 4] = [
    ("lea", "lead", "a"),
    ("mo", "member", "a"),
    ("vi", "viewer", "a"),
    ("ot", "member", "b"),
];

impl Ground {
    fn new() -> Ground {
        let platform = Platform::server(&[]);
        let metrics = free_address();
        let agent = platform.agent("n1", None, &["--metrics", &metrics]);
        let mut objects = OBJECTS.to_owned();
        for (name, role, namespace) in USERS {
            let record = json!({"name": name, "role": role, "namespaces": [namespace]});
            objects.push_str(&format!(
                "---\napiVersion: v1\nkind: Secret\nmetadata: {{name: user-{name}, namespace: muster-system}}\n\
                 type: muster.io/user\nstringData: {{record: '{record}', hash: none}}\n"
            ));
        }
        platform.apply(&objects);
        platform.await_nodes(1);
        let kubeconfig = Kubeconfig::read_from(platform.kubeconfig()).expect("a kubeconfig");
        let kubeconfig = serde_json::to_value(&kubeconfig).expect("a kubeconfig");
        let admin = kubeconfig["users"][0]["user"]["token"].as_str();
        Ground {
            admin: admin.expect("the administrator's token").to_owned(),
            metrics,
            platform,
            _agent: agent,
        }
    }

    /// The JSON that an administrator's POST is answered with.
    fn made(&self, path: &str, body: &Value) -> Option<Value> {
        let admin = Credentials::Token(self.admin.clone());
        let json = "application/json";
        let answer = self.whole(&admin, "POST", path, json, body.to_string().as_bytes());
        let (head, body) = answer.split_once("\r\n\r\n")?;
        // Around the JSON there may be the lengths of chunks.
        let (begin, end) = (body.find('{')?, body.rfind('}')?);
        head.starts_with("HTTP/1.1 201")
            .then(|| serde_json::from_str(&body[begin..=end]).ok())
            .flatten()
    }

    /// An access token of a user's: its id and its secret.
    fn token(&self, user: &str) -> (String, String) {
        let made = eventually("the user is known", SOON, || {
            self.made(
                "/api/v1/tokens",
                &json!({"days": 1, "user": user, "label": "matrix"}),
            )
        });
        let text = |value: &Value| value.as_str().expect("text").to_owned();
        (text(&made["token"]["id"]), text(&made["secret"]))
    }

    fn callers(&self) -> Vec<(Is, Credentials)> {
        let of = |user: &str| Credentials::Token(self.token(user).1);
        let path = "/api/v1/namespaces/a/serviceaccounts/robot/token";
        let account = self.made(path, &json!({"spec": {}})).expect("a token");
        let account = account["status"]["token"]
            .as_str()
            .expect("text")
            .to_owned();
        vec![
            (Is::Nobody, Credentials::None),
            (Is::Node, self.certificate()),
            (Is::Account, Credentials::Token(account)),
            (Is::Other, of("ot")),
            (Is::Viewer, of("vi")),
            (Is::Member, of("mo")),
            (Is::Lead, of("lea")),
            // Signing out ends a token: not the one that the other requests use.
            (Is::Admin, of("admin")),
        ]
    }

    /// The node's own certificate, as its agent keeps it.
    fn certificate(&self) -> Credentials {
        let directory = self.platform.data.with_file_name("n1");
        let file = find(&directory, "identity.json").expect("the node has joined");
        let text = std::fs::read_to_string(file).expect("it is ours");
        let kept: Value = serde_json::from_str(&text).expect("JSON");
        let pem = |field: &str| kept[field].as_str().expect("PEM").as_bytes().to_vec();
        let certificates = |field: &str| -> Vec<CertificateDer<'static>> {
            CertificateDer::pem_slice_iter(&pem(field))
                .map(|one| one.expect("a certificate"))
                .collect()
        };
        let mut roots = RootCertStore::empty();
        for authority in certificates("caPem") {
            roots.add(authority).expect("an authority");
        }
        let key = PrivateKeyDer::from_pem_slice(&pem("keyPem")).expect("a key");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("TLS versions")
            .with_root_certificates(roots)
            .with_client_auth_cert(certificates("certificatePem"), key)
            .expect("the key is the certificate's");
        Credentials::Certificate(Arc::new(config))
    }

    fn send(
        &self,
        credentials: &Credentials,
        method: &str,
        path: &str,
        media: &str,
        body: &[u8],
    ) -> Box<dyn Read> {
        let listen = &self.platform.listen;
        let mut request = format!(
            "{method} {path} HTTP/1.1\r\nHost: {listen}\r\nConnection: close\r\n\
             Content-Type: {media}\r\nContent-Length: {}\r\n",
            body.len()
        );
        if let Credentials::Token(token) = credentials {
            request.push_str(&format!("Authorization: Bearer {token}\r\n"));
        }
        request.push_str("\r\n");
        let mut request = request.into_bytes();
        request.extend_from_slice(body);
        let mut stream = TcpStream::connect(listen).expect("it listens");
        stream.set_read_timeout(Some(ANSWER)).expect("a timeout");
        let Credentials::Certificate(config) = credentials else {
            stream.write_all(&request).expect("it reads");
            return Box::new(stream);
        };
        let host = listen.split(':').next().unwrap_or_default().to_owned();
        let name = ServerName::try_from(host).expect("a name");
        let tls = ClientConnection::new(config.clone(), name).expect("TLS");
        let mut stream = StreamOwned::new(tls, stream);
        stream.write_all(&request).expect("it reads");
        Box::new(stream)
    }

    /// The whole answer, over plain HTTP.
    fn whole(
        &self,
        credentials: &Credentials,
        method: &str,
        path: &str,
        media: &str,
        body: &[u8],
    ) -> String {
        let mut answer = String::new();
        let mut stream = self.send(credentials, method, path, media, body);
        stream.read_to_string(&mut answer).expect("it answers");
        answer
    }

    /// The answer's head: some bodies have no end.
    fn head(
        &self,
        credentials: &Credentials,
        method: &str,
        path: &str,
        media: &str,
        body: &[u8],
    ) -> Head {
        let mut stream = self.send(credentials, method, path, media, body);
        let mut bytes = Vec::new();
        let mut piece = [0_u8; 4096];
        while !bytes.windows(4).any(|four| four == b"\r\n\r\n") {
            match stream.read(&mut piece) {
                Ok(0) => break,
                Ok(count) => bytes.extend_from_slice(&piece[..count]),
                Err(error) => panic!("{method} {path}: {error}"),
            }
        }
        Head::of(&String::from_utf8_lossy(&bytes))
    }
}

/// The head of an answer.
struct Head {
    code: u16,
    lines: Vec<String>,
}

impl Head {
    fn of(text: &str) -> Head {
        let head = text.split("\r\n\r\n").next().unwrap_or_default();
        let code = head.split(' ').nth(1).and_then(|code| code.parse().ok());
        Head {
            code: code.unwrap_or_else(|| panic!("no answer: {text:?}")),
            lines: head.lines().map(str::to_ascii_lowercase).collect(),
        }
    }

    fn header(&self, name: &str) -> &str {
        let line = self.lines.iter().find_map(|line| line.strip_prefix(name));
        line.and_then(|rest| rest.strip_prefix(": "))
            .unwrap_or_default()
    }

    fn refuses(&self) -> bool {
        matches!(self.code, 401 | 403)
    }
}

fn find(directory: &Path, name: &str) -> Option<PathBuf> {
    let entries = std::fs::read_dir(directory).ok()?;
    let mut paths = entries.flatten().map(|entry| entry.path());
    paths.find_map(|path| match path.symlink_metadata() {
        Ok(meta) if meta.is_dir() => find(&path, name),
        _ => path.ends_with(name).then_some(path),
    })
}

/// The requests so far, and the faults found.
#[derive(Default)]
struct Tally {
    routes: usize,
    requests: usize,
    wrong: Vec<String>,
}

impl Tally {
    fn check(&mut self, right: bool, what: impl FnOnce() -> String) {
        self.requests += 1;
        if !right {
            self.wrong.push(what());
        }
    }
}

fn ask_portal(ground: &Ground, callers: &[(Is, Credentials)], tally: &mut Tally) {
    let of_pods = proxy::PATHS.map(|path| (http::Method::GET, path));
    let routes: BTreeSet<(String, &str)> = portal::routes()
        .into_iter()
        .chain(of_pods)
        .map(|(method, path)| (method.to_string(), path))
        .collect();
    let rows: BTreeSet<(String, &str)> =
        PORTAL.iter().map(|row| (row.0.to_owned(), row.1)).collect();
    let missing: Vec<_> = routes.difference(&rows).collect();
    assert!(
        missing.is_empty(),
        "these routes have no row: {missing:?}; say in PORTAL who may use them"
    );
    let left: Vec<_> = rows.difference(&routes).collect();
    assert!(left.is_empty(), "these rows have no route: {left:?}");
    tally.routes += routes.len();

    let paths: BTreeSet<(&str, &str)> = PORTAL.iter().map(|row| (row.1, row.2)).collect();
    for (path, asked) in paths {
        let asked = if asked.is_empty() { path } else { asked };
        for method in METHODS {
            if routes.contains(&(method.to_owned(), path)) {
                continue;
            }
            for (is, credentials) in callers {
                let head = ground.head(credentials, method, asked, FORM, b"");
                tally.check(head.code == 405, || {
                    format!("{is:?}: {method} {asked}: {} in place of 405", head.code)
                });
            }
        }
    }

    // Signing out ends the token of the request.
    let last = |row: &&Row| row.1 == "/ui/sign-out";
    let rows = PORTAL.iter().filter(|row| !last(row));
    for row in rows.chain(PORTAL.iter().filter(last)) {
        let (method, path, asked, body, who, denied) = *row;
        let asked = if asked.is_empty() { path } else { asked };
        let page = path == "/" || path.starts_with("/ui") || path.starts_with("/proxy");
        let media = if page { FORM } else { "application/json" };
        for (is, credentials) in callers {
            let head = ground.head(credentials, method, asked, media, body.as_bytes());
            let to_sign_in = head.header("location").starts_with("/ui/sign-in");
            let (right, want) = match (who.includes(*is), *is) {
                // Requests to a named node may fail if there is no such node.
                (true, _) => (!head.refuses() && head.code != 500, "permitted"),
                (false, Is::Nobody) if page => (head.code == 303 && to_sign_in, "to sign in"),
                (false, Is::Nobody) => (head.code == 401, "401"),
                (false, _) => (head.code == denied, "denied"),
            };
            tally.check(right, || {
                format!("{is:?}: {method} {asked}: {} in place of {want}", head.code)
            });
        }
    }
}

fn ask_api(ground: &Ground, callers: &[(Is, Credentials)], tally: &mut Tally) {
    let routes: BTreeSet<&str> = apiserver::paths().into_iter().collect();
    let rows: BTreeSet<&str> = API.iter().map(|row| row.0).collect();
    assert_eq!(
        routes, rows,
        "the paths of the API, and those with a row in API"
    );
    tally.routes += routes.len();
    for (path, asked, read, other) in API {
        let asked = if asked.is_empty() { path } else { asked };
        for method in METHODS {
            let who = if method == "GET" { read } else { other };
            for (is, credentials) in callers {
                let head = ground.head(credentials, method, asked, "application/json", b"");
                let (right, want) = match (who.includes(*is), *is) {
                    (true, _) => (!head.refuses() && head.code < 500, "permitted"),
                    (false, Is::Nobody) => (head.code == 401, "401"),
                    (false, _) => (head.code == 403, "403"),
                };
                tally.check(right, || {
                    format!("{is:?}: {method} {asked}: {} in place of {want}", head.code)
                });
            }
        }
    }
}

fn ask_agents(ground: &Ground, callers: &[(Is, Credentials)], tally: &mut Tally) {
    let rows: BTreeSet<String> = PROCEDURES.iter().map(|row| row.0.to_owned()).collect();
    assert_eq!(
        procedures(),
        rows,
        "the agents' procedures, and those with a row"
    );
    tally.routes += rows.len();
    // One message without any field.
    let message = [0_u8; 5];
    for (path, open) in PROCEDURES {
        for (is, credentials) in callers {
            let head = ground.head(credentials, "POST", path, GRPC, &message);
            let status = head.header("grpc-status");
            let refused = head.code == 401 || GRPC_REFUSALS.contains(&status);
            let answered = head.code == 401 || !status.is_empty();
            let right = answered && refused != (open || *is == Is::Node);
            tally.check(right, || {
                format!("{is:?}: {path}: {} with status {status:?}", head.code)
            });
        }
    }
}

/// The agent's port for metrics has no authentication: it answers two paths to anybody, and nothing else.
fn ask_agent_metrics(ground: &Ground, tally: &mut Tally) {
    let open = ["/metrics", "/healthz"];
    tally.routes += open.len();
    for path in open
        .into_iter()
        .chain(["/", "/metrics/x", "/api", "/debug/pprof"])
    {
        for method in METHODS {
            let mut stream = TcpStream::connect(&ground.metrics).expect("the agent's port");
            let request =
                format!("{method} {path} HTTP/1.1\r\nHost: n1\r\nConnection: close\r\n\r\n");
            stream.write_all(request.as_bytes()).expect("a request");
            let mut answer = String::new();
            stream.read_to_string(&mut answer).expect("an answer");
            let code = Head::of(&answer).code;
            let want = match method {
                "GET" if open.contains(&path) => 200,
                "GET" => 404,
                _ => 405,
            };
            tally.check(code == want, || {
                format!("the agent's metrics: {method} {path}: {code} in place of {want}")
            });
        }
    }
}

#[test]
fn routes_are_added_only_where_they_are_listed() {
    // Listeners of their own: the scheduler extender's, and health and metrics beside a Kubernetes cluster
    // (kubernetes_engine/open_ports.rs).
    let apart = ["extender.rs", "health.rs"];
    let directory = repository().join("cmd/muster/src/serve");
    let files = std::fs::read_dir(directory).expect("the server's sources");
    let mut read = 0;
    for path in files.flatten().map(|entry| entry.path()) {
        let name = path.file_name().and_then(|name| name.to_str());
        let name = name.unwrap_or_default().to_owned();
        if !name.ends_with(".rs") || apart.contains(&name.as_str()) {
            continue;
        }
        let text = std::fs::read_to_string(&path).expect("a source");
        let code = text
            .split("#[cfg(test)]\nmod tests {")
            .next()
            .unwrap_or_default();
        for adds in [".route(", ".route_service(", ".nest(", ".nest_service("] {
            assert!(
                !code.contains(adds),
                "{name} adds a route with {adds}; add it to the portal's or the API's list, and a row to this matrix"
            );
        }
        read += 1;
    }
    assert!(read > 5, "the server's sources were looked at");
}

#[test]
fn every_route_answers_those_who_may_and_refuses_the_others() {
    let begin = Instant::now();
    let ground = Ground::new();
    let callers = ground.callers();
    let mut tally = Tally::default();
    ask_api(&ground, &callers, &mut tally);
    ask_agents(&ground, &callers, &mut tally);
    ask_agent_metrics(&ground, &mut tally);

    // Users may end only their own tokens.
    let (id, _) = ground.token("lea");
    let path = format!("/api/v1/tokens/{id}");
    for (is, credentials) in &callers {
        if matches!(is, Is::Lead | Is::Admin) {
            continue;
        }
        let head = ground.head(credentials, "DELETE", &path, "application/json", b"");
        let want = if *is == Is::Nobody { 401 } else { 403 };
        tally.check(head.code == want, || {
            format!("{is:?}: DELETE a lead's token: {}", head.code)
        });
    }
    ask_portal(&ground, &callers, &mut tally);
    println!(
        "matrix of the other routes: {} routes, {} methods, {} callers, {} requests, {:.1} s",
        tally.routes,
        METHODS.len(),
        callers.len(),
        tally.requests,
        begin.elapsed().as_secs_f64()
    );
    assert!(
        tally.wrong.is_empty(),
        "{} of {} answers are wrong:\n{}",
        tally.wrong.len(),
        tally.requests,
        tally.wrong.join("\n")
    );
}
