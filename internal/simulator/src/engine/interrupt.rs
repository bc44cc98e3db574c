//! Carries out evictions: the pod stops, and its gang goes on without it or loses the work since
//! its last checkpoint.

use crate::decision::DecisionDetail;
use crate::engine::Happening;
use crate::engine::stage::SimulatedCluster;
use crate::gang::{GangIx, MemberStage as Standing};
use crate::planner::Evict;
use crate::scenario::Seconds;

impl SimulatedCluster<'_> {
    pub(super) fn evict(&mut self, evict: Evict) {
        let at = evict.gang;
        let Some(member) = self.gangs[at].members.get(evict.member) else {
            return;
        };
        let Standing::Placed { node } = member.stage else {
            return;
        };
        let pod = member.name().to_owned();
        let before = self.gangs[at].placed_milli();
        self.gangs[at].members[evict.member].stage = Standing::Leaving { node };
        let result = self.gangs[at].result;
        self.outcome.gangs[result].evictions += 1;
        let host = self.hosts[node].name.clone();
        self.say_of(
            at,
            DecisionDetail::Evicted {
                pod: &pod,
                node: &host,
                reason: &evict.reason,
                by: evict.by.as_deref(),
                message: &evict.message,
            },
        );
        if let Some(since) = self.gangs[at].whole_since {
            if self.gangs[at].whole() {
                let after = self.gangs[at].placed_milli();
                self.account.work(after - before);
            } else {
                self.interrupt(at, since, before, evict.grace.is_some());
            }
        }
        self.planner
            .leaving(at, &self.gangs[at], evict.member, self.now);
        let grace = self.options.grace.max(evict.grace.unwrap_or(0));
        self.leave(at, evict.member, self.now, grace);
    }

    /// Schedules a member's removal for the end of its grace period, unless a finalizer keeps it.
    pub(super) fn leave(&mut self, at: GangIx, member: usize, since: Seconds, grace: Seconds) {
        if self.gangs[at].members[member].stays {
            return;
        }
        self.agenda
            .put(since + grace.max(0), Happening::Gone { gang: at, member });
    }

    /// A gang cannot go on: it loses the work since its last checkpoint, or nothing if it
    /// checkpoints now.
    fn interrupt(&mut self, at: GangIx, since: Seconds, placed: i64, saved: bool) {
        let gang = &mut self.gangs[at];
        gang.whole_since = None;
        let done = gang.kept + (self.now - since);
        let kept = self
            .options
            .checkpoint
            .filter(|every| *every > 0)
            .map_or(0, |every| done - done % every);
        let kept = if saved { done } else { kept };
        let lost = (done - kept) * placed / 1000;
        gang.kept = kept;
        let (queue, milli) = (gang.queue, gang.gpu_milli());
        let result = &mut self.outcome.gangs[gang.result];
        result.interruptions += 1;
        result.lost_gpu_seconds += lost;
        self.account.work(-placed);
        self.account.wait(queue, milli);
        self.say_of(
            at,
            DecisionDetail::Interrupted {
                lost_gpu_seconds: lost,
            },
        );
    }
}
