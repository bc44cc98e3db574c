//! `muster setup server|agent`: checks what the service needs of this machine, writes its settings and prints the next
//! command. [`checks`] is pure; [`gather`] and [`contact`] read the facts; [`settings`] writes.

mod ask;
mod checks;
mod contact;
mod finding;
mod gather;
mod settings;

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use cli::{CommandOutcome, Global};

use crate::arguments::{Setup, SetupAgent, SetupOptions, SetupServer};
use finding::{Finding, problems};

/// The settings files of the packages' units.
const SERVER_SETTINGS: &str = "/etc/default/muster-server";
const AGENT_SETTINGS: &str = "/etc/default/muster-agent";
/// Keys of the settings.
const LISTEN: &str = "MUSTER_LISTEN";
const SERVER_OPTIONS: &str = "MUSTER_SERVER_OPTIONS";
const SERVER: &str = "MUSTER_SERVER";
/// The usual address of a server that other machines join.
const USUAL_LISTEN: &str = "0.0.0.0:8443";

/// Prepares this machine for a service; answers no if a check found a problem or the user declined.
///
/// # Errors
/// A value is missing or invalid, or the settings can't be read or written.
pub async fn setup(global: &Global, which: Setup) -> Result<CommandOutcome> {
    match which {
        Setup::Server(options) => server(global, options).await,
        Setup::Agent(options) => agent(global, options).await,
    }
}

async fn server(global: &Global, options: SetupServer) -> Result<CommandOutcome> {
    let plan = Plan::new(&options.common, SERVER_SETTINGS);
    let kept = settings::read(&plan.path, LISTEN)?;
    let (listen, advertise) = match options.listen {
        Some(listen) => (listen, options.advertise),
        None if plan.asks => {
            let usual = kept.as_deref().unwrap_or(USUAL_LISTEN);
            println!("0.0.0.0:PORT lets other machines join; 127.0.0.1:PORT serves this one only.");
            let listen = ask::text("Address to listen on", Some(usual))?;
            let mut names = options.advertise;
            if names.is_empty() {
                names.extend(ask::optional(
                    "A further name or address by which other machines reach the server (empty: none)",
                )?);
            }
            (address(&listen)?, names)
        }
        None => (
            address(kept.as_deref().unwrap_or(USUAL_LISTEN))?,
            options.advertise,
        ),
    };
    let facts = gather::server(global, listen).await;
    let mut changes = vec![(LISTEN, listen.to_string())];
    if !advertise.is_empty() {
        let before = settings::read(&plan.path, SERVER_OPTIONS)?.unwrap_or_default();
        let after = settings::with_advertised(&before, &advertise);
        changes.push((SERVER_OPTIONS, after));
    }
    let url = join_url(listen, &advertise, gather::own_name().as_deref());
    plan.carry_out(&checks::of_server(&facts), &changes, &server_next(&url))
}

async fn agent(global: &Global, options: SetupAgent) -> Result<CommandOutcome> {
    let plan = Plan::new(&options.common, AGENT_SETTINGS);
    let kept = settings::read(&plan.path, SERVER)?;
    let server = match options.server {
        Some(server) => server,
        None if plan.asks => {
            ask::text("Address of the server, https://HOST:PORT", kept.as_deref())?
        }
        None => kept.context(
            "--server: the address of the server to join is needed; write https://HOST:PORT",
        )?,
    };
    let server = server.trim().trim_end_matches('/').to_owned();
    if contact::host_and_port(&server).is_none() {
        bail!("--server: {server:?} is not usable; write https://HOST:PORT");
    }
    let kept = settings::read(&plan.path, settings::TOKEN)?;
    let token = match options.token {
        Some(token) => Some(token.trim().to_owned()).filter(|token| !token.is_empty()),
        None if plan.asks && kept.is_none() => ask::optional(
            "Join token, from muster token join on the server (empty: the agent has joined before)",
        )?,
        None => kept,
    };
    let facts = gather::agent(global, server.clone(), token.clone()).await;
    let mut changes = vec![(SERVER, server)];
    changes.extend(token.map(|token| (settings::TOKEN, token)));
    plan.carry_out(&checks::of_agent(&facts), &changes, AGENT_NEXT)
}

fn address(text: &str) -> Result<SocketAddr> {
    text.parse()
        .ok()
        .with_context(|| format!("{LISTEN}: {text:?} is not usable; write IP:PORT"))
}

/// How the settings are written: where, and under which conditions.
struct Plan {
    path: PathBuf,
    asks: bool,
    dry_run: bool,
    force: bool,
}

impl Plan {
    fn new(options: &SetupOptions, usual: &str) -> Plan {
        Plan {
            path: options.settings.clone().unwrap_or_else(|| usual.into()),
            asks: !options.yes && ask::can_answer(),
            dry_run: options.dry_run,
            force: options.force,
        }
    }

