//! Tests of callers. The tests of `rbac` cover the rights of users, those of `admission` the rights
//! of nodes.

use super::*;

#[test]
fn only_a_member_of_the_nodes_group_is_a_node() {
    assert_eq!(Caller::node("n1").node_name(), Some("n1"));
    let mut nameless = Caller::node("n1");
    nameless.user = "somebody".to_owned();
    assert_eq!(nameless.node_name(), None);
    let mut outside = Caller::node("n1");
    outside.groups = vec![AUTHENTICATED_GROUP.to_owned()];
    assert_eq!(outside.node_name(), None);
}

#[test]
fn unlimited_are_masters_and_components_only() {
    assert!(Caller::component("scheduler").is_unlimited());
    assert!(Caller::user("root", [MASTERS_GROUP.to_owned()]).is_unlimited());
    assert!(!Caller::user("ann", UserRole::Admin.groups(None)).is_unlimited());
    assert!(!Caller::node("n1").is_unlimited());
    assert!(!Caller::anonymous().is_unlimited());
}

#[test]
fn a_users_groups_say_the_role_and_where_it_holds() {
    let listed = ["a".to_owned(), "b".to_owned()];
    let table = [
        (UserRole::Admin, None, vec!["muster:users", "muster:admin"]),
        (
            UserRole::Admin,
            Some(&listed[..]),
            vec!["muster:users", "muster:admin"],
        ),
        (
            UserRole::Member,
            None,
            vec!["muster:users", "muster:member"],
        ),
        (
            UserRole::Lead,
            Some(&listed[..]),
            vec!["muster:users", "muster:lead:a", "muster:lead:b"],
        ),
        (UserRole::Viewer, Some(&listed[..0]), vec!["muster:users"]),
    ];
    for (role, namespaces, groups) in table {
        assert_eq!(role.groups(namespaces), groups, "{role:?} {namespaces:?}");
    }
}

#[test]
fn a_service_account_is_known_by_its_user_name() {
    let caller = Caller::service_account("team", "builder");
    assert_eq!(caller.user, "system:serviceaccount:team:builder");
    assert_eq!(
        caller.groups,
        [
            "system:serviceaccounts",
            "system:serviceaccounts:team",
            "system:authenticated"
        ]
    );
    assert_eq!(service_account_of(&caller.user), Some(("team", "builder")));
    for text in [
        "ann",
        "system:serviceaccount:team",
        "system:serviceaccount::x",
        "system:serviceaccount:a:b:c",
    ] {
        assert_eq!(service_account_of(text), None, "{text}");
    }
}

#[test]
fn a_bearer_token_is_read_whatever_the_scheme_is_capitalised_like() {
    for (value, token) in [
        ("Bearer t", Some("t")),
        ("bearer  t ", Some("t")),
        ("Basic t", None),
        ("Bearer", None),
        ("", None),
    ] {
        assert_eq!(bearer_token(value), token, "{value}");
    }
}
