//! Tests of RBAC: tables of permitted requests for rules and for Muster's roles, and properties of covering.

use k8s_openapi::api::rbac::v1::PolicyRule;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::access::{Caller, RequestAttributes, UserRole};
use crate::registry;

fn rule(value: Value) -> PolicyRule {
    serde_json::from_value(value).unwrap()
}

/// `verb group/resource[/subresource] [@namespace] [#name]`
fn request(text: &str) -> RequestAttributes<'_> {
    let mut words = text.split(' ');
    let verb = words.next().unwrap();
    let mut parts = words.next().unwrap().split('/');
    let mut request = RequestAttributes {
        verb,
        group: parts.next().unwrap(),
        resource: parts.next().unwrap(),
        subresource: parts.next(),
        ..RequestAttributes::default()
    };
    for word in words {
        match word.split_at(1) {
            ("@", namespace) => request.namespace = Some(namespace),
            (_, name) => request.name = Some(name),
        }
    }
    request
}

fn put(objects: &mut PolicyObjects, object: &Value) {
    let kind = registry::of(object).unwrap();
    let text = |field: &str| object["metadata"][field].as_str();
    let key = kind.key(text("namespace"), text("name").unwrap());
    objects.put(&key, object.to_string().as_bytes()).unwrap();
}

/// The policy of a new server with the namespaces `a` and `b`.
fn first_policy() -> RbacPolicy {
    let mut objects = PolicyObjects::default();
    let mut roles = defaults::cluster_roles();
    roles.sort_by_key(|role| role["metadata"]["name"].to_string());
    aggregate(&mut roles);
    let bindings = ["a", "b", "muster-system", "kube-system"]
        .into_iter()
        .flat_map(defaults::role_bindings);
    for object in roles
        .into_iter()
        .chain(defaults::cluster_role_bindings())
        .chain(bindings)
    {
        put(&mut objects, &object);
    }
    RbacPolicy::new(&objects)
}

fn user(role: UserRole, namespaces: Option<&[&str]>) -> Caller {
    let listed: Option<Vec<String>> =
        namespaces.map(|all| all.iter().map(|one| (*one).to_owned()).collect());
    Caller::user("ada", role.groups(listed.as_deref()))
}

#[track_caller]
fn check(policy: &RbacPolicy, caller: &Caller, allowed: &[&str], refused: &[&str]) {
    for text in allowed {
        assert!(
            policy.permits(caller, &request(text)),
            "{:?} should be allowed: {text}",
            caller.groups
        );
    }
    for text in refused {
        assert!(
            !policy.permits(caller, &request(text)),
            "{:?} should be refused: {text}",
            caller.groups
        );
    }
}

