//! Pods that pass a level, each with the smallest changes that make it fail one check, for tables of tests.

use serde_json::{Value, json};

/// A pod that passes the baseline.
pub(super) fn baseline() -> Value {
    json!({"metadata": {"name": "x"}, "spec": {
        "containers": [{"name": "a"}, {"name": "b"}],
        "initContainers": [{"name": "i"}],
        "ephemeralContainers": [{"name": "e"}],
    }})
}

/// A pod that passes the restricted level.
pub(super) fn restricted() -> Value {
    let container = |name: &str| {
        json!({"name": name, "securityContext": {
            "allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]},
        }})
    };
    json!({"metadata": {"name": "x"}, "spec": {
        "securityContext": {"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [container("a"), container("b")],
        "initContainers": [container("i")],
        "ephemeralContainers": [container("e")],
    }})
}

/// A pod that requests access to the entire host.
pub(super) fn host_pod() -> Value {
    with(
        baseline(),
        &[
            ("/spec/hostNetwork", json!(true)),
            (
                "/spec/containers/0/securityContext",
                json!({"privileged": true}),
            ),
        ],
    )
}

/// A pod with some members replaced, each by its JSON pointer; absent objects on the way are created, list items must
/// exist. A null removes the member.
pub(super) fn with(mut pod: Value, changes: &[(&str, Value)]) -> Value {
    for (pointer, value) in changes {
        let mut steps: Vec<&str> = pointer.split('/').skip(1).collect();
        let last = steps.pop().expect("a pointer names a member");
        let mut at = &mut pod;
        for step in steps {
            at = match step.parse::<usize>() {
                Ok(index) => &mut at[index],
                Err(_) => &mut at[step],
            };
        }
        match last.parse::<usize>() {
            Ok(index) => at[index] = value.clone(),
            Err(_) => at[last] = value.clone(),
        }
    }
    pod
}

/// The lists of containers, each with the name of its first one.
pub(super) const LISTS: [(&str, &str); 3] = [
    ("initContainers", "i"),
    ("containers", "a"),
    ("ephemeralContainers", "e"),
];
