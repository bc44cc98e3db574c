//! Owns WATCH: the start of a stream of changes, its duration, its bookmarks. `watch_frames` writes
//! the frames; the store delivers the changes.

use std::collections::VecDeque;
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use futures::stream::{self, Stream};
use http::Response;
use store::{Event, EventKind, Revision, Watch, WatchError};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at, sleep_until};

use crate::call::Call;
use crate::initial_list::InitialList;
use crate::list::parse_revision;
use crate::respond;
use crate::select::ObjectSelection;
use crate::status::Failure;
use crate::watch_frames::WatchFrames;
use crate::watch_places::WatchPlace;
use crate::watch_rights::Rights;

/// The maximum duration of a watch.
const MAX_TIMEOUT: Duration = Duration::from_secs(24 * 3600);
/// A bookmark is sent this long before a watch ends, so that the next one starts where this one
/// stopped.
const LAST_BOOKMARK: Duration = Duration::from_secs(2);

/// How many bytes of frames are buffered before the client has read them; a single frame may be
/// longer.
const PIECE: usize = 64 * 1024;

/// The start of a watch.
struct WatchStart {
    /// The existing objects, to be sent as additions first.
    initial: Option<InitialList>,
    watch: Watch,
    /// A bookmark marks the end of the initial additions.
    marks_initial_end: bool,
}

pub(crate) fn watch(call: &Call) -> Result<Response<Body>, Failure> {
    let selection = ObjectSelection::of(call)?;
    let frames = WatchFrames::new(call)?;
    let place = call.server.0.watches.take(&call.caller)?;
    let start = match start(call, &selection)? {
        Ok(start) => start,
        Err(expired) => {
            // Kubernetes answers 200 and reports the error inside the stream; clients list again on
            // this code.
            return Ok(respond::json_stream(Body::from(frames.error(&expired))));
        }
    };
    let timeout = call
        .params
        .number::<u64>("timeoutSeconds")?
        .filter(|seconds| *seconds > 0);
    let timeout = timeout
        .map_or(call.server.0.config.watch_timeout, Duration::from_secs)
        .min(MAX_TIMEOUT);
    let bookmarks = call.params.switch("allowWatchBookmarks") == Some(true);
    let every = call
        .server
        .0
        .config
        .bookmark_every
        .max(Duration::from_millis(1));
    let stream = Streaming {
        selection,
        frames,
        initial_end: start
            .initial
            .as_ref()
            .filter(|_| start.marks_initial_end)
            .map(InitialList::revision),
        initial: start.initial,
        pending: VecDeque::new(),
        watch: start.watch,
        bookmarks: bookmarks.then(|| ticks(every, timeout)),
        rights: Rights::of(call),
        ends: Instant::now() + timeout,
        ended: false,
        _place: place,
    };
    Ok(respond::json_stream(Body::from_stream(
        stream.into_stream(),
    )))
}

