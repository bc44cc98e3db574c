//! `muster setup server|agent`: checks what the service needs of this machine, writes its settings and prints the next
//! command. [`checks`] is pure; [`gather`] and [`contact`] read the facts. [`settings`] writes the settings as TOML, for
//! the configuration; [`environment`] writes the join token, which only root may read.

mod ask;
mod certificate;
mod checks;
mod contact;
mod environment;
mod files;
mod finding;
mod gather;
mod settings;

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use cli::{CommandOutcome, Global};

use crate::arguments::{Setup, SetupAgent, SetupOptions, SetupServer};
use crate::configuration;
use crate::join_url::join_url;
use crate::serve::{self, host};
use finding::{Finding, problems};
use settings::Key;

/// The settings file of both services, one of the configuration files.
const SETTINGS: &str = "/etc/muster/conf.d/50-setup.toml";
/// The environment files of the packages' units.
const SERVER_ENVIRONMENT: &str = "/etc/default/muster-server";
const AGENT_ENVIRONMENT: &str = "/etc/default/muster-agent";
/// Keys of the settings.
const LISTEN: Key = Key {
    section: "server",
    name: "listen",
};
const ADVERTISE: Key = Key {
    section: "server",
    name: "advertise",
};
const SERVER: Key = Key {
    section: "agent",
    name: "server",
};
/// Variables that come before the settings.
const LISTEN_VARIABLE: &str = "MUSTER_LISTEN";
const SERVER_VARIABLE: &str = "MUSTER_SERVER";
/// The usual address of a server that other machines join.
const USUAL_LISTEN: &str = "0.0.0.0:8443";

/// Prepares this machine for a service; answers no if a check found a problem or the user declined.
///
/// # Errors
/// A value is missing or invalid, or the settings can't be read or written.
pub async fn setup(global: &Global, which: Setup) -> Result<CommandOutcome> {
    match which {
        Setup::Server(options) => server(global, *options).await,
        Setup::Agent(options) => agent(global, options).await,
    }
}

async fn server(global: &Global, options: SetupServer) -> Result<CommandOutcome> {
    let plan = SetupPlan::new(&options.common, SERVER_ENVIRONMENT);
    let kept = settings::text(&plan.settings, LISTEN)?;
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
    let mut tls = options.tls;
    if plan.asks && certificate::settings(&tls).is_empty() {
        certificate::ask(&mut tls)?;
    }
    serve::check_certificate(&tls)?;
    let facts = gather::server(global, listen).await;
    let mut findings = checks::of_server(&facts);
    findings.extend(plan.overridden(LISTEN_VARIABLE, &listen.to_string())?);
    let value = settings::of_text(&listen.to_string());
    let mut changes = vec![Change::Setting(LISTEN, value)];
    if !advertise.is_empty() {
        let mut names = settings::list(&plan.settings, ADVERTISE)?;
        for name in &advertise {
            if !names.contains(name) {
                names.push(name.clone());
            }
        }
        changes.push(Change::Setting(ADVERTISE, settings::of_list(&names)));
    }
    let of_tls = certificate::settings(&tls).into_iter();
    changes.extend(of_tls.map(|(key, value)| Change::Setting(key, value)));
    let url = join_url(listen, &advertise, host::own_name().as_deref());
    plan.carry_out(&findings, &changes, &server_next(&url))
}

async fn agent(global: &Global, options: SetupAgent) -> Result<CommandOutcome> {
    let plan = SetupPlan::new(&options.common, AGENT_ENVIRONMENT);
    let kept = settings::text(&plan.settings, SERVER)?;
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
    let kept = environment::read(&plan.environment, environment::TOKEN)?;
    let token = match options.token {
        Some(token) => Some(token.trim().to_owned()).filter(|token| !token.is_empty()),
        None if plan.asks && kept.is_none() => ask::optional(
            "Join token, from muster token join on the server (empty: the agent has joined before)",
        )?,
        None => kept,
    };
    let facts = gather::agent(global, server.clone(), token.clone()).await;
    let mut findings = checks::of_agent(&facts);
    findings.extend(plan.overridden(SERVER_VARIABLE, &server)?);
    let mut changes = vec![Change::Setting(SERVER, settings::of_text(&server))];
    changes.extend(token.map(Change::Token));
    plan.carry_out(&findings, &changes, AGENT_NEXT)
}

