//! The files of packaging/kubernetes for a cluster, and the rendered chart.

use std::process::Command;

use super::Cluster;
use crate::{part, repository, run};

impl Cluster {
    /// Applies files of packaging/kubernetes.
    #[track_caller]
    pub fn apply_packaged(&self, files: &[&str]) {
        for name in files {
            let file = repository().join("packaging/kubernetes").join(name);
            let text = std::fs::read_to_string(file);
            self.apply(&text.unwrap_or_else(|error| panic!("{name}: {error}")));
        }
    }

    /// Renders one of the chart's templates with these values and applies it, in the namespace of
    /// the packaged files.
    #[track_caller]
    pub fn apply_chart(&self, template: &str, values: &str) {
        let template = format!("templates/{template}");
        let rendered = run(Command::new(part("helm"))
            .args(["template", "muster", "--namespace", "muster-system"])
            .arg(repository().join("packaging/kubernetes/chart"))
            .args(["--show-only", &template, "--set", "createNamespace=true"])
            .args(["--set", values])
            .env("KUBECONFIG", "/dev/null"));
        self.apply(&rendered.ok());
    }
}
