//! The decision on real definitions of ours, changed as other operators have them.

use serde_json::{Value, json};

use super::*;

const MANAGER: &str = "muster";

fn ours(name: &str) -> CustomResourceDefinition {
    let all = resources::crds::all();
    let mut named = all
        .into_iter()
        .filter(|crd| crd.metadata.name.as_deref() == Some(name));
    named.next().unwrap()
}

/// The installed definition of a kind: ours, with changes to its JSON, by another manager.
fn installed(name: &str, change: impl Fn(&mut Value)) -> CustomResourceDefinition {
    let mut json = serde_json::to_value(ours(name)).unwrap();
    json["metadata"]["labels"] = json!({});
    json["metadata"]["managedFields"] = json!([
        {"manager": "kube-apiserver", "operation": "Update", "subresource": "status"},
        {"manager": "kubectl-client-side-apply", "operation": "Update"},
    ]);
    change(&mut json);
    serde_json::from_value(json).unwrap()
}

const QUEUES: &str = "queues.scheduling.volcano.sh";
const JOBS: &str = "pytorchjobs.kubeflow.org";
const RAY: &str = "rayclusters.ray.io";

fn fields<'a>(json: &'a mut Value, part: &str) -> &'a mut Value {
    &mut json["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"][part]
}

#[test]
fn a_kind_is_created_updated_or_shared() {
    assert_eq!(decide(&ours(QUEUES), None, MANAGER), CrdDecision::Create);
    let mine = installed(QUEUES, |json| {
        json["metadata"]["managedFields"][1]["manager"] = json!(MANAGER);
    });
    assert_eq!(
        decide(&ours(QUEUES), Some(&mine), MANAGER),
        CrdDecision::Update
    );
    // As helm installs it from the chart: with the label, and without an entry of Muster's own.
    for name in [RAY, QUEUES, JOBS] {
        let label = |value: &str| {
            installed(name, |json| {
                json["metadata"]["labels"] = json!({"app.kubernetes.io/managed-by": value});
            })
        };
        let decided =
            |existing: CustomResourceDefinition| decide(&ours(name), Some(&existing), MANAGER);
        assert_eq!(decided(label("muster")), CrdDecision::Adopt, "{name}");
        let theirs = decided(label("kuberay"));
        assert!(matches!(theirs, CrdDecision::Share(_)), "{theirs:?}");
        // `muster crds` applied it, and another program changed it since: its fields are not taken over.
        let mut changed = label("muster");
        let entries = changed.metadata.managed_fields.as_mut().unwrap();
        entries[1].manager = Some(MANAGER.to_owned());
        assert_eq!(decided(changed), CrdDecision::Update, "{name}");
    }

    let shared = |name: &str, change: &dyn Fn(&mut Value)| match decide(
        &ours(name),
        Some(&installed(name, change)),
        MANAGER,
    ) {
        CrdDecision::Share(notes) => notes,
        other => panic!("{name}: {other:?}"),
    };
    let same = shared(QUEUES, &|_| {});
    assert_eq!(same.owner, "another operator (kubectl-client-side-apply)");
    assert!(same.missing.is_empty() && !same.inert, "{same:?}");
    let helm = shared(QUEUES, &|json| {
        json["metadata"]["annotations"] = json!({"meta.helm.sh/release-name": "volcano"});
        let spec = fields(json, "spec")["properties"].as_object_mut().unwrap();
        spec.remove("namespaceSelector");
        let status = fields(json, "status")["properties"]
            .as_object_mut()
            .unwrap();
        status.remove("share");
    });
    assert_eq!(helm.owner, "helm's release volcano");
    assert_eq!(helm.missing, ["spec.namespaceSelector", "status.share"]);
    let open = shared(JOBS, &|json| {
        *fields(json, "spec") =
            json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    });
    assert!(open.missing.is_empty(), "{open:?}");
    let more = shared(QUEUES, &|json| {
        let mut alpha = json["spec"]["versions"][0].clone();
        alpha["name"] = json!("v1alpha1");
        alpha["storage"] = json!(false);
        json["spec"]["versions"]
            .as_array_mut()
            .unwrap()
            .insert(0, alpha);
    });
    assert!(more.missing.is_empty(), "{more:?}");
    // Muster does not run the kind, so any definition will do.
    let inert = shared(RAY, &|json| {
        json["spec"]["versions"][0]["name"] = json!("v1alpha1");
    });
    assert!(inert.inert);
    assert!(is_needed(&ours(QUEUES)) && is_needed(&ours(JOBS)) && !is_needed(&ours(RAY)));
}

#[test]
fn a_kind_that_muster_cannot_use_is_a_conflict_with_a_reason_and_a_remedy() {
    type Change = fn(&mut Value);
    let cases: [(&str, Change, &str); 6] = [
        (
            QUEUES,
            |json| json["spec"]["versions"][0]["name"] = json!("v1alpha1"),
            "it serves v1alpha1 instead of v1beta1",
        ),
        (
            QUEUES,
            |json| json["spec"]["versions"][0]["served"] = json!(false),
            "instead of v1beta1",
        ),
        (
            QUEUES,
            |json| json["spec"]["scope"] = json!("Namespaced"),
            "its objects are Namespaced instead of Cluster",
        ),
        (
            QUEUES,
            |json| json["spec"]["names"]["kind"] = json!("Line"),
            "its kind is Line",
        ),
        (
            JOBS,
            |json| json["spec"]["versions"][0]["subresources"] = json!({}),
            "has no status subresource",
        ),
        (
            JOBS,
            |json| {
                let root = &mut json["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
                let properties = root["properties"].as_object_mut().unwrap();
                properties.remove("spec");
            },
            "has no field spec",
        ),
    ];
    for (name, change, text) in cases {
        let found = decide(&ours(name), Some(&installed(name, change)), MANAGER);
        let CrdDecision::Conflict { reason, remedy } = found else {
            panic!("{text}: {found:?}")
        };
        assert!(reason.contains(text), "{text}: {reason}");
        assert!(remedy.contains("--force-conflicts"), "{remedy}");
        assert_eq!(remedy.contains("--kinds none"), name == JOBS, "{remedy}");
    }
}
