//! The running account of the simulated cluster: GPUs allocated, in useful work, stranded,
//! requested. Each is integrated over time and kept as a series of bounded length.

use crate::gang::{Host, NodeIndex};
use crate::outcome::Point;
use crate::scenario::Seconds;

/// The most points of a series; beyond it, neighbouring points are merged.
const POINTS_MAX: usize = 480;

/// The current figures of one queue.
#[derive(Clone, Debug, Default)]
struct QueueFigures {
    weight: f64,
    held: i64,
    waiting: usize,
}

/// The account.
#[derive(Clone, Debug, Default)]
pub(crate) struct Account {
    now: Seconds,
    used: Vec<i64>,
    capacity: Vec<i64>,
    total: i64,
    held: i64,
    working: i64,
    stranded: i64,
    asked: i64,
    waiting: usize,
    queues: Vec<QueueFigures>,
    /// Seconds in which two or more queues waited, and the sum of Jain's index over them.
    contended: f64,
    fairness: f64,
    width: Seconds,
    from: Seconds,
    points: Vec<Point>,
    sum: Point,
}

impl Account {
    pub(crate) fn new(hosts: &[Host], weights: &[i64]) -> Account {
        let capacity: Vec<i64> = hosts.iter().map(|host| host.gpus * 1000).collect();
        let standing = |weight: &i64| QueueFigures {
            weight: *weight as f64,
            ..QueueFigures::default()
        };
        Account {
            used: vec![0; hosts.len()],
            total: capacity.iter().sum(),
            capacity,
            queues: weights.iter().map(standing).collect(),
            width: 1,
            ..Account::default()
        }
    }

    /// The account begins at this time; earlier time is not counted.
    pub(crate) fn begin(&mut self, at: Seconds) {
        self.now = at;
        self.from = at;
    }

    pub(crate) fn add_queue(&mut self, weight: i64) {
        self.queues.push(QueueFigures {
            weight: weight as f64,
            ..QueueFigures::default()
        });
    }

    /// All GPUs, in thousandths.
    pub(crate) fn total(&self) -> i64 {
        self.total
    }

    /// Advances time to `to` with the current figures.
    pub(crate) fn advance(&mut self, to: Seconds) {
        while self.now < to {
            let mut at = usize::try_from((self.now - self.from) / self.width).unwrap_or(0);
            while at >= POINTS_MAX {
                self.halve();
                at = usize::try_from((self.now - self.from) / self.width).unwrap_or(0);
            }
            let width = self.width;
            let until = to.min(self.from + (at as i64 + 1) * width);
            let seconds = (until - self.now) as f64;
            let point = Point {
                seconds,
                held: self.held as f64 * seconds,
                working: self.working as f64 * seconds,
                stranded: self.stranded as f64 * seconds,
                asked: self.asked as f64 * seconds,
                waiting: self.waiting as f64 * seconds,
                queues: self
                    .queues
                    .iter()
                    .map(|queue| queue.held as f64 * seconds)
                    .collect(),
            };
            if self.points.len() <= at {
                self.points.resize(at + 1, Point::default());
            }
            self.points[at].merge(&point);
            self.sum.merge(&point);
            self.weigh(seconds);
            self.now = until;
        }
    }

    fn halve(&mut self) {
        self.width *= 2;
        let merged = self.points.chunks(2).map(|pair| {
            let mut point = pair[0].clone();
            if let Some(other) = pair.get(1) {
                point.merge(other);
            }
            point
        });
        self.points = merged.collect();
    }

    /// Jain's index of the waiting queues' allocations per weight: 1 when even.
    fn weigh(&mut self, seconds: f64) {
        let (mut sum, mut squares, mut count) = (0.0, 0.0, 0.0);
        for queue in self.queues.iter().filter(|queue| queue.waiting > 0) {
            let share = queue.held as f64 / queue.weight.max(1.0);
            sum += share;
            squares += share * share;
            count += 1.0;
        }
        if count >= 2.0 && squares > 0.0 {
            self.contended += seconds;
            self.fairness += seconds * sum * sum / (count * squares);
        }
    }

    pub(crate) fn hold(&mut self, node: NodeIndex, queue: usize, milli: i64) {
        self.stranded -= self.strands(node);
        self.used[node] += milli;
        self.stranded += self.strands(node);
        self.held += milli;
        self.queues[queue].held += milli;
    }

    fn strands(&self, node: NodeIndex) -> i64 {
        let (used, capacity) = (self.used[node], self.capacity[node]);
        if used > 0 {
            (capacity - used).max(0)
        } else {
            0
        }
    }

    /// A gang became complete (or, with a negative number, incomplete).
    pub(crate) fn work(&mut self, milli: i64) {
        self.working += milli;
    }

    pub(crate) fn wait(&mut self, queue: usize, milli: i64) {
        self.asked += milli;
        self.waiting += 1;
        self.queues[queue].waiting += 1;
    }

    pub(crate) fn stop_waiting(&mut self, queue: usize, milli: i64) {
        self.asked -= milli;
        self.waiting = self.waiting.saturating_sub(1);
        let own = &mut self.queues[queue].waiting;
        *own = own.saturating_sub(1);
    }

    /// The sums until now.
    pub(crate) fn so_far(&self) -> Point {
        self.sum.clone()
    }

    /// The sums, the series with its interval length, and the fairness of contended times if there
    /// were any.
    pub(crate) fn close(self) -> (Point, Vec<Point>, Seconds, Option<f64>) {
        let fairness = (self.contended > 0.0).then(|| self.fairness / self.contended);
        (self.sum, self.points, self.width, fairness)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts(gpus: &[i64]) -> Vec<Host> {
        let host = |gpus: &i64| Host {
            gpus: *gpus,
            ..Host::default()
        };
        gpus.iter().map(host).collect()
    }

    #[test]
    fn time_is_weighed_and_free_gpus_beside_used_ones_are_stranded() {
        let mut account = Account::new(&hosts(&[8, 8]), &[1]);
        account.hold(0, 0, 3000);
        account.advance(10);
        account.hold(0, 0, -3000);
        account.advance(20);
        let (sum, _, _, _) = account.close();
        assert_eq!((sum.held, sum.stranded), (30_000.0, 50_000.0));
        assert_eq!(sum.seconds, 20.0);
    }

    #[test]
    fn a_series_stays_short_and_loses_nothing() {
        let mut account = Account::new(&hosts(&[8]), &[1]);
        account.hold(0, 0, 1000);
        for t in 0..1000 {
            account.advance(t * 7);
        }
        account.advance(1_000_000);
        let (sum, points, width, _) = account.close();
        assert!(points.len() <= POINTS_MAX && width > 1000);
        let held: f64 = points.iter().map(|point| point.held).sum();
        assert_eq!(held, sum.held);
        assert_eq!(held, 1e9);
    }

    #[test]
    fn fairness_looks_at_queues_that_wait_and_at_their_weights() {
        let mut account = Account::new(&hosts(&[8]), &[3, 1]);
        account.hold(0, 0, 6000);
        account.hold(0, 1, 2000);
        account.wait(0, 1000);
        account.advance(5);
        account.wait(1, 1000);
        account.advance(10);
        assert_eq!(account.close().3, Some(1.0));
    }
}
