//! The `muster` binary: arguments and files into validated configuration, then wiring.
//! Nothing is decided here that a library crate could decide.

mod arguments;
mod client;
mod manual;
mod serve;
mod simulate;

use std::process::ExitCode;

use clap::Parser;

use arguments::{Arguments, Command};

/// Exit status when the command ran and the answer is no: a wait that timed out, a job
/// that failed, a check that found something.
const ANSWER_IS_NO: u8 = 1;

/// Exit status when the command itself could not do its work.
const COULD_NOT: u8 = 2;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match arguments.command {
        // The shim must stay single-threaded until it has entered its namespaces, so it
        // comes before any runtime is built.
        Command::Shim { directory } => return runtime::shim::main(&directory),
        Command::Completions { shell } => return manual::completions(shell),
        Command::Man { directory } => return manual::pages(&directory),
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
            return ExitCode::from(COULD_NOT);
        }
    };
    match runtime.block_on(run(arguments)) {
        Ok(client::Answer::Yes) => ExitCode::SUCCESS,
        Ok(client::Answer::No) => ExitCode::from(ANSWER_IS_NO),
        Err(error) => {
            eprintln!("muster: {error:#}");
            ExitCode::from(COULD_NOT)
        }
    }
}

async fn run(arguments: Arguments) -> anyhow::Result<client::Answer> {
    match arguments.command {
        Command::Up(up) => serve::up(arguments.global, up).await,
        Command::Server(server) => serve::server(arguments.global, server).await,
        Command::Agent(agent) => serve::agent(arguments.global, agent).await,
        Command::Restore { file } => serve::restore(arguments.global, file).await,
        Command::Doctor(doctor) => serve::doctor(doctor).await,
        Command::Simulate(arguments) => simulate::simulate(&arguments),
        command => client::run(arguments.global, command).await,
    }
}
