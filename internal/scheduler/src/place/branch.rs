//! The placement tree of a gang: the gang, its sub-groups, and tasks with a topology request of
//! their own. Each node of the tree (a branch) names the pods it must have and the nodes of its
//! running members. This module only builds the tree.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::class::ClassIx;
use crate::gang::{Gang, GangKey};
use crate::node::NodeIx;
use crate::pod::PodKey;
use crate::report::Obstacle;
use crate::resource::{CPU, GPU, MEMORY};
use crate::state::Scheduler;
use crate::topology::{LevelRequest, TopologyRequest};

/// Waiting members of one class, in rank order.
#[derive(Clone, Debug, Default)]
pub(super) struct MemberBatch {
    pub(super) class: ClassIx,
    pub(super) pods: Vec<PodKey>,
}

/// The pods to place: all required ones, then `needed` of the others, then as many more as fit.
#[derive(Clone, Debug, Default)]
pub(super) struct PodsToPlace {
    pub(super) required: Vec<MemberBatch>,
    pub(super) others: Vec<MemberBatch>,
    pub(super) needed: usize,
}

impl PodsToPlace {
    pub(super) fn is_empty(&self) -> bool {
        self.required.is_empty() && self.others.is_empty()
    }
}

/// A part of the gang, or the whole gang.
#[derive(Clone, Debug, Default)]
pub(super) struct Branch {
    /// Its number in the tree, in preorder.
    pub(super) id: usize,
    /// Its name in reports; empty for the gang.
    pub(super) label: String,
    pub(super) wish: LevelRequest,
    /// True if the gang cannot start without this part.
    pub(super) must: bool,
    pub(super) children: Vec<Branch>,
    /// How many optional children must start, besides those that must.
    pub(super) quorum: usize,
    pub(super) own: PodsToPlace,
    /// How many pods of this branch, at any depth, must be placed.
    pub(super) least: usize,
    /// The nodes of its running members, with the number of members on each.
    pub(super) on: BTreeMap<NodeIx, usize>,
}

impl Branch {
    /// Adds the pods that must be placed, by class.
    pub(super) fn needs(&self, into: &mut BTreeMap<ClassIx, usize>) {
        for batch in &self.own.required {
            *into.entry(batch.class).or_default() += batch.pods.len();
        }
        for child in self.children.iter().filter(|child| child.must) {
            child.needs(into);
        }
    }

    /// Adds all waiting pods, by class.
    pub(super) fn wants(&self, into: &mut BTreeMap<ClassIx, usize>) {
        for batch in self.own.required.iter().chain(&self.own.others) {
            *into.entry(batch.class).or_default() += batch.pods.len();
        }
        for child in &self.children {
            child.wants(into);
        }
    }

    fn number(&mut self, next: &mut usize) {
        self.id = *next;
        *next += 1;
        for child in &mut self.children {
            child.number(next);
        }
    }
}

/// A waiting member, as the tree's builder reads it.
struct WaitingMember<'a> {
    key: &'a PodKey,
    class: ClassIx,
    required: bool,
    rank: Option<u64>,
}

