//! Runs the parts of a process as named components: the end of a component that must run is an
//! error with its name, and a stop reaches the components in an order, within a time limit.
//!
//! A component runs from its registration. Register first what other components use: a stop goes in
//! the reverse order, and asks a component only when those registered after it have ended.
//!
//! ```
//! use std::io;
//! use supervisor::{Stop, Supervisor};
//!
//! async fn serve(stop: Stop) -> io::Result<()> {
//!     // The last requests are answered, and the listener is closed.
//!     stop.requested().await;
//!     Ok(())
//! }
//!
//! # let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
//! # runtime.block_on(async {
//! let mut components = Supervisor::new();
//! components
//!     .run("listener", serve)
//!     .run_loop("sweeper", std::future::pending())
//!     .until_done("migration", |_stop| async { io::Result::Ok(()) });
//! let ended = components.supervise(async { /* SIGTERM */ }).await;
//! assert!(ended.is_ok());
//! # });
//! ```

mod restart;
mod stateful;
mod stop;

use std::convert::Infallible;
use std::error::Error;
use std::pin::pin;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::{Id, JoinError, JoinSet};
use tokio::time::{Instant, timeout_at};

pub use restart::{
    LoopEnd, Panicked, RESTART_FIRST, RESTART_HEALTHY, RESTART_LONGEST, SetAside, caught,
    contained, keep_running, panic_message,
};
pub use stateful::StatefulLoop;
pub use stop::Stop;

/// Time that all components together have to end once a stop was requested. Those that run on are
/// aborted.
pub const STOP_LIMIT: Duration = Duration::from_secs(60);

/// The error of a component: any error type, also `anyhow::Error`.
pub type ComponentError = Box<dyn Error + Send + Sync>;

/// A component's end that ends the process.
#[derive(Debug, thiserror::Error)]
#[error("component {component:?} {cause}")]
pub struct Ended {
    /// The component's name.
    pub component: &'static str,
    /// How it ended.
    pub cause: Cause,
}

/// How a component ended.
#[derive(Debug, thiserror::Error)]
pub enum Cause {
    /// It returned without an error before a stop was requested, and it must run until then.
    #[error("ended before a stop was requested; the log lines before this one have the reason")]
    Returned,
    /// It returned an error.
    #[error("failed: {}", with_sources(.0))]
    Failed(ComponentError),
    /// It panicked with this message.
    #[error("panicked: {0}; this is a bug, please report it with the log")]
    Panicked(String),
}

/// An error's text and that of the errors that caused it, as far as they add to it.
fn with_sources(failure: &ComponentError) -> String {
    let mut text = failure.to_string();
    let mut source = failure.source();
    while let Some(error) = source {
        let cause = error.to_string();
        if !text.contains(&cause) {
            text.push_str(": ");
            text.push_str(&cause);
        }
        source = error.source();
    }
    text
}

/// A component's task.
#[derive(Debug)]
struct Component {
    name: &'static str,
    task: Id,
    /// Whether its end before a stop is an error.
    must_run: bool,
    stop: watch::Sender<bool>,
    running: bool,
}

/// The running components. Dropping it aborts them.
#[derive(Debug, Default)]
pub struct Supervisor {
    /// In the order of their registration.
    components: Vec<Component>,
    tasks: JoinSet<Result<(), ComponentError>>,
}

impl Supervisor {
    /// A supervisor without components.
    pub fn new() -> Supervisor {
        Supervisor::default()
    }

