//! Silences: alerts that are not delivered for a time.

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::book::FiringAlert;
use crate::rule::Rule;

/// The most silences at a time.
pub const SILENCES_MAX: usize = 1_000;
/// The longest silence, in days.
pub const SILENCE_DAYS_MAX: i64 = 30;
/// The most bytes of a comment, and of a subject's name.
const TEXT_MAX: usize = 256;

/// What a caller asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SilenceRequest {
    /// The rule's name; all rules if none.
    pub rule: Option<String>,
    /// The name of a node, of a namespace or of the whole subject (`gpu7/3`); all subjects if none.
    pub on: Option<String>,
    /// For how many seconds.
    pub seconds: i64,
    /// Why.
    #[serde(default)]
    pub comment: String,
}

/// A silence.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Silence {
    /// Its number.
    pub id: u64,
    /// The rule; all rules if none.
    pub rule: Option<Rule>,
    /// The node, the namespace or the whole subject; all if none.
    pub on: Option<String>,
    /// When it ends.
    pub until: Timestamp,
    /// Who made it.
    pub by: String,
    /// Why.
    pub comment: String,
}

/// Why a silence is refused. Each names the field, the value and the valid form.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SilenceError {
    /// The rule does not exist.
    #[error("rule: {0}")]
    Rule(#[from] crate::rule::UnknownRule),
    /// It would silence everything.
    #[error("a silence needs rule, on, or both; without them it would hide every alert")]
    Everything,
    /// The time is out of range.
    #[error(
        "seconds: {0} is not between 1 and {max} ({SILENCE_DAYS_MAX} days)",
        max = SILENCE_DAYS_MAX * 86_400
    )]
    Time(i64),
    /// A text is too long.
    #[error("{0}: at most {TEXT_MAX} bytes")]
    Long(&'static str),
    /// There are too many.
    #[error("there are {SILENCES_MAX} silences; end some first")]
    TooMany,
}

impl Silence {
    /// A silence as it was asked for.
    ///
    /// # Errors
    /// A field is invalid.
    pub fn new(
        id: u64,
        request: &SilenceRequest,
        by: &str,
        now: Timestamp,
    ) -> Result<Silence, SilenceError> {
        let rule = request.rule.as_deref().map(str::parse).transpose()?;
        if rule.is_none() && request.on.is_none() {
            return Err(SilenceError::Everything);
        }
        if !(1..=SILENCE_DAYS_MAX * 86_400).contains(&request.seconds) {
            return Err(SilenceError::Time(request.seconds));
        }
        if request.on.as_ref().is_some_and(|on| on.len() > TEXT_MAX) {
            return Err(SilenceError::Long("on"));
        }
        if request.comment.len() > TEXT_MAX {
            return Err(SilenceError::Long("comment"));
        }
        let until = now.checked_add(SignedDuration::from_secs(request.seconds));
        Ok(Silence {
            id,
            rule,
            on: request.on.clone(),
            until: until.unwrap_or(Timestamp::MAX),
            by: by.to_owned(),
            comment: request.comment.clone(),
        })
    }

    /// True if it keeps this alert from being delivered now.
    #[must_use]
    pub fn covers(&self, alert: &FiringAlert, now: Timestamp) -> bool {
        let on = |on: &String| *on == alert.subject.name || on == alert.subject.owner();
        now < self.until
            && self.rule.is_none_or(|rule| rule == alert.rule)
            && self.on.as_ref().is_none_or(on)
    }
}