impl Scheduler {
    /// The gang's placement tree, or an obstacle if its topology request is invalid in this
    /// cluster.
    pub(super) fn tree_of(&self, key: &GangKey, gang: &Gang) -> Result<Branch, Obstacle> {
        let nothing = Default::default();
        let shape = gang.spec.as_ref().map_or(&nothing, |spec| &spec.shape);
        let wrong = |problem: &str| Obstacle::malformed(problem, gang.total.have());
        if let Some(problem) = &shape.problem {
            return Err(wrong(problem));
        }
        if let Some(class) = gang.only_kind() {
            return self.uniform_tree_of(key, gang, class);
        }
        let tasks = gang.spec.iter().flat_map(|spec| &spec.min_task_member);
        let mut short: BTreeMap<&str, usize> = tasks
            .map(|(task, min)| (&**task, min.saturating_sub(gang.task(task).have())))
            .collect();
        let by_part = !shape.is_plain();
        let by_task = !by_part && gang.hinted > 0;
        // Pods by the part or task that they are placed with; the key of the gang's own pods is
        // `None`.
        let mut leaves: BTreeMap<Option<Arc<str>>, Vec<WaitingMember>> = BTreeMap::new();
        let mut requests: BTreeMap<Arc<str>, (TopologyRequest, Option<Arc<str>>)> = BTreeMap::new();
        for (_, name) in &gang.pending {
            let Some(pod) = self.pods.get(name) else {
                continue;
            };
            let mut required = false;
            if let Some(n) = short.get_mut(&*pod.task).filter(|n| **n > 0) {
                *n -= 1;
                required = true;
            }
            let hints = pod.hints.as_deref();
            if let Some(problem) = hints.and_then(|hints| hints.problem.as_ref()) {
                return Err(wrong(problem));
            }
            let leaf = if by_part {
                pod.part.clone()
            } else if by_task {
                Some(pod.task.clone())
            } else {
                None
            };
            if let (true, Some(hints)) = (by_task, hints)
                && !(hints.request.is_free() && hints.together.is_none())
            {
                requests
                    .entry(pod.task.clone())
                    .or_insert_with(|| (hints.request.clone(), hints.together.clone()));
            }
            leaves.entry(leaf).or_default().push(WaitingMember {
                key: name,
                class: pod.class,
                required,
                rank: hints.and_then(|hints| hints.rank),
            });
        }
        let resolve = |request: &TopologyRequest| {
            request
                .resolve(&self.topology)
                .map_err(|problem| wrong(&problem.to_string()))
        };
        let mut root = Branch {
            wish: resolve(&shape.request)?,
            must: true,
            least: gang.minimum(key).saturating_sub(gang.total.have()),
            on: gang.nodes.iter().map(|(at, n)| (*at, *n)).collect(),
            ..Branch::default()
        };
        if by_part {
            let on = self.parts_on(gang, |pod| pod.part.clone());
            for part in shape.sub_groups.iter().filter(|p| p.parent.is_none()) {
                let child = self.sub_group(gang, part, &mut leaves, &on, &resolve)?;
                root.children.push(child);
            }
            for policy in &shape.policies {
                let wish = resolve(&policy.request)?;
                let mut inner = Branch {
                    label: format!("sub-groups {}", policy.name),
                    must: true,
                    ..Branch::default()
                };
                let mut started = 0;
                for (name, counts) in gang.parts.iter().filter(|(name, _)| policy.made(name)) {
                    started += usize::from(counts.have() >= policy.size);
                    let Some(members) = leaves.remove(&Some(name.clone())) else {
                        continue;
                    };
                    let needed = policy.size.saturating_sub(counts.have());
                    inner.children.push(Branch {
                        label: format!("sub-group {name}"),
                        wish: wish.clone(),
                        must: false,
                        own: self.wanted(members, needed),
                        least: needed,
                        on: on.get(name).cloned().unwrap_or_default(),
                        ..Branch::default()
                    });
                }
                inner.quorum = policy.least.saturating_sub(started);
                root.children.push(inner);
            }
        } else if by_task {
            self.add_tasks(gang, &mut root, &mut leaves, &requests, &resolve)?;
        }
        let rest: Vec<WaitingMember> = leaves.into_values().flatten().collect();
        let promised: usize = root.children.iter().map(|child| child.least).sum();
        let open = root
            .children
            .iter()
            .any(|child| child.quorum > 0 || !child.must);
        let optional = root
            .children
            .iter()
            .any(|c| c.children.iter().any(|c| !c.must));
        let needed = if open || optional {
            0
        } else {
            root.least.saturating_sub(promised)
        };
        root.own = self.wanted(rest, needed);
        self.hardest_first(&mut root);
        root.number(&mut 0);
        Ok(root)
    }

