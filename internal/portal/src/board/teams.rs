//! Teams as the pages show them: namespaces and members, from the objects that make a team.

use std::collections::BTreeMap;

use administration::team::{Members, members_of};
use resources::names::TEAM;

use super::Board;

/// One team.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TeamRow {
    /// Its name, which is also that of its queue.
    pub name: String,
    /// Its namespaces.
    pub namespaces: Vec<String>,
    /// Its members with their roles.
    pub members: Members,
}

impl TeamRow {
    /// The members with the words for their roles.
    pub fn roles(&self) -> Vec<(&str, &'static str)> {
        let members = self.members.iter();
        members
            .map(|(user, role)| (user.as_str(), role.as_str()))
            .collect()
    }
}

impl Board {
    /// The annotations of a team's namespace; none for another namespace. The caller checks that the reader may see it.
    pub fn team_annotations(&self, namespace: &str) -> BTreeMap<String, String> {
        let all = self.team_namespaces.state().into_iter();
        let mut own = all.filter(|one| one.metadata.name.as_deref() == Some(namespace));
        let found = own.next();
        let found = found.and_then(|one| one.metadata.annotations.clone());
        found.unwrap_or_default()
    }

    /// The teams of which the reader may see at least one namespace, by name.
    pub fn teams(&self, sees: impl Fn(&str) -> bool) -> Vec<TeamRow> {
        let mut teams: BTreeMap<String, TeamRow> = BTreeMap::new();
        for namespace in self.team_namespaces.state() {
            let meta = &namespace.metadata;
            let team = meta.labels.as_ref().and_then(|labels| labels.get(TEAM));
            let (Some(team), Some(name)) = (team, &meta.name) else {
                continue;
            };
            let row = teams.entry(team.clone()).or_default();
            row.name.clone_from(team);
            row.namespaces.push(name.clone());
        }
        teams.retain(|_, team| team.namespaces.iter().any(|name| sees(name)));
        for binding in self.team_bindings.state() {
            let meta = &binding.metadata;
            let team = meta.labels.as_ref().and_then(|labels| labels.get(TEAM));
            let Some(row) = team.and_then(|team| teams.get_mut(team)) else {
                continue;
            };
            // A binding elsewhere with the label is not the team's.
            let here = meta.namespace.as_ref();
            if here.is_some_and(|here| row.namespaces.contains(here)) {
                let binding = serde_json::to_value(&*binding).unwrap_or_default();
                row.members.extend(members_of([&binding]));
            }
        }
        for team in teams.values_mut() {
            team.namespaces.sort();
        }
        teams.into_values().collect()
    }
}
