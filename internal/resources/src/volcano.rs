//! Volcano's Job as the CLI and the pages name it. `batch/v1` has a kind of the same name and plural, so Volcano's is
//! called by its short name wherever a group is not part of the name.

use serde_json::{Value, json};

use crate::json;

/// The API group.
pub const GROUP: &str = "batch.volcano.sh";
/// Its plural in addresses of the REST API and the pages.
pub const PLURAL: &str = "vcjobs";
/// Its singular in words of the CLI.
pub const SINGULAR: &str = "vcjob";
/// The API group of [`crate::kinds::VolcanoCommand`].
pub const COMMAND_GROUP: &str = "bus.volcano.sh";
/// What a Command may ask for.
pub const COMMAND_ACTIONS: [&str; 6] = [
    "AbortJob",
    "ResumeJob",
    "RestartJob",
    "TerminateJob",
    "CompleteJob",
    "RestartTask",
];
/// Label on a job's pods: the job's name.
pub const JOB_NAME: &str = "volcano.sh/job-name";
/// Label on a pod: its number in its task.
pub const TASK_INDEX: &str = "volcano.sh/task-index";
/// The phases in which a job has ended and is not started again.
pub const FINAL_PHASES: [&str; 3] = ["Completed", "Terminated", "Failed"];
/// The phase of a job whose pods were stopped by AbortJob; ResumeJob starts it again.
pub const ABORTED: &str = "Aborted";

/// The phase of a Volcano Job's status; none for the status of another kind.
#[must_use]
pub fn phase(status: &Value) -> Option<&str> {
    status["state"]["phase"].as_str()
}

/// A task's name: the given one, or `default` and the task's number.
#[must_use]
pub fn task_name(number: usize, task: &Value) -> String {
    match json::text(task, &["name"]) {
        "" => format!("default{number}"),
        name => name.to_owned(),
    }
}

/// The names of a job's pods by rank: the tasks in the order of the spec, each task's pods by index. At most `most`.
#[must_use]
pub fn rank_names(job: &Value, most: usize) -> Vec<String> {
    let name = json::text(job, &["metadata", "name"]);
    let tasks = json::items(job, &["spec", "tasks"]).iter().enumerate();
    let names = tasks.flat_map(|(number, task)| {
        let replicas = json::int(task, &["replicas"]).unwrap_or(1).max(0);
        let task = task_name(number, task);
        (0..replicas).map(move |index| format!("{name}-{task}-{index}"))
    });
    names.take(most).collect()
}

/// A Command to a job of this name and uid, as the CLI and the pages create it. It goes when the job does.
#[must_use]
pub fn command(name: &str, uid: &str, action: &str, message: &str) -> Value {
    let target =
        json!({"apiVersion": format!("{GROUP}/v1alpha1"), "kind": "Job", "name": name, "uid": uid});
    json!({
        "apiVersion": format!("{COMMAND_GROUP}/v1alpha1"), "kind": "Command",
        "metadata": {
            "generateName": format!("{name}-{}-", action.to_ascii_lowercase()), "ownerReferences": [target],
        },
        "action": action, "target": target, "message": message,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_follow_the_tasks_and_their_indexes() {
        let job = json!({"metadata": {"name": "j"}, "spec": {"tasks": [
            {"name": "master"}, {"replicas": 2}, {"name": "none", "replicas": 0}]}});
        let names = ["j-master-0", "j-default1-0", "j-default1-1"];
        assert_eq!(rank_names(&job, 9), names);
        assert_eq!(rank_names(&job, 2), names[..2]);
        assert!(rank_names(&json!({"metadata": {"name": "j"}}), 9).is_empty());
    }
}