    /// The tree of a gang whose waiting members are all of one class. Does not read the members one
    /// by one.
    fn uniform_tree_of(
        &self,
        key: &GangKey,
        gang: &Gang,
        class: ClassIx,
    ) -> Result<Branch, Obstacle> {
        let request = gang
            .spec
            .as_ref()
            .map(|spec| spec.shape.request.resolve(&self.topology));
        let wish = request
            .transpose()
            .map_err(|problem| Obstacle::malformed(&problem.to_string(), gang.total.have()))?;
        let least = gang.minimum(key).saturating_sub(gang.total.have());
        let mut pods: Vec<PodKey> = gang.pending.iter().map(|(_, name)| name.clone()).collect();
        let rest = pods.split_off(least.min(pods.len()));
        let needed = least - pods.len();
        let batch = |pods: Vec<PodKey>| (!pods.is_empty()).then_some(MemberBatch { class, pods });
        Ok(Branch {
            wish: wish.unwrap_or_default(),
            must: true,
            least,
            on: gang.nodes.iter().map(|(at, n)| (*at, *n)).collect(),
            own: PodsToPlace {
                required: batch(pods).into_iter().collect(),
                others: batch(rest).into_iter().collect(),
                needed,
            },
            ..Branch::default()
        })
    }

    fn sub_group(
        &self,
        gang: &Gang,
        part: &crate::topology::SubGroup,
        leaves: &mut BTreeMap<Option<Arc<str>>, Vec<WaitingMember>>,
        on: &BTreeMap<Arc<str>, BTreeMap<NodeIx, usize>>,
        resolve: &impl Fn(&TopologyRequest) -> Result<LevelRequest, Obstacle>,
    ) -> Result<Branch, Obstacle> {
        let needed = part.minimum.saturating_sub(gang.part(&part.name).have());
        let members = leaves.remove(&Some(part.name.clone())).unwrap_or_default();
        let mut branch = Branch {
            label: format!("sub-group {}", part.name),
            wish: resolve(&part.request)?,
            must: true,
            own: self.wanted(members, needed),
            on: on.get(&part.name).cloned().unwrap_or_default(),
            least: needed,
            ..Branch::default()
        };
        let all = gang.spec.iter().flat_map(|spec| &spec.shape.sub_groups);
        for inner in all.filter(|inner| inner.parent.as_ref() == Some(&part.name)) {
            let child = self.sub_group(gang, inner, leaves, on, resolve)?;
            branch.least += child.least;
            for (at, n) in &child.on {
                *branch.on.entry(*at).or_default() += n;
            }
            branch.children.push(child);
        }
        self.hardest_first(&mut branch);
        Ok(branch)
    }

    /// Adds a branch for each task with a topology request; tasks of the same group share one
    /// branch.
    fn add_tasks(
        &self,
        gang: &Gang,
        root: &mut Branch,
        leaves: &mut BTreeMap<Option<Arc<str>>, Vec<WaitingMember>>,
        requests: &BTreeMap<Arc<str>, (TopologyRequest, Option<Arc<str>>)>,
        resolve: &impl Fn(&TopologyRequest) -> Result<LevelRequest, Obstacle>,
    ) -> Result<(), Obstacle> {
        let on = self.parts_on(gang, |pod| Some(pod.task.clone()));
        let every = root.least >= gang.total.pending;
        let mut groups: BTreeMap<Arc<str>, Branch> = BTreeMap::new();
        for (task, (request, together)) in requests {
            let Some(members) = leaves.remove(&Some(task.clone())) else {
                continue;
            };
            let needed = if every {
                members.len()
            } else {
                members.iter().filter(|member| member.required).count()
            };
            let mut wish = resolve(request)?;
            let mut child = Branch {
                label: format!("task {task}"),
                must: true,
                own: self.wanted(members, needed),
                least: needed,
                on: on.get(task).cloned().unwrap_or_default(),
                ..Branch::default()
            };
            let Some(word) = together else {
                child.wish = wish;
                root.children.push(child);
                continue;
            };
            child.wish.slices = std::mem::take(&mut wish.slices);
            let group = groups.entry(word.clone()).or_insert_with(|| Branch {
                label: format!("group {word}"),
                must: true,
                ..Branch::default()
            });
            if group.wish.is_free() {
                group.wish = wish;
            }
            group.least += child.least;
            for (at, n) in &child.on {
                *group.on.entry(*at).or_default() += n;
            }
            group.children.push(child);
        }
        for mut group in groups.into_values() {
            self.hardest_first(&mut group);
            root.children.push(group);
        }
        Ok(())
    }

