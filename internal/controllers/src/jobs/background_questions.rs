//! Questions about objects to programs outside of the API, such as Ray's dashboard. They are asked in the background when an
//! object is decided on, at most once a second and not twice at a time for one object; the answer is kept for the next
//! decision.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::{Semaphore, SemaphorePermit};

use super::ObjectKey;

/// The shortest time between two questions about one object.
const BETWEEN: Duration = Duration::from_secs(1);
/// Answers about objects that were not asked about for so long are forgotten.
const FORGET: Duration = Duration::from_secs(600);

/// The last answers about all objects. Clones share one state.
#[derive(Clone)]
pub(crate) struct BackgroundQuestions<A> {
    places: Arc<Semaphore>,
    known: Arc<Mutex<BTreeMap<ObjectKey, KnownObject<A>>>>,
}

/// What is known of one object.
struct KnownObject<A> {
    answer: Option<A>,
    /// When it was asked about last.
    asked: Instant,
    /// Whether it is being asked about.
    asking: bool,
}

impl<A: Clone + Send + 'static> BackgroundQuestions<A> {
    /// At most so many questions are asked at once; the next one waits.
    pub(crate) fn new(at_once: usize) -> BackgroundQuestions<A> {
        BackgroundQuestions {
            places: Arc::new(Semaphore::new(at_once)),
            known: Arc::default(),
        }
    }

    /// The last answer about an object.
    pub(crate) fn last(&self, key: &ObjectKey) -> Option<A> {
        self.known.lock().get(key)?.answer.clone()
    }

    /// Asks about an object, unless it is being asked about or was just now. `question` gets the last answer.
    pub(crate) fn ask<F>(&self, key: &ObjectKey, question: impl FnOnce(Option<A>) -> F)
    where
        F: Future<Output = A> + Send + 'static,
    {
        let before = {
            let mut all = self.known.lock();
            all.retain(|_, known| known.asking || known.asked.elapsed() < FORGET);
            let known = all.get(key);
            if known.is_some_and(|known| known.asking || known.asked.elapsed() < BETWEEN) {
                return;
            }
            let before = known.and_then(|known| known.answer.clone());
            let asked = KnownObject {
                answer: before.clone(),
                asked: Instant::now(),
                asking: true,
            };
            all.insert(key.clone(), asked);
            before
        };
        let asking = Asking {
            questions: self.clone(),
            key: key.clone(),
        };
        let question = question(before);
        tokio::spawn(async move {
            let _place = asking.questions.place().await;
            asking.keep(question.await);
        });
    }

    /// A place among the questions that are asked at once.
    pub(crate) async fn place(&self) -> Option<SemaphorePermit<'_>> {
        self.places.acquire().await.ok()
    }
}

/// An object that is being asked about, until this is dropped.
struct Asking<A> {
    questions: BackgroundQuestions<A>,
    key: ObjectKey,
}

impl<A> Asking<A> {
    fn keep(&self, answer: A) {
        if let Some(known) = self.questions.known.lock().get_mut(&self.key) {
            known.answer = Some(answer);
        }
    }
}

impl<A> Drop for Asking<A> {
    fn drop(&mut self) {
        if let Some(known) = self.questions.known.lock().get_mut(&self.key) {
            known.asking = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::Notify;

    use super::*;

    fn key(name: &str) -> ObjectKey {
        ("n".to_owned(), name.to_owned())
    }

    /// Waits until no question about the object is open.
    async fn idle(questions: &BackgroundQuestions<u32>, name: &str) {
        while questions.known.lock()[&key(name)].asking {
            tokio::task::yield_now().await;
        }
    }

    /// Lets a question about the object follow the last one at once.
    fn later(questions: &BackgroundQuestions<u32>, name: &str) {
        let mut all = questions.known.lock();
        let known = all.get_mut(&key(name)).expect("it was asked about");
        known.asked = known
            .asked
            .checked_sub(BETWEEN)
            .expect("a clock that began");
    }

    #[tokio::test]
    async fn an_object_is_asked_about_once_at_a_time_and_once_a_second() {
        let questions = BackgroundQuestions::new(1);
        let (open, asked) = (Arc::new(Notify::new()), Arc::new(Mutex::new(0)));
        let ask = |name: &str| {
            let (open, asked) = (open.clone(), asked.clone());
            questions.ask(&key(name), |before: Option<u32>| async move {
                *asked.lock() += 1;
                open.notified().await;
                before.map_or(1, |before| before + 1)
            });
        };
        ask("a");
        // It is being asked about.
        later(&questions, "a");
        ask("a");
        open.notify_one();
        idle(&questions, "a").await;
        assert_eq!((questions.last(&key("a")), *asked.lock()), (Some(1), 1));
        // It was asked about just now, and then no longer.
        questions
            .known
            .lock()
            .get_mut(&key("a"))
            .expect("known")
            .asked = Instant::now();
        ask("a");
        assert!(!questions.known.lock()[&key("a")].asking);
        later(&questions, "a");
        ask("a");
        open.notify_one();
        idle(&questions, "a").await;
        assert_eq!((questions.last(&key("a")), *asked.lock()), (Some(2), 2));
        assert_eq!(questions.last(&key("b")), None);
    }

    #[tokio::test]
    async fn a_panic_keeps_the_last_answer_and_the_next_question_is_asked() {
        let questions = BackgroundQuestions::new(1);
        questions.ask(&key("a"), |_| async { 7 });
        idle(&questions, "a").await;
        later(&questions, "a");
        questions.ask(&key("a"), |_| async { panic!("no answer") });
        idle(&questions, "a").await;
        assert_eq!(questions.last(&key("a")), Some(7));
        later(&questions, "a");
        questions.ask(&key("a"), |_| async { 8 });
        idle(&questions, "a").await;
        assert_eq!(questions.last(&key("a")), Some(8));
    }
}
