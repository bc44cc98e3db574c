//! What packaging/kubernetes has for a cluster, and what its chart renders.

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

    /// Applies what one of the chart's templates renders with these values, in the namespace that
    /// the packaged files have.
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
