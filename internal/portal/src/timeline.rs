//! A job's ranks over time: queued, running, ended, with its restarts. Pure: places on a line of [`WIDTH`] units.

use jiff::Timestamp;
use resources::span::human_duration;

/// The length of the line between a job's creation and its end, in units of the drawing.
pub const WIDTH: u32 = 1000;
/// The shortest bar, so that the reader sees it.
const BAR_MIN: u32 = 3;
/// The most ranks that are drawn.
pub const LANES_MAX: usize = 16;

/// What a bar shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BarKind {
    /// The rank waits for its room.
    Queued,
    /// It has a node.
    Running,
    /// It had a node, and ended well.
    Done,
    /// It had a node until its job ended without it.
    Ended,
    /// It had a node, and failed.
    Failed,
}

impl BarKind {
    /// The CSS class.
    pub fn class(self) -> &'static str {
        match self {
            BarKind::Queued => "idle",
            BarKind::Running => "busy",
            BarKind::Done => "good",
            BarKind::Ended => "past",
            BarKind::Failed => "bad",
        }
    }

    fn word(self) -> &'static str {
        match self {
            BarKind::Queued => "queued",
            BarKind::Running => "running",
            BarKind::Done => "ran, and succeeded",
            BarKind::Ended => "ran until the job ended",
            BarKind::Failed => "ran, and failed",
        }
    }
}

/// A part of a rank's line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bar {
    /// Its begin, in units.
    pub x: u32,
    /// Its length, in units.
    pub width: u32,
    /// What it shows.
    pub kind: BarKind,
    /// The same in words.
    pub words: String,
}

/// A rank's line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lane {
    /// The rank's pod.
    pub pod: String,
    /// Its parts, in order.
    pub bars: Vec<Bar>,
}

/// The times of one rank.
#[derive(Clone, Debug, Default)]
pub struct RankTimes {
    /// Its pod.
    pub pod: String,
    /// When its pods got their nodes, the earliest first: one for each pod that had the name.
    pub bound: Vec<(Timestamp, String)>,
    /// How the last one ended; none if it has not.
    pub end: Option<BarKind>,
}

/// Draws the ranks of a job that was created at `from` and ended at `to`, or is looked at then.
pub fn lanes(ranks: &[RankTimes], from: Timestamp, to: Timestamp) -> Vec<Lane> {
    let whole = to.duration_since(from).as_secs().max(1);
    let place = |at: Timestamp| {
        let passed = at.duration_since(from).as_secs().clamp(0, whole);
        u32::try_from(passed * i64::from(WIDTH) / whole).unwrap_or(WIDTH)
    };
    let bar = |kind: BarKind, begin: Timestamp, end: Timestamp, node: &str| {
        let lasted = human_duration(end.duration_since(begin).as_secs().max(0));
        let on = match node {
            "" => String::new(),
            node => format!(" on {node}"),
        };
        let x = place(begin).min(WIDTH - BAR_MIN);
        Bar {
            x,
            width: place(end).saturating_sub(x).max(BAR_MIN),
            kind,
            words: format!("{}{on} for {lasted}", kind.word()),
        }
    };
    let lane = |rank: &RankTimes| {
        let mut bars = Vec::new();
        let first = rank.bound.first().map_or(to, |(at, _)| *at);
        if first > from || rank.bound.is_empty() {
            bars.push(bar(BarKind::Queued, from, first, ""));
        }
        for (number, (at, node)) in rank.bound.iter().enumerate() {
            // A pod that was followed by another one did not reach its goal.
            let (kind, end) = match rank.bound.get(number + 1) {
                Some((next, _)) => (BarKind::Failed, *next),
                None => (rank.end.unwrap_or(BarKind::Running), to),
            };
            bars.push(bar(kind, *at, end, node));
        }
        Lane {
            pod: rank.pod.clone(),
            bars,
        }
    };
    ranks.iter().take(LANES_MAX).map(lane).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + second).unwrap()
    }

    fn rank(bound: &[i64], end: Option<BarKind>) -> RankTimes {
        RankTimes {
            pod: "j-worker-0".into(),
            bound: bound.iter().map(|s| (at(*s), "n".to_owned())).collect(),
            end,
        }
    }

    #[test]
    fn a_rank_waits_runs_and_is_replaced() {
        let ranks = [
            rank(&[10, 50], Some(BarKind::Done)),
            rank(&[], None),
            rank(&[0], Some(BarKind::Failed)),
        ];
        let drawn = lanes(&ranks, at(0), at(100));
        let shape = |lane: &Lane| -> Vec<(u32, u32, BarKind)> {
            lane.bars.iter().map(|b| (b.x, b.width, b.kind)).collect()
        };
        assert_eq!(
            shape(&drawn[0]),
            [
                (0, 100, BarKind::Queued),
                (100, 400, BarKind::Failed),
                (500, 500, BarKind::Done)
            ]
        );
        assert_eq!(shape(&drawn[1]), [(0, 1000, BarKind::Queued)]);
        assert_eq!(shape(&drawn[2]), [(0, 1000, BarKind::Failed)]);
        assert_eq!(drawn[0].bars[2].words, "ran, and succeeded on n for 50s");
    }

    #[test]
    fn bars_stay_on_the_line_whatever_the_times_are() {
        for (bound, from, to) in [(-5, 0, 10), (50, 0, 10), (0, 0, 0), (3, 10, 5)] {
            for lane in lanes(&[rank(&[bound], None)], at(from), at(to)) {
                for bar in lane.bars {
                    assert!(bar.x + bar.width <= WIDTH && bar.width > 0, "{bar:?}");
                }
            }
        }
        let many = vec![rank(&[1], None); LANES_MAX + 5];
        assert_eq!(lanes(&many, at(0), at(9)).len(), LANES_MAX);
    }
}
