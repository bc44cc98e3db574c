//! The agent protocol's code, generated from api/proto, and the few conversions that both ends
//! need. Owns the protocol's limits; decides nothing and keeps no state.

mod peer;

pub use peer::{NODE_GROUP, NODE_PREFIX, PeerIdentity, renewal_second};

/// Messages, clients and servers of `muster.agent.v1`.
pub mod agent {
    /// Version 1 of the agent protocol.
    #[allow(missing_docs, clippy::all, reason = "generated from api/proto")]
    pub mod v1 {
        tonic::include_proto!("muster.agent.v1");
    }
}

/// The kubelet's protocols for device plugins.
pub mod kubelet {
    /// The device plugin protocol.
    #[allow(missing_docs, clippy::all, reason = "generated from api/proto")]
    pub mod v1beta1 {
        tonic::include_proto!("v1beta1");
    }
    /// The kubelet's protocol for DRA drivers.
    pub mod dra {
        /// Version 1, of Kubernetes 1.34 and later.
        #[allow(missing_docs, clippy::all, reason = "generated from api/proto")]
        pub mod v1 {
            tonic::include_proto!("k8s.io.kubelet.pkg.apis.dra.v1");
        }
    }
    /// The kubelet's protocol for plugin registration.
    #[allow(missing_docs, clippy::all, reason = "generated from api/proto")]
    pub mod registration {
        tonic::include_proto!("pluginregistration");
    }
    /// The pod resources API.
    #[allow(missing_docs, clippy::all, reason = "generated from api/proto")]
    pub mod v1 {
        tonic::include_proto!("v1");
    }
}

/// The name by which agents ask for the server's certificate of Muster's own authority (in TLS's server name
/// indication), whatever certificate people's clients get. It is under `.internal`, which no public DNS has.
pub const AGENT_SERVER_NAME: &str = "agents.muster.internal";

/// The maximum size of a message from the server to an agent, in bytes: a pod with several full
/// ConfigMaps and Secrets (1 MiB each by Kubernetes' own limit) fits.
pub const MAX_MESSAGE_BYTES: usize = 16 * 1024 * 1024;

/// The maximum size of a message from an agent to the server, in bytes. The largest messages are
/// Hello and Inventory: some 200 KiB for a machine with 16 GPUs, each partitioned into slices.
pub const MAX_AGENT_MESSAGE_BYTES: usize = 4 * 1024 * 1024;

/// How often an agent sends a heartbeat, in seconds.
pub const HEARTBEAT_SECONDS: u32 = 3;

/// A session without a message from the other end for this long is over, in seconds.
pub const SESSION_SILENCE_SECONDS: u64 = 20;

/// The maximum size of a piece of a command's input or output in one message, in bytes.
pub const EXEC_CHUNK_BYTES: usize = 32 * 1024;

/// The channels of a command's input and outputs, numbered as in Kubernetes' remote commands.
pub mod exec_channel {
    /// Standard input.
    pub const INPUT: u32 = 0;
    /// Standard output, or the terminal.
    pub const OUTPUT: u32 = 1;
    /// Standard error.
    pub const ERRORS: u32 = 2;
}

/// The maximum size of a log chunk in one message, in bytes.
pub const LOG_CHUNK_BYTES: usize = 32 * 1024;

/// The maximum size of a part of an agent's binary in one message, in bytes. The agent asks for one
/// part at a time.
pub const BINARY_CHUNK_BYTES: usize = 1024 * 1024;

/// The largest binary that a server offers to agents, in bytes.
pub const BINARY_MAX_BYTES: u64 = 1 << 30;

/// How many chunks of one log may be in flight before the reader has read one.
pub const LOG_WINDOW_CHUNKS: u32 = 32;

mod wrap {
    use crate::agent::v1::{
        AgentMessage, Assign, BinaryAsk, BinaryChunk, BinaryVerdict, CloseLog, EventNote, Health,
        Heartbeat, Hello, Inventory, LogChunk, LogCredit, LogEnd, LogOpened, Measurements,
        NetworkPolicyChanges, OfferBinary, OpenExec, OpenLog, PodGone, PodNetwork, PodStatus,
        RdmaAnswer, RdmaAsk, ServerMessage, ServiceChanges, Stop, SyncComplete, Update, Welcome,
        agent_message, server_message,
    };

    macro_rules! wraps {
        ($outer:ident, $module:ident: $($message:ident),+ $(,)?) => {
            $(impl From<$message> for $outer {
                fn from(message: $message) -> Self {
                    $outer { body: Some($module::Body::$message(message)) }
                }
            })+
        };
    }

    wraps!(AgentMessage, agent_message: Hello, Heartbeat, PodStatus, PodGone, LogOpened, LogChunk,
        LogEnd, Inventory, Health, Measurements, RdmaAnswer, BinaryAsk, BinaryVerdict);
    wraps!(ServerMessage, server_message: Welcome, Assign, Update, Stop, SyncComplete, OpenLog,
        CloseLog, LogCredit, RdmaAsk, OpenExec, PodNetwork, ServiceChanges, NetworkPolicyChanges, OfferBinary, BinaryChunk);

    impl From<EventNote> for AgentMessage {
        fn from(note: EventNote) -> Self {
            AgentMessage {
                body: Some(agent_message::Body::Event(note)),
            }
        }
    }
}
