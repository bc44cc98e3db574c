//! Owns the team that work counts for: in a namespace of a team it is that team, whatever the submitter wrote; elsewhere
//! no existing team can be named. Usage, and the limits of queues on one team, rest on it.

use serde_json::{Map, Value};

use super::owner::OWNED;
use crate::names::TEAM;
use crate::registry::Kind;

/// An object names a team that its namespace does not belong to.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "metadata.annotations[{TEAM}]: namespace {namespace:?} does not belong to team {team:?}; leave it out, or submit the work in a \
     namespace of that team"
)]
pub struct TeamRefused {
    /// The team.
    pub team: String,
    /// The object's namespace.
    pub namespace: String,
}

/// The team that an object names; an annotation comes before a label, as where it is read.
pub fn named_team(object: &Value) -> Option<&str> {
    let value = |of: &str| object["metadata"][of].get(TEAM).and_then(Value::as_str);
    value("annotations").or_else(|| value("labels"))
}

/// Sets the team of a namespace on work in it: on pods and PodGroups always, because they are what is counted, and on other
/// kinds if they name a team. Anything else stays as it is.
pub fn set_team(kind: &Kind, object: &mut Value, team: &str) {
    let counted = kind.kind == "Pod" || kind.kind == "PodGroup";
    let named = named_team(object);
    if !OWNED.contains(&kind.kind) || named == Some(team) || !counted && named.is_none() {
        return;
    }
    match &mut object["metadata"]["annotations"] {
        Value::Object(all) => {
            all.insert(TEAM.to_owned(), team.into());
        }
        empty => *empty = Map::from_iter([(TEAM.to_owned(), team.into())]).into(),
    }
}

/// Takes the team off an object, as what a controller made of an earlier template.
pub fn remove_team(object: &mut Value) {
    for of in ["annotations", "labels"] {
        if let Some(all) = object["metadata"][of].as_object_mut() {
            all.remove(TEAM);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::registry;

    #[test]
    fn work_in_a_teams_namespace_counts_for_that_team() {
        let kind = |group, kind| {
            let mut all = registry::all().iter();
            all.find(|one| (one.group, one.kind) == (group, kind))
                .unwrap()
        };
        let (pod, job, map) = (kind("", "Pod"), kind("batch", "Job"), kind("", "ConfigMap"));
        let named = json!({"metadata": {"annotations": {TEAM: "red", "a": "b"}}});
        let labelled = json!({"metadata": {"labels": {TEAM: "red"}}});
        let bare = json!({"metadata": {}});
        for (kind, object, team) in [
            (pod, &named, Some("blue")),
            (pod, &labelled, Some("blue")),
            (pod, &bare, Some("blue")),
            (job, &named, Some("blue")),
            (job, &bare, None),
            (map, &named, Some("red")),
        ] {
            let mut object = object.clone();
            set_team(kind, &mut object, "blue");
            assert_eq!(named_team(&object), team, "{}: {object}", kind.kind);
        }
        let mut cleared =
            json!({"metadata": {"annotations": {TEAM: "red"}, "labels": {TEAM: "red"}}});
        remove_team(&mut cleared);
        assert_eq!(named_team(&cleared), None);
    }
}
