//! The errors of commands and the exit status that goes with each.

use anyhow::Error;
use kube::core::Status;

use super::exit::ExitCause;

/// An error message with its exit status.
#[derive(Debug)]
pub struct CommandFailure {
    exit: ExitCause,
    text: String,
}

impl std::error::Error for CommandFailure {}

impl std::fmt::Display for CommandFailure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

/// An error with an explicit exit status.
pub fn with(exit: ExitCause, text: impl Into<String>) -> Error {
    let text = text.into();
    CommandFailure { exit, text }.into()
}

/// Invalid arguments.
pub fn usage(text: impl Into<String>) -> Error {
    with(ExitCause::Usage, text)
}

/// The named object does not exist.
pub fn not_found(text: impl Into<String>) -> Error {
    with(ExitCause::NotFound, text)
}

/// The exit status for an error.
pub fn exit_of(error: &Error) -> ExitCause {
    if closed_pipe(error) {
        return ExitCause::ClosedPipe;
    }
    let exit_of_cause = |cause: &(dyn std::error::Error + 'static)| {
        if let Some(failure) = cause.downcast_ref::<CommandFailure>() {
            return Some(failure.exit);
        }
        match cause.downcast_ref::<kube::Error>()? {
            kube::Error::Api(status) => Some(match status.code {
                404 => ExitCause::NotFound,
                400..=499 => ExitCause::Refused,
                _ if undeclared(status).is_some() => ExitCause::Refused,
                _ => ExitCause::Failed,
            }),
            kube::Error::Service(_) | kube::Error::HyperError(_) => Some(ExitCause::Unreachable),
            _ => None,
        }
    };
    error
        .chain()
        .find_map(exit_of_cause)
        .unwrap_or(ExitCause::Failed)
}

/// Whether the reader of standard output has closed it, as `| head` does.
pub fn closed_pipe(error: &Error) -> bool {
    error.chain().any(|cause| {
        cause
            .downcast_ref::<std::io::Error>()
            .is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
    })
}

/// Whether the error is a response of the server with this HTTP status.
pub fn has_code(error: &Error, code: u16) -> bool {
    error.chain().any(|cause| {
        matches!(cause.downcast_ref::<kube::Error>(), Some(kube::Error::Api(status)) if status.code == code)
    })
}

/// Whether a retry would get the same response. Expired history (410) and too many requests (429)
/// are temporary.
pub fn lasts(error: &Error) -> bool {
    error.chain().any(|cause| {
        matches!(cause.downcast_ref::<kube::Error>(), Some(kube::Error::Api(status))
            if (400..500).contains(&status.code) && status.code != 410 && status.code != 429)
    })
}

/// The error with its causes. Many errors repeat their source in their own message; each text
/// appears once.
pub fn full_message(error: &Error) -> String {
    let mut parts: Vec<String> = Vec::new();
    for cause in error.chain() {
        let part = cause.to_string();
        if !parts.last().is_some_and(|outer| outer.contains(&part)) {
            parts.push(part);
        }
    }
    parts.join(": ")
}

/// The fields of a manifest that its kind does not have. A kube-apiserver reports these as an
/// internal error of server-side apply, though the manifest is at fault.
pub fn undeclared(status: &Status) -> Option<&str> {
    if let Some((_, found)) = status.message.split_once("strict decoding error: ") {
        return found.starts_with("unknown field").then_some(found);
    }
    let (_, found) = status
        .message
        .split_once("failed to create typed patch object (")?;
    let (_, field) = found.split_once("): ")?;
    field.contains("not declared in schema").then_some(field)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cause_is_printed_once() {
        #[derive(Debug, thiserror::Error)]
        #[error("cannot read /nope: {source}; check it")]
        struct Repeats {
            source: std::io::Error,
        }
        let source = std::io::Error::other("no such file");
        let error = Error::new(Repeats { source }).context("--config");
        assert_eq!(
            full_message(&error),
            "--config: cannot read /nope: no such file; check it"
        );
        let plain = Error::msg("inner").context("outer");
        assert_eq!(full_message(&plain), "outer: inner");
    }

    #[test]
    fn only_a_closed_pipe_is_a_closed_pipe() {
        let pipe = std::io::Error::from(std::io::ErrorKind::BrokenPipe);
        assert_eq!(
            exit_of(&Error::new(pipe).context("writing")),
            ExitCause::ClosedPipe
        );
        assert_eq!(exit_of(&usage("no").context("outer")), ExitCause::Usage);
        assert_eq!(exit_of(&anyhow::anyhow!("no")), ExitCause::Failed);
    }
}
