//! Volcano's Command: the checks of its admission. Volcano's own commands for queues are refused: a Queue is opened and
//! closed by its own fields.

use serde_json::Value;

use super::columns::{AGE, NAME, of};
use super::meta::{self, NameRule};
use super::{Kind, Source, TableColumn};
use crate::field::{FieldError, Path};
use crate::json;
use crate::kinds::VolcanoCommand;
use crate::volcano::{COMMAND_ACTIONS, GROUP};

const COLUMNS: &[TableColumn] = &[
    NAME,
    of(
        "Action",
        "string",
        "What is done.",
        Source::Field(&["action"]),
    ),
    of(
        "Target",
        "string",
        "The job that it is for.",
        Source::Field(&["target", "name"]),
    ),
    AGE,
];

pub(super) const KIND: Kind = Kind {
    group: "bus.volcano.sh",
    version: "v1alpha1",
    kind: "Command",
    plural: "commands",
    singular: "command",
    list_kind: "CommandList",
    definition: Some(VolcanoCommand::crd),
    schema: "sh.volcano.bus.v1alpha1.Command",
    validate,
    columns: COLUMNS,
    ..Kind::BASE
};

fn validate(new: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    meta::check(new, old, true, NameRule::Subdomain, &mut errors);
    let action = json::text(new, &["action"]);
    let path = Path::new("action");
    if action.is_empty() {
        errors.push(FieldError::required(
            &path,
            format!("one of {}", COMMAND_ACTIONS.join(", ")),
        ));
    } else if !COMMAND_ACTIONS.contains(&action) {
        errors.push(FieldError::not_supported(&path, action, &COMMAND_ACTIONS));
    }
    let target = Path::new("target");
    if json::text(new, &["target", "name"]).is_empty() {
        errors.push(FieldError::required(
            &target.child("name"),
            "the name of a Volcano Job",
        ));
    }
    let kind = json::text(new, &["target", "kind"]);
    if kind != "Job" {
        let detail = format!("must be Job: Muster carries out commands to Jobs of {GROUP}");
        errors.push(FieldError::invalid(&target.child("kind"), kind, detail));
    }
    let version = json::text(new, &["target", "apiVersion"]);
    if version.split('/').next() != Some(GROUP) {
        let detail = format!("must be a version of {GROUP}, such as \"{GROUP}/v1alpha1\"");
        errors.push(FieldError::invalid(
            &target.child("apiVersion"),
            version,
            detail,
        ));
    }
    errors
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_command_names_an_action_and_a_volcano_job() {
        let command = |action: &str, target: Value| {
            let command = json!({"metadata": {"name": "c", "namespace": "team"}, "action": action, "target": target});
            let errors = validate(&command, None).into_iter();
            errors.map(|error| error.to_string()).collect::<Vec<_>>()
        };
        let job = json!({"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "name": "j", "uid": "u"});
        for action in COMMAND_ACTIONS {
            assert!(command(action, job.clone()).is_empty(), "{action}");
        }
        assert_eq!(
            command("StopJob", json!({"kind": "Queue"})),
            [
                "action: Unsupported value: \"StopJob\": supported values: \"AbortJob\", \"ResumeJob\", \"RestartJob\", \
                 \"TerminateJob\", \"CompleteJob\", \"RestartTask\"",
                "target.name: Required value: the name of a Volcano Job",
                "target.kind: Invalid value: \"Queue\": must be Job: Muster carries out commands to Jobs of \
                 batch.volcano.sh",
                "target.apiVersion: Invalid value: \"\": must be a version of batch.volcano.sh, such as \
                 \"batch.volcano.sh/v1alpha1\"",
            ]
        );
    }
}
