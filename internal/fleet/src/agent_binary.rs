//! An agent's binary, as the agent reports it in its Hello.

use rpc::agent::v1::Hello;

/// The longest text of an agent that is kept, in characters.
pub const TEXT_MAX: usize = 500;

/// An agent's binary, as its Hello reported it.
#[derive(Clone, Debug, Default)]
pub struct AgentBinary {
    /// Its version.
    pub version: String,
    /// Its digest; empty if the agent reports none.
    pub sha256: String,
    /// Why the server can't upgrade the agent; empty if it can.
    pub refusal: String,
    /// The digest of the last binary that the agent tried and left, and why it left it.
    pub failed: Option<(String, String)>,
}

impl AgentBinary {
    /// Reads a Hello. An agent from before upgrades by the server reports no digest.
    pub fn of(hello: &Hello) -> AgentBinary {
        let cut = |text: &str| text.chars().take(TEXT_MAX).collect::<String>();
        let refusal = match hello.binary_sha256.is_empty() && hello.upgrade_refusal.is_empty() {
            true => "its version can't be upgraded by the server; install the new one on the node",
            false => &hello.upgrade_refusal,
        };
        let failed = (!hello.failed_sha256.is_empty())
            .then(|| (cut(&hello.failed_sha256), cut(&hello.failed_reason)));
        AgentBinary {
            version: cut(&hello.agent_version),
            sha256: cut(&hello.binary_sha256),
            refusal: cut(refusal),
            failed,
        }
    }
}
