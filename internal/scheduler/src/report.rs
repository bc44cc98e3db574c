//! Turns what stopped a gang into a report with reasons and numbers. Decides nothing.

mod claims;

use std::collections::BTreeMap;
use std::sync::Arc;

use resources::report::{PlacementReport, ReasonCount, TaskReport, WaitReason};

use crate::class::{ClassIx, RuntimeNeed};
use crate::filter::{Exclusion, InfeasibleReason};
use crate::fit::InfeasibleTally;
use crate::gang::GangKey;
use crate::queue::{LimitingRule, QueueIx};
use crate::resource::{GPU, Ix, PODS};
use crate::state::Scheduler;

/// The most image-capable nodes that a report names.
const RUNNERS_NAMED: usize = 5;

/// Why no domain of a level holds a part of a gang.
#[derive(Clone, Debug)]
pub(crate) struct TopologyBound {
    /// The level's label.
    pub(crate) key: String,
    /// The part's name; empty for the gang.
    pub(crate) part: String,
    /// Pods that must be in one domain.
    pub(crate) need: usize,
    /// The number of domains examined.
    pub(crate) domains: usize,
    /// The domain with the most room, and how many pods it holds.
    pub(crate) best: Option<(String, u64)>,
    /// How many pods the largest domain would hold when empty.
    pub(crate) empty: u64,
    /// True if running members determine the domain.
    pub(crate) pinned: bool,
    /// The level whose domains hold whole slices, and the slice size.
    pub(crate) slice: Option<(String, u32)>,
}

/// What stopped a gang.
#[derive(Clone, Debug, Default)]
pub(crate) struct Obstacle {
    pub(crate) verdict: WaitReason,
    binding: String,
    would_fit: String,
    per_reason: Vec<ReasonCount>,
    nodes: usize,
    /// Members that run or would find room.
    possible: usize,
    /// Why no pods are evicted for it.
    evictions: String,
    /// True if only more room could help.
    room: bool,
    /// True if the end of other pods cannot remove it: a user or administrator must change
    /// something.
    lasting: bool,
    /// The resource whose free amount the message states.
    counts_free: Option<Ix>,
}

impl Obstacle {
    pub(crate) fn possible(&self) -> usize {
        self.possible
    }

    /// True if the total free capacity is too small, whatever the topology.
    pub(crate) fn is_plain_room(&self) -> bool {
        self.room && self.verdict != WaitReason::TopologyUnsatisfied
    }

    /// True if only more room could help.
    pub(crate) fn is_room(&self) -> bool {
        self.room
    }

    /// True if the end of other pods cannot remove it, so that no start can be estimated.
    pub(crate) fn is_lasting(&self) -> bool {
        self.lasting
    }

    /// The resource whose free amount the message states, if any.
    pub(crate) fn counts_free(&self) -> Option<Ix> {
        self.counts_free
    }

    pub(crate) fn malformed(problem: &str, have: usize) -> Obstacle {
        let mut obstacle = Obstacle::new(
            WaitReason::NoNodeFits,
            problem.to_owned(),
            "correct the PodGroup or its pods".into(),
        );
        obstacle.possible = have;
        obstacle.lasting()
    }

    fn lasting(mut self) -> Obstacle {
        self.lasting = true;
        self
    }

    fn new(verdict: WaitReason, binding: String, would_fit: String) -> Obstacle {
        Obstacle {
            verdict,
            binding,
            would_fit,
            ..Obstacle::default()
        }
    }

    pub(crate) fn held(why: Option<&str>) -> Obstacle {
        if let Some(why) = why {
            return Obstacle::new(
                WaitReason::Waiting,
                format!(
                    "a placement was found but could not be carried out: {why}; the scheduler retries shortly"
                ),
                "the removal of the cause that the message names".into(),
            );
        }
        Obstacle::new(
            WaitReason::Waiting,
            "a placement was found, but the API refused a member's binding; the scheduler retries shortly"
                .into(),
            "the API's acceptance of the binding; see the pod's events for the refusal".into(),
        )
    }

    /// There is room now, but taking it would delay the gang that room is reserved for.
    pub(crate) fn behind(head: &GangKey, have: usize) -> Obstacle {
        let (namespace, name) = (&head.namespace, &head.name);
        let mut obstacle = Obstacle::new(
            WaitReason::Waiting,
            format!(
                "there is room now, but the gang would delay {namespace}/{name}, for which capacity is reserved"
            ),
            format!(
                "room that {namespace}/{name} does not need, or a walltime that ends before {namespace}/{name} starts"
            ),
        );
        obstacle.possible = have;
        obstacle
    }

