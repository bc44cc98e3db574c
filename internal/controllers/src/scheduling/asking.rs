//! Asking the API until it says yes or no. An answer that does not come is asked for again, a
//! bounded number of times, with waits that double. What an answer means is the asker's to say.

use std::time::Duration;

use crate::lead::Fenced;

/// How often something is asked whose answer does not come.
const TRIES_MAX: u32 = 5;
/// How often what came of a write is asked whose answer got lost: for some ten minutes, which no
/// leader leads without the API.
const TRIES_AFTER: u32 = 600;
/// The wait after the first try; it doubles.
const FIRST_WAIT: Duration = Duration::from_millis(100);
/// The longest wait.
const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// What came of asking once.
pub(super) enum Answer<T> {
    /// An answer, whatever it is.
    Given(T),
    /// Nobody can tell, for this reason.
    Lost(String),
}

/// No try brought an answer; the reason of the last try.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(super) struct NoAnswer(String);

/// Asks until there is an answer.
///
/// # Errors
/// Why there was none, in the last try.
pub(super) async fn until_answered<T, F>(ask: impl Fn() -> F) -> Result<T, NoAnswer>
where
    F: Future<Output = Answer<T>>,
{
    waiting(TRIES_MAX, FIRST_WAIT, ask).await
}

/// The same for what came of a write whose answer got lost: for as long as nobody knows, nothing may
/// be decided by it.
///
/// # Errors
/// Why there was none, in the last try.
pub(super) async fn until_known<T, F>(ask: impl Fn() -> F) -> Result<T, NoAnswer>
where
    F: Future<Output = Answer<T>>,
{
    waiting(TRIES_AFTER, FIRST_WAIT, ask).await
}

/// Was a write kept back, since this server does not lead any more? Then nothing was sent.
pub(super) fn kept_back(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Service(cause) if cause.is::<Fenced>())
}

async fn waiting<T, F>(tries: u32, first: Duration, ask: impl Fn() -> F) -> Result<T, NoAnswer>
where
    F: Future<Output = Answer<T>>,
{
    let mut wait = first;
    let mut said = String::new();
    for tried in 0..tries {
        if tried > 0 {
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(LONGEST_WAIT);
        }
        match ask().await {
            Answer::Given(answer) => return Ok(answer),
            Answer::Lost(why) => said = why,
        }
    }
    Err(NoAnswer(said))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// What comes of asking somebody whose answers are these, the last again and again; and how
    /// often he is asked.
    async fn asked(answers: &[fn() -> Answer<bool>]) -> (Result<bool, NoAnswer>, usize) {
        let times = Cell::new(0);
        let ask = || {
            let at = times.replace(times.get() + 1);
            std::future::ready(answers[at.min(answers.len() - 1)]())
        };
        let said = waiting(TRIES_MAX, Duration::ZERO, ask).await;
        (said, times.get())
    }

    #[tokio::test]
    async fn an_answer_is_waited_for_and_a_no_is_one() {
        let yes = || Answer::Given(true);
        let no = || Answer::Given(false);
        let none = || Answer::Lost("lost".into());
        assert_eq!(asked(&[yes]).await, (Ok(true), 1));
        assert_eq!(asked(&[none, none, yes]).await, (Ok(true), 3));
        assert_eq!(asked(&[none, no]).await, (Ok(false), 2));
        let given_up = (Err(NoAnswer("lost".to_owned())), TRIES_MAX as usize);
        assert_eq!(asked(&[none]).await, given_up);
    }
}