fn address(text: &str) -> Result<SocketAddr> {
    text.parse()
        .ok()
        .with_context(|| format!("{LISTEN}: {text:?} is not usable; write IP:PORT"))
}

/// What is written.
enum Change {
    /// A key of the settings file.
    Setting(Key, toml::Value),
    /// The join token, in the environment file.
    Token(String),
}

/// How the settings are written: where, and under which conditions.
struct SetupPlan {
    settings: PathBuf,
    environment: PathBuf,
    /// The configuration to check in the end: the settings file if it was named, else the usual files.
    configuration: Option<PathBuf>,
    asks: bool,
    dry_run: bool,
    force: bool,
}

impl SetupPlan {
    fn new(options: &SetupOptions, environment: &str) -> SetupPlan {
        let named = |path: &Option<PathBuf>, usual: &str| -> PathBuf {
            path.clone().unwrap_or_else(|| usual.into())
        };
        SetupPlan {
            settings: named(&options.settings, SETTINGS),
            environment: named(&options.environment_file, environment),
            configuration: options.settings.clone(),
            asks: !options.yes && ask::can_answer(),
            dry_run: options.dry_run,
            force: options.force,
        }
    }

    /// A warning if the service's environment sets a variable to another value: it comes before the settings.
    fn overridden(&self, variable: &str, value: &str) -> Result<Option<Finding>> {
        let set = environment::read(&self.environment, variable)?;
        Ok(set.filter(|set| set != value).map(|set| {
            let path = self.environment.display();
            Finding::warning(
                "environment",
                format!("{variable}={set} in {path} comes before the settings"),
                format!("remove the line from {path}"),
            )
        }))
    }

    /// Prints the findings, writes the settings unless there are problems, checks the configuration, and prints what to
    /// do next.
    fn carry_out(
        &self,
        findings: &[Finding],
        changes: &[Change],
        next: &str,
    ) -> Result<CommandOutcome> {
        for finding in findings {
            println!("{finding}");
        }
        let count = problems(findings);
        if self.dry_run {
            for change in changes {
                println!("would write  {}", self.shown(change));
            }
            return Ok(match count {
                0 => CommandOutcome::Yes,
                _ => CommandOutcome::No,
            });
        }
        if count > 0 && !self.force {
            eprintln!(
                "muster: nothing was written, because of {count} problem(s); fix them and repeat the command, or add --force"
            );
            return Ok(CommandOutcome::No);
        }
        if self.asks
            && !ask::yes(&format!(
                "Write the settings to {}?",
                self.settings.display()
            ))?
        {
            eprintln!("muster: nothing was written");
            return Ok(CommandOutcome::No);
        }
        for change in changes {
            let word = match self.write(change)? {
                true => "wrote        ",
                false => "kept         ",
            };
            println!("{word}{}", self.shown(change));
        }
        match configuration::checked(self.configuration.as_deref()) {
            Ok(valid) => println!("{}", Finding::ok("configuration", valid)),
            Err(error) => {
                eprintln!(
                    "muster: {error}\nmuster: the settings are written, and the service does not start with this configuration; fix it, and check it with muster config check"
                );
                return Ok(CommandOutcome::No);
            }
        }
        println!("next:\n{next}");
        Ok(CommandOutcome::Yes)
    }

    fn write(&self, change: &Change) -> Result<bool> {
        match change {
            Change::Setting(key, value) => settings::write(&self.settings, *key, value),
            Change::Token(token) => {
                environment::write(&self.environment, environment::TOKEN, token)
            }
        }
    }

    /// A change as text, without the secret of a token.
    fn shown(&self, change: &Change) -> String {
        match change {
            Change::Setting(key, value) => {
                format!("{key} = {value} in {}", self.settings.display())
            }
            Change::Token(_) => {
                let path = self.environment.display();
                format!("{}=(hidden) in {path}", environment::TOKEN)
            }
        }
    }
}

/// The commands after `muster setup agent`.
const AGENT_NEXT: &str = "  systemctl enable --now muster-agent
  muster nodes                 # on the server: the node is Ready within seconds";

