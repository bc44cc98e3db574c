//! Assigns each gang to its queue, its account and its position in the queue's order. Updated after
//! each event, before anything is decided.

use jiff::Timestamp;
use resources::names::DEFAULT_QUEUE;

use crate::gang::{Gang, GangKey};
use crate::job_annotations::JobAnnotations;
use crate::queue::{GangOrder, Payer};
use crate::queue_order::{LineKey, OrderFactors};
use crate::state::Scheduler;

impl Scheduler {
    /// The gang's entry, inserted if absent.
    pub(crate) fn gang_mut(&mut self, key: &GangKey) -> &mut Gang {
        self.gangs.or_default(key)
    }

    /// The gang's queue, from its PodGroup or its pod.
    fn queue_of(&self, key: &GangKey, gang: &Gang) -> String {
        if let Some(spec) = &gang.spec {
            return spec.queue.clone();
        }
        let own = gang
            .members
            .first()
            .filter(|_| key.lone)
            .and_then(|pod| self.pods.get(pod));
        let named = own.and_then(|pod| pod.queue.clone());
        named.unwrap_or_else(|| DEFAULT_QUEUE.to_owned())
    }

    pub(crate) fn priority_of(&self, gang: &Gang) -> i32 {
        let class = gang
            .spec
            .as_ref()
            .and_then(|spec| spec.priority_class.as_ref());
        if let Some(priority) = class.and_then(|name| self.priorities.get(name)) {
            return priority.value;
        }
        gang.priorities
            .keys()
            .next_back()
            .copied()
            .unwrap_or_else(|| self.default_priority())
    }

    /// The value of the global default priority class.
    pub(crate) fn default_priority(&self) -> i32 {
        let defaults = self.priorities.values().filter(|priority| priority.default);
        defaults.map(|priority| priority.value).min().unwrap_or(0)
    }

    /// The time since which the gang waits.
    pub(crate) fn since(&self, gang: &Gang) -> Option<Timestamp> {
        if let Some(spec) = &gang.spec {
            return spec.created;
        }
        gang.members
            .iter()
            .filter_map(|pod| self.pods.get(pod)?.created)
            .min()
    }

    /// Called after a gang changed: updates its queue, position and caches, or removes it if it is
    /// gone.
    pub(crate) fn settle(&mut self, key: &GangKey) {
        self.changed = true;
        let Some(gang) = self.gangs.get(key) else {
            return;
        };
        let forgotten = gang.forgotten();
        let ended = gang.total.succeeded > 0 && gang.completed(key);
        self.timeline.note(key, ended);
        if gang.moved || gang.payer.is_none() {
            self.update_account(key, forgotten);
        }
        self.note_victim(key);
        self.note_incomplete(key);
        if forgotten {
            self.nominated.remove(key);
            self.incomplete_gangs.remove(key);
            self.gangs.remove(key);
            self.changed_gangs.remove(key);
            return;
        }
        self.changed_gangs.insert(key);
        if let Some(gang) = self.gangs.get_mut(key) {
            gang.blocked_answer = None;
            gang.addressed = None;
        }
        let Some(gang) = self.gangs.get(key) else {
            return;
        };
        let Some(payer) = gang.payer else { return };
        let place = gang
            .waits(key)
            .then(|| self.place_in_line(key, gang, payer));
        let expects = gang.admitted && !gang.completed(key) && !gang.whole(key);
        if gang.line != place {
            if gang.report.is_some() {
                self.report_cache.outdated.insert(payer.queue);
            }
            let line = &mut self.queues.at_mut(payer.queue).line;
            if let Some(old) = &gang.line {
                line.remove(old);
            }
            line.extend(place.clone());
        }
        let Some(gang) = self.gangs.get_mut(key) else {
            return;
        };
        if place.is_none() {
            gang.overtaken = 0;
            gang.report = None;
            gang.held_until = None;
            gang.held_why = None;
            gang.last_message.clear();
        }
        gang.line = place;
        if gang.expected != expects {
            gang.expected = expects;
            let times = if expects { 1 } else { -1 };
            self.releases += u64::from(!expects);
            if let Some(spec) = &gang.spec {
                self.queues.expect(payer.queue, &spec.min_resources, times);
            }
        }
    }

