//! Stores the scheduler's decisions on disk, so that a server can answer for those of earlier
//! servers. A background task writes them in batches shortly after they are made; no request waits
//! for it.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use controllers::scheduling::ReportBoard;
use jiff::{SignedDuration, Timestamp};
use store::{Ledger, LedgerError, RecordChange};
use supervisor::StatefulLoop;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::signals;

/// Interval of writes.
const EVERY: Duration = Duration::from_secs(2);
/// Interval at which decisions that merely continue are written again.
const HOLDING_ON_EVERY: Duration = Duration::from_secs(60);
/// Decisions per batch: the scheduler waits while a batch is copied.
const BATCH: usize = 512;
/// Interval of the search for deleted gangs.
const FORGET_EVERY: Duration = Duration::from_secs(3600);
/// How long the decisions on a deleted gang are kept after the last one.
const KEPT_FOR: SignedDuration = SignedDuration::from_hours(30 * 24);

/// The background task that stores decisions.
pub struct Decisions {
    /// None if decisions are not stored.
    keeping: Option<StatefulLoop<DecisionWriter>>,
}

impl Decisions {
    /// Loads the stored decisions of a directory into the scheduler's reports, and stores new ones
    /// there. An error is only logged: no job depends on the history.
    pub async fn keep(directory: PathBuf, board: Arc<ReportBoard>) -> Decisions {
        let open = move || Ledger::open(&directory, store::Options::default());
        let ledger = match tokio::task::spawn_blocking(open).await {
            Ok(Ok((ledger, read))) => {
                if let Some((aside, why)) = read.put_aside {
                    tracing::warn!(put_aside = %aside.display(), why, "the stored decisions cannot be read and are put aside; storing starts with an empty history");
                }
                let unread = board.recall(read.records);
                if unread > 0 {
                    tracing::warn!(
                        unread,
                        "stored decisions of another version cannot be read and are dropped"
                    );
                }
                Some(Arc::new(ledger))
            }
            Ok(Err(error)) => {
                tracing::error!(%error, "decisions are not stored and end with this server");
                None
            }
            Err(error) => {
                tracing::error!(%error, "decisions are not stored and end with this server");
                None
            }
        };
        let start = |ledger| {
            let writer = DecisionWriter::new(ledger, board);
            StatefulLoop::start("the writer of decisions", writer, |writer, ended| {
                Box::pin(run(writer, ended))
            })
        };
        Decisions {
            keeping: ledger.map(start),
        }
    }

    /// Writes the remaining decisions. The scheduler must have stopped.
    pub async fn finish(self) {
        if let Some(keeping) = self.keeping {
            let mut writer = keeping.finish().await;
            if !writer.gave_up {
                writer.write(true).await;
            }
        }
    }
}

async fn run(writer: &mut DecisionWriter, ended: watch::Receiver<bool>) {
    let mut ticks = interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut whole, mut forgot) = (Instant::now(), Instant::now());
    let mut ended = std::pin::pin!(signals::requested(ended));
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = &mut ended => return,
        }
        let holding_on = whole.elapsed() >= HOLDING_ON_EVERY;
        if holding_on {
            whole = Instant::now();
        }
        if !writer.write(holding_on).await {
            return;
        }
        if forgot.elapsed() >= FORGET_EVERY {
            forgot = Instant::now();
            let then = Timestamp::now()
                .checked_sub(KEPT_FOR)
                .unwrap_or(Timestamp::MIN);
            let gangs = writer.board.forget_gone(then).await;
            if gangs > 0 {
                tracing::info!(
                    gangs,
                    "decisions on gangs that were deleted long ago are dropped"
                );
            }
        }
    }
}

struct DecisionWriter {
    ledger: Arc<Ledger>,
    board: Arc<ReportBoard>,
    /// Changes that were taken from the `ReportBoard` and could not be written yet.
    left: Arc<Vec<RecordChange>>,
    /// Whether the full disk has been logged.
    logged: bool,
    /// Whether no write can succeed any more.
    gave_up: bool,
}

impl DecisionWriter {
    fn new(ledger: Arc<Ledger>, board: Arc<ReportBoard>) -> DecisionWriter {
        DecisionWriter {
            ledger,
            board,
            left: Arc::default(),
            logged: false,
            gave_up: false,
        }
    }

    /// Writes all pending changes, or as many as the disk takes. Returns false if no write can
    /// succeed any more.
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
                    self.logged = false;
                }
                Ok(Err(error @ LedgerError::NoSpace { .. })) => {
                    if !self.logged {
                        tracing::warn!(%error, "the disk is full: decisions stay in memory until there is room");
                        self.logged = true;
                    }
                    return true;
                }
                Ok(Err(error)) => return self.give_up(&error),
                Err(error) => return self.give_up(&error),
            }
        }
    }

    fn give_up(&mut self, error: &dyn std::error::Error) -> bool {
        tracing::error!(%error, "decisions are not stored any more and end with this server");
        self.board.keep_no_more();
        self.gave_up = true;
        false
    }
}
