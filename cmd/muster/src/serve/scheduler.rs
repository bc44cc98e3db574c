//! The scheduler's configuration, from the server's file.

use std::path::Path;

use anyhow::{Context, Result, bail};
use controllers::SchedulerConfig;
use controllers::scheduler_settings;

/// The configuration of the file, with defaults for the rest; the defaults without a file.
pub fn config(file: Option<&Path>, defaults: SchedulerConfig) -> Result<SchedulerConfig> {
    let Some(file) = file else {
        return Ok(defaults);
    };
    let named = || format!("--scheduler-config: {}", file.display());
    let text =
        std::fs::read_to_string(file).with_context(|| format!("{} cannot be read", named()))?;
    let document: serde_json::Value =
        serde_norway::from_str(&text).with_context(|| format!("{} is not YAML", named()))?;
    let parse =
        |text: &str| serde_norway::from_str(text).map_err(scheduler_settings::ParseError::from);
    let read = scheduler_settings::read(&document, &parse).with_context(named)?;
    for warning in &read.warnings {
        tracing::warn!("{}: {warning}", named());
    }
    let config = read.settings.applied(defaults);
    tracing::info!(
        actions = ?config.actions,
        topology = ?config.topology,
        placement = ?config.placement,
        "the scheduler is set up by {}",
        file.display()
    );
    Ok(config)
}

/// Refuses to partition idle GPUs if no agent would do it.
pub fn refuse_repartition(config: &SchedulerConfig) -> Result<()> {
    if config.repartition.is_some() {
        bail!(
            "--scheduler-config: spec.mig: this server's own agents do not partition GPUs; leave it out, or use \
             `muster server kubernetes`, with agents that run with --mig-manager"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;
    use controllers::scheduler_settings::Settings;

    use super::*;

    #[test]
    fn the_example_and_the_help_show_what_can_be_read_and_the_help_the_defaults() {
        let example = include_str!("../../../../packaging/examples/scheduler.yaml");
        let document: serde_json::Value = serde_norway::from_str(example).unwrap();
        let config = Settings::read(&document)
            .unwrap()
            .applied(SchedulerConfig::default());
        assert!(config.actions.defragment && config.actions.consolidate);
        assert_eq!(config.expected.len(), 2);
        assert!(refuse_repartition(&config).is_ok());
        let mig = serde_norway::from_str(
            "{apiVersion: muster.io/v1alpha1, kind: SchedulerConfig, spec: {mig: {}}}",
        );
        let config = Settings::read(&mig.unwrap()).unwrap().applied(config);
        let refused = refuse_repartition(&config).unwrap_err().to_string();
        assert!(
            refused.contains("spec.mig") && refused.contains("--mig-manager"),
            "{refused}"
        );

        let command = crate::arguments::Arguments::command();
        let server = command.find_subcommand("server").unwrap();
        let help = server.get_after_long_help().unwrap().to_string();
        let from = help.find("  apiVersion").unwrap();
        let to = help.find("\n\n").unwrap();
        let document: serde_json::Value = serde_norway::from_str(&help[from..to]).unwrap();
        let shown = Settings::read(&document)
            .unwrap()
            .applied(SchedulerConfig::default());
        assert_eq!(
            format!("{shown:?}"),
            format!("{:?}", SchedulerConfig::default())
        );
    }
}
