//! Opens the audit log from its options, connects it to the APIs, and runs `muster audit verify`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use apiserver::{ApiServer, Auditor};
use cli::{CommandOutcome, Global};
use identity::audit::{AuditLog, AuditOptions, Recorder, verify};
use resources::audit::AuditPolicy;

use super::layout::FileLayout;
use crate::arguments::AuditFlags;

/// How long a stop waits until the last events are on disk.
const PATIENCE: Duration = Duration::from_secs(2);
const MEBIBYTE: u64 = 1 << 20;

/// Opens the log and makes the resource API record to it.
pub async fn open(layout: &FileLayout, flags: &AuditFlags, api: &ApiServer) -> Result<AuditLog> {
    let options = AuditOptions {
        directory: flags
            .audit_log_dir
            .clone()
            .unwrap_or_else(|| layout.audit()),
        file_bytes: flags.audit_log_maxsize.saturating_mul(MEBIBYTE),
        files: flags.audit_log_maxbackup,
        policy: policy(flags.audit_policy_file.as_deref())?,
    };
    let log = tokio::task::spawn_blocking(move || AuditLog::open(options))
        .await?
        .context("--audit-log-dir")?;
    api.set_auditor(Some(Auditor {
        policy: log.policy(),
        events: log.events(),
    }));
    Ok(log)
}

/// The recorder of requests that are not for resources.
pub fn recorder(log: &AuditLog) -> Recorder {
    Recorder {
        policy: log.policy(),
        events: log.events(),
    }
}

/// Writes the pending events, within a time limit.
pub async fn close(log: AuditLog, api: &ApiServer) {
    api.set_auditor(None);
    let finished = tokio::task::spawn_blocking(move || log.finish());
    if tokio::time::timeout(PATIENCE, finished).await.is_err() {
        tracing::warn!("requests are still under way; their audit events may be missing");
    }
}

/// Reads the policy; without a file, the built-in policy.
pub fn policy(file: Option<&Path>) -> Result<AuditPolicy> {
    let Some(file) = file else {
        return Ok(AuditPolicy::built_in());
    };
    let place = || format!("--audit-policy-file: {}", file.display());
    let text = std::fs::read_to_string(file).with_context(place)?;
    let document: serde_json::Value = serde_norway::from_str(&text).with_context(place)?;
    AuditPolicy::read(&document).with_context(place)
}

/// Verifies a log's hash chain and reports every break.
pub fn verified(global: &Global, directory: Option<PathBuf>) -> Result<CommandOutcome> {
    let directory = match directory {
        Some(directory) => directory,
        None => FileLayout::of(&super::data(global))?.audit(),
    };
    let verdict = verify(&directory)?;
    println!(
        "{} events in {} files, numbers {} to {}",
        verdict.events, verdict.files, verdict.first, verdict.last
    );
    if verdict.first > 1 {
        println!("events before {} were removed by rotation", verdict.first);
    }
    if verdict.lost > 0 {
        println!(
            "{} events could not be written when their disk was full",
            verdict.lost
        );
    }
    println!("head {}", verdict.head);
    if verdict.sound() {
        println!("the chain is whole");
        return Ok(CommandOutcome::Yes);
    }
    for problem in &verdict.problems {
        println!("{problem}");
    }
    if verdict.more > 0 {
        println!("and {} problems more", verdict.more);
    }
    println!("the chain is broken: compare with a copy of the log that is kept elsewhere");
    Ok(CommandOutcome::No)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;
    use resources::audit::{AuditLevel, AuditedRequest};

    use super::*;

    const EXAMPLE: &str = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../packaging/examples/audit-policy.yaml"
    );

    #[test]
    fn the_example_is_read_and_records_what_its_comments_say() {
        let policy = policy(Some(Path::new(EXAMPLE))).unwrap();
        let nodes = ["system:nodes".to_owned()];
        let users = ["muster:users".to_owned()];
        let core = |resource| Some(("", resource));
        let rbac = Some(("rbac.authorization.k8s.io", "rolebindings"));
        for (groups, verb, resource, subresource, expected) in [
            (
                &nodes,
                "patch",
                core("pods"),
                Some("status"),
                AuditLevel::None,
            ),
            (&users, "patch", core("pods"), None, AuditLevel::Metadata),
            (&users, "list", core("pods"), None, AuditLevel::None),
            (&users, "get", core("secrets"), None, AuditLevel::Metadata),
            (
                &users,
                "create",
                core("secrets"),
                None,
                AuditLevel::Metadata,
            ),
            (&users, "create", rbac, None, AuditLevel::Request),
            (&users, "get", rbac, None, AuditLevel::None),
            (&users, "post", None, None, AuditLevel::Metadata),
        ] {
            let request = AuditedRequest {
                groups,
                verb,
                resource,
                subresource,
                ..AuditedRequest::default()
            };
            assert_eq!(policy.level(&request), expected, "{request:?}");
        }
    }

    #[test]
    fn help_shows_the_policy_that_is_in_force_without_a_file() {
        let command = crate::arguments::Arguments::command();
        for name in ["server", "up"] {
            let command = command.find_subcommand(name).unwrap();
            let help = command.get_after_long_help().unwrap().to_string();
            let part = help
                .split("\n\n")
                .find(|part| part.contains("kind: Policy"));
            let part = part.unwrap();
            let text = &part[part.find("  apiVersion").unwrap()..];
            let document: serde_json::Value = serde_norway::from_str(text).unwrap();
            assert_eq!(
                AuditPolicy::read(&document).unwrap(),
                AuditPolicy::built_in()
            );
        }
    }

    #[test]
    fn a_policy_file_is_refused_by_its_field() {
        let directory = std::env::temp_dir().join(format!("muster-audit-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let file = directory.join("policy.yaml");
        std::fs::write(
            &file,
            "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules:\n- level: All\n",
        )
        .unwrap();
        let why = format!("{:#}", policy(Some(&file)).unwrap_err());
        std::fs::remove_dir_all(&directory).unwrap();
        assert!(
            why.contains("rules[0].level: Unsupported value: \"All\""),
            "{why}"
        );
        assert!(why.starts_with("--audit-policy-file: "), "{why}");
        assert_eq!(policy(None).unwrap(), AuditPolicy::built_in());
    }
}