/// The commands after `muster setup server`, which agents reach at `url`.
fn server_next(url: &str) -> String {
    format!(
        "  systemctl enable --now muster-server
  muster token join            # prints the command that joins one node at {url}; --uses 100 for a hundred"
    )
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn plan(directory: &Path, dry_run: bool, force: bool) -> SetupPlan {
        let settings = directory.join("50-setup.toml");
        SetupPlan {
            settings: settings.clone(),
            environment: directory.join("muster-agent"),
            configuration: Some(settings),
            asks: false,
            dry_run,
            force,
        }
    }

    fn listens(at: &str) -> Change {
        Change::Setting(LISTEN, settings::of_text(at))
    }

    #[test]
    fn settings_are_written_unless_a_problem_stops_that() {
        let dir = tempfile::tempdir().unwrap();
        let changes = [listens("0.0.0.0:8443")];
        let good = [Finding::ok("clock", "fine")];
        let bad = [Finding::problem("port", "in use", "choose another")];
        let cases = [
            ((true, false), &good, CommandOutcome::Yes, false),
            ((false, false), &bad, CommandOutcome::No, false),
            ((true, true), &bad, CommandOutcome::No, false),
            ((false, true), &bad, CommandOutcome::Yes, true),
            ((false, false), &good, CommandOutcome::Yes, true),
        ];
        for ((dry_run, force), findings, outcome, written) in cases {
            let plan = plan(dir.path(), dry_run, force);
            let _ = std::fs::remove_file(&plan.settings);
            assert_eq!(plan.carry_out(findings, &changes, "").unwrap(), outcome);
            assert_eq!(plan.settings.exists(), written);
        }
        let text = std::fs::read_to_string(dir.path().join("50-setup.toml")).unwrap();
        assert!(
            text.ends_with("\n[server]\nlisten = \"0.0.0.0:8443\"\n"),
            "{text}"
        );
    }

    #[test]
    fn both_services_share_the_settings_and_only_the_environment_has_the_token() {
        let dir = tempfile::tempdir().unwrap();
        let plan = plan(dir.path(), false, false);
        let token = "id.secret@sha256:00";
        let changes = [
            listens("0.0.0.0:8443"),
            Change::Setting(SERVER, settings::of_text("https://s:8443")),
            Change::Token(token.to_owned()),
        ];
        for change in &changes {
            let outcome = plan.carry_out(&[], std::slice::from_ref(change), "");
            assert_eq!(outcome.unwrap(), CommandOutcome::Yes);
        }
        let text = std::fs::read_to_string(&plan.settings).unwrap();
        assert!(
            text.contains("[server]\nlisten = \"0.0.0.0:8443\"\n"),
            "{text}"
        );
        assert!(
            text.contains("[agent]\nserver = \"https://s:8443\"\n"),
            "{text}"
        );
        assert!(!text.contains("secret"), "{text}");
        let environment = std::fs::read_to_string(&plan.environment).unwrap();
        assert_eq!(environment, format!("MUSTER_JOIN_TOKEN={token}\n"));
        let [listen, _, hidden] = changes.each_ref().map(|change| plan.shown(change));
        assert!(listen.starts_with("server.listen = \"0.0.0.0:8443\" in "));
        assert!(hidden.starts_with("MUSTER_JOIN_TOKEN=(hidden) in "));
    }

    #[test]
    fn settings_that_do_not_take_effect_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let plan = plan(dir.path(), false, false);
        let overridden = || plan.overridden(LISTEN_VARIABLE, "1.2.3.4:5").unwrap();
        assert_eq!(overridden(), None);
        std::fs::write(&plan.environment, "MUSTER_LISTEN=1.2.3.4:5\n").unwrap();
        assert_eq!(overridden(), None);
        std::fs::write(&plan.environment, "MUSTER_LISTEN=1.2.3.4:6\n").unwrap();
        let line = overridden().unwrap().to_string();
        assert!(line.contains("MUSTER_LISTEN=1.2.3.4:6"), "{line}");

        // The services would refuse the file, whichever setting is wrong.
        std::fs::write(&plan.settings, "[agent]\nnode-grase = 5\n").unwrap();
        let changes = [listens("1.2.3.4:5")];
        let outcome = plan.carry_out(&[], &changes, "").unwrap();
        assert_eq!(outcome, CommandOutcome::No);
    }
}