    pub(crate) fn no_group(key: &GangKey) -> Obstacle {
        let (namespace, name) = (&key.namespace, &key.name);
        Obstacle::new(
            WaitReason::NotEnoughMembers,
            format!("PodGroup {namespace}/{name}, which the pods name, does not exist"),
            format!("create PodGroup {name} in namespace {namespace}"),
        )
        .lasting()
    }

    pub(crate) fn no_queue(queue: &str) -> Obstacle {
        Obstacle::new(
            WaitReason::QueueMissing,
            format!("queue {queue} does not exist"),
            format!("create queue {queue}, or name another"),
        )
        .lasting()
    }

    pub(crate) fn closed(queue: &str) -> Obstacle {
        Obstacle::new(
            WaitReason::QueueClosed,
            format!("queue {queue} is closed"),
            format!("open queue {queue}, or name another"),
        )
        .lasting()
    }

    pub(crate) fn excluded(queue: &str, namespace: &str) -> Obstacle {
        Obstacle::new(
            WaitReason::NamespaceNotAdmitted,
            format!("queue {queue} admits no work from namespace {namespace}"),
            format!("name another queue, or have an administrator label namespace {namespace} as queue {queue} selects"),
        )
        .lasting()
    }

    pub(crate) fn missing_members(missing: &str, have: usize) -> Obstacle {
        let mut obstacle = Obstacle::new(
            WaitReason::NotEnoughMembers,
            format!("{missing} members exist"),
            "create the members that are missing".into(),
        );
        obstacle.possible = have;
        obstacle.lasting()
    }

    /// True if the reason is capacity, in the cluster or one domain, or a queue's bound: only then
    /// can evictions help.
    pub(crate) fn is_of_room(&self) -> bool {
        matches!(
            self.verdict,
            WaitReason::InsufficientResources
                | WaitReason::QuotaExceeded
                | WaitReason::TopologyUnsatisfied
        )
    }

    /// Adds the reason why no pods are evicted.
    pub(crate) fn set_eviction_reason(&mut self, why: &str) {
        self.evictions = format!("no pods are evicted for it: {why}");
    }
}

fn counted(reason: String, nodes: usize) -> ReasonCount {
    ReasonCount { reason, nodes }
}

/// Sorts by number of nodes, largest first.
fn sort(reasons: &mut [ReasonCount]) {
    reasons.sort_by(|a, b| b.nodes.cmp(&a.nodes).then_with(|| a.reason.cmp(&b.reason)));
}

impl Scheduler {
    pub(crate) fn beyond_cluster(&self, resource: Ix, asked: i64) -> Obstacle {
        let name = self.names.name(resource);
        let (asked, has) = (
            self.names.quantity(resource, asked),
            self.names.quantity(resource, self.total.get(resource)),
        );
        Obstacle::new(
            WaitReason::InsufficientResources,
            format!("the gang requests {name}: {asked} in all, and all nodes together have {has}"),
            format!("nodes with more {name}, or a gang that requests less of it"),
        )
        .lasting()
    }

