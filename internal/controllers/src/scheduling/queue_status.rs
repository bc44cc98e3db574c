//! The queues' status from the scheduler's own view, in the form that the CLI, the API and the
//! pages show.

use std::collections::{BTreeMap, BTreeSet};

use resources::amounts::Amounts;
use resources::queue_status::{QueueUsageStatus, ResourceUsageStatus, amount};
use scheduler::QueueView;

/// Every queue by name.
pub(super) fn standings(views: &BTreeMap<String, QueueView>) -> BTreeMap<String, QueueUsageStatus> {
    let of = |(name, view): (&String, &QueueView)| (name.clone(), queue_status(name, view));
    views.iter().map(of).collect()
}

fn queue_status(name: &str, view: &QueueView) -> QueueUsageStatus {
    let lists = [
        &view.allocated,
        &view.requested,
        &view.entitled,
        &view.deserved,
        &view.guaranteed,
        &view.ceiling,
        &view.user_limit,
        &view.team_limit,
    ];
    let known: BTreeSet<&str> = lists
        .iter()
        .flat_map(|list| list.iter().map(|(name, _)| name))
        .collect();
    let held = |all: &BTreeMap<String, Amounts>| {
        let words = |list: &Amounts| {
            let pairs = list
                .iter()
                .map(|(name, n)| (name.to_owned(), amount(name, n)));
            pairs.collect::<BTreeMap<String, String>>()
        };
        let all = all.iter().map(|(who, list)| (who.clone(), words(list)));
        all.collect::<BTreeMap<String, BTreeMap<String, String>>>()
    };
    QueueUsageStatus {
        name: name.to_owned(),
        parent: view.parent.clone(),
        weight: view.weight as f64 / 1000.0,
        share: view.share,
        dominant: view.dominant.clone(),
        share_of_entitled: view.share_of_entitled,
        above: view.above.clone(),
        resources: known.into_iter().map(|name| resource(name, view)).collect(),
        users: held(&view.users),
        teams: held(&view.teams),
        waiting: view.line.clone(),
        faults: view.faults.clone(),
    }
}

fn resource(name: &str, view: &QueueView) -> ResourceUsageStatus {
    let listed = |list: &Amounts| {
        let found = list.iter().find(|(own, _)| *own == name);
        found.map(|(_, n)| n)
    };
    let words = |n: i64| amount(name, n);
    let used = view.allocated.get(name);
    let deserved = listed(&view.deserved);
    let own = deserved.unwrap_or(view.entitled.get(name));
    ResourceUsageStatus {
        resource: name.to_owned(),
        used: words(used),
        fixed: words(view.fixed.get(name)),
        requested: words(view.requested.get(name)),
        entitled: words(view.entitled.get(name)),
        deserved: deserved.map(words),
        guaranteed: listed(&view.guaranteed).map(words),
        borrowed: words((used - own).max(0)),
        at_most: listed(&view.ceiling).map(words),
        user_limit: listed(&view.user_limit).map(words),
        team_limit: listed(&view.team_limit).map(words),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_allocation_beyond_the_quota_is_borrowed_and_absent_bounds_are_none() {
        let mut view = QueueView::default();
        for (list, gpus) in [
            (&mut view.allocated, 6),
            (&mut view.deserved, 4),
            (&mut view.ceiling, 8),
            (&mut view.entitled, 6),
        ] {
            list.set("nvidia.com/gpu", gpus);
        }
        view.allocated.set("cpu", 1500);
        view.entitled.set("cpu", 500);
        view.user_limit.set("nvidia.com/gpu.H100", 2);
        let standing = queue_status("q", &view);
        let [cpu, gpus, h100] = &standing.resources[..] else {
            panic!("{standing:?}")
        };
        assert_eq!((cpu.used.as_str(), cpu.borrowed.as_str()), ("1500m", "1"));
        assert_eq!(
            (gpus.borrowed.as_str(), gpus.at_most.as_deref()),
            ("2", Some("8"))
        );
        assert_eq!((&gpus.guaranteed, &cpu.deserved), (&None, &None));
        assert_eq!(h100.user_limit.as_deref(), Some("2"));
    }
}
