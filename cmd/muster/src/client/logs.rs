//! `muster logs`: of a pod, or of one rank of a job; also after the pod is gone.

use std::io::Write;

use anyhow::{Context, Result};
use futures::{AsyncReadExt, TryStreamExt};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;

use super::show::escape;
use super::{Answer, Connection, kinds};
use crate::arguments::Logs;

/// How much is read at a time.
const CHUNK_BYTES: usize = 32 * 1024;

/// Prints or follows logs.
pub async fn logs(connection: &Connection, arguments: Logs) -> Result<Answer> {
    let pods: Api<Pod> = Api::namespaced(connection.client.clone(), &connection.namespace);
    let pod = match pods.get_opt(&arguments.name).await? {
        Some(_) => arguments.name.clone(),
        None => pod_of_rank(connection, &arguments.name, arguments.rank).await?,
    };
    // Following begins when there is something to follow; a pod that is gone has ended.
    let alive = kinds::find_job(connection, &arguments.name).await.is_ok();
    if arguments.follow && (alive || pods.get_opt(&pod).await?.is_some()) {
        until_started(connection, &pod).await?;
    }
    stream(connection, &pod, &arguments).await?;
    Ok(Answer::Yes)
}

/// The name of the pod that runs a rank: the master is rank 0, workers come after it.
pub async fn pod_of_rank(connection: &Connection, job: &str, rank: u32) -> Result<String> {
    let found = kinds::find_job(connection, job).await;
    let Ok((kind, object)) = found else {
        // A job that is gone left its pods' names: they follow from its own.
        return Ok(match rank {
            _ if job.contains("-master-") || job.contains("-worker-") => job.to_string(),
            0 => format!("{job}-master-0"),
            rank => format!("{job}-worker-{}", rank - 1),
        });
    };
    let name = object.metadata.name.as_deref().unwrap_or_default();
    if kind.kind == "PyTorchJob" {
        let has_master = !object.data["spec"]["pytorchReplicaSpecs"]["Master"].is_null();
        return Ok(match (has_master, rank) {
            (true, 0) => format!("{name}-master-0"),
            (true, rank) => format!("{name}-worker-{}", rank - 1),
            (false, rank) => format!("{name}-worker-{rank}"),
        });
    }
    let pods: Api<Pod> = Api::namespaced(connection.client.clone(), &connection.namespace);
    let selector = format!("batch.kubernetes.io/job-name={name}");
    let mut list = pods
        .list(&kube::api::ListParams::default().labels(&selector))
        .await?
        .items;
    list.sort_by_key(|pod| {
        (
            completion_index(pod),
            pod.metadata.creation_timestamp.clone(),
        )
    });
    list.get(rank as usize)
        .and_then(|pod| pod.metadata.name.clone())
        .with_context(|| format!("job {name:?} has {} pods, so no rank {rank}", list.len()))
}

fn completion_index(pod: &Pod) -> Option<u32> {
    let annotations = pod.metadata.annotations.as_ref()?;
    annotations
        .get("batch.kubernetes.io/job-completion-index")?
        .parse()
        .ok()
}

/// Copies the log to standard output as it comes.
pub async fn stream(connection: &Connection, pod: &str, arguments: &Logs) -> Result<()> {
    let mut query = vec![format!("follow={}", arguments.follow)];
    if let Some(lines) = arguments.tail {
        query.push(format!("tailLines={lines}"));
    }
    if let Some(container) = &arguments.container {
        query.push(format!("container={}", escape(container)));
    }
    query.push(format!("timestamps={}", arguments.timestamps));
    query.push(format!("previous={}", arguments.previous));
    let path = format!(
        "/api/v1/logs/{}/{pod}?{}",
        connection.namespace,
        query.join("&")
    );
    let request = axum::http::Request::get(path)
        .body(Vec::new())
        .context("the request could not be made")?;
    let mut log = Box::pin(connection.client.request_stream(request).await?);
    let mut chunk = vec![0u8; CHUNK_BYTES];
    let mut out = std::io::stdout();
    loop {
        let read = log.read(&mut chunk).await?;
        if read == 0 {
            return Ok(());
        }
        out.write_all(&chunk[..read])?;
        out.flush()?;
    }
}

/// Waits until a pod has started or is over, so that its log can be followed.
pub async fn until_started(connection: &Connection, pod: &str) -> Result<()> {
    use kube::runtime::watcher;
    let pods: Api<Pod> = Api::namespaced(connection.client.clone(), &connection.namespace);
    let mut changes = std::pin::pin!(kube::runtime::watcher::watch_object(pods, pod));
    let backoff_bound = 20;
    let mut errors = 0;
    loop {
        match changes.try_next().await {
            Ok(Some(Some(pod))) => {
                let phase = pod.status.and_then(|status| status.phase);
                if matches!(phase.as_deref(), Some("Running" | "Succeeded" | "Failed")) {
                    return Ok(());
                }
            }
            Ok(Some(None)) => {}
            Ok(None) => return Ok(()),
            Err(watcher::Error::NoResourceVersion) => {}
            Err(error) => {
                errors += 1;
                if errors > backoff_bound {
                    return Err(error.into());
                }
                tokio::time::sleep(std::time::Duration::from_millis(250)).await;
            }
        }
    }
}
