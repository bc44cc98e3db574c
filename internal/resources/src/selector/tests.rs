//! Tests of selectors: the grammar, matching, printing, Kubernetes' messages.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1 as meta;
use proptest::prelude::*;

use super::*;

fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs
        .iter()
        .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
        .collect()
}

#[test]
fn selectors_match_as_kubernetes_reads_them() {
    let gpu = labels(&[
        ("app", "train"),
        ("tier", "gpu"),
        ("rank", "3"),
        ("empty", ""),
    ]);
    let table = [
        ("", true),
        ("app=train", true),
        ("app==train", true),
        ("app = train , tier = gpu", true),
        ("app=other", false),
        ("app!=train", false),
        ("app!=other", true),
        ("missing!=x", true),
        ("missing=x", false),
        ("app", true),
        ("missing", false),
        ("!missing", true),
        ("! missing", true),
        ("!app", false),
        ("app in (train,eval)", true),
        ("app in (eval)", false),
        ("app in(train)", true),
        ("app notin (eval, serve)", true),
        ("missing notin (a)", true),
        ("app notin (train)", false),
        ("rank>2", true),
        ("rank>3", false),
        ("rank<4", true),
        ("app>1", false),
        ("empty=", true),
        ("empty in ()", true),
        ("empty in (,x)", true),
        ("app=", false),
        ("x.io/y,app", false),
        ("in in (in)", false),
        ("notin!=in", true),
    ];
    for (text, matches) in table {
        let selector = LabelSelector::parse(text).unwrap_or_else(|e| panic!("{text}: {e}"));
        assert_eq!(selector.matches(&gpu), matches, "{text}");
    }
}

#[test]
fn malformed_selectors_are_refused_in_kubernetes_words() {
    let table = [
        (
            "=x",
            "found '=', expected: !, identifier, or 'end of string'",
        ),
        ("a=b,", "found '', expected: identifier after ','"),
        (
            "a b",
            "unable to parse requirement: found 'b', expected: in, notin, =, ==, !=, gt, lt",
        ),
        (
            "a in b",
            "unable to parse requirement: found 'b' expected: '('",
        ),
        (
            "a in (b",
            "unable to parse requirement: found '', expected: ',' or ')'",
        ),
        ("a=b c", "found 'c', expected: ',' or 'end of string'"),
        (
            "!",
            "unable to parse requirement: found '', expected: identifier",
        ),
        (
            "a>x",
            "unable to parse requirement: values[0]: Invalid value: \"x\": for 'Gt', 'Lt' operators, the value must be an integer",
        ),
    ];
    for (text, message) in table {
        assert_eq!(
            LabelSelector::parse(text).unwrap_err().to_string(),
            message,
            "{text}"
        );
    }
    let error = LabelSelector::parse("a=-").unwrap_err().to_string();
    assert!(
        error.starts_with(
            "unable to parse requirement: values[0][a]: Invalid value: \"-\": a valid label must be"
        ),
        "{error}"
    );
    let error = LabelSelector::parse("/x=1").unwrap_err().to_string();
    assert!(error.contains("prefix part must be non-empty"), "{error}");
}

#[test]
fn selectors_of_objects_are_read() {
    let selector: meta::LabelSelector = serde_json::from_value(serde_json::json!({
        "matchLabels": {"app": "train"},
        "matchExpressions": [
            {"key": "tier", "operator": "In", "values": ["gpu", "cpu"]},
            {"key": "gone", "operator": "DoesNotExist"},
        ],
    }))
    .unwrap();
    let selector = LabelSelector::from_k8s(&selector).unwrap();
    assert_eq!(selector.to_string(), "app=train,!gone,tier in (cpu,gpu)");
    assert!(selector.matches(&labels(&[("app", "train"), ("tier", "gpu")])));
    assert!(!selector.matches(&labels(&[("app", "train"), ("tier", "gpu"), ("gone", "")])));
    assert!(
        LabelSelector::from_k8s(&meta::LabelSelector::default())
            .unwrap()
            .is_everything()
    );
}