    pub(crate) fn over_quota(
        &self,
        queue: &str,
        bound: LimitingRule,
        asked: i64,
        possible: usize,
    ) -> Obstacle {
        let name = self.names.name(bound.resource());
        let say = |amount: i64| self.names.quantity(bound.resource(), amount);
        let short = say(asked.saturating_sub(bound.leaves()));
        let lasting = bound.never_allows(asked);
        let asked = say(asked);
        // The bound may be of an ancestor of the gang's queue.
        let who = |at: QueueIx| match self.queues.name(at) {
            binding if binding == queue => format!("queue {queue}"),
            binding => format!("queue {binding}, above queue {queue},"),
        };
        let inside = |kept: i64| match kept {
            ..=0 => String::new(),
            kept => format!(", reserves {} for queues below it", say(kept)),
        };
        let (binding, would_fit) = match bound {
            LimitingRule::Capability {
                queue: at,
                allowed,
                held,
                kept,
                ..
            } => (
                format!(
                    "{} holds {} of the {} {name} it may use{}, and {asked} more are needed",
                    who(at),
                    say(held),
                    say(allowed),
                    inside(kept)
                ),
                format!(
                    "{short} {name} released in queue {}, or that much more capability",
                    self.queues.name(at)
                ),
            ),
            LimitingRule::Borrowing {
                queue: at,
                allowed,
                held,
                kept,
                ..
            } => (
                format!(
                    "{} holds {} of the {} {name} that it deserves and may borrow{}, and {asked} more are needed",
                    who(at),
                    say(held),
                    say(allowed),
                    inside(kept)
                ),
                format!(
                    "{short} {name} released in queue {}, or a borrowing limit higher by that",
                    self.queues.name(at)
                ),
            ),
            LimitingRule::Deserved {
                queue: at,
                allowed,
                held,
                ..
            } => (
                format!(
                    "non-preemptible work of {} holds {} of the {} {name} that the queue deserves, and {asked} more are needed",
                    who(at).trim_end_matches(','),
                    say(held),
                    say(allowed)
                ),
                format!(
                    "{short} {name} released by non-preemptible work in queue {}, a higher deserved amount, or a gang that may be preempted",
                    self.queues.name(at)
                ),
            ),
            LimitingRule::User {
                queue: at,
                user,
                allowed,
                held,
                ..
            } => {
                let user = self.queues.user_name(user);
                (
                    format!(
                        "user {user} holds {} of the {} {name} that a user may use in {}, and {asked} more are needed",
                        say(held),
                        say(allowed),
                        who(at).trim_end_matches(',')
                    ),
                    format!("{short} {name} released by user {user}, or a higher user limit"),
                )
            }
            LimitingRule::Team {
                queue: at,
                team,
                allowed,
                held,
                ..
            } => {
                let team = self.queues.team_name(team);
                (
                    format!(
                        "team {team} holds {} of the {} {name} that a team may use in {}, and {asked} more are needed",
                        say(held),
                        say(allowed),
                        who(at).trim_end_matches(',')
                    ),
                    format!("{short} {name} released by team {team}, or a higher team limit"),
                )
            }
            LimitingRule::Guarantees { idle, kept, .. } => (
                format!(
                    "{} {name} are free, {} of them reserved for other queues' guarantees, and {asked} more are needed",
                    say(idle),
                    say(kept)
                ),
                format!("{short} {name} becoming free, or smaller guarantees"),
            ),
        };
        let mut obstacle = Obstacle::new(WaitReason::QuotaExceeded, binding, would_fit);
        obstacle.lasting = lasting;
        obstacle.possible = possible;
        obstacle
    }

    /// The obstacle of a class without room for `missing` more members. Its view must be fresh.
    pub(crate) fn no_room(&self, class: ClassIx, missing: usize, possible: usize) -> Obstacle {
        let Some(view) = self.views.get(&class) else {
            return Obstacle::default();
        };
        let mut obstacle = Obstacle {
            possible,
            room: true,
            nodes: view.tally.nodes,
            ..Obstacle::default()
        };
        obstacle.per_reason = self.reasons(class, &view.tally, view.tally.short());
        sort(&mut obstacle.per_reason);
        if view.tally.nodes == 0 {
            obstacle.verdict = WaitReason::NoNodes;
            obstacle.binding = "there are no nodes".into();
            obstacle.would_fit = "join a node".into();
            return obstacle.lasting();
        }
        let demand = self.classes.get(class).demand();
        let scarce = self.scarce(class);
        if view.empty == 0 {
            obstacle.verdict = WaitReason::NoNodeFits;
            let gpus = self.classes.get(class).gpus();
            let refusals = view.tally.refused().map(|(refusal, _)| {
                let own = gpus.remedy(refusal);
                own.unwrap_or_else(|| refusal.remedy().to_owned())
            });
            let sizes = scarce
                .iter()
                .map(|ix| format!("a node with {}", self.piece(class, *ix)));
            let remedies: Vec<String> = refusals.chain(sizes).collect();
            obstacle.binding = "no node could hold one member, even when empty".into();
            obstacle.binding.push_str(&self.image_nodes(class));
            obstacle.would_fit = remedies.join("; or ");
            return obstacle.lasting();
        }
        obstacle.verdict = WaitReason::InsufficientResources;
        let Some(ix) = scarce.first().copied() else {
            return obstacle;
        };
        let name = self.names.name(ix);
        let each = demand.get(ix);
        let needed = each.saturating_mul(missing as i64);
        let idle = self.idle(ix).max(0);
        let (free, all) = (
            self.names.quantity(ix, idle),
            self.names.quantity(ix, self.total.get(ix)),
        );
        let scattered = if idle >= needed && view.room == 0 {
            ", on nodes where no member fits"
        } else {
            ""
        };
        obstacle.counts_free = Some(ix);
        obstacle.binding = format!(
            "{free} of {all} {name} are free{scattered}, and {} more are needed",
            self.names.quantity(ix, needed)
        );
        obstacle.binding.push_str(&self.image_nodes(class));
        let members = if missing == 1 { "member" } else { "members" };
        let wanted: Vec<String> = scarce.iter().map(|ix| self.piece(class, *ix)).collect();
        obstacle.would_fit = format!(
            "room for {missing} more {members} on matching nodes, each {}",
            wanted.join(", ")
        );
        if view.room + missing as u64 > view.empty {
            obstacle.would_fit.push_str(&format!(
                " (matching nodes hold {} such members when empty: add nodes)",
                view.empty
            ));
            obstacle.lasting = true;
        }
        if view.tally.apart > 0 {
            let remedy = InfeasibleReason::OneAtMost.remedy();
            obstacle.would_fit.push_str(&format!("; or {remedy}"));
        }
        obstacle
    }

