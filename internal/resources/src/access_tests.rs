//! Tests of access: a table for each role.

use super::*;

fn caller(role: Role, namespaces: Option<&[&str]>) -> Caller {
    Caller {
        user: "ada".to_owned(),
        groups: Vec::new(),
        role,
        namespaces: namespaces.map(|all| all.iter().map(|n| (*n).to_owned()).collect()),
    }
}

/// `verb group/resource[/subresource] [@namespace] [#name]`
fn may(caller: &Caller, text: &str) -> bool {
    let mut words = text.split(' ');
    let verb = words.next().unwrap();
    let mut parts = words.next().unwrap().split('/');
    let mut request = Attributes {
        verb,
        group: parts.next().unwrap(),
        resource: parts.next().unwrap(),
        subresource: parts.next(),
        ..Attributes::default()
    };
    for word in words {
        match word.split_at(1) {
            ("@", namespace) => request.namespace = Some(namespace),
            (_, name) => request.name = Some(name),
        }
    }
    permits(caller, &request)
}

fn check(caller: &Caller, allowed: &[&str], refused: &[&str]) {
    for text in allowed {
        assert!(
            may(caller, text),
            "{:?} should be allowed: {text}",
            caller.role
        );
    }
    for text in refused {
        assert!(
            !may(caller, text),
            "{:?} should be refused: {text}",
            caller.role
        );
    }
}

#[test]
fn administrators_and_components_may_do_everything() {
    for caller in [caller(Role::Admin, None), Caller::component("scheduler")] {
        check(
            &caller,
            &[
                "delete /nodes #n",
                "get /secrets @muster-system",
                "create /pods/binding @a",
            ],
            &[],
        );
    }
}

#[test]
fn a_lead_runs_its_namespaces_and_reads_what_is_shared() {
    check(
        &caller(Role::Lead, Some(&["a"])),
        &[
            "create kubeflow.org/pytorchjobs @a",
            "delete /pods @a",
            "create /pods/eviction @a",
            "patch kubeflow.org/pytorchjobs/scale @a",
            "get /secrets @a",
            "create /serviceaccounts @a",
            "list /nodes",
            "get /namespaces #a",
            "list scheduling.volcano.sh/queues",
            "create authorization.k8s.io/selfsubjectaccessreviews",
        ],
        &[
            "get /pods @b",
            "list /pods",
            "create /pods/binding @a",
            "update /pods/status @a",
            "update /resourcequotas @a",
            "create /namespaces",
            "delete /nodes #n",
            "patch scheduling.volcano.sh/queues #q",
        ],
    );
}

#[test]
fn a_member_runs_work_and_reads_the_rest() {
    check(
        &caller(Role::Member, Some(&["a"])),
        &[
            "create kubeflow.org/pytorchjobs @a",
            "patch batch/jobs @a",
            "deletecollection /pods @a",
            "get /pods/log @a",
            "create /configmaps @a",
            "create /secrets @a",
            "list /resourcequotas @a",
            "list /nodes",
        ],
        &[
            "create /serviceaccounts @a",
            "delete /limitranges @a",
            "create kubeflow.org/pytorchjobs @b",
            "create /pods/binding @a",
            "update kubeflow.org/pytorchjobs/status @a",
            "get /secrets @muster-system",
        ],
    );
}

#[test]
fn nobody_but_administrators_reads_the_systems_secrets() {
    for role in [Role::Lead, Role::Member, Role::Viewer] {
        check(
            &caller(role, None),
            &["list /pods", "get /pods @muster-system"],
            &[
                "get /secrets @muster-system",
                "list /secrets",
                "watch /secrets",
            ],
        );
    }
}

#[test]
fn a_viewer_reads_all_but_secrets() {
    check(
        &caller(Role::Viewer, Some(&["a"])),
        &[
            "get /pods @a",
            "get /pods/log @a",
            "watch kubeflow.org/pytorchjobs @a",
            "list /nodes",
        ],
        &[
            "create /pods @a",
            "delete /pods @a",
            "get /secrets @a",
            "get /pods @b",
        ],
    );
}

#[test]
fn a_node_keeps_to_what_its_agent_needs() {
    check(
        &Caller::node("n1"),
        &[
            "create /nodes #n1",
            "get /nodes #n1",
            "patch /nodes/status #n1",
            "watch /pods",
            "patch /pods/status @a",
            "delete /pods @a",
            "create /events @a",
            "get /secrets @a",
            "get /configmaps @a",
            "update coordination.k8s.io/leases @kube-node-lease #n1",
        ],
        &[
            "patch /nodes/status #n2",
            "patch /nodes #n2",
            "create /pods @a",
            "update /pods @a",
            "list /secrets @a",
            "get /secrets @muster-system",
            "update coordination.k8s.io/leases @kube-node-lease #n2",
            "create kubeflow.org/pytorchjobs @a",
            "delete /nodes #n1",
        ],
    );
    assert_eq!(Caller::node("n1").node_name(), Some("n1"));
}

#[test]
fn a_node_without_a_name_may_do_nothing() {
    let mut nameless = Caller::node("n1");
    nameless.user = "somebody".to_owned();
    check(&nameless, &[], &["get /nodes #n1", "watch /pods"]);
}
