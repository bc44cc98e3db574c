//! `muster run`: a command as a job of several replicas.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::{Context, Result, bail};
use kube::Api;
use kube::api::{DynamicObject, ListParams, PostParams};
use resources::kinds::Queue;
use resources::registry::Kind;
use serde_json::{Value, json};

use super::connection::ServerConnection;
use super::outcome::CommandOutcome;
use super::output::{self, Paint};
use super::ranks::{self, StartResult};
use super::{error_message, failure, kinds, logs, wait};
use crate::arguments::{Logs, Run};

/// The most queues that a refusal names.
const QUEUES_NAMED_MAX: usize = 20;

/// Submits the job and follows rank 0, unless --detach is given.
pub async fn run(connection: &ServerConnection, arguments: Run) -> Result<CommandOutcome> {
    let kind = kinds::kind("pytorchjobs")?;
    let manifest = manifest_here(&arguments)?;
    let job = create(connection, kind, &arguments, manifest).await?;
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

/// The job's manifest, which starts in the current directory if pods may enter it; otherwise it says where.
pub fn manifest_here(arguments: &Run) -> Result<Value> {
    let here = std::env::current_dir().context("the current directory cannot be read")?;
    let here = match roots_own(&here) {
        Some(closed) if arguments.workdir.is_none() && arguments.image.is_none() => {
            output::tell(&format!(
                "the command starts in /, because pods do not run as root and so cannot enter {}; --workdir names \
                 another directory",
                closed.display()
            ))?;
            Path::new("/")
        }
        _ => here.as_path(),
    };
    Ok(manifest(arguments, &here.display().to_string()))
}

/// Creates the job, if its queue exists.
pub async fn create(
    connection: &ServerConnection,
    kind: &Kind,
    arguments: &Run,
    manifest: Value,
) -> Result<DynamicObject> {
    let object: DynamicObject = serde_json::from_value(manifest)?;
    if let Some(queue) = &arguments.queue {
        require_queue(connection, queue).await?;
    }
    let jobs = connection.api(kind);
    Ok(jobs.create(&PostParams::default(), &object).await?)
}

/// Refuses a queue that does not exist, with the names of those that do. A caller that may not read queues goes on: the
/// server judges the job.
async fn require_queue(connection: &ServerConnection, name: &str) -> Result<()> {
    let queues: Api<Queue> = Api::all(connection.client.clone());
    let Ok(there) = queues.list_metadata(&ListParams::default()).await else {
        return Ok(());
    };
    let there = there
        .items
        .into_iter()
        .filter_map(|queue| queue.metadata.name);
    match missing_queue(name, there.collect()) {
        Some(reason) => bail!(reason),
        None => Ok(()),
    }
}

/// Why a job cannot wait in a queue of this name: it is not among the existing ones.
fn missing_queue(name: &str, mut there: Vec<String>) -> Option<String> {
    if there.iter().any(|one| one == name) {
        return None;
    }
    there.sort();
    let more = there.len().saturating_sub(QUEUES_NAMED_MAX);
    there.truncate(QUEUES_NAMED_MAX);
    let mut list = there.join(", ");
    if more > 0 {
        list.push_str(&format!(" and {more} more"));
    }
    let list = if list.is_empty() {
        "no queue exists yet".to_owned()
    } else {
        format!("the queues are {list}")
    };
    Some(format!(
        "--queue {name:?}: there is no such queue; {list} (`muster queue` shows them)"
    ))
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

/// The first directory on the way to this one that only root may enter, such as /root.
fn roots_own(directory: &Path) -> Option<&Path> {
    let mut above: Vec<&Path> = directory.ancestors().collect();
    above.reverse();
    let closed = |path: &&&Path| {
        let metadata = std::fs::metadata(path);
        metadata.is_ok_and(|of| is_roots_own(of.uid(), of.gid(), of.mode()))
    };
    above.iter().find(closed).copied()
}

/// Whether only root may enter a directory with this owner, group and mode.
fn is_roots_own(owner: u32, group: u32, mode: u32) -> bool {
    owner == 0 && mode & 0o001 == 0 && (group == 0 || mode & 0o010 == 0)
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
        // The job's message then ends with the last line of the log of the rank that failed first.
        "terminationMessagePolicy": "FallbackToLogsOnError",
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
    fn a_directory_is_roots_own_if_neither_group_nor_others_may_enter_it() {
        let all = [
            (0, 0, 0o40700, true),
            // A member of root's group is as good as root.
            (0, 0, 0o40750, true),
            (0, 0, 0o40755, false),
            (0, 0, 0o40711, false),
            (0, 100, 0o40750, false),
            (0, 100, 0o40740, true),
            // The account of a user's pods may be the owner's.
            (1000, 1000, 0o40700, false),
        ];
        for (owner, group, mode, own) in all {
            assert_eq!(
                is_roots_own(owner, group, mode),
                own,
                "{owner} {group} {mode:o}"
            );
        }
        assert_eq!(roots_own(Path::new("/")), None);
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
        assert_eq!(
            container["terminationMessagePolicy"],
            "FallbackToLogsOnError"
        );
        assert_eq!(container["resources"]["limits"]["nvidia.com/gpu"], "2");
        assert_eq!(job["spec"]["runPolicy"]["schedulingPolicy"]["queue"], "q");
    }

    #[test]
    fn a_missing_queue_is_refused_with_those_that_exist() {
        let there = |count: usize| (0..count).map(|n| format!("q{n:02}")).collect::<Vec<_>>();
        assert_eq!(missing_queue("q01", there(3)), None);
        let refused = missing_queue("nope", there(3)).unwrap();
        assert!(
            refused.contains("\"nope\"") && refused.contains("are q00, q01, q02 ("),
            "{refused}"
        );
        let many = missing_queue("nope", there(QUEUES_NAMED_MAX + 2)).unwrap();
        assert!(
            many.contains("q19 and 2 more") && !many.contains("q20"),
            "{many}"
        );
        assert!(
            missing_queue("nope", Vec::new())
                .unwrap()
                .contains("no queue exists yet")
        );
    }

    #[test]
    fn one_replica_is_a_master_alone_and_an_image_keeps_its_own_directory() {
        let job = manifest(&parsed(&["--image", "i", "--", "x"]), "/here");
        let specs = &job["spec"]["pytorchReplicaSpecs"];
        assert!(specs["Worker"].is_null());
        assert!(specs["Master"]["template"]["spec"]["containers"][0]["workingDir"].is_null());
    }
}
