//! The thread on which GPUs are cut: a driver takes seconds for it, and one that never answers must
//! hold up nothing but this.

use std::fmt::Display;
use std::sync::mpsc;

use hardware::Source;
use hardware::cutter::Cutter;
use tokio::sync::oneshot;

type Job = Box<dyn FnOnce(&mut Cutter) + Send>;

/// Cuts GPUs, one thing after another.
#[derive(Debug)]
pub struct Hand(mpsc::Sender<Job>);

impl Hand {
    /// Opens nothing yet. The thread ends with this.
    pub fn new(source: &Source) -> Hand {
        let (jobs, asked) = mpsc::channel::<Job>();
        let mut cutter = Cutter::new(source);
        std::thread::spawn(move || {
            while let Ok(job) = asked.recv() {
                job(&mut cutter);
            }
        });
        Hand(jobs)
    }

    /// What the cutter answers.
    ///
    /// # Errors
    ///
    /// What it says, or that its thread failed.
    pub async fn ask<T: Send + 'static, E: Display + 'static>(
        &self,
        ask: impl FnOnce(&mut Cutter) -> Result<T, E> + Send + 'static,
    ) -> Result<T, String> {
        let (answer, answered) = oneshot::channel();
        let job: Job = Box::new(move |cutter| {
            // Who asked may have gone.
            let _ = answer.send(ask(cutter).map_err(|error| error.to_string()));
        });
        let failed = "the thread that cuts GPUs failed; start the agent anew";
        if self.0.send(job).is_err() {
            return Err(failed.to_owned());
        }
        answered.await.unwrap_or_else(|_| Err(failed.to_owned()))
    }
}
