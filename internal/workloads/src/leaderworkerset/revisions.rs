//! The revisions of a LeaderWorkerSet: the templates that it had, each kept in a ControllerRevision, so that groups below a
//! partition come back as they were.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::apimachinery::pkg::runtime::RawExtension;
use resources::kinds::LeaderWorkerTemplate;
use resources::leader_worker_set::{KIND, NAME, REVISION};
use serde_json::{Value, json};
use sha1::{Digest as _, Sha1};

use super::API_VERSION;
use super::groups::Groups;
use super::plan::ParsedSet;
use crate::action::{Action, Dependent, DependentKind};
use crate::ownership::{controlled_by, controller_reference};

/// How much of the hash is in names and labels.
const HASH_LENGTH: usize = 10;

/// The revisions of a set.
pub(crate) struct Revisions<'a> {
    /// The hash of the current templates.
    current: String,
    /// Their object's content.
    data: Value,
    own: Vec<&'a ControllerRevision>,
    templates: BTreeMap<String, LeaderWorkerTemplate>,
    latest: LeaderWorkerTemplate,
}

/// A text's SHA-1, in hexadecimal.
pub(crate) fn sha1_hex(text: &str) -> String {
    let digest = Sha1::digest(text.as_bytes());
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn hash_of(revision: &ControllerRevision) -> Option<&String> {
    revision.metadata.labels.as_ref()?.get(REVISION)
}

impl<'a> Revisions<'a> {
    pub(crate) fn of(set: &ParsedSet<'_>, known: &[&'a ControllerRevision]) -> Revisions<'a> {
        let data = json!({"spec": {
            "leaderWorkerTemplate": set.spec.leader_worker_template,
            "networkConfig": set.spec.network_config,
        }});
        let mut current = sha1_hex(&data.to_string());
        current.truncate(HASH_LENGTH);
        let own: Vec<&ControllerRevision> = known
            .iter()
            .copied()
            .filter(|revision| controlled_by(&revision.metadata, set.meta))
            .collect();
        let template = |revision: &&ControllerRevision| {
            let data = &revision.data.as_ref()?.0;
            let template = data.pointer("/spec/leaderWorkerTemplate")?;
            let template = serde_json::from_value(template.clone()).ok()?;
            Some((hash_of(revision)?.clone(), template))
        };
        let mut templates: BTreeMap<String, LeaderWorkerTemplate> =
            own.iter().filter_map(template).collect();
        templates.insert(current.clone(), set.spec.leader_worker_template.clone());
        Revisions {
            current,
            data,
            own,
            templates,
            latest: set.spec.leader_worker_template.clone(),
        }
    }

    /// The hash of the current templates.
    pub(crate) fn current(&self) -> &str {
        &self.current
    }

    /// The templates of a revision, if its object is there and readable.
    pub(crate) fn template(&self, revision: &str) -> Option<&LeaderWorkerTemplate> {
        self.templates.get(revision)
    }

    /// The current templates.
    pub(crate) fn latest(&self) -> &LeaderWorkerTemplate {
        &self.latest
    }

    /// Creates the object of the current templates, and deletes those that no group has once all groups have the
    /// current ones.
    pub(crate) fn actions(
        &self,
        set: &ParsedSet<'_>,
        groups: &Groups<'_>,
        wanted: u32,
    ) -> Vec<Action> {
        let mut actions = Vec::new();
        let known = self
            .own
            .iter()
            .any(|revision| hash_of(revision) == Some(&self.current));
        if !known {
            actions.push(Action::Create(Dependent::Revision(Box::new(
                self.object(set),
            ))));
        }
        let used: BTreeSet<&str> = groups
            .all()
            .filter_map(|group| group.revision.as_deref())
            .collect();
        let there = groups.all().filter(|group| group.index < wanted).count();
        let complete = u32::try_from(there).unwrap_or(u32::MAX) == wanted;
        if !complete && set.partition > 0 {
            return actions;
        }
        let old = self.own.iter().filter(|revision| {
            let hash = hash_of(revision).map(String::as_str);
            hash.is_none_or(|hash| hash != self.current && !used.contains(hash))
        });
        actions.extend(old.map(|revision| Action::Delete {
            kind: DependentKind::Revision,
            name: revision.metadata.name.clone().unwrap_or_default(),
            uid: revision.metadata.uid.clone().unwrap_or_default(),
        }));
        actions
    }

    fn object(&self, set: &ParsedSet<'_>) -> ControllerRevision {
        let last = self.own.iter().map(|revision| revision.revision).max();
        let labels = BTreeMap::from([
            (NAME.to_owned(), set.name.to_owned()),
            (REVISION.to_owned(), self.current.clone()),
        ]);
        ControllerRevision {
            metadata: ObjectMeta {
                name: Some(format!("{}-{}", set.name, self.current)),
                namespace: set.meta.namespace.clone(),
                labels: Some(labels),
                owner_references: Some(vec![controller_reference(API_VERSION, KIND, set.meta)]),
                ..ObjectMeta::default()
            },
            data: Some(RawExtension(self.data.clone())),
            revision: last.map_or(1, |last| last.saturating_add(1)),
        }
    }
}
