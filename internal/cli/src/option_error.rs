//! Errors for invalid option values, each with the valid form.

/// Why an option's value is invalid. clap prints the option and the value before this text.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClientOptionError {
    /// The value is no pair.
    #[error("{0:?} is not NAME=VALUE")]
    NameAndValue(String),
    /// The value is no address of a server.
    #[error("use https://HOST:PORT")]
    ServerAddress,
    /// The value is no time span.
    #[error("use {forms}", forms = resources::span::FORMS)]
    Span,
    /// The value names no event to wait for.
    #[error("use condition=NAME or delete")]
    Until,
}
