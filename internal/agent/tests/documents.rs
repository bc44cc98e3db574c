//! No accounts file makes its reader panic.
#![allow(clippy::unwrap_used, reason = "what a test cannot unwrap fails it")]

use agent::Accounts;
use proptest::prelude::*;
use serde_json::Value;

#[path = "../../resources/testing/documents.rs"]
mod broken;

use broken::changed;

fn yaml(text: &str) -> Value {
    serde_norway::from_str(text).unwrap()
}

proptest! {
    #[test]
    fn no_accounts_file_panics(
        document in changed(vec![yaml(include_str!("../../../packaging/examples/accounts.yaml"))]),
    ) {
        let _ = Accounts::read(&document);
    }
}
