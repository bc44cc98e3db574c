//! The thread that partitions GPUs: a driver takes seconds for it, and a driver that never answers
//! must block nothing else.

use std::sync::mpsc;

use hardware::InventorySources;
use hardware::mig_partitioner::MigPartitioner;
use tokio::sync::oneshot;

/// Why a request to the MIG partitioner failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AskError<E> {
    /// The partitioner refused it.
    #[error("{0}")]
    Refused(E),
    /// The partitioner's thread failed.
    #[error("the thread that partitions GPUs failed; restart the agent")]
    Thread,
}

type ExecutorJob = Box<dyn FnOnce(&mut MigPartitioner) + Send>;

/// Partitions GPUs, one request after another.
#[derive(Debug)]
pub struct Executor(mpsc::Sender<ExecutorJob>);

impl Executor {
    /// Opens no driver yet. The thread ends when this value is dropped.
    pub fn new(source: &InventorySources) -> Executor {
        let (jobs, asked) = mpsc::channel::<ExecutorJob>();
        let mut partitioner = MigPartitioner::new(source);
        std::thread::spawn(move || {
            while let Ok(job) = asked.recv() {
                job(&mut partitioner);
            }
        });
        Executor(jobs)
    }

    /// Sends a request to the partitioner and returns its answer.
    ///
    /// # Errors
    ///
    /// The partitioner's error, or that its thread failed.
    pub async fn ask<T: Send + 'static, E: Send + 'static>(
        &self,
        ask: impl FnOnce(&mut MigPartitioner) -> Result<T, E> + Send + 'static,
    ) -> Result<T, AskError<E>> {
        let (answer, answered) = oneshot::channel();
        let job: ExecutorJob = Box::new(move |partitioner| {
            // The caller may have gone.
            let _ = answer.send(ask(partitioner).map_err(AskError::Refused));
        });
        if self.0.send(job).is_err() {
            return Err(AskError::Thread);
        }
        answered.await.unwrap_or(Err(AskError::Thread))
    }
}