#[test]
fn selectors_of_objects_that_make_no_sense_are_refused() {
    for expression in [
        serde_json::json!({"key": "a", "operator": "Near", "values": ["b"]}),
        serde_json::json!({"key": "a", "operator": "In", "values": []}),
        serde_json::json!({"key": "a", "operator": "Exists", "values": ["b"]}),
        serde_json::json!({"key": "-", "operator": "Exists"}),
    ] {
        let selector: meta::LabelSelector =
            serde_json::from_value(serde_json::json!({"matchExpressions": [expression]})).unwrap();
        assert!(LabelSelector::from_k8s(&selector).is_err(), "{selector:?}");
    }
}

#[test]
fn field_selectors_compare_fields() {
    let fields = labels(&[
        ("status.phase", "Running"),
        ("spec.nodeName", ""),
        ("x", "a,b=c\\"),
    ]);
    let table = [
        ("", true),
        ("status.phase=Running", true),
        ("status.phase==Running", true),
        ("status.phase!=Running", false),
        ("status.phase!=Failed,spec.nodeName=", true),
        ("missing=", true),
        ("missing!=a", true),
        ("x=a\\,b\\=c\\\\", true),
    ];
    for (text, matches) in table {
        let selector = FieldSelector::parse(text).unwrap_or_else(|e| panic!("{text}: {e}"));
        assert_eq!(selector.matches(&fields), matches, "{text}");
        assert_eq!(
            FieldSelector::parse(&selector.to_string()).unwrap(),
            selector
        );
    }
    let selector = FieldSelector::parse("metadata.name=a,b!=c").unwrap();
    assert_eq!(selector.exact("metadata.name"), Some("a"));
    assert_eq!(selector.exact("b"), None);
    assert_eq!(
        selector.terms()[1],
        ("b".to_owned(), FieldOp::Ne, "c".to_owned())
    );
}

#[test]
fn malformed_field_selectors_are_refused() {
    let error = FieldSelector::parse("status.phase")
        .unwrap_err()
        .to_string();
    assert_eq!(
        error,
        "invalid selector: 'status.phase'; can't understand 'status.phase'"
    );
    for text in ["a=b\\x", "a=b\\", "a=b=c"] {
        assert!(FieldSelector::parse(text).is_err(), "{text}");
    }
}

fn any_requirement() -> impl Strategy<Value = Requirement> {
    let value = "[a-z0-9]{0,3}";
    let values = proptest::collection::vec(value, 1..4);
    prop_oneof![
        ("[a-z]{1,4}", values.clone())
            .prop_map(|(k, v)| Requirement::new(&k, Operator::In, v).unwrap()),
        ("[a-z]{1,4}", values).prop_map(|(k, v)| Requirement::new(&k, Operator::NotIn, v).unwrap()),
        "[a-z]{1,4}".prop_map(|k| Requirement::new(&k, Operator::Exists, vec![]).unwrap()),
        "[a-z]{1,4}".prop_map(|k| Requirement::new(&k, Operator::DoesNotExist, vec![]).unwrap()),
        (
            "[a-z]{1,4}",
            any::<i16>().prop_filter("labels take no minus first", |n| *n >= 0)
        )
            .prop_map(|(k, n)| Requirement::new(
                &k,
                Operator::GreaterThan,
                vec![n.to_string()]
            )
            .unwrap()),
    ]
}

proptest! {
    #[test]
    fn a_printed_selector_reads_as_itself(requirements in proptest::collection::vec(any_requirement(), 0..5)) {
        let selector = LabelSelector::new(requirements);
        let printed = selector.to_string();
        prop_assert_eq!(LabelSelector::parse(&printed).unwrap(), selector, "{}", printed);
    }

    #[test]
    fn no_text_makes_the_parsers_panic(text in "\\PC{0,40}", likely in "[a-c=!<>(), ]{0,30}") {
        for text in [text, likely] {
            let _ = LabelSelector::parse(&text);
            let _ = FieldSelector::parse(&text);
        }
    }
}
