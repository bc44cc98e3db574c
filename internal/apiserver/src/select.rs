//! Owns the selection of a kind's objects for a list, a watch or a collection's deletion: the
//! prefix and the selectors.

use resources::selector::{FieldSelector, LabelSelector};
use store::EntryMeta;

use crate::call::Call;
use crate::limits::MOST_REQUIREMENTS;
use crate::status::Failure;

/// A selection of objects.
#[derive(Debug, Clone)]
pub(crate) struct ObjectSelection {
    /// The key prefix of the objects.
    pub(crate) prefix: String,
    labels: LabelSelector,
    fields: FieldSelector,
}

impl ObjectSelection {
    /// Reads the request's namespace, name and selectors.
    pub(crate) fn of(call: &Call) -> Result<Self, Failure> {
        let kind = call.kind;
        let labels = match call.params.get("labelSelector") {
            Some(text) => LabelSelector::parse(text)
                .map_err(|error| Failure::bad_request(error.to_string()))?,
            None => LabelSelector::everything(),
        };
        let text = call.params.get("fieldSelector").unwrap_or_default();
        let mut fields =
            FieldSelector::parse(text).map_err(|error| Failure::bad_request(error.to_string()))?;
        let most = labels.requirements().len().max(fields.terms().len());
        if most > MOST_REQUIREMENTS {
            return Err(Failure::bad_request(format!(
                "the selector has {most} requirements; at most {MOST_REQUIREMENTS} are compared with every object"
            )));
        }
        if let Some((path, _, _)) = fields
            .terms()
            .iter()
            .find(|(path, _, _)| !kind.is_selectable(path))
        {
            let (version, resource) = (kind.version, kind.plural);
            return Err(Failure::bad_request(format!(
                "Unable to find \"{}/{version}, Resource={resource}\" that match label selector \"{labels}\", field selector \"{text}\": field label not supported: {path}",
                kind.group
            )));
        }
        if let Some(name) = &call.name {
            // A watch of one object; the name is matched like a field selector.
            let terms = [text, &format!("metadata.name={name}")].join(",");
            fields = FieldSelector::parse(&terms)
                .map_err(|error| Failure::bad_request(error.to_string()))?;
        }
        Ok(ObjectSelection {
            prefix: kind.prefix(call.namespace.as_deref()),
            labels,
            fields,
        })
    }

    /// True if every object under the prefix is selected.
    pub(crate) fn is_everything(&self) -> bool {
        self.labels.is_everything() && self.fields.is_everything()
    }

    /// True if an object is selected.
    pub(crate) fn takes(&self, meta: &EntryMeta) -> bool {
        self.labels.matches(&meta.labels) && self.fields.matches(&meta.fields)
    }
}
