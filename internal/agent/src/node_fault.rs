//! Why a node can't start the processes of pods: a defect that its runtime found at the agent's
//! start, or a recent failed start of a container. Such a node reports it in its label and
//! condition, so that the scheduler places no more such pods there. Starts and ends nothing.

use std::collections::VecDeque;
use std::time::Duration;

use devices::inventory::NodeHardware;
use parking_lot::Mutex;
use resources::names::RUNTIME_PROCESS;
use runtime::capabilities::UNFIT_REMEDY;
use tokio::time::Instant;

/// How long a node is unfit after a container could not be started because of it. Then another
/// start is tried: the defect may have passed.
pub const LATELY: Duration = Duration::from_secs(300);

/// So many failed starts for a reason that may pass,
const PASSING: usize = 3;
/// within this time, make a node unfit like one for a lasting reason. Otherwise pods that count
/// against no limit of their job would be placed there without end.
const PASSING_WITHIN: Duration = Duration::from_secs(60);

/// Why a node is unfit, if it is.
#[derive(Debug, Default)]
pub struct NodeFault {
    standing: Option<String>,
    lately: Mutex<Option<(String, Instant)>>,
    /// The last failed starts for reasons that may pass; at most [`PASSING`].
    passing: Mutex<VecDeque<Instant>>,
}

impl NodeFault {
    /// With the defect that the runtime found at its start.
    pub fn new(standing: Option<String>) -> NodeFault {
        NodeFault {
            standing,
            lately: Mutex::default(),
            passing: Mutex::default(),
        }
    }

    /// Records that a container could not be started for this reason.
    pub fn saw(&self, why: &str, now: Instant) {
        *self.lately.lock() = Some((why.to_owned(), now));
    }

    /// Records that a container could not be started for a reason that may pass, such as a lack of
    /// memory at that moment: one such failure does not make the node unfit.
    pub fn saw_passing(&self, why: &str, now: Instant) {
        let mut passing = self.passing.lock();
        passing.push_back(now);
        if passing.len() > PASSING {
            passing.pop_front();
        }
        let often = passing.len() == PASSING
            && (passing.front()).is_some_and(|first| now.duration_since(*first) < PASSING_WITHIN);
        if often {
            self.saw(why, now);
        }
    }

    /// Why no process of a pod can be started here now.
    pub fn why(&self, now: Instant) -> Option<String> {
        if self.standing.is_some() {
            return self.standing.clone();
        }
        let lately = self.lately.lock();
        let (why, at) = lately.as_ref()?;
        (now.duration_since(*at) < LATELY).then(|| why.clone())
    }

    /// Sets the machine's label for whether processes can be started, with the reason if not.
    pub fn assess(&self, machine: &mut NodeHardware, now: Instant) {
        let fit = self.why(now).is_none().to_string();
        let labels = &mut machine.inventory.labels;
        labels.insert(RUNTIME_PROCESS.to_owned(), fit);
    }

    /// Adds the reason to the machine's other problems, for users.
    pub fn notify(&self, found: &mut hardware::Inventory, now: Instant) {
        let remedy = match self.standing {
            Some(_) => UNFIT_REMEDY,
            None => "run `muster doctor` on the node",
        };
        let why = self.why(now);
        let concern = why.map(|why| {
            format!("pods without an image cannot be started: {why}; to fix it: {remedy}")
        });
        found.concerns.extend(concern);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_start_counts_for_a_while_and_a_defect_at_the_agents_start_for_good() {
        let start = Instant::now();
        let fault = NodeFault::new(None);
        let label = |fault: &NodeFault, now| {
            let mut machine = NodeHardware::default();
            fault.assess(&mut machine, now);
            machine.inventory.labels[RUNTIME_PROCESS].clone()
        };
        assert_eq!(label(&fault, start), "true");
        fault.saw("no mounts", start);
        assert_eq!(fault.why(start).as_deref(), Some("no mounts"));
        assert_eq!(label(&fault, start), "false");
        let end = start + LATELY;
        assert_eq!(label(&fault, end - Duration::from_nanos(1)), "false");
        assert_eq!(label(&fault, end), "true");
        let mut found = hardware::Inventory::default();
        fault.notify(&mut found, end);
        assert!(found.concerns.is_empty());
        let fault = NodeFault::new(Some("not allowed".to_owned()));
        assert_eq!(label(&fault, end + LATELY), "false");
        fault.notify(&mut found, end);
        assert!(found.concerns[0].contains("not allowed"));
    }

    #[test]
    fn a_passing_failure_leaves_the_node_fit_unless_it_repeats_within_a_minute() {
        let start = Instant::now();
        let cases: [(&[u64], bool); 5] = [
            (&[0], false),
            (&[0, 1], false),
            (&[0, 1, 2], true),
            (&[0, 30, 60], false),
            (&[0, 30, 60, 61], true),
        ];
        for (seconds, unfit) in cases {
            let node = NodeFault::new(None);
            let mut now = start;
            for second in seconds {
                now = start + Duration::from_secs(*second);
                node.saw_passing("no memory", now);
            }
            assert_eq!(node.why(now).is_some(), unfit, "{seconds:?}");
        }
    }
}
