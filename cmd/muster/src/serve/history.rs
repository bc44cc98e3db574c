//! Keeps what agents and the server measure: takes it from the fleet and from the pages' board, writes it to the history's
//! files each 15 seconds, and tells the usage's book which held GPUs work. No request, no pod and no session waits for it.

mod collect;
mod files;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use fleet::{MeasurementSink, NodeMeasurements};
use futures::future::BoxFuture;
use jiff::Timestamp;
use measurements::{HistoryQuery, LatestUsage, Point, QuietPods, SERIES_MAX, Series};
use parking_lot::{Mutex, RwLock};
use portal::{Board, MeasurementsUnread, SharedUsage};
use supervisor::{StatefulLoop, Stop};
use tokio::sync::{mpsc, watch};
use tokio::time::{MissedTickBehavior, interval};
use usage::{ActivityWatch, IdleGpus};

use self::files::{Findings, HistoryFiles};
use super::signals;

/// Between two writes: agents measure as often.
const EVERY: Duration = Duration::from_secs(15);
/// Writes between two looks at which files are past their time.
const RETAINED_EVERY: u32 = 40;
/// Messages of agents that wait to be taken in; further ones are dropped. A message waits for milliseconds.
const WAITING_MAX: usize = 1024;
/// The most values that wait for a write: those of all series.
const PENDING_MAX: usize = 2 * SERIES_MAX;

/// The history of a server.
pub struct History {
    /// None if the directory cannot be used.
    files: Option<Arc<HistoryFiles>>,
    received: mpsc::Receiver<NodeMeasurements>,
    usage: SharedUsage,
    idle: SharedIdleGpus,
    latest: SharedLatestUsage,
    quiet: SharedQuietPods,
}

/// What nodes and pods used at their last measurement.
pub type SharedLatestUsage = Arc<RwLock<LatestUsage>>;

/// Since when the GPUs of pods do nothing.
pub type SharedIdleGpus = Arc<Mutex<IdleGpus>>;

/// Since when pods write no log and do no work.
pub type SharedQuietPods = Arc<Mutex<QuietPods>>;

/// Answers questions about measurements.
pub type MeasuredSource = dyn Fn(HistoryQuery) -> BoxFuture<'static, Result<Vec<Vec<Point>>, MeasurementsUnread>>
    + Send
    + Sync;

impl History {
    /// Where the fleet hands measurements to, and where they arrive.
    pub fn channel() -> (MeasurementSink, mpsc::Receiver<NodeMeasurements>) {
        mpsc::channel(WAITING_MAX)
    }

    /// Goes on with the history in a directory. An error is only logged: no job depends on the history.
    pub async fn open(
        directory: PathBuf,
        received: mpsc::Receiver<NodeMeasurements>,
        usage: SharedUsage,
    ) -> History {
        let open = move || HistoryFiles::open(&directory, Timestamp::now().as_second());
        let files = match tokio::task::spawn_blocking(open).await {
            Ok(Ok((files, findings))) => {
                report(&findings);
                Some(Arc::new(files))
            }
            Ok(Err(error)) => {
                tracing::error!(%error, "measurements are not kept, and charts stay empty, until the server is started again");
                None
            }
            Err(error) => {
                tracing::error!(%error, "measurements are not kept, and charts stay empty, until the server is started again");
                None
            }
        };
        History {
            files,
            received,
            usage,
            idle: SharedIdleGpus::default(),
            latest: SharedLatestUsage::default(),
            quiet: SharedQuietPods::default(),
        }
    }

    /// Since when the GPUs of pods do nothing, kept current while the history runs.
    pub fn idle_gpus(&self) -> SharedIdleGpus {
        self.idle.clone()
    }

    /// Since when pods write no log and do no work, kept current while the history runs.
    pub fn quiet_pods(&self) -> SharedQuietPods {
        self.quiet.clone()
    }

    /// What nodes and pods used at their last measurement, kept current while the history runs.
    pub fn latest_usage(&self) -> SharedLatestUsage {
        self.latest.clone()
    }

    /// Answers questions, on threads that may block.
    pub fn source(&self) -> Box<MeasuredSource> {
        let files = self.files.clone();
        Box::new(move |query| {
            let files = files.clone();
            Box::pin(async move {
                let Some(files) = files else {
                    return Err(MeasurementsUnread {
                        reason: "measurements are not kept: the server cannot use its directory for them; see the server's log"
                            .to_owned(),
                    });
                };
                let answered = tokio::task::spawn_blocking(move || files.answer(&query)).await;
                let (points, findings) = answered.map_err(|error| MeasurementsUnread {
                    reason: format!("the measurements could not be read: {error}"),
                })?;
                report(&findings);
                Ok(points)
            })
        })
    }

