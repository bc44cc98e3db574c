//! No configuration file of devices makes its reader panic.
#![allow(clippy::unwrap_used, reason = "what a test cannot unwrap fails it")]

use devices::mig::Configurations;
use devices::rdma::RdmaSettings;
use devices::settings::PluginSettings;
use devices::vendors::Vendor;
use devices::xids::XidPolicy;
use proptest::prelude::*;
use serde_json::{Value, json};

#[path = "../../resources/testing/documents.rs"]
mod broken;

use broken::changed;

fn yaml(text: &str) -> Value {
    serde_norway::from_str(text).unwrap()
}

proptest! {
    #[test]
    fn no_mig_configuration_panics(
        document in changed(vec![yaml(include_str!("../../../packaging/examples/mig-configurations.yaml"))]),
    ) {
        let _ = Configurations::read(&document);
    }

    #[test]
    fn no_kubelet_setting_panics(document in changed(vec![
        yaml(include_str!("../../../packaging/examples/device-plugin.yaml")),
        yaml(include_str!("../../../packaging/examples/device-plugin-mps.yaml")),
    ])) {
        let _ = PluginSettings::read(&document);
    }

    #[test]
    fn no_rdma_setting_panics(
        document in changed(vec![yaml(include_str!("../../../packaging/examples/rdma.yaml"))]),
    ) {
        let _ = RdmaSettings::read(&document);
    }

    #[test]
    fn no_vendor_panics(document in changed(vec![
        yaml(include_str!("../../../packaging/examples/vendors/amd.yaml")),
        yaml(include_str!("../../../packaging/examples/vendors/trainium.yaml")),
    ])) {
        let _ = Vendor::read(&document);
    }

    #[test]
    fn no_xid_policy_panics(document in changed(vec![
        yaml(&XidPolicy::default().yaml()),
        json!({"13": "ignore", "79": {"action": "report", "meaning": "m"}}),
    ])) {
        let _ = XidPolicy::read(&document);
    }
}
