//! `muster run`: a command as a job of several replicas.

use anyhow::{Context, Result};
use kube::api::{DynamicObject, PostParams};
use resources::registry::Kind;
use serde_json::{Value, json};

use super::connection::ServerConnection;
use super::outcome::CommandOutcome;
use super::output::{self, Paint};
use super::ranks::{self, StartResult};
use super::{error_message, failure, kinds, logs, wait};
use crate::arguments::{Logs, Run};

/// Submits the job and follows rank 0, unless --detach is given.
pub async fn run(connection: &ServerConnection, arguments: Run) -> Result<CommandOutcome> {
    let kind = kinds::kind("pytorchjobs")?;
    let here = std::env::current_dir().context("the current directory cannot be read")?;
    let manifest = manifest(&arguments, &here.display().to_string());
    let object: DynamicObject = serde_json::from_value(manifest)?;
    let job = connection
        .api(kind)
        .create(&PostParams::default(), &object)
        .await?;
    let name = job.metadata.name.clone().unwrap_or_default();
    let created = format!("{} created", output::name_of(&job, kind));
    if arguments.detach {
        output::put_line(&created)?;
        return Ok(CommandOutcome::Yes);
    }
    // Standard output belongs to the command.
    output::tell(&created)?;
    output::tell(&Paint::stderr().dim(&format!(
        "following rank 0; Ctrl-C leaves it running (`muster logs -f {name}`, `muster cancel {name}`)"
    )))?;
    follow(connection, kind, &job).await?;
    match wait::until_success(connection, kind, &name).await? {
        CommandOutcome::Yes => Ok(CommandOutcome::Yes),
        _ => {
            let pods = ranks::pods_of(connection, kind, &name).await?;
            Ok(ranks::first_failure(&pods).map_or(CommandOutcome::No, CommandOutcome::Ended))
        }
    }
}

/// Prints rank 0's log as it arrives. If the log breaks off, that is reported only: the job's
/// outcome does not depend on it.
async fn follow(
    connection: &ServerConnection,
    kind: &'static Kind,
    job: &DynamicObject,
) -> Result<()> {
    let pod = match ranks::await_rank(connection, kind, job, 0).await? {
        StartResult::Started(pod) => pod,
        StartResult::Over(why) => {
            eprintln!("muster: there is nothing to follow: {why}");
            return Ok(());
        }
    };
    let follow = Logs {
        name: pod.clone(),
        follow: true,
        rank: 0,
        tail: None,
        container: None,
        timestamps: false,
        previous: false,
    };
    match logs::stream(connection, &pod, &follow).await {
        Err(error) if !failure::closed_pipe(&error) => {
            let error = error_message::in_words(error, connection);
            eprintln!("muster: the log of {pod} cannot be followed: {error:#}");
            Ok(())
        }
        other => other,
    }
}

fn manifest(arguments: &Run, here: &str) -> Value {
    let workdir = match (&arguments.workdir, &arguments.image) {
        (Some(directory), _) => Some(directory.display().to_string()),
        (None, None) => Some(here.to_string()),
        (None, Some(_)) => None,
    };
    let env: Vec<Value> = arguments
        .env
        .iter()
        .map(|(name, value)| json!({"name": name, "value": value}))
        .collect();
    let mut requests = json!({"cpu": arguments.cpus, "memory": arguments.memory});
    let mut limits = json!({"memory": arguments.memory});
    if arguments.gpus > 0 {
        requests["nvidia.com/gpu"] = json!(arguments.gpus.to_string());
        limits["nvidia.com/gpu"] = json!(arguments.gpus.to_string());
    }
    let mut container = json!({
        "name": "pytorch",
        "command": arguments.command,
        "env": env,
        "resources": {"requests": requests, "limits": limits},
    });
    if let Some(directory) = workdir {
        container["workingDir"] = json!(directory);
    }
    if let Some(image) = &arguments.image {
        container["image"] = json!(image);
    }
    let replica = |count: u32| {
        json!({
            "replicas": count,
            "restartPolicy": "Never",
            "template": {"spec": {"containers": [container.clone()]}},
        })
    };
    let mut replicas = json!({"Master": replica(1)});
    if arguments.replicas > 1 {
        replicas["Worker"] = replica(arguments.replicas - 1);
    }
    let mut metadata = match &arguments.name {
        Some(name) => json!({"name": name}),
        None => json!({"generateName": "run-"}),
    };
    let mut policy = json!({"backoffLimit": 0});
    if let Some(queue) = &arguments.queue {
        metadata["labels"] = json!({"scheduling.volcano.sh/queue-name": queue});
        policy["schedulingPolicy"] = json!({"queue": queue});
    }
    json!({
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": metadata,
        "spec": {"runPolicy": policy, "pytorchReplicaSpecs": replicas},
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    /// A command line with the options of `muster run` alone.
    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        run: Run,
    }

    fn parsed(words: &[&str]) -> Run {
        Line::parse_from(["run"].iter().chain(words)).run
    }

    #[test]
    fn rank_0_is_the_master_and_the_others_are_workers() {
        let run = parsed(&[
            "--replicas",
            "4",
            "--gpus",
            "2",
            "--queue",
            "q",
            "--",
            "train",
            "--fast",
        ]);
        let job = manifest(&run, "/here");
        let specs = &job["spec"]["pytorchReplicaSpecs"];
        assert_eq!(specs["Master"]["replicas"], 1);
        assert_eq!(specs["Worker"]["replicas"], 3);
        let container = &specs["Worker"]["template"]["spec"]["containers"][0];
        assert_eq!(container["command"], json!(["train", "--fast"]));
        assert_eq!(container["workingDir"], "/here");
        assert_eq!(container["resources"]["limits"]["nvidia.com/gpu"], "2");
        assert_eq!(job["spec"]["runPolicy"]["schedulingPolicy"]["queue"], "q");
    }

    #[test]
    fn one_replica_is_a_master_alone_and_an_image_keeps_its_own_directory() {
        let job = manifest(&parsed(&["--image", "i", "--", "x"]), "/here");
        let specs = &job["spec"]["pytorchReplicaSpecs"];
        assert!(specs["Worker"].is_null());
        assert!(specs["Master"]["template"]["spec"]["containers"][0]["workingDir"].is_null());
    }
}