    /// Starts a component that must run until it is asked to stop: an earlier end is an error, also
    /// without an error of its own.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime, as each method that starts a component.
    pub fn run<C, F, E>(&mut self, name: &'static str, component: C) -> &mut Supervisor
    where
        C: FnOnce(Stop) -> F,
        F: Future<Output = Result<(), E>> + Send + 'static,
        E: Into<ComponentError>,
    {
        self.start(name, true, component)
    }

    /// Starts a component that must run until a stop and needs no time for it: the future is
    /// dropped at the point where it waits.
    pub fn run_loop<F>(&mut self, name: &'static str, component: F) -> &mut Supervisor
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.run(name, |stop| async move {
            stop.run_until_requested(component).await;
            Ok::<(), Infallible>(())
        })
    }

    /// Starts a component that may end earlier than the others; only its error or panic is an
    /// error.
    pub fn until_done<C, F, E>(&mut self, name: &'static str, component: C) -> &mut Supervisor
    where
        C: FnOnce(Stop) -> F,
        F: Future<Output = Result<(), E>> + Send + 'static,
        E: Into<ComponentError>,
    {
        self.start(name, false, component)
    }

    fn start<C, F, E>(
        &mut self,
        name: &'static str,
        must_run: bool,
        component: C,
    ) -> &mut Supervisor
    where
        C: FnOnce(Stop) -> F,
        F: Future<Output = Result<(), E>> + Send + 'static,
        E: Into<ComponentError>,
    {
        let (stop, requested) = watch::channel(false);
        let running = component(Stop(requested));
        let task = self
            .tasks
            .spawn(async move { running.await.map_err(Into::into) });
        self.components.push(Component {
            name,
            task: task.id(),
            must_run,
            stop,
            running: true,
        });
        self
    }

    /// Waits until `stop` ends, then stops the components in the reverse order of their
    /// registration. When a component ends before that as it should not, the others are stopped at
    /// once. Also ends when no component is left.
    ///
    /// All components together have [`STOP_LIMIT`] to end. A component that does not end in half of
    /// the time that is left keeps running, and the one before it is asked to stop. Those that run
    /// when the time is over are aborted, and a warning names them.
    ///
    /// # Errors
    ///
    /// The first component that ended unexpectedly, failed or panicked, also while it was stopped.
    pub async fn supervise(mut self, stop: impl Future<Output = ()>) -> Result<(), Ended> {
        let mut first = None;
        {
            let mut stop = pin!(stop);
            while first.is_none() {
                tokio::select! {
                    // First: what ends because of the same stop is no unexpected end.
                    biased;
                    () = &mut stop => break,
                    joined = self.tasks.join_next_with_id() => match joined {
                        Some(joined) => first = self.note(joined, false),
                        None => return Ok(()),
                    },
                }
            }
        }
        if let Some(ended) = &first {
            tracing::error!(component = ended.component, "{ended}; stopping the others");
        }
        let aborted = self.stop_all(&mut first).await;
        if !aborted.is_empty() {
            tracing::warn!(
                components = aborted.join(", "),
                "components did not stop within {} s and are aborted",
                STOP_LIMIT.as_secs()
            );
        }
        first.map_or(Ok(()), Err)
    }

    /// Stops the components; the names of those that run on after [`STOP_LIMIT`], in the order in
    /// which they were asked.
    async fn stop_all(&mut self, first: &mut Option<Ended>) -> Vec<&'static str> {
        let limit = Instant::now() + STOP_LIMIT;
        for at in (0..self.components.len()).rev() {
            if !self.components[at].running {
                continue;
            }
            self.components[at].stop.send_replace(true);
            let now = Instant::now();
            let turn = now + limit.saturating_duration_since(now) / 2;
            while self.components[at].running {
                let Ok(Some(joined)) = timeout_at(turn, self.tasks.join_next_with_id()).await
                else {
                    break;
                };
                self.note_stopped(joined, first);
            }
        }
        while let Ok(Some(joined)) = timeout_at(limit, self.tasks.join_next_with_id()).await {
            self.note_stopped(joined, first);
        }
        let left = self.components.iter().rev();
        let left = left.filter(|component| component.running);
        let left = left.map(|component| component.name).collect();
        self.tasks.abort_all();
        left
    }

    fn note_stopped(&mut self, joined: Joined, first: &mut Option<Ended>) {
        let Some(ended) = self.note(joined, true) else {
            return;
        };
        match first {
            None => *first = Some(ended),
            Some(_) => tracing::warn!(component = ended.component, "{ended}, while it stopped"),
        }
    }

    /// Records a component's end; the error, if that is one.
    fn note(&mut self, joined: Joined, stopping: bool) -> Option<Ended> {
        let (task, failure) = match joined {
            Ok((task, outcome)) => (task, outcome.err().map(Cause::Failed)),
            Err(error) => (error.id(), panicked(error)),
        };
        let mut all = self.components.iter_mut();
        let component = all.find(|component| component.task == task)?;
        component.running = false;
        let unexpected = component.must_run && !stopping;
        let cause = failure.or_else(|| unexpected.then_some(Cause::Returned))?;
        Some(Ended {
            component: component.name,
            cause,
        })
    }
}

/// What a task set says about an ended task.
type Joined = Result<(Id, Result<(), ComponentError>), JoinError>;

/// The panic that ended a task, if one did.
fn panicked(error: JoinError) -> Option<Cause> {
    let panic = error.try_into_panic().ok()?;
    Some(Cause::Panicked(panic_message(panic.as_ref())))
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};
    use std::io;
    use std::sync::{Arc, Mutex};