fn ticks(every: Duration, timeout: Duration) -> Interval {
    let first = every
        .min(timeout.saturating_sub(LAST_BOOKMARK))
        .max(Duration::from_millis(1));
    let mut ticks = interval_at(Instant::now() + first, every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

/// Finds the start; the inner error is reported inside the stream.
fn start(call: &Call, selection: &ObjectSelection) -> Result<Result<WatchStart, Failure>, Failure> {
    let params = &call.params;
    let rule = params.get("resourceVersionMatch");
    let initial = params.switch("sendInitialEvents");
    let forbidden =
        |why: &str| Failure::bad_request(format!("resourceVersionMatch: Forbidden: {why}"));
    match (initial, rule) {
        (Some(_), Some("NotOlderThan")) | (None, None) => {}
        (Some(_), _) => {
            return Err(forbidden(
                "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
            ));
        }
        (None, Some(_)) => {
            return Err(forbidden(
                "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
            ));
        }
    }
    let store = &call.server.0.store;
    let asked = match params.get("resourceVersion") {
        None | Some("0") => None,
        Some(text) => Some(parse_revision(text)?),
    };
    let current = store.revision();
    if let Some(asked) = asked.filter(|asked| *asked > current) {
        return Err(Failure::too_large_resource_version(
            asked.get(),
            current.get(),
        ));
    }
    let from_the_start = initial.unwrap_or(asked.is_none());
    if from_the_start {
        let list = InitialList::new(store, &selection.prefix);
        return Ok(store
            .watch(&selection.prefix, Some(list.revision()))
            .map(|watch| WatchStart {
                initial: Some(list),
                watch,
                marks_initial_end: initial == Some(true),
            })
            .map_err(|error| expired(error, current)));
    }
    Ok(store
        .watch(&selection.prefix, asked)
        .map(|watch| WatchStart {
            initial: None,
            watch,
            marks_initial_end: false,
        })
        .map_err(|error| expired(error, asked.unwrap_or(current))))
}

fn expired(error: WatchError, asked: Revision) -> Failure {
    match error {
        WatchError::Expired { oldest } => {
            Failure::expired(format!("too old resource version: {asked} ({oldest})"))
        }
        WatchError::Ahead { asked, current } => {
            Failure::too_large_resource_version(asked.get(), current.get())
        }
    }
}

/// A running watch.
struct Streaming {
    selection: ObjectSelection,
    frames: WatchFrames,
    watch: Watch,
    /// Existing objects that are not sent yet; none after the last was sent. Their frames are built
    /// when the client reads them.
    initial: Option<InitialList>,
    /// The revision of the bookmark that ends the initial additions, until it is sent.
    initial_end: Option<Revision>,
    /// Changes that were read from the store and are not sent yet: one batch at most.
    pending: VecDeque<Event>,
    bookmarks: Option<Interval>,
    /// The authorisation of the watch, if it can end before the watch does.
    rights: Option<Rights>,
    ends: Instant,
    ended: bool,
    _place: WatchPlace,
}

impl Streaming {
    fn into_stream(self) -> impl Stream<Item = Result<Bytes, std::convert::Infallible>> + Send {
        stream::unfold(self, |mut watching| async move {
            Some((Ok(watching.next().await?), watching))
        })
    }

    /// The next bytes to send; none after the end of the watch.
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            // Checked also while data is pending: a client that never catches up must not receive
            // more either.
            if self.rights.as_mut().is_some_and(|rights| !rights.stand()) {
                return None;
            }
            let mut out = self.taken();
            if !out.is_empty() {
                return Some(Bytes::from(out));
            }
            if self.ended {
                return None;
            }
            let bookmarks = &mut self.bookmarks;
            let tick = async {
                match bookmarks {
                    Some(ticks) => {
                        ticks.tick().await;
                    }
                    None => std::future::pending().await,
                }
            };
            let look = self.rights.as_ref().map(Rights::next);
            let look = async {
                match look {
                    Some(at) => sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                batch = self.watch.next_batch() => match batch {
                    None => self.ended = true,
                    Some(Ok(events)) => self.pending.extend(events),
                    Some(Err(error)) => {
                        self.ended = true;
                        let failure = expired(error, self.watch.progress());
                        out = self.frames.error(&failure);
                    }
                },
                () = tick => self.frames.bookmark(&mut out, self.watch.progress(), false),
                () = look => {}
                () = sleep_until(self.ends) => self.ended = true,
            }
            if !out.is_empty() {
                return Some(Bytes::from(out));
            }
        }
    }

    /// Frames of pending changes, about [`PIECE`] bytes of them, so that a client that does not
    /// read uses no more memory than that. If this returns nothing, none are pending.
    fn taken(&mut self) -> Vec<u8> {
        let mut out = Vec::new();
        while out.len() < PIECE {
            if let Some(initial) = &mut self.initial {
                match initial.next() {
                    Ok(Some(entry)) if self.selection.takes(&entry.meta) => {
                        self.frames.change(&mut out, "ADDED", &entry.value);
                    }
                    Ok(Some(_)) => {}
                    Ok(None) => self.initial = None,
                    Err(error) => {
                        let failure = expired(error, initial.revision());
                        out.extend(self.frames.error(&failure));
                        self.initial = None;
                        self.initial_end = None;
                        self.ended = true;
                        break;
                    }
                }
            } else if let Some(revision) = self.initial_end.take() {
                self.frames.bookmark(&mut out, revision, true);
            } else if let Some(event) = self.pending.pop_front() {
                self.change(&mut out, &event);
            } else {
                break;
            }
        }
        out
    }

    /// Writes a change from this watcher's view: an object that begins to match is added, one that
    /// ceases to match is deleted.
    fn change(&mut self, out: &mut Vec<u8>, event: &Event) {
        let now = event.kind != EventKind::Deleted && self.selection.takes(&event.entry.meta);
        let before = event
            .previous
            .as_ref()
            .is_some_and(|meta| self.selection.takes(meta));
        let what = match (before, now) {
            (false, false) => return,
            (false, true) => "ADDED",
            (true, true) => "MODIFIED",
            (true, false) => "DELETED",
        };
        self.frames.change(out, what, &event.entry.value);
    }
}