    fn place_in_line(&self, key: &GangKey, gang: &Gang, payer: Payer) -> LineKey {
        let rules = self.queues.rules(payer.queue);
        let policy = rules.map_or(GangOrder::Priority, |rules| rules.policy);
        let factors = OrderFactors {
            priority: self.priority_of(gang),
            interrupted: self.interrupted(key, gang),
            whole: gang.whole(key),
            seconds: match policy {
                GangOrder::Sjf => self.expected_length(gang),
                _ => None,
            },
            created: self.since(gang),
        };
        LineKey::new(policy, factors, key.clone())
    }

    /// The gang's terms: its PodGroup's, completed by its first member's.
    pub(crate) fn terms_of(&self, gang: &Gang) -> JobAnnotations {
        let first = gang.members.first().and_then(|pod| self.pods.get(pod));
        let member = first.map(|pod| pod.terms.clone()).unwrap_or_default();
        match &gang.spec {
            Some(spec) => spec.terms.or(&member),
            None => member,
        }
    }

    /// The account that the gang is charged to. Without a user, its namespace stands for one.
    fn payer_of(&mut self, key: &GangKey, queue: &str) -> Payer {
        let terms = match self.gangs.get(key) {
            Some(gang) => self.terms_of(gang),
            None => JobAnnotations::default(),
        };
        let user = match &terms.user {
            Some(user) => self.queues.user(user),
            None => self.queues.user(&format!("namespace/{}", key.namespace)),
        };
        let team = terms.team.as_ref().map(|team| self.queues.team(team));
        Payer {
            queue: self.queues.place(queue),
            user,
            team,
            fixed: terms.preemptible == Some(false),
        }
    }

    /// Updates the queues' tree and entitlements, before anything is decided by them.
    pub(crate) fn update_queues(&mut self) {
        self.queues.update_entitlements(&self.total, &self.used);
    }

    /// Moves a gang to the right account; a gang that is gone has none.
    fn update_account(&mut self, key: &GangKey, forgotten: bool) {
        let Some(gang) = self.gangs.get_mut(key) else {
            return;
        };
        gang.moved = false;
        let Some(gang) = self.gangs.get(key) else {
            return;
        };
        let old = gang.payer;
        let queue = if forgotten {
            String::new()
        } else {
            self.queue_of(key, gang)
        };
        let payer = (!forgotten).then(|| self.payer_of(key, &queue));
        if old != payer {
            self.move_gang(key, queue, payer);
        }
    }

    /// Moves a gang, with what it holds and requests, from one account to another.
    fn move_gang(&mut self, key: &GangKey, queue: String, to: Option<Payer>) {
        self.remove_expected(key);
        let places = self.release_places(key);
        self.forget_places(places);
        let Some(gang) = self.gangs.get_mut(key) else {
            return;
        };
        gang.queue = queue;
        let from = std::mem::replace(&mut gang.payer, to);
        let (held, requested) = (gang.allocated.clone(), gang.requested.clone());
        let place = gang.line.take();
        if let Some(from) = from.filter(|_| gang.report.take().is_some()) {
            self.report_cache.outdated.insert(from.queue);
        }
        // The new queue first: if it is the same one, it must not be removed in between.
        if let Some(to) = to {
            self.queues.join(to.queue);
            self.queues.charge_room(to, &held, 1);
            self.queues.request_room(to.queue, &requested, 1);
        }
        if let Some(from) = from {
            self.queues.charge_room(from, &held, -1);
            self.queues.request_room(from.queue, &requested, -1);
            if let Some(place) = place {
                self.queues.at_mut(from.queue).line.remove(&place);
            }
            self.queues.leave(from.queue);
        }
    }

    /// Removes the gang's `minResources` from its queue's expected amounts, before its spec
    /// changes.
    pub(crate) fn remove_expected(&mut self, key: &GangKey) {
        let Some(gang) = self.gangs.get_mut(key) else {
            return;
        };
        if std::mem::take(&mut gang.expected)
            && let Some(spec) = &gang.spec
            && let Some(payer) = gang.payer
        {
            self.queues.expect(payer.queue, &spec.min_resources, -1);
            self.releases += 1;
        }
    }
}
