//! How groups get a new template: from the last one down to the partition, so that at most `maxUnavailable` groups are
//! missing, with up to `maxSurge` more meanwhile.

use std::collections::BTreeSet;

use super::groups::{Group, Groups};
use super::plan::{GroupPlan, ParsedSet};
use super::revisions::Revisions;

/// The number of groups that should be there: those that are wanted, and more while a rollout goes on. Once the groups
/// that lack the new template, or are not ready with it, are fewer than the surge, the surge shrinks with them.
pub(crate) fn wanted(set: &ParsedSet<'_>, groups: &Groups<'_>, current: &str) -> u32 {
    let below = |group: &&Group<'_>| group.index < set.replicas;
    let moving = |group: &&Group<'_>| group.index >= set.partition;
    let outdated = groups.all().filter(below).filter(moving);
    let outdated = outdated.filter(|group| !group.has(current)).count();
    let surge = groups.all().any(|group| {
        (set.replicas..set.replicas.saturating_add(set.max_surge)).contains(&group.index)
    });
    if outdated == 0 && !surge {
        return set.replicas;
    }
    let done = groups
        .all()
        .filter(below)
        .filter(|group| group.is_ready() && (group.has(current) || group.index < set.partition));
    let done = u32::try_from(done.count()).unwrap_or(u32::MAX);
    let unready = set.replicas.saturating_sub(done);
    let more = if unready > set.max_surge {
        set.max_surge
    } else {
        unready.saturating_sub(set.max_unavailable)
    };
    set.replicas.saturating_add(more)
}

/// The groups that are deleted now, so that they come back with the current template.
pub(crate) fn to_replace(
    set: &ParsedSet<'_>,
    groups: &Groups<'_>,
    current: &str,
    wanted: u32,
) -> BTreeSet<u32> {
    let serving = groups.all().filter(|group| group.index < wanted);
    let ready = serving.filter(|group| group.is_ready()).count();
    let ready = u32::try_from(ready).unwrap_or(u32::MAX);
    let least = set.replicas.saturating_sub(set.max_unavailable);
    let mut spare = ready.saturating_sub(least);
    let mut chosen = BTreeSet::new();
    let all: Vec<&Group<'_>> = groups.all().collect();
    for group in all.into_iter().rev() {
        let moves = (set.partition..set.replicas).contains(&group.index);
        if !moves || group.has(current) || group.is_ending() {
            continue;
        }
        // A group that serves nothing costs nothing.
        if group.is_ready() {
            if spare == 0 {
                continue;
            }
            spare -= 1;
        }
        chosen.insert(group.index);
    }
    chosen
}

/// The template of a group's new pods: of its pods that are there; else, below the partition, of the other groups there;
/// else the current one.
pub(crate) fn template<'t>(
    set: &ParsedSet<'_>,
    groups: &Groups<'_>,
    revisions: &'t Revisions<'_>,
    index: u32,
) -> GroupPlan<'t> {
    let own = groups
        .get(index)
        .and_then(|group| group.revision.as_deref());
    let below = index < set.partition;
    let other = || {
        let mut others = groups
            .all()
            .filter(|group| below && group.index < set.partition);
        others.find_map(|group| group.revision.as_deref())
    };
    let named = own.or_else(other).unwrap_or(revisions.current());
    let found = revisions.template(named).map(|template| (named, template));
    let (revision, template) = match found {
        Some(found) => found,
        // Its object is gone: it can only get the current one.
        None => (revisions.current(), revisions.latest()),
    };
    GroupPlan::new(set, revision, template)
}