#[test]
fn what_a_rule_permits() {
    let table = [
        (
            json!({"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]}),
            vec!["get /pods @a #p", "list /pods @a"],
            vec![
                "create /pods @a",
                "get /pods/log @a #p",
                "get /secrets @a",
                "get batch/pods @a",
            ],
        ),
        (
            json!({"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}),
            vec!["get /pods @a", "impersonate /users #x", "get x/y/z @a"],
            vec![],
        ),
        (
            json!({"apiGroups": [""], "resources": ["pods/log"], "verbs": ["get"]}),
            vec!["get /pods/log @a #p"],
            vec!["get /pods @a #p", "get /pods/status @a #p"],
        ),
        (
            json!({"apiGroups": ["batch"], "resources": ["*/scale"], "verbs": ["update"]}),
            vec!["update batch/jobs/scale @a #j"],
            vec!["update batch/jobs @a #j", "update batch/jobs/status @a #j"],
        ),
        (
            json!({"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["s"], "verbs": ["get", "create"]}),
            vec!["get /secrets @a #s"],
            vec!["get /secrets @a #t", "create /secrets @a"],
        ),
        (
            json!({"nonResourceURLs": ["/metrics"], "verbs": ["*"]}),
            vec![],
            vec!["get /metrics"],
        ),
    ];
    for (value, allowed, refused) in table {
        let rule = rule(value.clone());
        for text in allowed {
            assert!(permits(&rule, &request(text)), "{value} {text}");
        }
        for text in refused {
            assert!(!permits(&rule, &request(text)), "{value} {text}");
        }
    }
}

#[test]
fn what_a_rule_permits_of_paths() {
    let table = [
        ("/metrics", "/metrics", true),
        ("/metrics", "/metrics/x", false),
        ("/api/*", "/api/v1", true),
        ("/api/*", "/api", false),
        ("/api*", "/apis", true),
        ("*", "/anything", true),
    ];
    for (entry, path, want) in table {
        let rule = rule(json!({"nonResourceURLs": [entry], "verbs": ["get"]}));
        assert_eq!(permits_path(&rule, "get", path), want, "{entry} {path}");
        assert!(!permits_path(&rule, "post", path), "{entry} {path}");
    }
}

#[test]
fn an_administrator_may_do_everything_by_a_binding() {
    let admin = user(UserRole::Admin, Some(&["a"]));
    let policy = first_policy();
    check(
        &policy,
        &admin,
        &[
            "delete /nodes #n",
            "get /secrets @muster-system",
            "list /secrets",
            "impersonate /users #bob",
            "create muster.io/backups",
        ],
        &[],
    );
    assert!(policy.permits_path(&admin, "get", "/metrics"));
    let nobody = RbacPolicy::new(&PolicyObjects::default());
    check(&nobody, &admin, &[], &["get /pods @a"]);
}

#[test]
fn a_lead_runs_its_namespaces_and_reads_what_is_shared() {
    check(
        &first_policy(),
        &user(UserRole::Lead, Some(&["a"])),
        &[
            "create kubeflow.org/pytorchjobs @a",
            "delete /pods @a",
            "create /pods/eviction @a",
            "patch kubeflow.org/pytorchjobs/scale @a",
            "get /secrets @a",
            "create /serviceaccounts @a",
            "create /serviceaccounts/token @a #builder",
            "create rbac.authorization.k8s.io/rolebindings @a",
            "list rbac.authorization.k8s.io/roles @a",
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
            "create rbac.authorization.k8s.io/clusterroles",
            "list rbac.authorization.k8s.io/clusterrolebindings",
            "bind rbac.authorization.k8s.io/clusterroles #cluster-admin",
            "create muster.io/backups",
        ],
    );
}

#[test]
fn a_member_runs_work_and_reads_the_rest() {
    check(
        &first_policy(),
        &user(UserRole::Member, Some(&["a"])),
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
            "create /serviceaccounts/token @a #default",
            "delete /limitranges @a",
            "create kubeflow.org/pytorchjobs @b",
            "create /pods/binding @a",
            "update kubeflow.org/pytorchjobs/status @a",
            "get /secrets @muster-system",
            "create rbac.authorization.k8s.io/rolebindings @a",
            "list rbac.authorization.k8s.io/roles @a",
            "impersonate /users #bob",
        ],
    );
}

#[test]
fn a_role_everywhere_ends_at_the_systems_own_namespaces() {
    let policy = first_policy();
    for role in [UserRole::Lead, UserRole::Member, UserRole::Viewer] {
        check(
            &policy,
            &user(role, None),
            &["list /pods", "get /pods @muster-system", "get /pods @b"],
            &[
                "get /secrets @muster-system",
                "get /secrets @kube-system",
                "list /secrets",
                "watch /secrets",
                "create /pods @muster-system",
                "create /pods @kube-system",
                "create batch/jobs @muster-system",
            ],
        );
        check(
            &policy,
            &user(role, Some(&["muster-system"])),
            &["list /nodes"],
            &["get /secrets @muster-system", "get /pods @muster-system"],
        );
    }
    check(
        &policy,
        &user(UserRole::Member, None),
        &["create /pods @a", "create /pods @b", "get /secrets @b"],
        &[],
    );
}

#[test]
fn a_viewer_reads_all_but_secrets() {
    check(
        &first_policy(),
        &user(UserRole::Viewer, Some(&["a"])),
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
fn who_is_authenticated_may_ask_and_discover_and_no_more() {
    let policy = first_policy();
    let stranger = Caller::user("eve", []);
    check(
        &policy,
        &stranger,
        &[
            "create authorization.k8s.io/selfsubjectaccessreviews",
            "create authorization.k8s.io/selfsubjectrulesreviews",
            "create authentication.k8s.io/selfsubjectreviews",
        ],
        &[
            "create authorization.k8s.io/subjectaccessreviews",
            "create authentication.k8s.io/tokenreviews",
            "list /nodes",
            "get /namespaces #a",
        ],
    );
    assert!(policy.permits_path(&stranger, "get", "/apis/batch/v1"));
    assert!(!policy.permits_path(&stranger, "get", "/metrics"));
    assert!(policy.permits_path(&Caller::anonymous(), "get", "/healthz"));
    assert!(!policy.permits_path(&Caller::anonymous(), "get", "/apis"));
}

#[test]
fn kubernetes_own_roles_are_made_of_their_parts() {
    let mut roles = defaults::cluster_roles();
    roles.sort_by_key(|role| role["metadata"]["name"].to_string());
    assert_eq!(aggregate(&mut roles).len(), 3);
    assert!(aggregate(&mut roles).is_empty(), "settled after one round");
    let rules = |name: &str| -> Vec<PolicyRule> {
        let role = roles.iter().find(|role| role["metadata"]["name"] == name);
        serde_json::from_value(role.unwrap()["rules"].clone()).unwrap()
    };
    let pairs = [
        ("view", "muster:viewer"),
        ("edit", "muster:member"),
        ("admin", "muster:lead"),
    ];
    for (kubernetes, muster) in pairs {
        let (a, b) = (rules(kubernetes), rules(muster));
        let (a_held, b_held): (Vec<_>, Vec<_>) = (a.iter().collect(), b.iter().collect());
        assert_eq!(uncovered(&a_held, &b), Ok(Vec::new()), "{kubernetes}");
        assert_eq!(uncovered(&b_held, &a), Ok(Vec::new()), "{muster}");
    }
}

#[test]
fn roles_that_aggregate_each_other_come_to_an_end() {
    let role = |name: &str, from: &str, label: &str| {
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
            "metadata": {"name": name, "labels": {label: "true"}},
            "aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {from: "true"}}]},
            "rules": [{"apiGroups": [""], "resources": [name], "verbs": ["get"]}],
        })
    };
    let mut roles = vec![role("x", "y", "x"), role("y", "x", "y")];
    aggregate(&mut roles);
    let again = aggregate(&mut roles);
    assert!(again.len() <= 2);
    let mut unreadable =
        vec![json!({"aggregationRule": {"clusterRoleSelectors": [7]}, "rules": [1]})];
    assert_eq!(aggregate(&mut unreadable), [0]);
    assert_eq!(unreadable[0]["rules"], json!([]));
}

#[test]
fn the_defaults_are_valid_and_as_the_api_would_make_them() {
    let all = defaults::cluster_roles()
        .into_iter()
        .chain(defaults::cluster_role_bindings())
        .chain(defaults::role_bindings("a"));
    for object in all {
        let kind = registry::of(&object).unwrap();
        let mut completed = object.clone();
        (kind.default)(&mut completed);
        assert_eq!(completed, object);
        assert!((kind.validate)(&object, None).is_empty(), "{object}");
    }
    assert!(defaults::role_bindings("muster-system").is_empty());
}

#[test]
fn what_is_missing_is_added_at_start_and_what_others_added_stays() {
    let wanted = &defaults::cluster_roles()[0];
    assert_eq!(defaults::completed(wanted, wanted), None);
    let extra = json!({"apiGroups": ["x"], "resources": ["y"], "verbs": ["z"]});
    let mut live = wanted.clone();
    live["rules"] = json!([extra]);
    live["metadata"]["labels"] = json!({"mine": "1"});
    let next = defaults::completed(&live, wanted).unwrap();
    assert_eq!(next["rules"].as_array().unwrap().len(), 3);
    assert_eq!(next["rules"][0], extra);
    assert_eq!(next["metadata"]["labels"]["mine"], "1");
    assert_eq!(next["metadata"]["labels"][BOOTSTRAPPING], "rbac-defaults");
    live["metadata"]["annotations"][AUTOUPDATE] = "false".into();
    assert_eq!(defaults::completed(&live, wanted), None);

    let binding = &defaults::cluster_role_bindings()[0];
    let mut live = binding.clone();
    live["subjects"] = json!([]);
    live["roleRef"]["name"] = "view".into();
    assert_eq!(defaults::completed(&live, binding).as_ref(), Some(binding));
}

#[test]
fn bindings_reach_users_groups_and_service_accounts_in_their_namespace() {
    let api = "rbac.authorization.k8s.io/v1";
    let mut objects = PolicyObjects::default();
    put(
        &mut objects,
        &json!({
            "apiVersion": api, "kind": "Role", "metadata": {"name": "r", "namespace": "a"},
            "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}],
        }),
    );
    let binding = json!({
        "apiVersion": api, "kind": "RoleBinding", "metadata": {"name": "b", "namespace": "a"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "r"},
        "subjects": [
            {"kind": "User", "name": "ann"}, {"kind": "Group", "name": "team"},
            {"kind": "ServiceAccount", "name": "own"}, {"kind": "ServiceAccount", "name": "far", "namespace": "b"},
        ],
    });
    put(&mut objects, &binding);
    let policy = RbacPolicy::new(&objects);
    for caller in [
        Caller::user("ann", []),
        Caller::user("bob", ["team".to_owned()]),
        Caller::service_account("a", "own"),
        Caller::service_account("b", "far"),
    ] {
        check(
            &policy,
            &caller,
            &["get /pods @a"],
            &["get /pods @b", "list /pods"],
        );
        assert_eq!(policy.rules(&caller, Some("a")).count(), 1);
        assert_eq!(policy.rules(&caller, None).count(), 0);
    }
    for caller in [
        Caller::user("bob", []),
        Caller::user("team", []),
        Caller::service_account("b", "own"),
    ] {
        check(&policy, &caller, &[], &["get /pods @a"]);
    }
    objects.remove("/rbac.authorization.k8s.io/rolebindings/a/b");
    let policy = RbacPolicy::new(&objects);
    check(&policy, &Caller::user("ann", []), &[], &["get /pods @a"]);
    // An unreadable object grants nothing, and removes the previous object of its key.
    put(&mut objects, &binding);
    let key = "/rbac.authorization.k8s.io/roles/a/r";
    assert!(objects.put(key, b"{\"rules\": 1}").is_err());
    let policy = RbacPolicy::new(&objects);
    check(&policy, &Caller::user("ann", []), &[], &["get /pods @a"]);
}

#[test]
fn what_is_not_covered_is_named() {
    let held = rule(json!({"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]}));
    let wanted = rule(json!({
        "apiGroups": [""], "resources": ["pods", "pods/log"], "verbs": ["list", "get", "watch"],
    }));
    let missing = uncovered(&[&held], std::slice::from_ref(&wanted)).unwrap();
    let shown: Vec<String> = compact(&missing).iter().map(show).collect();
    assert_eq!(
        shown,
        [
            "{APIGroups:[\"\"], Resources:[\"pods\"], Verbs:[\"watch\"]}",
            "{APIGroups:[\"\"], Resources:[\"pods/log\"], Verbs:[\"get\" \"list\" \"watch\"]}",
        ]
    );
    let everything = rule(json!({"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}));
    assert_eq!(uncovered(&[&everything], &[wanted]), Ok(Vec::new()));
    let named = rule(json!({
        "apiGroups": [""], "resources": ["secrets"], "resourceNames": ["s"], "verbs": ["get"],
    }));
    let unnamed = rule(json!({"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}));
    assert_eq!(
        uncovered(&[&unnamed], std::slice::from_ref(&named)),
        Ok(Vec::new())
    );
    assert_eq!(uncovered(&[&named], &[unnamed]).unwrap().len(), 1);
}

#[test]
fn rules_that_combine_too_much_are_not_compared() {
    let many = |count: usize| -> Vec<String> { (0..count).map(|i| i.to_string()).collect() };
    let sized = |verbs: usize, resources: usize| PolicyRule {
        verbs: many(verbs),
        api_groups: Some(vec![String::new()]),
        resources: Some(many(resources)),
        ..PolicyRule::default()
    };
    let most = sized(100, MOST_TUPLES / 100);
    assert_eq!(uncovered(&[], &[most]).unwrap().len(), MOST_TUPLES);
    let more = [sized(100, MOST_TUPLES / 100), sized(1, 1)];
    assert_eq!(uncovered(&[], &more), Err(TooManyTuples));
    let huge = sized(30_000, 30_000);
    assert_eq!(uncovered(&[], &[huge]), Err(TooManyTuples));
    // One verb, one group and so many resources are held.
    let wanted = [sized(100, MOST_TUPLES / 100)];
    let fits = MOST_COMPARISONS / MOST_TUPLES - 2;
    let held = |resources: usize| PolicyRule {
        verbs: vec!["none".to_owned()],
        ..sized(1, resources)
    };
    let missing = uncovered(&[&held(fits)], &wanted).unwrap();
    assert_eq!(missing.len(), MOST_TUPLES);
    let over = uncovered(&[&held(fits + 1)], &wanted);
    assert_eq!(over, Err(TooManyTuples));
}

#[test]
fn a_role_that_is_bound_often_counts_once() {
    let mut objects = PolicyObjects::default();
    let role = json!({"rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]});
    let key = "/rbac.authorization.k8s.io/roles/a/r";
    objects.put(key, role.to_string().as_bytes()).unwrap();
    let binding = json!({
        "roleRef": {"apiGroup": GROUP, "kind": "Role", "name": "r"},
        "subjects": [{"kind": "User", "name": "ann"}, {"kind": "User", "name": "ann"}],
    });
    for name in ["b", "c", "d"] {
        let key = format!("/rbac.authorization.k8s.io/rolebindings/a/{name}");
        objects.put(&key, binding.to_string().as_bytes()).unwrap();
    }
    let ann = Caller::user("ann", []);
    let policy = RbacPolicy::new(&objects);
    assert_eq!(policy.rules(&ann, Some("a")).count(), 1);
}

fn some_of(words: &'static [&'static str]) -> impl Strategy<Value = Vec<String>> {
    prop::collection::vec(prop::sample::select(words).prop_map(str::to_owned), 1..3)
}

fn some_rule() -> impl Strategy<Value = PolicyRule> {
    let resource = (
        some_of(&["get", "list", "create", "*"]),
        some_of(&["", "batch", "*"]),
        some_of(&[
            "pods",
            "jobs",
            "pods/log",
            "jobs/scale",
            "*/scale",
            "*/log",
            "*",
        ]),
        prop::option::of(some_of(&["a", "b"])),
    );
    let path = (
        some_of(&["get", "post", "*"]),
        some_of(&["/a", "/a/*", "/a*", "/a/b", "*", "/"]),
    );
    prop_oneof![
        resource.prop_map(|(verbs, groups, resources, names)| PolicyRule {
            verbs,
            api_groups: Some(groups),
            resources: Some(resources),
            resource_names: names,
            non_resource_urls: None,
        }),
        path.prop_map(|(verbs, urls)| PolicyRule {
            verbs,
            non_resource_urls: Some(urls),
            ..PolicyRule::default()
        }),
    ]
}

proptest! {
    /// Rules that cover others permit every request that the others permit.
    #[test]
    fn what_covers_permits_as_much(
        held in prop::collection::vec(some_rule(), 0..4),
        wanted in prop::collection::vec(some_rule(), 0..3),
    ) {
        let refs: Vec<&PolicyRule> = held.iter().collect();
        prop_assume!(uncovered(&refs, &wanted).unwrap().is_empty());
        for verb in ["get", "list", "create", "post", "other"] {
            for group in ["", "batch", "other"] {
                for resource in ["pods", "jobs", "other"] {
                    for subresource in [None, Some("log"), Some("scale"), Some("other")] {
                        for name in [None, Some("a"), Some("b"), Some("c")] {
                            let request = RequestAttributes {
                                verb, group, resource, subresource, name, namespace: None,
                            };
                            let may = |rules: &[PolicyRule]| rules.iter().any(|rule| permits(rule, &request));
                            prop_assert!(!may(&wanted) || may(&held), "{request:?}");
                        }
                    }
                }
            }
            for path in ["/", "/a", "/a/", "/a/b", "/ab", "/b"] {
                let may = |rules: &[PolicyRule]| rules.iter().any(|rule| permits_path(rule, verb, path));
                prop_assert!(!may(&wanted) || may(&held), "{verb} {path}");
            }
        }
    }

    /// Rules cover themselves, also with further rules added.
    #[test]
    fn rules_cover_themselves(
        rules in prop::collection::vec(some_rule(), 0..4),
        more in some_rule(),
    ) {
        let mut held: Vec<&PolicyRule> = rules.iter().collect();
        held.push(&more);
        prop_assert_eq!(uncovered(&held, &rules), Ok(Vec::new()));
    }

    /// Merging verbs keeps the meaning of the rules.
    #[test]
    fn compact_rules_mean_the_same(rules in prop::collection::vec(some_rule(), 0..4)) {
        let compacted = compact(&rules);
        let (a, b): (Vec<_>, Vec<_>) = (rules.iter().collect(), compacted.iter().collect());
        prop_assert_eq!(uncovered(&b, &rules), Ok(Vec::new()));
        prop_assert_eq!(uncovered(&a, &compacted).unwrap().len(), 0);
    }
}
