//! `muster remote-shell`: what `mpirun` starts instead of `ssh HOST COMMAND` in an MPIJob's launcher, or in the master of a
//! Volcano Job with the mpi plugin. Runs the command in the pod with that host name through the API, as the service account
//! of its own pod.

use std::time::Duration;

use anyhow::{Context as _, Result};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::config::Kubeconfig;

use super::connection::ServerConnection;
use super::exec::{RemoteCommand, run_in};
use super::outcome::CommandOutcome;
use super::{error_message, failure};

/// Pause before the worker's pod is looked at again.
const REST: Duration = Duration::from_millis(250);
/// How long a worker's pod may take to start: it starts with the launcher, but may fetch files or an image first.
const START_LIMIT: Duration = Duration::from_secs(600);
/// Options of rsh and ssh that change nothing here: no input, no forwarding of X11.
const WITHOUT_MEANING: [&str; 3] = ["-n", "-x", "-q"];
/// The annotation that names the container in which commands run.
const DEFAULT_CONTAINER: &str = "kubectl.kubernetes.io/default-container";

/// Runs the command on the host; ends with its exit status.
///
/// # Errors
/// The words name no host and command, the process has no service account, or the pod does not run.
pub async fn remote_shell(words: &[String]) -> Result<CommandOutcome> {
    let (host, command) = read(words)?;
    let connection = of_this_pod().await?;
    let answered = on(&connection, host, command).await;
    answered.map_err(|error| error_message::in_words(error, &connection))
}

async fn on(connection: &ServerConnection, host: &str, command: String) -> Result<CommandOutcome> {
    let name = host.split('.').next().unwrap_or(host);
    let container = until_running(connection, name).await?;
    let command = ["/bin/sh".to_owned(), "-c".to_owned(), command];
    let remote = RemoteCommand {
        pod: name,
        container: container.as_deref(),
        command: &command,
        stdin: true,
        tty: false,
    };
    run_in(connection, &remote).await
}

/// The host and, as rsh and ssh do it, the words of the command with spaces between them.
fn read(words: &[String]) -> Result<(&str, String)> {
    let options = words
        .iter()
        .take_while(|word| WITHOUT_MEANING.contains(&word.as_str()))
        .count();
    match &words[options..] {
        [option, ..] if option.starts_with('-') => Err(failure::usage(format!(
            "{option:?}: remote-shell takes {} before the host, and no other option",
            WITHOUT_MEANING.join(", ")
        ))),
        [host, command @ ..] if !command.is_empty() => Ok((host, command.join(" "))),
        _ => Err(failure::usage(
            "remote-shell needs a host and a command: the host is the name of a pod of this job",
        )),
    }
}

/// The server and the identity that every pod is given.
async fn of_this_pod() -> Result<ServerConnection> {
    let mut config = kube::Config::incluster().context(
        "this process has no service account: remote-shell works in pods whose automountServiceAccountToken is not false",
    )?;
    // A command may say nothing for days.
    config.read_timeout = None;
    let namespace = config.default_namespace.clone();
    let server = config.cluster_url.to_string();
    let client = kube::Client::try_from(config).context("the client could not be made")?;
    Ok(ServerConnection {
        client,
        namespace,
        server: server.trim_end_matches('/').to_string(),
        kubeconfig: Kubeconfig::default(),
        origin: "the pod's service account".to_string(),
    })
}

/// Waits until the pod runs, and returns the container in which commands run if the pod names one.
async fn until_running(connection: &ServerConnection, name: &str) -> Result<Option<String>> {
    let pods: Api<Pod> = Api::namespaced(connection.client.clone(), &connection.namespace);
    let waiting = async {
        loop {
            match pods.get_opt(name).await? {
                Some(pod) if has_ended(&pod) => {
                    return Err(failure::not_found(format!(
                        "pod {name:?} has ended: no command runs in it"
                    )));
                }
                Some(pod) if runs(&pod) => return Ok(container(&pod)),
                _ => tokio::time::sleep(REST).await,
            }
        }
    };
    match tokio::time::timeout(START_LIMIT, waiting).await {
        Ok(answer) => answer,
        Err(_) => Err(failure::not_found(format!(
            "pod {name:?} did not start within {} s",
            START_LIMIT.as_secs()
        ))),
    }
}

fn phase(pod: &Pod) -> &str {
    let status = pod.status.as_ref();
    status
        .and_then(|status| status.phase.as_deref())
        .unwrap_or_default()
}

fn has_ended(pod: &Pod) -> bool {
    matches!(phase(pod), "Succeeded" | "Failed")
}

/// Whether all of the pod's containers run.
fn runs(pod: &Pod) -> bool {
    let statuses = pod
        .status
        .as_ref()
        .and_then(|status| status.container_statuses.as_ref());
    phase(pod) == "Running"
        && statuses.is_some_and(|all| {
            all.iter().all(|one| {
                let state = one.state.as_ref();
                state.is_some_and(|state| state.running.is_some())
            })
        })
}

fn container(pod: &Pod) -> Option<String> {
    let annotations = pod.metadata.annotations.as_ref()?;
    annotations.get(DEFAULT_CONTAINER).cloned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split('|').map(str::to_owned).collect()
    }

    #[test]
    fn the_words_after_the_host_are_one_command() {
        for (given, host, command) in [
            ("h|orted -mca x \"1\"", "h", "orted -mca x \"1\""),
            ("-x|h.j.ns.svc|proxy|--id|0", "h.j.ns.svc", "proxy --id 0"),
            ("-n|-q|h|-v", "h", "-v"),
        ] {
            assert_eq!(read(&words(given)).unwrap(), (host, command.to_owned()));
        }
        for wrong in ["-l|me|h|ls", "h", "-n|h", "-n"] {
            assert!(read(&words(wrong)).is_err(), "{wrong}");
        }
        assert!(read(&[]).is_err());
    }

    #[test]
    fn a_command_waits_until_all_containers_run() {
        let pod = |phase: &str, states: serde_json::Value| -> Pod {
            let statuses: Vec<_> = states.as_array().unwrap().iter().map(|state| {
                json!({"name": "c", "image": "", "imageID": "", "ready": true, "restartCount": 0, "state": state})
            }).collect();
            serde_json::from_value(json!({"metadata": {}, "spec": {"containers": []},
                "status": {"phase": phase, "containerStatuses": statuses}}))
            .unwrap()
        };
        let running = json!({"running": {}});
        assert!(runs(&pod("Running", json!([running, running]))));
        assert!(!runs(&pod("Running", json!([running, {"waiting": {}}]))));
        assert!(!runs(&pod("Pending", json!([running]))));
        assert!(has_ended(&pod("Failed", json!([]))));
    }
}