    use super::*;

    async fn until_stop(stop: Stop) -> io::Result<()> {
        stop.requested().await;
        Ok(())
    }

    #[tokio::test(start_paused = true)]
    async fn an_end_before_the_stop_is_an_error_with_the_components_name() {
        let mut all = Supervisor::new();
        all.run("steady", until_stop);
        all.run("short", |_stop| ready(io::Result::Ok(())));
        let ended = all.supervise(pending()).await.unwrap_err();
        assert_eq!(ended.component, "short");
        assert!(matches!(ended.cause, Cause::Returned));
        assert!(ended.to_string().contains("\"short\" ended before"));

        let mut all = Supervisor::new();
        all.run("steady", until_stop);
        all.run_loop("loop", ready(()));
        let ended = all.supervise(pending()).await.unwrap_err();
        assert_eq!(ended.component, "loop");
    }

    fn wild() -> io::Result<()> {
        panic!("index {}", 3)
    }

    #[tokio::test(start_paused = true)]
    async fn an_error_and_a_panic_are_errors_of_every_component() {
        for must_run in [true, false] {
            let mut all = Supervisor::new();
            all.run("steady", until_stop);
            all.start("broken", must_run, |_stop| async {
                Err::<(), _>(io::Error::other("the disk is full"))
            });
            let ended = all.supervise(pending()).await.unwrap_err();
            assert_eq!(
                ended.to_string(),
                "component \"broken\" failed: the disk is full"
            );

            let mut all = Supervisor::new();
            all.run("steady", until_stop);
            all.start("wild", must_run, |_stop| async {
                tokio::time::sleep(Duration::from_secs(1)).await;
                wild()
            });
            let ended = all.supervise(pending()).await.unwrap_err();
            assert_eq!(ended.component, "wild");
            assert!(matches!(&ended.cause, Cause::Panicked(why) if why == "index 3"));
        }
    }