    /// Keeps measurements until the stop, and writes the last ones.
    pub async fn run(self, board: Board, stop: Stop) {
        let state = (self, Pending::default());
        let mut state = StatefulLoop::run_until_stop(
            "the history of measurements",
            state,
            &stop,
            move |(history, pending), ended| {
                let board = board.clone();
                Box::pin(async move { history.follow(&board, pending, ended).await })
            },
        )
        .await;
        let (history, pending) = &mut *state;
        history.write(pending).await;
    }

    async fn follow(&mut self, board: &Board, pending: &mut Pending, ended: watch::Receiver<bool>) {
        let mut activity = ActivityWatch::default();
        let mut ticks = interval(EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut turn = 0;
        let mut ended = std::pin::pin!(signals::requested(ended));
        loop {
            tokio::select! {
                () = &mut ended => return,
                Some(measured) = self.received.recv() => {
                    collect::count_activity(&measured, &mut activity, &self.usage, &mut self.idle.lock());
                    collect::keep_latest(&measured, &mut self.latest.write());
                    collect::keep_quiet(&measured, &mut self.quiet.lock());
                    pending.add(measured.at.as_second(), collect::of_node(&measured));
                }
                _ = ticks.tick() => {
                    let now = Timestamp::now();
                    activity.forget(now);
                    self.idle.lock().forget(now);
                    self.latest.write().forget(now);
                    self.quiet.lock().forget(now);
                    if let Some(counts) = board.counts() {
                        pending.add(now.as_second(), collect::of_cluster(&counts));
                    }
                    self.write(pending).await;
                    if turn % RETAINED_EVERY == 0 {
                        self.retain(now.as_second()).await;
                    }
                    turn = turn.wrapping_add(1);
                }
            }
        }
    }

    /// Writes what waits. What cannot be written now is in memory, or lost with a full disk.
    async fn write(&self, pending: &mut Pending) {
        let values = std::mem::take(&mut pending.values);
        let Some(files) = self.files.clone().filter(|_| !values.is_empty()) else {
            return;
        };
        let write = move || {
            let mut findings = Findings::new();
            for (at, values) in by_time(values) {
                findings.extend(files.append(at, values)?);
            }
            Ok::<_, files::FilesError>(findings)
        };
        let failure = match tokio::task::spawn_blocking(write).await {
            Ok(Ok(findings)) => {
                report(&findings);
                pending.failed = false;
                return;
            }
            Ok(Err(error)) => error.to_string(),
            Err(error) => error.to_string(),
        };
        if !std::mem::replace(&mut pending.failed, true) {
            tracing::warn!(
                failure,
                "measurements are not written; the server tries again each 15 seconds"
            );
        }
    }

    async fn retain(&self, now: i64) {
        let Some(files) = self.files.clone() else {
            return;
        };
        match tokio::task::spawn_blocking(move || files.retain(now)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%error, "old measurements are not removed"),
            Err(error) => tracing::error!(%error, "old measurements are not removed"),
        }
    }
}

/// Values that wait for the next write, each with its time in seconds since 1970.
#[derive(Default)]
struct Pending {
    values: Vec<(i64, Series, f64)>,
    /// Whether the last write failed, and was logged.
    failed: bool,
}

impl Pending {
    fn add(&mut self, at: i64, values: Vec<(Series, f64)>) {
        let room = PENDING_MAX.saturating_sub(self.values.len());
        let values = values.into_iter().take(room);
        self.values
            .extend(values.map(|(series, value)| (at, series, value)));
    }
}

/// The values by their 15 seconds, in order.
fn by_time(values: Vec<(i64, Series, f64)>) -> Vec<(i64, Vec<(Series, f64)>)> {
    let mut all: std::collections::BTreeMap<i64, Vec<(Series, f64)>> = Default::default();
    for (at, series, value) in values {
        let tick = at.div_euclid(measurements::TICK) * measurements::TICK;
        all.entry(tick).or_default().push((series, value));
    }
    all.into_iter().collect()
}

fn report(findings: &Findings) {
    for finding in findings {
        tracing::warn!("in the history of measurements, {finding}");
    }
}