    /// The obstacle if nodes with room are infeasible because of other pods or volumes, with the
    /// number of nodes by reason. The class's view must be fresh.
    pub(crate) fn excluded_by_others(
        &self,
        class: ClassIx,
        exclusions: &BTreeMap<Exclusion, usize>,
        missing: usize,
        possible: usize,
    ) -> Obstacle {
        let mut obstacle = self.no_room(class, missing, possible);
        let Some(view) = self.views.get(&class) else {
            return obstacle;
        };
        let closed: usize = exclusions.values().sum();
        let of_exclusions = exclusions
            .iter()
            .map(|(s, n)| counted(s.message().to_owned(), *n));
        obstacle.per_reason = of_exclusions.collect();
        let others = self.reasons(class, &view.tally, view.full());
        obstacle.per_reason.extend(others);
        sort(&mut obstacle.per_reason);
        let nodes = if closed == 1 {
            "node has"
        } else {
            "nodes have"
        };
        obstacle.verdict = WaitReason::NoNodeFits;
        obstacle.room = false;
        obstacle.counts_free = None;
        let what = match exclusions
            .keys()
            .map(|exclusion| exclusion.of_volumes())
            .min()
        {
            Some(true) => "no volumes are available there for a member's claims",
            _ => "the rules of other pods exclude a member from all of them",
        };
        obstacle.binding = format!("{closed} {nodes} room, and {what}");
        let remedies: Vec<&str> = exclusions
            .keys()
            .map(|exclusion| exclusion.remedy())
            .collect();
        obstacle.would_fit = remedies.join("; or ");
        obstacle
    }

    /// The obstacle of a part that no single domain holds. The class's view must be fresh.
    pub(crate) fn no_domain_holds(
        &self,
        class: ClassIx,
        bound: &TopologyBound,
        possible: usize,
    ) -> Obstacle {
        let mut obstacle = self.no_room(class, bound.need, possible);
        let what = match &*bound.part {
            "" => "the gang".to_owned(),
            part => part.to_owned(),
        };
        let TopologyBound { key, need, .. } = bound;
        let members = if *need == 1 { "member" } else { "members" };
        let slices = bound.slice.as_ref().map_or(String::new(), |(level, size)| {
            format!(" in whole slices of {size} a {level}")
        });
        obstacle.verdict = WaitReason::TopologyUnsatisfied;
        obstacle.counts_free = None;
        let Some((best, room)) = &bound.best else {
            obstacle.binding = format!("{what} must be in one {key}, and no node has that label");
            obstacle.would_fit = format!("nodes with the label {key}, or another level");
            return obstacle;
        };
        obstacle.binding = if bound.pinned {
            format!(
                "{need} more {members} of {what} must join the others in {key} {best}, which has room for {room}{slices}"
            )
        } else {
            format!(
                "{need} {members} of {what} must be in one {key}{slices}; of {} the roomiest, {best}, has room for {room}",
                bound.domains
            )
        };
        obstacle.would_fit = if bound.empty < *need as u64 {
            format!(
                "a larger {key} (the largest holds {} such members when empty), or a wider level",
                bound.empty
            )
        } else {
            format!(
                "room for {} more in {best}, or a wider level than {key}",
                (*need as u64).saturating_sub(*room).max(1)
            )
        };
        obstacle
    }

