//! `muster dev`: a shell in a pod of the user's own. The pod is that of a training job with one replica, so that it waits in a
//! queue, says why it waits, and is suspended and resumed as every job.

use std::io::IsTerminal as _;
use std::time::Duration;

use administration::cancellation::suspension;
use anyhow::{Result, bail};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{DynamicObject, Patch, PatchParams};
use resources::names::{DEV, IDLE_GPU_LIMIT};
use resources::registry::Kind;
use resources::{idle_gpus, span};
use serde_json::{Value, json};

use super::connection::ServerConnection;
use super::exec::{RemoteCommand, run_in};
use super::outcome::CommandOutcome;
use super::ranks::{self, StartResult};
use super::{failure, kinds, output, run};
use crate::arguments::{Dev, Run};

/// The program of the pod: it waits until it is ended. An end by SIGTERM is no success: a job that is suspended and
/// resumed while its pod ends would have succeeded.
const WAITS: &str = "trap 'exit 143' TERM; while :; do sleep 3600 & wait $!; done";
/// The shell that is opened: the better one that there is.
const SHELL: [&str; 3] = [
    "sh",
    "-c",
    "command -v bash >/dev/null && exec bash; exec sh",
];
/// Between two looks at a pod that is about to be replaced.
const REPLACED_EVERY: Duration = Duration::from_millis(500);

/// Opens the shell, or runs the command; ends with its exit status.
pub async fn dev(connection: &ServerConnection, mut arguments: Dev) -> Result<CommandOutcome> {
    let kind = kinds::kind("pytorchjobs")?;
    let name = match arguments.name.take() {
        Some(name) => name,
        None => own_name(&connection.ask("/api/v1/whoami").await?)?,
    };
    let given = std::mem::take(&mut arguments.command);
    let job = match connection.api(kind).get_opt(&name).await? {
        Some(job) => go_on(connection, kind, &name, job).await?,
        None => create(connection, kind, &name, &arguments).await?,
    };
    let pod = match ranks::await_rank(connection, kind, &job, 0).await? {
        StartResult::Started(pod) => await_kept(connection, kind, &name, &pod).await?,
        StartResult::Over(why) => bail!("{why}; `muster dev {name}` creates it again"),
    };
    let shell = given.is_empty();
    let command = match shell {
        true => SHELL.map(str::to_owned).to_vec(),
        false => given,
    };
    let tty = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
    let remote = RemoteCommand {
        pod: &pod,
        container: None,
        command: &command,
        stdin: true,
        tty,
    };
    let outcome = run_in(connection, &remote).await?;
    if shell && tty {
        output::tell(&format!(
            "the pod goes on: `muster dev {name}` opens another shell, `muster suspend {name}` gives its devices back \
             until then, `muster cancel {name}` deletes it"
        ))?;
    }
    Ok(outcome)
}

/// The name for the caller's own job.
fn own_name(me: &Value) -> Result<String> {
    let user = me["user"].as_str().unwrap_or_default();
    let plain =
        |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '-';
    if user.is_empty() || !user.chars().all(plain) {
        return Err(failure::usage(format!(
            "user {user:?} cannot be a part of a job's name: name the job, as in `muster dev my-job`"
        )));
    }
    Ok(format!("dev-{user}"))
}

async fn create(
    connection: &ServerConnection,
    kind: &Kind,
    name: &str,
    arguments: &Dev,
) -> Result<DynamicObject> {
    let run = Run {
        name: Some(name.to_owned()),
        replicas: 1,
        gpus: arguments.gpus,
        cpus: arguments.cpus.clone(),
        memory: arguments.memory.clone(),
        queue: arguments.queue.clone(),
        image: None,
        env: arguments.env.clone(),
        workdir: arguments.workdir.clone(),
        detach: true,
        command: ["sh", "-c", WAITS].map(str::to_owned).to_vec(),
    };
    let manifest = manifest(run::manifest_here(&run)?, arguments)?;
    let job = run::create(connection, kind, &run, manifest).await?;
    output::tell(&format!("{} created", output::name_of(&job, kind)))?;
    Ok(job)
}

/// Adds what makes a job one of `muster dev` to the manifest of `muster run`.
fn manifest(mut manifest: Value, arguments: &Dev) -> Result<Value> {
    manifest["metadata"]["labels"][DEV] = "true".into();
    if arguments.gpus > 0 {
        idle_gpus::limit(&arguments.idle).map_err(|error| {
            failure::usage(format!("--idle {:?}: {}", error.value, error.valid))
        })?;
        manifest["metadata"]["annotations"] = json!({IDLE_GPU_LIMIT: arguments.idle});
    }
    if let Some(time) = &arguments.time {
        let seconds = span::seconds(time).filter(|seconds| *seconds > 0);
        let seconds = seconds.ok_or_else(|| {
            failure::usage(format!(
                "--time {time:?}: must be a time above zero: {}",
                span::FORMS
            ))
        })?;
        manifest["spec"]["runPolicy"]["activeDeadlineSeconds"] = seconds.into();
    }
    Ok(manifest)
}

