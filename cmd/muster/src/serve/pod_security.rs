//! The pod security configuration, from the server's files.

use std::path::Path;

use anyhow::{Context, Result, anyhow};
use resources::admission::pod_security::{AllowList, PodSecurity};
use resources::field::{FieldError, aggregate};

use crate::arguments::ServerOptions;

/// The configuration of the files, with defaults for the rest.
pub fn config(options: &ServerOptions) -> Result<PodSecurity> {
    let mut security = PodSecurity::default();
    if let Some(file) = &options.pod_security_config {
        security = read("--pod-security-config", file, |document| {
            security.configured(document)
        })?;
    }
    if let Some(file) = &options.pod_security_allow {
        security.allow = read("--pod-security-allow", file, AllowList::read)?;
    }
    Ok(security)
}

fn read<T>(
    option: &str,
    file: &Path,
    read: impl FnOnce(&serde_json::Value) -> Result<T, Vec<FieldError>>,
) -> Result<T> {
    let named = || format!("{option}: {}", file.display());
    let text =
        std::fs::read_to_string(file).with_context(|| format!("{} cannot be read", named()))?;
    let document: serde_json::Value =
        serde_norway::from_str(&text).with_context(|| format!("{} is not YAML", named()))?;
    read(&document).map_err(|errors| anyhow!("{}: {}", named(), aggregate(&errors)))
}

#[cfg(test)]
mod tests {
    use clap::{Args as _, CommandFactory as _, FromArgMatches as _};

    use super::*;

    const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/examples");

    fn with(arguments: &[&str]) -> Result<PodSecurity> {
        let command = ServerOptions::augment_args(clap::Command::new("server"));
        let given = command.get_matches_from([&["server"][..], arguments].concat());
        config(&ServerOptions::from_arg_matches(&given).unwrap())
    }

    #[test]
    fn without_files_the_defaults_are_in_force_and_help_shows_them() {
        assert_eq!(with(&[]).unwrap(), PodSecurity::default());
        let command = crate::arguments::Arguments::command();
        for name in ["server", "up"] {
            let command = command.find_subcommand(name).unwrap();
            let help = command.get_after_long_help().unwrap().to_string();
            let documents: Vec<serde_json::Value> = help
                .split("\n\n")
                .filter(|part| part.contains("kind: PodSecurity"))
                .map(|part| &part[part.find("  apiVersion").unwrap()..])
                .map(|text| serde_norway::from_str(text).unwrap())
                .collect();
            let [configuration, allow] = documents.as_slice() else {
                panic!("{name}: {documents:?}");
            };
            let shown = PodSecurity::default().configured(configuration).unwrap();
            assert_eq!(shown, PodSecurity::default());
            assert_eq!(AllowList::read(allow).unwrap(), AllowList::default());
        }
    }

    #[test]
    fn the_examples_are_read_and_what_is_wrong_is_named_with_its_option_and_file() {
        let configuration = format!("{EXAMPLES}/pod-security.yaml");
        let allow = format!("{EXAMPLES}/pod-security-allow.yaml");
        let both = [
            "--pod-security-config",
            &configuration,
            "--pod-security-allow",
            &allow,
        ];
        let read = with(&both).unwrap();
        assert_ne!(read.defaults, PodSecurity::default().defaults);
        assert_ne!(read.allow, AllowList::default());

        let other = format!("{EXAMPLES}/scheduler.yaml");
        let error = with(&["--pod-security-config", &other]).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!(
                "--pod-security-config: {other}: kind: Unsupported value: \"SchedulerConfig\": supported values: \"PodSecurityConfiguration\", \"AdmissionConfiguration\""
            )
        );
        let error = with(&["--pod-security-allow", "/nope/allow.yaml"]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "--pod-security-allow: /nope/allow.yaml cannot be read"
        );
    }
}
