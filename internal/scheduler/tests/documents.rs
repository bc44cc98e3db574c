//! No configuration file, this scheduler's or another's, makes the reader panic.
#![allow(clippy::unwrap_used, reason = "what a test cannot unwrap fails it")]

use proptest::prelude::*;
use scheduler::Config;
use scheduler::settings::{ParseError, read};
use serde_json::Value;

#[path = "../../resources/testing/documents.rs"]
mod broken;

use broken::changed;

fn yaml(text: &str) -> Value {
    serde_norway::from_str(text).unwrap()
}

proptest! {
    #[test]
    fn no_scheduler_configuration_panics(document in changed(vec![
        yaml(include_str!("../../../packaging/examples/scheduler.yaml")),
        yaml(include_str!("../../../packaging/examples/kube-scheduler.yaml")),
        yaml(include_str!("../../resources/tests/manifests/004-volcano-scheduler-configmap.yaml")),
    ])) {
        let parse = |text: &str| serde_norway::from_str(text).map_err(ParseError::from);
        if let Ok(read) = read(&document, &parse) {
            let _ = read.settings.applied(Config::default());
        }
    }
}
