//! Asking the API until it says yes or no. An answer that does not come is asked for again, a
//! bounded number of times, with waits that double. What an answer means is the asker's to say.

use std::time::Duration;

/// How often something is asked whose answer does not come.
const TRIES_MAX: u32 = 5;
/// The wait after the first try; it doubles.
const FIRST_WAIT: Duration = Duration::from_millis(100);

/// What came of asking once.
pub(super) enum Answer {
    /// It is done.
    Yes,
    /// It will not be done, for this reason.
    No(String),
    /// Nobody can tell, for this reason.
    Lost(String),
}

/// Asks until there is an answer; what was said against it, if it was not yes.
pub(super) async fn until_answered<F>(ask: impl Fn() -> F) -> Option<String>
where
    F: Future<Output = Answer>,
{
    waiting(FIRST_WAIT, ask).await
}

async fn waiting<F>(first: Duration, ask: impl Fn() -> F) -> Option<String>
where
    F: Future<Output = Answer>,
{
    let mut wait = first;
    let mut said = String::new();
    for tried in 0..TRIES_MAX {
        if tried > 0 {
            tokio::time::sleep(wait).await;
            wait *= 2;
        }
        match ask().await {
            Answer::Yes => return None,
            Answer::No(why) => return Some(why),
            Answer::Lost(why) => said = why,
        }
    }
    Some(said)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// What comes of asking somebody whose answers are these, the last again and again; and how
    /// often he is asked.
    async fn asked(answers: &[fn() -> Answer]) -> (Option<String>, usize) {
        let times = Cell::new(0);
        let ask = || {
            let at = times.replace(times.get() + 1);
            std::future::ready(answers[at.min(answers.len() - 1)]())
        };
        let said = waiting(Duration::ZERO, ask).await;
        (said, times.get())
    }

    #[tokio::test]
    async fn an_answer_is_waited_for_and_a_no_is_one() {
        let yes = || Answer::Yes;
        let no = || Answer::No("no".into());
        let none = || Answer::Lost("lost".into());
        assert_eq!(asked(&[yes]).await, (None, 1));
        assert_eq!(asked(&[none, none, yes]).await, (None, 3));
        assert_eq!(asked(&[none, no]).await, (Some("no".into()), 2));
        let given_up = (Some("lost".to_owned()), TRIES_MAX as usize);
        assert_eq!(asked(&[none]).await, given_up);
    }
}
