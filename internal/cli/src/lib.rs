//! The command-line client: the commands that ask a server through the same API as kubectl, with their options, texts
//! and exit statuses. The binary adds the commands that run on this machine.

mod alerts;
mod apply;
mod arguments;
mod backup;
mod connection;
mod crds;
mod defragmentation;
mod describe;
mod dev;
mod drain;
mod error_message;
mod exec;
mod exit;
mod explain;
mod explain_sign_in;
mod failure;
mod follow;
mod gone_pods;
mod history;
mod idle;
mod jobs;
mod kinds;
mod kubeconfig;
mod listing;
mod login;
mod logs;
mod manifests;
mod node;
mod nodes;
mod open;
mod option_error;
mod outcome;
mod output;
mod pair;
mod password_input;
mod platform;
mod port_forward;
mod queue;
mod queues;
mod ranks;
mod remote_shell;
mod remove;
mod run;
mod show;
mod socket;
mod teams;
mod terminal;
mod tokens;
mod upgrade;
mod usage;
mod users;
mod version;
mod wait;
mod wait_events;
mod whoami;

use anyhow::Result;

pub use arguments::{
    Command, Doctor, Global, JOIN_USES_MAX, OIDC_GROUPS_CLAIM, OIDC_USERNAME_CLAIM, UpgradeCommand,
    name_and_value,
};
pub use backup::{PASSPHRASE_FILE, passphrase};
pub use connection::{default_data_to_make, kubeconfig_text};
pub use exit::{ExitCause, HELP};
pub use failure::{exit_of, full_message};
pub use option_error::ClientOptionError;
pub use outcome::CommandOutcome;

use arguments::UserCommand;
use connection::ServerConnection;
pub use remote_shell::remote_shell;

/// Runs one of the client's commands.
///
/// # Errors
/// The command failed; [`exit_of`] has the exit status.
pub async fn run(global: Global, command: Command) -> Result<CommandOutcome> {
    if matches!(command, Command::Version) {
        return version::version(&global).await;
    }
    if let Command::Crds(crds) = &command
        && crds.print
    {
        return crds::print();
    }
    if let Command::User(UserCommand::ExplainSignIn(arguments)) = &command {
        return explain_sign_in::explain(arguments);
    }
    let command = match command {
        Command::Login(arguments) => return login::login(&global, arguments).await,
        Command::Logout(arguments) => return login::logout(&global, arguments).await,
        command => command,
    };
    let connection = ServerConnection::open(&global).await?;
    let answered = dispatch(&connection, command).await;
    answered.map_err(|error| error_message::in_words(error, &connection))
}

/// Runs `muster doctor --pair`, which asks the agents of two nodes through their server.
///
/// # Errors
/// An option is missing, or the agents were not asked; [`exit_of`] has the exit status.
pub async fn doctor_pair(global: &Global, doctor: Doctor) -> Result<CommandOutcome> {
    let connection = ServerConnection::open(global).await?;
    let answered = pair::pair(&connection, doctor).await;
    answered.map_err(|error| error_message::in_words(error, &connection))
}

async fn dispatch(connection: &ServerConnection, command: Command) -> Result<CommandOutcome> {
    match command {
        Command::Apply(arguments) => apply::apply(connection, arguments).await,
        Command::Get(arguments) => show::get(connection, arguments).await,
        Command::Describe(target) => describe::describe(connection, target).await,
        Command::Delete(arguments) => remove::delete(connection, arguments).await,
        Command::Logs(arguments) => logs::logs(connection, arguments).await,
        Command::Exec(arguments) => exec::exec(connection, arguments).await,
        Command::PortForward(arguments) => port_forward::port_forward(connection, arguments).await,
        Command::Open(arguments) => open::open(connection, arguments).await,
        Command::Explain(target) => explain::explain(connection, target).await,
        Command::Wait(arguments) => wait::wait(connection, arguments).await,
        Command::Suspend(target) => jobs::suspend(connection, target, true).await,
        Command::Resume(target) => jobs::suspend(connection, target, false).await,
        Command::Cancel(target) => jobs::cancel(connection, target).await,
        Command::Run(arguments) => run::run(connection, arguments).await,
        Command::Dev(arguments) => dev::dev(connection, arguments).await,
        Command::Top(listing) => nodes::top(connection, listing).await,
        Command::Nodes(listing) => nodes::nodes(connection, listing).await,
        Command::Node(command) => node::node(connection, command).await,
        Command::Queue(queue) => match queue.name {
            Some(name) => queue::queue(connection, &name, queue.output).await,
            None => queues::queues(connection, queue.output).await,
        },
        Command::Defragmentation(listing) => defragmentation::proposal(connection, listing).await,
        Command::Usage(arguments) => usage::usage(connection, arguments).await,
        Command::Idle(arguments) => idle::idle(connection, arguments).await,
        Command::Alerts(arguments) => alerts::alerts(connection, arguments).await,
        Command::User(command) => users::user(connection, command).await,
        Command::Team(command) => teams::team(connection, command).await,
        Command::Token(command) => tokens::token(connection, command).await,
        Command::Whoami(arguments) => whoami::whoami(connection, arguments).await,
        Command::Kubeconfig(arguments) => kubeconfig::print(connection, arguments).await,
        Command::Crds(arguments) => crds::install(connection, &arguments).await,
        Command::Backup {
            file,
            passphrase_file,
        } => backup::backup(connection, &file, passphrase_file.as_deref()).await,
        Command::Upgrade(command) => upgrade::upgrade(connection, command).await,
        Command::Version | Command::Login(_) | Command::Logout(_) => {
            unreachable!("run answers them without a connection")
        }
    }
}