    /// Which nodes can run a class's images, if some cannot; empty for other classes.
    fn image_nodes(&self, class: ClassIx) -> String {
        let Some(view) = self.views.get(&class) else {
            return String::new();
        };
        let (runners, nodes) = (view.runners(), view.tally.nodes);
        if self.classes.get(class).need() != RuntimeNeed::Image || runners == nodes {
            return String::new();
        }
        match (runners, nodes) {
            (0, 1) => return "; the only node has no container runtime".to_owned(),
            (0, _) => return format!("; none of the {nodes} nodes has a container runtime"),
            _ => {}
        }
        let mut named: Vec<String> = view
            .first_runners(RUNNERS_NAMED)
            .map(|(at, why)| format!("{} ({why})", self.nodes[at].name))
            .collect();
        named.sort();
        if runners > named.len() {
            named.push(format!("{} more", runners - named.len()));
        }
        format!(
            "; {runners} of {nodes} nodes can run images: {}",
            named.join(", ")
        )
    }

    /// The number of infeasible nodes by reason, `short` being those that lack resources.
    fn reasons(
        &self,
        class: ClassIx,
        tally: &InfeasibleTally,
        short: impl Iterator<Item = (Ix, usize)>,
    ) -> Vec<ReasonCount> {
        // Nodes that would have enough GPUs, were they not limited to one for each container, are
        // listed apart.
        let mut refused: BTreeMap<InfeasibleReason, usize> = tally.refused().collect();
        if tally.apart > 0 {
            *refused.entry(InfeasibleReason::OneAtMost).or_default() += tally.apart;
        }
        let apart = |ix: Ix| if ix == GPU { tally.apart } else { 0 };
        let short = short.map(|(ix, nodes)| (ix, nodes - apart(ix)));
        let short = short.filter(|(_, nodes)| *nodes > 0);
        let of_room = short.map(|(ix, nodes)| counted(self.shortage(class, ix), nodes));
        let refused = refused.into_iter();
        let of_refusals = refused.map(|(why, nodes)| counted(why.message().to_owned(), nodes));
        of_refusals.chain(of_room).collect()
    }

    /// The resources that nodes run out of first for the class: by number of nodes, then by name.
    fn scarce(&self, class: ClassIx) -> Vec<Ix> {
        let Some(view) = self.views.get(&class) else {
            return Vec::new();
        };
        let mut short: Vec<(Ix, usize)> = view.tally.short().collect();
        short.sort_by(|a, b| {
            b.1.cmp(&a.1)
                .then_with(|| self.names.name(a.0).cmp(self.names.name(b.0)))
        });
        short.into_iter().map(|(ix, _)| ix).collect()
    }

    fn shortage(&self, class: ClassIx, ix: Ix) -> String {
        match self.classes.get(class).share() {
            Some(share) if ix == GPU => share.shortage(),
            _ if ix == PODS => "Too many pods".to_owned(),
            _ => format!("Insufficient {}", self.names.name(ix)),
        }
    }

    /// One member's amount of a resource, as text.
    fn piece(&self, class: ClassIx, ix: Ix) -> String {
        let facts = self.classes.get(class);
        match facts.share() {
            Some(share) if ix == GPU => share.message(),
            _ => {
                let amount = self.names.quantity(ix, facts.demand().get(ix));
                format!("{}: {amount}", self.names.name(ix))
            }
        }
    }

    /// The obstacle of a gang with nominated nodes that waits for terminating pods.
    pub(crate) fn waits_for_terminating(&self, key: &GangKey) -> Obstacle {
        let Some(gang) = self.gangs.get(key) else {
            return Obstacle::default();
        };
        let nodes = gang
            .nodes
            .keys()
            .filter(|at| self.nodes[**at].terminating_pods > 0);
        let (mut terminating_pods, mut places) = (0, 0);
        for at in nodes {
            terminating_pods += self.nodes[*at].terminating_pods;
            places += 1;
        }
        let mut obstacle = Obstacle::new(
            WaitReason::Waiting,
            format!(
                "it has nominated nodes; {terminating_pods} pods are terminating on {places} of them"
            ),
            "the end of those pods".into(),
        );
        obstacle.possible = gang.total.have();
        obstacle
    }