    #[derive(Debug, thiserror::Error)]
    #[error("the listener")]
    struct Outer(#[source] io::Error);

    #[tokio::test(start_paused = true)]
    async fn an_error_shows_what_caused_it() {
        let mut all = Supervisor::new();
        all.run("api", |_stop| ready(Err(Outer(io::Error::other("in use")))));
        let ended = all.supervise(pending()).await.unwrap_err();
        assert!(ended.to_string().ends_with("failed: the listener: in use"));
        let Cause::Failed(error) = ended.cause else {
            panic!("{ended}");
        };
        assert!(error.downcast::<Outer>().is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_component_that_may_end_ends_nothing() {
        let mut all = Supervisor::new();
        all.until_done("once", |_stop| ready(io::Result::Ok(())));
        all.run("steady", until_stop);
        let stop = tokio::time::sleep(Duration::from_secs(5));
        let before = Instant::now();
        assert!(all.supervise(stop).await.is_ok());
        assert_eq!(before.elapsed(), Duration::from_secs(5));

        let mut all = Supervisor::new();
        all.until_done("once", |_stop| ready(io::Result::Ok(())));
        assert!(all.supervise(pending()).await.is_ok());
    }

    type Order = Arc<Mutex<Vec<&'static str>>>;

    /// A component that needs a second to stop, and then records its name.
    async fn recorded(stop: Stop, name: &'static str, order: Order) -> io::Result<()> {
        stop.requested().await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        order.lock().unwrap().push(name);
        Ok(())
    }

    #[tokio::test(start_paused = true)]
    async fn components_stop_one_after_another_in_the_reverse_order() {
        let order = Order::default();
        let mut all = Supervisor::new();
        for name in ["store", "api", "listener"] {
            all.run(name, |stop| recorded(stop, name, order.clone()));
        }
        let before = Instant::now();
        assert!(all.supervise(ready(())).await.is_ok());
        assert_eq!(*order.lock().unwrap(), ["listener", "api", "store"]);
        assert_eq!(before.elapsed(), Duration::from_secs(3));
    }

    #[tokio::test(start_paused = true)]
    async fn a_failure_stops_the_others_in_order_too_and_stays_the_first() {
        let order = Order::default();
        let mut all = Supervisor::new();
        all.run("store", |stop| recorded(stop, "store", order.clone()));
        all.run("broken", |_stop| ready(Err(io::Error::other("broken"))));
        all.run("api", |stop| async move {
            stop.requested().await;
            Err(io::Error::other("broken later"))
        });
        let ended = all.supervise(pending()).await.unwrap_err();
        assert_eq!(ended.component, "broken");
        assert_eq!(*order.lock().unwrap(), ["store"]);
    }

    #[tokio::test(start_paused = true)]
    async fn an_error_while_a_component_stops_is_an_error() {
        let mut all = Supervisor::new();
        all.run("store", |stop| async move {
            stop.requested().await;
            Err(io::Error::other("not flushed"))
        });
        let ended = all.supervise(ready(())).await.unwrap_err();
        assert!(ended.to_string().contains("not flushed"));
    }

    #[tokio::test(start_paused = true)]
    async fn components_that_do_not_stop_are_aborted_after_the_limit_and_named() {
        let dropped = Arc::new(());
        let kept = dropped.clone();
        let order = Order::default();
        let mut all = Supervisor::new();
        all.run("store", |stop| recorded(stop, "store", order.clone()));
        all.run("deaf", |_stop| async move {
            let _kept = kept;
            pending::<io::Result<()>>().await
        });
        all.run("api", |stop| recorded(stop, "api", order.clone()));
        let before = Instant::now();
        let mut first = None;
        assert_eq!(all.stop_all(&mut first).await, ["deaf"]);
        assert!(first.is_none());
        assert_eq!(before.elapsed(), STOP_LIMIT);
        // The store had its time, although a component that uses it did not stop.
        assert_eq!(*order.lock().unwrap(), ["api", "store"]);
        drop(all);
        tokio::task::yield_now().await;
        assert_eq!(Arc::strong_count(&dropped), 1, "it was aborted");
    }

    #[tokio::test(start_paused = true)]
    async fn a_component_without_a_supervisor_should_stop() {
        let mut all = Supervisor::new();
        let (tell, told) = tokio::sync::oneshot::channel();
        all.run("steady", |stop| {
            let _ = tell.send(stop);
            pending::<io::Result<()>>()
        });
        let stop = told.await.unwrap();
        assert!(!stop.is_requested());
        drop(all);
        stop.requested().await;
        assert!(stop.is_requested());
        assert_eq!(stop.run_until_requested(pending::<()>()).await, None);
    }
}
