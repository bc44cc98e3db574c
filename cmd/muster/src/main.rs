//! The `muster` binary: turns arguments and files into a validated configuration and wires the crates. Decisions
//! belong to the library crates.

mod arguments;
mod configuration;
#[cfg(test)]
#[path = "../../../internal/resources/testing/documents.rs"]
mod documents;
mod join_url;
mod manual;
mod serve;
mod setup;
mod simulate;

use std::process::ExitCode;

use arguments::{Arguments, Audit, Command, StoreCommand};
use cli::{CommandOutcome, ExitCause, UpgradeCommand};

/// The server allocates and frees millions of small objects on many threads, which takes the C library's allocator
/// three times as long. Huge pages are off: the server would touch only a part of each, and an idle server would
/// grow.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let arguments = match configuration::arguments_of_process() {
        Ok(arguments) => arguments,
        Err(error) => {
            eprintln!("muster: {error}");
            return ExitCode::from(ExitCause::Usage.code());
        }
    };
    match arguments.command {
        // The shim must stay single-threaded until it has entered its namespaces, so it
        // comes before any runtime is built.
        Command::Shim { directory } => return runtime::shim::main(&directory),
        Command::Completions { shell } => return manual::completions(shell),
        Command::Man { directory } => return manual::pages(&directory),
        Command::Config(command) => return configuration::run(command),
        _ => {}
    }
    let _ = rustls::crypto::ring::default_provider().install_default();
    let workers = arguments.command.worker_threads();
    let mut builder = match workers {
        Some(workers) => {
            let mut builder = tokio::runtime::Builder::new_multi_thread();
            builder.worker_threads(workers);
            builder
        }
        None => tokio::runtime::Builder::new_current_thread(),
    };
    let runtime = match builder.enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("muster: the asynchronous runtime did not start: {error}");
            return ExitCode::from(ExitCause::Failed.code());
        }
    };
    match runtime.block_on(run(arguments)) {
        Ok(CommandOutcome::Yes) => ExitCode::SUCCESS,
        Ok(CommandOutcome::No) => ExitCode::from(ExitCause::Failed.code()),
        Ok(CommandOutcome::TimedOut) => ExitCode::from(ExitCause::TimedOut.code()),
        Ok(CommandOutcome::Ended(status)) => ExitCode::from(status),
        Err(error) => {
            let exit = exit_of(&error);
            // If the reader closed the pipe, it has read enough: that is no error.
            if exit != ExitCause::ClosedPipe {
                eprintln!("muster: {}", cli::full_message(&error));
            }
            ExitCode::from(exit.code())
        }
    }
}

async fn run(arguments: Arguments) -> anyhow::Result<CommandOutcome> {
    match arguments.command {
        Command::Up(up) => {
            serve::up(
                &arguments.global,
                &up,
                configuration::tls_options_of_process,
            )
            .await
        }
        Command::Server(server) => {
            serve::server(
                &arguments.global,
                *server,
                configuration::tls_options_of_process,
            )
            .await
        }
        Command::Agent(agent) => serve::agent(&arguments.global, *agent).await,
        Command::Client(cli::Command::Upgrade(UpgradeCommand::Rollback)) => {
            serve::rollback(&arguments.global)
        }
        Command::Client(command) => cli::run(arguments.global, command).await,
        Command::Audit(Audit::Verify { directory }) => {
            serve::verify_audit(&arguments.global, directory)
        }
        Command::Restore {
            file,
            passphrase_file,
        } => serve::restore(arguments.global, file, passphrase_file).await,
        Command::Store(StoreCommand::Check) => serve::check_store(arguments.global).await,
        Command::Doctor(doctor) if doctor.pair.is_none() => serve::doctor(doctor).await,
        Command::Doctor(mut doctor) => {
            doctor.node = doctor.node.or_else(serve::host::name);
            cli::doctor_pair(&arguments.global, doctor).await
        }
        Command::RemoteShell { words } => cli::remote_shell(&words).await,
        Command::Setup(which) => setup::setup(&arguments.global, which).await,
        Command::Topology(arguments) => serve::topology(arguments),
        Command::Xids(arguments) => serve::xids(&arguments),
        Command::Simulate(arguments) => simulate::simulate(&arguments),
        Command::Completions { .. }
        | Command::Config(_)
        | Command::Man { .. }
        | Command::Shim { .. } => {
            unreachable!("main runs these itself")
        }
    }
}

/// The exit status for an error of any command.
fn exit_of(error: &anyhow::Error) -> ExitCause {
    let exit = cli::exit_of(error);
    let mut causes = error.chain();
    let input = causes
        .any(|cause| cause.is::<simulator::SimulatorError>() || cause.is::<simulate::InputError>());
    if input && exit == ExitCause::Failed {
        ExitCause::Usage
    } else {
        exit
    }
}
