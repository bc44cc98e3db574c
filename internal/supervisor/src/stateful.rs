//! A loop with state that a panic does not take with it: a writer with what it has not written yet.

use std::sync::Arc;

use futures::future::BoxFuture;
use tokio::sync::{Mutex, OwnedMutexGuard, watch};
use tokio::task::JoinSet;

use crate::restart::{LoopEnd, keep_running};
use crate::stop::Stop;

/// A loop that [`keep_running`] starts again after a panic, with the state that it left. Dropping it aborts the loop.
#[derive(Debug)]
pub struct StatefulLoop<T> {
    state: Arc<Mutex<T>>,
    end: watch::Sender<bool>,
    _task: JoinSet<()>,
}

impl<T: Send + 'static> StatefulLoop<T> {
    /// Starts the loop `run`, which returns soon after the receiver says true. A panic may leave the state changed in
    /// part, so `run` must cope with any state that it can leave at a point where it may panic.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime.
    pub fn start<F>(name: &'static str, state: T, run: F) -> StatefulLoop<T>
    where
        F: for<'a> Fn(&'a mut T, watch::Receiver<bool>) -> BoxFuture<'a, ()>,
        F: Send + Sync + 'static,
    {
        let state = Arc::new(Mutex::new(state));
        let (end, ended) = watch::channel(false);
        let (held, run) = (state.clone(), Arc::new(run));
        let mut task = JoinSet::new();
        task.spawn(keep_running(name, move || {
            let (held, run, ended) = (held.clone(), run.clone(), ended.clone());
            async move {
                // Held for the whole run; free between a panic and the next start.
                let mut state = held.lock().await;
                run(&mut state, ended).await;
                LoopEnd::Finished
            }
        }));
        StatefulLoop {
            state,
            end,
            _task: task,
        }
    }

    /// Runs the loop as [`StatefulLoop::start`] does until the component should stop, and returns the state that it leaves.
    pub async fn run_until_stop<F>(
        name: &'static str,
        state: T,
        stop: &Stop,
        run: F,
    ) -> OwnedMutexGuard<T>
    where
        F: for<'a> Fn(&'a mut T, watch::Receiver<bool>) -> BoxFuture<'a, ()>,
        F: Send + Sync + 'static,
    {
        let running = StatefulLoop::start(name, state, run);
        stop.requested().await;
        running.finish().await
    }

    /// Ends the loop and returns its state, also between a panic and the next start.
    pub async fn finish(self) -> OwnedMutexGuard<T> {
        self.end.send_replace(true);
        self.state.clone().lock_owned().await
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::RESTART_FIRST;

    /// Adds one each second; panics at the third.
    async fn count(counted: &mut Vec<u64>, mut ended: watch::Receiver<bool>) {
        loop {
            tokio::select! {
                _ = ended.wait_for(|ended| *ended) => return,
                () = tokio::time::sleep(Duration::from_secs(1)) => {}
            }
            let next = counted.last().map_or(1, |last| last + 1);
            counted.push(next);
            assert!(next != 3, "at the third");
        }
    }

    fn counting() -> StatefulLoop<Vec<u64>> {
        StatefulLoop::start("test", Vec::new(), |counted, ended| {
            Box::pin(count(counted, ended))
        })
    }

    #[tokio::test(start_paused = true)]
    async fn a_loop_that_panics_goes_on_with_the_state_that_it_left() {
        let counting = counting();
        tokio::time::sleep(Duration::from_millis(3500) + RESTART_FIRST + Duration::from_secs(2))
            .await;
        assert_eq!(*counting.finish().await, [1, 2, 3, 4, 5]);
    }

    #[tokio::test(start_paused = true)]
    async fn the_state_is_there_at_once_while_the_loop_waits_for_its_next_start() {
        let counting = counting();
        tokio::time::sleep(Duration::from_millis(3001)).await;
        let asked = tokio::time::Instant::now();
        let counted = counting.finish().await;
        assert_eq!(*counted, [1, 2, 3]);
        assert!(asked.elapsed() < RESTART_FIRST / 2);
        // The loop was aborted with its handle, so it does not take the state again.
        drop(counted);
    }

    #[tokio::test(start_paused = true)]
    async fn a_dropped_loop_is_aborted() {
        let held = Arc::new(());
        let state = held.clone();
        let looping = StatefulLoop::start("test", state, |_, _| Box::pin(std::future::pending()));
        tokio::time::sleep(Duration::from_millis(1)).await;
        drop(looping);
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert_eq!(Arc::strong_count(&held), 1, "the loop runs on");
    }
}
