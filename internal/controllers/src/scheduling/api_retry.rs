//! Retries of API requests until the API accepts or refuses. If an answer is lost, the request is
//! sent again, a bounded number of times, with waits that double. The caller interprets the answer.

use std::time::Duration;

use crate::lead::Fenced;

/// How often a request is sent if no answer comes.
const TRIES_MAX: u32 = 5;
/// How often the state is read after the answer to a write was lost: for about ten minutes. A
/// server without the API loses its lease much sooner.
const TRIES_AFTER: u32 = 600;
/// The wait after the first try; it doubles.
const FIRST_WAIT: Duration = Duration::from_millis(100);
/// The longest wait.
const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// The result of one try.
pub(super) enum AttemptResult<T> {
    /// The API answered, with success or refusal.
    Given(T),
    /// The outcome is unknown, for this reason.
    Lost(String),
}

/// No try brought an answer; holds the reason of the last try.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(super) struct NoAnswer(String);

/// Tries until there is an answer.
///
/// # Errors
/// The reason why the last try had none.
pub(super) async fn until_answered<T, F>(ask: impl Fn() -> F) -> Result<T, NoAnswer>
where
    F: Future<Output = AttemptResult<T>>,
{
    waiting(TRIES_MAX, FIRST_WAIT, ask).await
}

/// Like `until_answered`, for reading the state after a write whose answer was lost. It tries for
/// much longer, because no decision may depend on an unknown outcome.
///
/// # Errors
/// The reason why the last try had none.
pub(super) async fn until_known<T, F>(ask: impl Fn() -> F) -> Result<T, NoAnswer>
where
    F: Future<Output = AttemptResult<T>>,
{
    waiting(TRIES_AFTER, FIRST_WAIT, ask).await
}

/// Whether the fence refused a write because this server no longer leads. Then nothing was sent.
pub(super) fn is_fenced(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Service(cause) if cause.is::<Fenced>())
}

async fn waiting<T, F>(tries: u32, first: Duration, ask: impl Fn() -> F) -> Result<T, NoAnswer>
where
    F: Future<Output = AttemptResult<T>>,
{
    let mut wait = first;
    let mut last_failure = String::new();
    for tried in 0..tries {
        if tried > 0 {
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(LONGEST_WAIT);
        }
        match ask().await {
            AttemptResult::Given(answer) => return Ok(answer),
            AttemptResult::Lost(why) => last_failure = why,
        }
    }
    Err(NoAnswer(last_failure))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// The result of asking an API that gives these answers, the last one repeatedly; and how often
    /// it was asked.
    async fn asked(answers: &[fn() -> AttemptResult<bool>]) -> (Result<bool, NoAnswer>, usize) {
        let times = Cell::new(0);
        let ask = || {
            let at = times.replace(times.get() + 1);
            std::future::ready(answers[at.min(answers.len() - 1)]())
        };
        let answer = waiting(TRIES_MAX, Duration::ZERO, ask).await;
        (answer, times.get())
    }

    #[tokio::test]
    async fn requests_are_retried_until_answered_and_a_refusal_is_an_answer() {
        let yes = || AttemptResult::Given(true);
        let no = || AttemptResult::Given(false);
        let none = || AttemptResult::Lost("lost".into());
        assert_eq!(asked(&[yes]).await, (Ok(true), 1));
        assert_eq!(asked(&[none, none, yes]).await, (Ok(true), 3));
        assert_eq!(asked(&[none, no]).await, (Ok(false), 2));
        let given_up = (Err(NoAnswer("lost".to_owned())), TRIES_MAX as usize);
        assert_eq!(asked(&[none]).await, given_up);
    }
}
