//! Errors for invalid option values, each with the valid form.

/// Why an option's value is invalid. clap prints the option and the value before this text.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ServerOptionError {
    #[error("{value:?} is not a number from {least} to {most}")]
    Number {
        value: String,
        least: usize,
        most: usize,
    },
    #[error("{value:?} is not a time from 1m to 30d, like 24h")]
    Span { value: String },
    #[error("use IP:PORT, like 0.0.0.0:9400 or [::]:9400, or off")]
    Metrics,
    #[error("use all, or GPUs' indices and UUIDs with commas, like 0,1 or GPU-5c3a...")]
    Gpus,
    #[error("use FIRST-LAST, both from {least} to {most}, like 2000000000-2000065535")]
    Ids { least: u32, most: u32 },
    #[error("use a size above 0 like 50Gi, or unlimited")]
    PodDisk,
    #[error("use cpu=AMOUNT,memory=SIZE or one of both, like cpu=4,memory=8Gi")]
    Reserved,
}