    /// The nodes of running members, by part.
    fn parts_on(
        &self,
        gang: &Gang,
        part: impl Fn(&crate::pod::Pod) -> Option<Arc<str>>,
    ) -> BTreeMap<Arc<str>, BTreeMap<NodeIx, usize>> {
        let mut on: BTreeMap<Arc<str>, BTreeMap<NodeIx, usize>> = BTreeMap::new();
        if gang.nodes.is_empty() {
            return on;
        }
        for pod in gang.members.iter().filter_map(|name| self.pods.get(name)) {
            if let (true, Some(at), Some(part)) = (pod.stage.occupies(), pod.node, part(pod)) {
                *on.entry(part).or_default().entry(at).or_default() += 1;
            }
        }
        on
    }

    fn wanted(&self, mut members: Vec<WaitingMember>, mut needed: usize) -> PodsToPlace {
        if members.iter().any(|member| member.rank.is_some()) {
            members.sort_by_key(|member| member.rank.unwrap_or(u64::MAX));
        }
        let mut required: BTreeMap<ClassIx, Vec<PodKey>> = BTreeMap::new();
        let mut others: BTreeMap<ClassIx, Vec<PodKey>> = BTreeMap::new();
        let all = members.len();
        let single = members
            .iter()
            .filter(|member| !member.required)
            .map(|member| member.class)
            .try_fold(None, |seen: Option<ClassIx>, class| match seen {
                Some(seen) if seen != class => Err(()),
                _ => Ok(Some(class)),
            })
            .is_ok();
        // With one class, or if all are needed, there is no choice: the needed others become
        // required.
        let forced = single || needed >= all;
        needed = needed.saturating_sub(members.iter().filter(|member| member.required).count());
        for member in members {
            let take = member.required || (forced && needed > 0);
            if take && !member.required {
                needed -= 1;
            }
            let into = if take { &mut required } else { &mut others };
            into.entry(member.class)
                .or_default()
                .push(member.key.clone());
        }
        PodsToPlace {
            required: self.batches(required),
            others: self.batches(others),
            needed,
        }
    }

    /// The hardest batch to place first. The class's number is no criterion: it depends on event
    /// order.
    fn batches(&self, by_class: BTreeMap<ClassIx, Vec<PodKey>>) -> Vec<MemberBatch> {
        let mut batches: Vec<MemberBatch> = by_class
            .into_iter()
            .filter(|(_, pods)| !pods.is_empty())
            .map(|(class, pods)| MemberBatch { class, pods })
            .collect();
        if batches.len() > 1 {
            batches.sort_by_cached_key(|batch| {
                (
                    self.size_of(batch.class),
                    batch.pods.first().map(PodKey::ranked),
                )
            });
        }
        batches
    }

    fn size_of(&self, class: ClassIx) -> [i64; 3] {
        let demand = self.classes.get(class).demand();
        [GPU, CPU, MEMORY].map(|ix| -demand.get(ix))
    }

    /// Sorts children: parts that must start first, then those bound to one domain (the narrower
    /// level first), then the larger ones.
    fn hardest_first(&self, branch: &mut Branch) {
        branch.children.sort_by_cached_key(|child| {
            let mut needs = BTreeMap::new();
            child.needs(&mut needs);
            let sums = needs.iter().map(|(class, n)| {
                let size = self.size_of(*class);
                size.map(|one| one.saturating_mul(*n as i64))
            });
            let size = sums.fold([0_i64; 3], |sum, one| {
                [0, 1, 2].map(|i: usize| sum[i].saturating_add(one[i]))
            });
            let level = child.wish.required.map_or(0, |level| i32::from(level) + 1);
            (!child.must, -level, size, child.label.clone())
        });
    }
}
