//! `muster logs`: the log of a pod or of one rank of a job, also after the pod's deletion.

use std::pin::Pin;

use anyhow::{Context, Error, Result};
use futures::{AsyncRead, AsyncReadExt};
use kube::api::DynamicObject;
use resources::registry::Kind;

use super::connection::ServerConnection;
use super::exit::ExitCause;
use super::outcome::CommandOutcome;
use super::output::ProgressReporter;
use super::platform::escape;
use super::ranks::{self, StartResult};
use super::{error_message, failure, gone_pods, kinds};
use crate::arguments::Logs;

/// Bytes per read.
const CHUNK_BYTES: usize = 32 * 1024;

/// A log stream.
type Log = Pin<Box<dyn AsyncRead + Send>>;

/// Prints or follows logs.
pub async fn logs(connection: &ServerConnection, arguments: Logs) -> Result<CommandOutcome> {
    let pod = kinds::kind("pods")?;
    let mut among = vec![pod];
    among.extend(kinds::job_kinds());
    let sought = arguments.name.as_str();
    let bare = sought.rsplit('/').next().unwrap_or(sought);
    let found = match kinds::find(connection, sought, &among).await {
        // The log of a deleted object may still exist.
        Err(error) if failure::has_code(&error, 404) => None,
        other => other?,
    };
    let pod = match found {
        None => return of_what_is_gone(connection, bare, &arguments).await,
        Some((kind, _)) if kind.plural == pod.plural => {
            if arguments.follow {
                ranks::until_started(connection, bare, None).await?;
            }
            bare.to_string()
        }
        Some((kind, job)) if arguments.follow => {
            match ranks::await_rank(connection, kind, &job, arguments.rank).await? {
                StartResult::Started(pod) => pod,
                StartResult::Over(why) => {
                    let text = format!("rank {} has no log: {why}", arguments.rank);
                    return Err(failure::not_found(text));
                }
            }
        }
        Some((kind, job)) => {
            let pod = ranks::pod_of(connection, kind, &job, arguments.rank).await?;
            return match stream(connection, &pod, &arguments).await {
                Err(error) => Err(not_yet(error, connection, kind, &job)),
                Ok(()) => Ok(CommandOutcome::Yes),
            };
        }
    };
    stream(connection, &pod, &arguments).await?;
    Ok(CommandOutcome::Yes)
}

/// The error for a job's rank without a log: the job's state and a remedy.
fn not_yet(error: Error, connection: &ServerConnection, kind: &Kind, job: &DynamicObject) -> Error {
    // The pod has no node yet, or does not exist yet.
    let early = failure::has_code(&error, 400) || failure::has_code(&error, 404);
    if !early || kinds::ended(job).is_some() {
        return error;
    }
    let exit = failure::exit_of(&error);
    let name = job.metadata.name.as_deref().unwrap_or_default();
    let (state, _) = kinds::state(job);
    let words = error_message::in_words(error, connection);
    failure::with(
        exit,
        format!(
            "{words:#}\n  the {} is {state}: `muster logs -f {name}` waits for the log, `muster explain {name}` says what holds it back",
            kind.singular
        ),
    )
}

/// The log of a deleted pod. Nodes keep these logs by pod name; the pod names of a training job follow from its own
/// name.
async fn of_what_is_gone(
    connection: &ServerConnection,
    name: &str,
    arguments: &Logs,
) -> Result<CommandOutcome> {
    let rank = arguments.rank;
    let is_kept = async |pod: String| is_kept(connection, &pod).await;
    let pod = match rank {
        0 if is_kept(name.to_string()).await? => Some(name.to_string()),
        _ => gone_pods::of_rank(name, rank, is_kept).await?,
    };
    if let Some(pod) = pod {
        stream(connection, &pod, arguments).await?;
        return Ok(CommandOutcome::Yes);
    }
    let what = if rank == 0 {
        String::new()
    } else {
        format!("rank {rank} of ")
    };
    Err(failure::not_found(format!(
        "there is no pod or job {name:?} in namespace {:?}, and no connected node keeps a log of {what}it\n  \
         `muster get pods` and `muster get pytorchjobs` list those there are; a node keeps the logs of pods that are gone for a while",
        connection.namespace
    )))
}

async fn is_kept(connection: &ServerConnection, pod: &str) -> Result<bool> {
    match open(connection, pod, &["tailLines=1".to_string()]).await {
        Ok(_) => Ok(true),
        Err(error) if failure::has_code(&error, 404) => Ok(false),
        Err(error) => Err(error),
    }
}

async fn open(connection: &ServerConnection, pod: &str, query: &[String]) -> Result<Log> {
    let path = format!(
        "/api/v1/logs/{}/{}?{}",
        escape(&connection.namespace),
        escape(pod),
        query.join("&")
    );
    let request = http::Request::get(path)
        .body(Vec::new())
        .context("the request could not be made")?;
    Ok(Box::pin(connection.client.request_stream(request).await?))
}

/// Copies the log to standard output as it arrives. If a followed log breaks off, as on a restart
/// of the server, the copy resumes at the same position.
pub async fn stream(connection: &ServerConnection, pod: &str, arguments: &Logs) -> Result<()> {
    let mut query = vec![format!("follow={}", arguments.follow)];
    if let Some(lines) = arguments.tail {
        query.push(format!("tailLines={lines}"));
    }
    if let Some(container) = &arguments.container {
        query.push(format!("container={}", escape(container)));
    }
    query.push(format!("timestamps={}", arguments.timestamps));
    query.push(format!("previous={}", arguments.previous));
    let mut shown = 0;
    let mut log = open(connection, pod, &query).await?;
    loop {
        if copy(&mut log, &mut shown).await? {
            return Ok(());
        }
        let broke = failure::with(
            ExitCause::Failed,
            "the log ended early: the connection to the server or the node was lost",
        );
        // With --tail, the last lines of a growing log have changed meanwhile.
        if !arguments.follow || arguments.tail.is_some() {
            return Err(broke);
        }
        ProgressReporter::default().say(&format!("{broke}; trying again"));
        log = open_again(connection, pod, &query).await?;
        if !skip(&mut log, shown).await {
            return Err(broke);
        }
    }
}

/// Copies until the log ends. Returns false if the log breaks off.
async fn copy(log: &mut Log, shown: &mut u64) -> Result<bool> {
    let mut chunk = vec![0u8; CHUNK_BYTES];
    loop {
        let read = match log.read(&mut chunk).await {
            Ok(0) => return Ok(true),
            Ok(read) => read,
            Err(_) => return Ok(false),
        };
        super::output::put_bytes(&chunk[..read])?;
        *shown += read as u64;
    }
}

/// Skips the bytes that were already printed. Returns false if the log has become shorter.
async fn skip(log: &mut Log, bytes: u64) -> bool {
    let mut passed = log.take(bytes);
    let copied = futures::io::copy(&mut passed, &mut futures::io::sink()).await;
    copied.is_ok_and(|copied| copied == bytes)
}

/// Reopens a log whose server or node has just gone away and may come back.
async fn open_again(connection: &ServerConnection, pod: &str, query: &[String]) -> Result<Log> {
    let mut errors = 0;
    loop {
        tokio::time::sleep(ranks::REST).await;
        match open(connection, pod, query).await {
            Err(error) if errors >= ranks::MOST_ERRORS => return Err(error),
            Err(_) => errors += 1,
            opened => return opened,
        }
    }
}
