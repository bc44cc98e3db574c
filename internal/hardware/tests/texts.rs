//! No description of a machine makes the reader panic.

use std::path::Path;

use hardware::description::MachineDescription;
use proptest::prelude::*;

#[path = "../../resources/testing/documents.rs"]
mod texts;

use texts::broken;

proptest! {
    #[test]
    fn no_description_panics(text in broken(vec![
        include_str!("../../../packaging/examples/machines/4x-h100.toml"),
        include_str!("../../../packaging/examples/machines/dgx-a100.toml"),
        include_str!("../../../packaging/examples/machines/8x-l4.toml"),
    ])) {
        let _ = MachineDescription::parse(&text, Path::new("machine.toml"));
    }
}
