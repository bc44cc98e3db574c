//! The addresses behind the selectors of peers, kept for each change of a pod or of a namespace's labels.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::policy_pod::PolicyPod;
use super::{ELEMENTS_MAX, Element};
use crate::selector::LabelSelector;
use crate::services::Protocol;

/// Namespace and name of an object.
pub(super) type Key = (String, String);
type Labels = BTreeMap<String, String>;

/// The pods that a peer stands for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct GroupSelector {
    pub namespaces: Namespaces,
    pub pods: LabelSelector,
}

/// The namespaces of these pods.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Namespaces {
    /// That of the policy.
    One(String),
    /// Those with such labels.
    Matching(LabelSelector),
}

/// What is collected of the pods: their addresses, or these with the numbers of a named port.
pub(super) type GroupKey = (GroupSelector, Option<(Protocol, String)>);

impl GroupSelector {
    fn selects(&self, namespace: &str, labels: Option<&Labels>, pod: &PolicyPod) -> bool {
        let in_namespace = match &self.namespaces {
            Namespaces::One(name) => name == namespace,
            Namespaces::Matching(selector) => labels.is_some_and(|labels| selector.matches(labels)),
        };
        in_namespace && self.pods.matches(&pod.labels)
    }
}

/// The groups that lists of rules name.
#[derive(Debug, Default)]
pub(super) struct Groups {
    ids: BTreeMap<GroupKey, u64>,
    all: BTreeMap<u64, Group>,
    next: u64,
}

#[derive(Debug)]
struct Group {
    key: GroupKey,
    /// The members, each with the number of pods that have it: a pod may get the address of one that is about to go.
    members: BTreeMap<Element, u32>,
    /// The lists that name the group.
    lists: BTreeSet<u64>,
    /// The members as nodes get them, until the next change.
    sent: Option<Arc<BTreeSet<Element>>>,
}

impl Group {
    /// True if that changed the members.
    fn add(&mut self, pod: &PolicyPod) -> bool {
        let mut changed = false;
        for element in pod.elements(self.key.1.as_ref()) {
            let count = self.members.entry(element).or_default();
            *count += 1;
            changed |= *count == 1;
        }
        self.note(changed)
    }

    fn take(&mut self, pod: &PolicyPod) -> bool {
        let mut changed = false;
        for element in pod.elements(self.key.1.as_ref()) {
            if let Some(count) = self.members.get_mut(&element) {
                *count -= 1;
                if *count == 0 {
                    self.members.remove(&element);
                    changed = true;
                }
            }
        }
        self.note(changed)
    }

    fn note(&mut self, changed: bool) -> bool {
        if changed {
            self.sent = None;
        }
        changed
    }
}

impl Groups {
    /// The number of a group that a list names from now on; made if it does not exist.
    pub fn acquire(
        &mut self,
        key: &GroupKey,
        list: u64,
        pods: &BTreeMap<Key, PolicyPod>,
        namespaces: &BTreeMap<String, Labels>,
    ) -> u64 {
        let id = *self.ids.entry(key.clone()).or_insert_with(|| {
            self.next += 1;
            self.next
        });
        let group = self.all.entry(id).or_insert_with(|| {
            let mut group = Group {
                key: key.clone(),
                members: BTreeMap::new(),
                lists: BTreeSet::new(),
                sent: None,
            };
            let chosen: Vec<&str> = match &key.0.namespaces {
                Namespaces::One(name) => vec![name],
                Namespaces::Matching(selector) => {
                    let matching = namespaces.iter();
                    let matching = matching.filter(|(_, labels)| selector.matches(labels));
                    matching.map(|(name, _)| name.as_str()).collect()
                }
            };
            for namespace in chosen {
                for (_, pod) in of_namespace(pods, namespace) {
                    if key.0.pods.matches(&pod.labels) {
                        group.add(pod);
                    }
                }
            }
            group
        });
        group.lists.insert(list);
        id
    }

    /// A list does not name a group any more, which is removed if no other does.
    pub fn release(&mut self, id: u64, list: u64) {
        let Some(group) = self.all.get_mut(&id) else {
            return;
        };
        group.lists.remove(&list);
        if group.lists.is_empty() {
            let key = &group.key;
            self.ids.remove(key);
            self.all.remove(&id);
        }
    }

    /// A pod changed. Returns the lists that name a group whose members changed.
    pub fn pod_changed(
        &mut self,
        namespace: &str,
        labels: Option<&Labels>,
        old: Option<&PolicyPod>,
        new: Option<&PolicyPod>,
    ) -> BTreeSet<u64> {
        let mut lists = BTreeSet::new();
        for group in self.all.values_mut() {
            let selector = &group.key.0;
            let [old, new] =
                [old, new].map(|pod| pod.filter(|pod| selector.selects(namespace, labels, pod)));
            // Adding first keeps a member that both have.
            let mut changed = new.is_some_and(|pod| group.add(pod));
            changed |= old.is_some_and(|pod| group.take(pod));
            if changed {
                lists.extend(&group.lists);
            }
        }
        lists
    }

    /// A namespace's labels changed. Returns the lists that name a group whose members changed.
    pub fn namespace_changed(
        &mut self,
        namespace: &str,
        old: Option<&Labels>,
        new: Option<&Labels>,
        pods: &BTreeMap<Key, PolicyPod>,
    ) -> BTreeSet<u64> {
        let mut lists = BTreeSet::new();
        for group in self.all.values_mut() {
            let Namespaces::Matching(selector) = &group.key.0.namespaces else {
                continue;
            };
            let [had, has] =
                [old, new].map(|labels| labels.is_some_and(|labels| selector.matches(labels)));
            if had == has {
                continue;
            }
            let chosen = group.key.0.pods.clone();
            let mut changed = false;
            for (_, pod) in of_namespace(pods, namespace) {
                if chosen.matches(&pod.labels) {
                    changed |= if has { group.add(pod) } else { group.take(pod) };
                }
            }
            if changed {
                lists.extend(&group.lists);
            }
        }
        lists
    }

    /// The members of a group, at most [`ELEMENTS_MAX`].
    pub fn members(&mut self, id: u64) -> Option<Arc<BTreeSet<Element>>> {
        let group = self.all.get_mut(&id)?;
        let members = &group.members;
        let sent = group
            .sent
            .get_or_insert_with(|| Arc::new(members.keys().take(ELEMENTS_MAX).copied().collect()));
        Some(sent.clone())
    }

    /// The lists that name a group with more than [`ELEMENTS_MAX`] members.
    pub fn over_full(&self) -> BTreeSet<u64> {
        let all = self.all.values();
        let full = all.filter(|group| group.members.len() > ELEMENTS_MAX);
        full.flat_map(|group| group.lists.iter().copied()).collect()
    }

    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.all.is_empty() && self.ids.is_empty()
    }
}

/// The entries of a namespace.
pub(super) fn of_namespace<'a, T>(
    all: &'a BTreeMap<Key, T>,
    namespace: &str,
) -> impl Iterator<Item = (&'a Key, &'a T)> + use<'a, T> {
    let namespace = namespace.to_owned();
    let from = (namespace.clone(), String::new());
    all.range(from..)
        .take_while(move |(key, _)| key.0 == namespace)
}
