//! Keeps the scheduler's decisions on disk, so that a server answers for those of the servers before
//! it. They are written shortly after they fell, in batches, and nobody waits for it.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use controllers::scheduling::ReportBoard;
use jiff::{SignedDuration, Timestamp};
use store::{Change, Ledger, LedgerError};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior, interval};

/// How long after it fell a decision is written.
const EVERY: Duration = Duration::from_secs(2);
/// How often those are written again that merely hold on.
const HOLDING_ON_EVERY: Duration = Duration::from_secs(60);
/// How many decisions one batch has: the scheduler waits while they are copied.
const BATCH: usize = 512;
/// How often gangs that are gone are looked for.
const FORGET_EVERY: Duration = Duration::from_secs(3600);
/// How long after the last decision on a gang that is gone all on it are forgotten.
const KEPT_FOR: SignedDuration = SignedDuration::from_hours(30 * 24);

/// The loop that keeps them.
pub struct Decisions {
    end: oneshot::Sender<()>,
    keeping: JoinHandle<()>,
}

impl Decisions {
    /// Hands the scheduler what is kept in a directory, and keeps there what comes. Where that
    /// can't be done it is logged: no job waits for it.
    pub async fn keep(directory: PathBuf, board: Arc<ReportBoard>) -> Decisions {
        let (end, ended) = oneshot::channel();
        let open = move || Ledger::open(&directory, store::Options::default());
        let ledger = match tokio::task::spawn_blocking(open).await {
            Ok(Ok((ledger, read))) => {
                if let Some((aside, why)) = read.put_aside {
                    tracing::warn!(put_aside = %aside.display(), why, "the decisions that were kept can't be read; they are kept anew");
                }
                let unread = board.recall(read.records);
                if unread > 0 {
                    tracing::warn!(
                        unread,
                        "decisions that another version kept can't be read and are forgotten"
                    );
                }
                Some(Arc::new(ledger))
            }
            Ok(Err(error)) => {
                tracing::error!(%error, "decisions are not kept over the server's end");
                None
            }
            Err(error) => {
                tracing::error!(%error, "decisions are not kept over the server's end");
                None
            }
        };
        let keeping = match ledger {
            Some(ledger) => tokio::spawn(run(Writer::new(ledger, board), ended)),
            None => tokio::spawn(async {}),
        };
        Decisions { end, keeping }
    }

    /// Writes what is left. Nothing is to be decided any more.
    pub async fn finish(self) {
        // Who failed has ended before.
        let _ = self.end.send(());
        if let Err(error) = self.keeping.await {
            tracing::error!(%error, "the last decisions are not kept");
        }
    }
}

async fn run(mut writer: Writer, mut ended: oneshot::Receiver<()>) {
    let mut ticks = interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut whole, mut forgot) = (Instant::now(), Instant::now());
    loop {
        let ends = tokio::select! {
            _ = ticks.tick() => false,
            _ = &mut ended => true,
        };
        let holding_on = ends || whole.elapsed() >= HOLDING_ON_EVERY;
        if holding_on {
            whole = Instant::now();
        }
        if !writer.write(holding_on).await || ends {
            return;
        }
        if forgot.elapsed() >= FORGET_EVERY {
            forgot = Instant::now();
            let then = Timestamp::now()
                .checked_sub(KEPT_FOR)
                .unwrap_or(Timestamp::MIN);
            let gangs = writer.board.forget_gone(then).await;
            if gangs > 0 {
                tracing::info!(gangs, "decisions on gangs that are long gone are forgotten");
            }
        }
    }
}

struct Writer {
    ledger: Arc<Ledger>,
    board: Arc<ReportBoard>,
    /// What was taken and could not be written yet.
    left: Arc<Vec<Change>>,
    /// That the disk is full was said.
    said: bool,
}

impl Writer {
    fn new(ledger: Arc<Ledger>, board: Arc<ReportBoard>) -> Writer {
        Writer {
            ledger,
            board,
            left: Arc::default(),
            said: false,
        }
    }

    /// Writes what there is to write, or as much of it as the disk takes. False when no more can
    /// ever be written.
    async fn write(&mut self, holding_on: bool) -> bool {
        loop {
            if self.left.is_empty() {
                self.left = Arc::new(self.board.unwritten(holding_on, BATCH));
            }
            if self.left.is_empty() {
                return true;
            }
            let (ledger, changes) = (self.ledger.clone(), self.left.clone());
            let written = tokio::task::spawn_blocking(move || ledger.write(&changes)).await;
            match written {
                Ok(Ok(())) => {
                    self.left = Arc::default();
                    self.said = false;
                }
                Ok(Err(error @ LedgerError::NoSpace { .. })) => {
                    if !self.said {
                        tracing::warn!(%error, "decisions are kept in memory until there is room");
                        self.said = true;
                    }
                    return true;
                }
                Ok(Err(error)) => return self.give_up(&error),
                Err(error) => return self.give_up(&error),
            }
        }
    }

    fn give_up(&self, error: &dyn std::error::Error) -> bool {
        tracing::error!(%error, "decisions are not kept over the server's end any more");
        self.board.keep_no_more();
        false
    }
}
