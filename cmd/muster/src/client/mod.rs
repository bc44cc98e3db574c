//! The client's commands, which use the same API as kubectl.

mod apply;
mod backup;
mod connection;
mod crds;
mod defragmentation;
mod describe;
mod exit;
mod explain;
mod failure;
mod follow;
mod history;
mod jobs;
mod kinds;
mod kubeconfig;
mod logs;
mod manifests;
mod node;
mod nodes;
mod output;
mod pair;
mod platform;
mod queue;
mod queues;
mod ranks;
mod remove;
mod run;
mod show;
mod tokens;
mod version;
mod wait;

use anyhow::Result;

pub use backup::passphrase;
pub use exit::{Exit, HELP, RUN_HELP, WAIT_HELP};
pub use failure::exit_of;

pub use connection::{Connection, default_data_to_make, kubeconfig_text};

use crate::arguments::{Command, Global};

/// The result of a command that ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The command succeeded, or the answer is yes.
    Yes,
    /// The answer is no: the job failed, or a check found a fault.
    No,
    /// The awaited event did not happen in time.
    TimedOut,
    /// The command of a job ended with this exit status.
    Ended(u8),
}

/// Runs one of the client's commands.
pub async fn run(global: Global, command: Command) -> Result<Answer> {
    if matches!(command, Command::Version) {
        return version::version(&global).await;
    }
    if let Command::Crds(crds) = &command
        && crds.print
    {
        return crds::print();
    }
    let connection = Connection::open(&global).await?;
    let answered = dispatch(&connection, command).await;
    answered.map_err(|error| failure::in_words(error, &connection))
}

async fn dispatch(connection: &Connection, command: Command) -> Result<Answer> {
    match command {
        Command::Apply(arguments) => apply::apply(connection, arguments).await,
        Command::Get(arguments) => show::get(connection, arguments).await,
        Command::Describe(target) => describe::describe(connection, target).await,
        Command::Delete(arguments) => remove::delete(connection, arguments).await,
        Command::Logs(arguments) => logs::logs(connection, arguments).await,
        Command::Explain(target) => explain::explain(connection, target).await,
        Command::Wait(arguments) => wait::wait(connection, arguments).await,
        Command::Suspend(target) => jobs::suspend(connection, target, true).await,
        Command::Resume(target) => jobs::suspend(connection, target, false).await,
        Command::Cancel(target) => jobs::cancel(connection, target).await,
        Command::Run(arguments) => run::run(connection, arguments).await,
        Command::Top(listing) => nodes::top(connection, listing).await,
        Command::Nodes(listing) => nodes::nodes(connection, listing).await,
        Command::Node(command) => node::node(connection, command).await,
        Command::Queue(queue) => match queue.name {
            Some(name) => queue::queue(connection, &name, queue.output).await,
            None => queues::queues(connection, queue.output).await,
        },
        Command::Defragmentation(listing) => defragmentation::proposal(connection, listing).await,
        // Without --pair, main runs this command without a server.
        Command::Doctor(doctor) => pair::pair(connection, doctor).await,
        Command::Token(command) => tokens::token(connection, command).await,
        Command::Kubeconfig(arguments) => kubeconfig::print(connection, arguments).await,
        Command::Crds(arguments) => crds::install(connection, &arguments).await,
        Command::Backup {
            file,
            passphrase_file,
        } => backup::backup(connection, &file, passphrase_file.as_deref()).await,
        Command::Version
        | Command::Restore { .. }
        | Command::Audit(_)
        | Command::Store(_)
        | Command::Up(_)
        | Command::Server(_)
        | Command::Agent(_)
        | Command::Topology(_)
        | Command::Xids(_)
        | Command::Simulate(_)
        | Command::Completions { .. }
        | Command::Man { .. }
        | Command::Shim { .. } => unreachable!("main runs these itself"),
    }
}
