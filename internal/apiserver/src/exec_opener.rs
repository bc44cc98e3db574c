//! Owns what the API asks of the nodes' agents for `pods/NAME/exec`, `attach` and `portforward`: the requests, what is
//! sent both ways, and the function that reaches the agents.

use std::sync::Arc;

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::BoxStream;

/// What a client wants of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExecAction {
    /// To run a program with its arguments in the container.
    Command(Vec<String>),
    /// The container's own input and output from now on.
    Attach,
    /// A connection to a TCP port of the pod, as input and standard output.
    Forward(u16),
}

/// A command to run in a container, or another connection with a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecRequest {
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub pod: String,
    /// The pod's uid: excludes a later pod of the same name.
    pub uid: String,
    /// The node that runs the pod.
    pub node: String,
    /// The container; empty for a port, which is the pod's.
    pub container: String,
    /// What is wanted.
    pub action: ExecAction,
    /// Whether the client sends an input.
    pub stdin: bool,
    /// Whether the client wants the standard output.
    pub stdout: bool,
    /// Whether the client wants the standard error.
    pub stderr: bool,
    /// Whether the command runs at a terminal.
    pub tty: bool,
}

/// What a client sends to a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExecInput {
    /// A piece of its input.
    Data(Bytes),
    /// The size of its terminal, in characters.
    Resize {
        /// Columns.
        width: u16,
        /// Rows.
        height: u16,
    },
    /// No more input follows.
    End,
}

/// What a command sends to its client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExecEvent {
    /// A piece of its standard output, or of its terminal.
    Output(Bytes),
    /// A piece of its standard error.
    Errors(Bytes),
    /// It has ended with this exit code.
    Exit(i32),
    /// Its end is not known; the text says why.
    Failed(String),
}

/// A running command; dropping it ends the command.
pub struct ExecStreams {
    /// Sends to the command; false if it is gone.
    pub send: Box<dyn FnMut(ExecInput) -> BoxFuture<'static, bool> + Send>,
    /// What the command sends; ends with it.
    pub events: BoxStream<'static, ExecEvent>,
}

/// Why a command was not started.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ExecError {
    /// The node cannot be reached, or takes no more commands; the text names it.
    #[error("{0}")]
    Unavailable(String),
    /// The container cannot run it now; the text says why.
    #[error("{0}")]
    Refused(String),
}

/// Starts a command in a container.
pub type ExecOpener =
    Arc<dyn Fn(ExecRequest) -> BoxFuture<'static, Result<ExecStreams, ExecError>> + Send + Sync>;