    /// Prints the findings, writes the settings unless there are problems, and prints what to do next.
    fn carry_out(
        &self,
        findings: &[Finding],
        changes: &[(&str, String)],
        next: &str,
    ) -> Result<CommandOutcome> {
        for finding in findings {
            println!("{finding}");
        }
        let count = problems(findings);
        if self.dry_run {
            for (key, value) in changes {
                println!("would write  {}", shown(&self.path, key, value));
            }
            return Ok(match count {
                0 => CommandOutcome::Yes,
                _ => CommandOutcome::No,
            });
        }
        if count > 0 && !self.force {
            eprintln!(
                "muster: nothing was written, because of {count} problem(s); mend them and repeat the command, or add --force"
            );
            return Ok(CommandOutcome::No);
        }
        if self.asks && !ask::yes(&format!("Write the settings to {}?", self.path.display()))? {
            eprintln!("muster: nothing was written");
            return Ok(CommandOutcome::No);
        }
        for (key, value) in changes {
            let word = match settings::write(&self.path, key, value)? {
                true => "wrote        ",
                false => "kept         ",
            };
            println!("{word}{}", shown(&self.path, key, value));
        }
        println!("next:\n{next}");
        Ok(CommandOutcome::Yes)
    }
}

/// A setting as text, without the secret of a token.
fn shown(path: &Path, key: &str, value: &str) -> String {
    let value = match key {
        settings::TOKEN => "(hidden)",
        _ => value,
    };
    format!("{key}={value} in {}", path.display())
}

/// The commands after `muster setup agent`.
const AGENT_NEXT: &str = "  systemctl enable --now muster-agent
  muster nodes                 # on the server: the node is Ready within seconds";

/// The commands after `muster setup server`, which agents reach at `url`.
fn server_next(url: &str) -> String {
    format!(
        "  systemctl enable --now muster-server
  muster token join            # prints a token for one node; --uses 100 for a hundred
  muster setup agent --server {url} --token TOKEN    # on each node"
    )
}

/// The address at which agents reach the server: the first advertised name, else the address it listens on, or this
/// machine's own name if it listens on all.
fn join_url(listen: SocketAddr, advertise: &[String], own: Option<&str>) -> String {
    let port = listen.port();
    let host = advertise.first().map(String::as_str);
    let host = host.or_else(|| own.filter(|_| listen.ip().is_unspecified()));
    match host {
        None if listen.ip().is_unspecified() => format!("https://HOST:{port}"),
        None => format!("https://{listen}"),
        Some(host) => match host.parse() {
            Ok(address @ IpAddr::V6(_)) => format!("https://{}", SocketAddr::new(address, port)),
            _ => format!("https://{host}:{port}"),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agents_join_at_an_address_that_they_can_reach() {
        let names = |names: &[&str]| -> Vec<String> {
            names.iter().map(|name| (*name).to_owned()).collect()
        };
        for (listen, advertise, own, url) in [
            (
                "0.0.0.0:8443",
                names(&[]),
                Some("head"),
                "https://head:8443",
            ),
            ("0.0.0.0:8443", names(&[]), None, "https://HOST:8443"),
            (
                "[::]:1",
                names(&["gpu.example"]),
                Some("head"),
                "https://gpu.example:1",
            ),
            (
                "0.0.0.0:1",
                names(&["fd00::1"]),
                None,
                "https://[fd00::1]:1",
            ),
            ("10.0.0.1:1", names(&[]), Some("head"), "https://10.0.0.1:1"),
            (
                "[fd00::2]:1",
                names(&[]),
                Some("head"),
                "https://[fd00::2]:1",
            ),
        ] {
            let listen = listen.parse().unwrap();
            assert_eq!(join_url(listen, &advertise, own), url);
        }
    }

    #[test]
    fn settings_are_written_unless_a_problem_stops_that() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("muster-server");
        let plan = |dry_run, force| Plan {
            path: path.clone(),
            asks: false,
            dry_run,
            force,
        };
        let changes = [(LISTEN, "0.0.0.0:8443".to_owned())];
        let good = [Finding::ok("clock", "fine")];
        let bad = [Finding::problem("port", "in use", "choose another")];
        let cases = [
            (plan(true, false), &good, CommandOutcome::Yes, false),
            (plan(false, false), &bad, CommandOutcome::No, false),
            (plan(true, true), &bad, CommandOutcome::No, false),
            (plan(false, true), &bad, CommandOutcome::Yes, true),
            (plan(false, false), &good, CommandOutcome::Yes, true),
        ];
        for (plan, findings, outcome, written) in cases {
            let _ = std::fs::remove_file(&path);
            assert_eq!(plan.carry_out(findings, &changes, "").unwrap(), outcome);
            assert_eq!(path.exists(), written);
        }
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text, "MUSTER_LISTEN=0.0.0.0:8443\n");
    }

    #[test]
    fn a_tokens_secret_is_not_printed() {
        let line = shown(Path::new("/f"), settings::TOKEN, "id.secret@sha256:00");
        assert_eq!(line, "MUSTER_JOIN_TOKEN=(hidden) in /f");
        assert!(shown(Path::new("/f"), LISTEN, "1:2").contains("1:2"));
    }
}