/// Goes on with a job that exists: resumes it if it is suspended.
async fn go_on(
    connection: &ServerConnection,
    kind: &'static Kind,
    name: &str,
    job: DynamicObject,
) -> Result<DynamicObject> {
    let labels = job.metadata.labels.as_ref();
    if !labels.is_some_and(|labels| labels.contains_key(DEV)) {
        return Err(failure::usage(format!(
            "{} is a job that `muster dev` did not create; `muster exec -it {name} -- sh` opens a shell in it",
            output::name_of(&job, kind)
        )));
    }
    if let Some(end) = kinds::ended(&job) {
        bail!(
            "{} is {end}: `muster explain {name}` says why; `muster cancel {name}` deletes it, and `muster dev` then \
             creates it again",
            output::name_of(&job, kind)
        );
    }
    if job.data["spec"]["runPolicy"]["suspend"] != true {
        return Ok(job);
    }
    let patch = Patch::Merge(suspension(kind, false, None));
    let resumed = connection
        .api(kind)
        .patch(name, &PatchParams::default(), &patch)
        .await?;
    output::tell(&format!("{} resumed", output::name_of(&resumed, kind)))?;
    Ok(resumed)
}

/// Waits until the running pod is one that is not being deleted: a job that was suspended a moment ago gets another one.
async fn await_kept(
    connection: &ServerConnection,
    kind: &'static Kind,
    job: &str,
    name: &str,
) -> Result<String> {
    let pods: Api<Pod> = Api::namespaced(connection.client.clone(), &connection.namespace);
    loop {
        // A job that has ended gets no other pod.
        let owner = connection.api(kind).get_opt(job).await?;
        if owner.is_none_or(|owner| kinds::ended(&owner).is_some()) {
            bail!("the job {job} has ended; `muster explain {job}` says why");
        }
        let pod = pods.get_opt(name).await?;
        let phase = pod
            .as_ref()
            .and_then(|pod| pod.status.as_ref()?.phase.clone());
        let leaves = pod.is_some_and(|pod| pod.metadata.deletion_timestamp.is_some());
        match phase.as_deref() {
            Some("Succeeded" | "Failed") if !leaves => {
                bail!("the pod {name} has ended; `muster logs {name}` shows its last words")
            }
            Some("Running") if !leaves => return Ok(name.to_owned()),
            _ => tokio::time::sleep(REPLACED_EVERY).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(gpus: u32, idle: &str, time: Option<&str>) -> Dev {
        Dev {
            name: None,
            gpus,
            cpus: "1".to_owned(),
            memory: "1Gi".to_owned(),
            queue: None,
            env: Vec::new(),
            workdir: None,
            idle: idle.to_owned(),
            time: time.map(str::to_owned),
            command: Vec::new(),
        }
    }

    #[test]
    fn a_job_with_gpus_limits_its_idle_time_and_one_without_has_no_limit() {
        let plain =
            || json!({"metadata": {"name": "dev-ann"}, "spec": {"runPolicy": {"backoffLimit": 0}}});
        let job = manifest(plain(), &arguments(2, "30m", Some("8h"))).unwrap();
        assert_eq!(job["metadata"]["labels"][DEV], "true");
        assert_eq!(job["metadata"]["annotations"][IDLE_GPU_LIMIT], "30m");
        assert_eq!(job["spec"]["runPolicy"]["activeDeadlineSeconds"], 28_800);
        assert_eq!(job["spec"]["runPolicy"]["backoffLimit"], 0);
        let job = manifest(plain(), &arguments(0, "30m", None)).unwrap();
        assert!(job["metadata"]["annotations"].is_null());
        assert!(job["spec"]["runPolicy"]["activeDeadlineSeconds"].is_null());
        for (idle, time, words) in [
            (
                "soon",
                None,
                "--idle \"soon\": must be a time from 1m to 90d",
            ),
            ("1h", Some("0"), "--time \"0\": must be a time above zero"),
        ] {
            let error = manifest(plain(), &arguments(1, idle, time)).unwrap_err();
            assert!(error.to_string().contains(words), "{error}");
        }
    }

    #[test]
    fn the_name_is_the_users_unless_it_cannot_be_part_of_one() {
        assert_eq!(own_name(&json!({"user": "ann"})).unwrap(), "dev-ann");
        for user in ["system:serviceaccount:a:b", "", "Ann"] {
            let error = own_name(&json!({"user": user})).unwrap_err();
            assert!(error.to_string().contains("muster dev my-job"), "{error}");
        }
    }
}
