//! The CustomResourceDefinitions of the custom kinds. A definition has its schema from the kind's Rust type, and its
//! names, columns, /scale and versions from the kind's registration, so that `kubectl get` prints the same in both
//! engines. `api/crds/*.yaml` is their text; a test compares, and rewrites the files when run with `MUSTER_BLESS=1`.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceColumnDefinition, CustomResourceDefinition, CustomResourceSubresourceScale,
};

use crate::inert_kinds;
use crate::registry::{self, Kind, TableColumn};

/// All CustomResourceDefinitions, in name order.
pub fn all() -> Vec<CustomResourceDefinition> {
    let mut all: Vec<_> = registry::all().iter().filter_map(of).collect();
    all.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
    all
}

/// The definition of a kind; `None` for a kind that Kubernetes has built in.
pub fn of(kind: &Kind) -> Option<CustomResourceDefinition> {
    let mut crd = kind.definition?();
    let names = &mut crd.spec.names;
    names.singular = Some(kind.singular.to_owned());
    names.short_names = texts(kind.short_names);
    names.categories = texts(kind.categories);
    let columns: Vec<_> = kind.columns.iter().filter_map(column).collect();
    for version in &mut crd.spec.versions {
        version.additional_printer_columns = Some(columns.clone());
        if let Some(subresources) = &mut version.subresources {
            subresources.scale = kind.scale.map(|paths| CustomResourceSubresourceScale {
                label_selector_path: paths.label_selector.map(str::to_owned),
                spec_replicas_path: paths.spec_replicas.to_owned(),
                status_replicas_path: paths.status_replicas.to_owned(),
            });
        }
    }
    // Other versions have the same schema; the objects are stored under the first.
    let others = registry::served().filter(|other| other.is(kind) && other.version != kind.version);
    for other in others {
        if let Some(mut version) = crd.spec.versions.first().cloned() {
            version.name = other.version.to_owned();
            version.storage = false;
            crd.spec.versions.push(version);
        }
    }
    // The label distinguishes the definition from another operator's of the same kind, whichever program applied it.
    let labels = crd.metadata.labels.get_or_insert_default();
    labels.insert(
        inert_kinds::LABEL.0.to_owned(),
        inert_kinds::LABEL.1.to_owned(),
    );
    Some(crd)
}

/// A table's column as a definition has it; `None` for the name, which kube-apiserver adds itself, and for a column
/// that only Muster's own server can compute.
fn column(column: &TableColumn) -> Option<CustomResourceColumnDefinition> {
    if column.format == "name" {
        return None;
    }
    Some(CustomResourceColumnDefinition {
        description: Some(column.description.to_owned()),
        format: None,
        json_path: column.source.json_path()?,
        name: column.name.to_owned(),
        priority: (column.priority != 0).then_some(column.priority),
        type_: column.source.definition_type(column.type_).to_owned(),
    })
}

fn texts(words: &[&str]) -> Option<Vec<String>> {
    (!words.is_empty()).then(|| words.iter().map(|word| (*word).to_owned()).collect())
}