    /// The report on a waiting gang with `ahead` gangs before it in its queue, and whether it
    /// differs from the last one apart from position and estimate.
    pub(crate) fn report(
        &mut self,
        key: &GangKey,
        obstacle: &Obstacle,
        ahead: usize,
    ) -> (Arc<PlacementReport>, bool) {
        // Without a new search for evictions, its last result stands.
        let why = &obstacle.evictions;
        let same = |report: &&Arc<PlacementReport>| why.is_empty() || report.evictions == *why;
        match self.same_report(key).filter(same) {
            Some(report) if report.ahead == ahead => return (report.clone(), false),
            Some(_) => return (self.report_from(key, ahead), false),
            None => {}
        }
        let made = Arc::new(self.new_report(key, obstacle, ahead));
        let gang = self.gangs.get(key);
        let last = gang.and_then(|gang| gang.report.as_ref());
        let (report, new) = match last.filter(|last| ***last == *made) {
            Some(last) => (last.clone(), false),
            None => (made, true),
        };
        self.keep_report(key, &report);
        (report, new)
    }

    /// The last report on a gang, with its current position and estimate.
    pub(crate) fn report_from(&mut self, key: &GangKey, ahead: usize) -> Arc<PlacementReport> {
        let estimate = self.estimate_of(key, ahead);
        let gang = self.gangs.get_mut(key);
        let Some(report) = gang.and_then(|gang| gang.report.as_mut()) else {
            return Arc::default();
        };
        if report.ahead != ahead || report.estimate != estimate {
            let report = Arc::make_mut(report);
            report.ahead = ahead;
            report.estimate = estimate;
        }
        report.clone()
    }

    fn new_report(&mut self, key: &GangKey, obstacle: &Obstacle, ahead: usize) -> PlacementReport {
        let estimate = match obstacle.is_lasting() {
            true => None,
            false => self.estimate_of(key, ahead),
        };
        let Some(gang) = self.gangs.get(key) else {
            return PlacementReport::default();
        };
        let whole = gang.whole(key);
        let mut binding = obstacle.binding.clone();
        if gang.overtaken > 0 {
            let (count, queue) = (gang.overtaken, &gang.queue);
            let gangs = if count == 1 { "gang" } else { "gangs" };
            binding.push_str(&format!(
                "; {count} {gangs} behind it in queue {queue} started before it"
            ));
        }
        let mut report = PlacementReport {
            namespace: key.namespace.to_string(),
            group: key.name.to_string(),
            queue: gang.queue.clone(),
            // Members beyond the minimum start one by one.
            members_wanted: if whole { 1 } else { gang.minimum(key) },
            members_placed_possible: if whole { 0 } else { obstacle.possible },
            since: self.since(gang),
            verdict: obstacle.verdict,
            binding,
            would_fit: obstacle.would_fit.clone(),
            nodes: obstacle.nodes,
            per_reason: obstacle.per_reason.clone(),
            ahead,
            tasks: Vec::new(),
            estimate,
            evictions: obstacle.evictions.clone(),
        };
        report.tasks = self.task_reports(key);
        report
    }

    fn task_reports(&mut self, key: &GangKey) -> Vec<TaskReport> {
        let Some(gang) = self.gangs.get(key) else {
            return Vec::new();
        };
        let single = gang.tasks.len() <= 1;
        let minimum = gang.minimum(key);
        let mut tasks = Vec::new();
        let mut classes = Vec::new();
        for (task, counts) in gang.tasks.iter() {
            let first = gang.pending.iter().find_map(|(_, name)| {
                self.pods
                    .get(name)
                    .filter(|pod| pod.task == *task)
                    .map(|pod| pod.class)
            });
            let min = gang
                .spec
                .as_ref()
                .and_then(|spec| spec.min_task_member.get(task).copied());
            let each = first.map(|class| {
                let demand = &self.classes.get(class).demand().0;
                let all = demand
                    .iter()
                    .map(|(ix, n)| (*ix, self.names.whole(*ix, *n)));
                all.map(|(ix, n)| (self.names.name(ix).to_owned(), n))
                    .collect()
            });
            tasks.push(TaskReport {
                name: task.to_string(),
                wanted: min.unwrap_or(if single { minimum } else { 0 }),
                present: counts.present(),
                placeable: counts.have(),
                each: each.unwrap_or_default(),
            });
            classes.push((first, counts.pending));
        }
        for (task, (class, pending)) in tasks.iter_mut().zip(classes) {
            let Some(class) = class else { continue };
            self.refresh(class);
            let room = self.views.get(&class).map_or(0, |view| view.room);
            task.placeable += usize::try_from(room).unwrap_or(usize::MAX).min(pending);
        }
        tasks
    }
}
