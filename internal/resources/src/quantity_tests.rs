//! Tests of quantities: the grammar, canonical printing, rounding, order and sums.

use proptest::prelude::*;

use super::*;

fn q(text: &str) -> Quantity {
    text.parse().unwrap_or_else(|e| panic!("{text}: {e}"))
}

#[test]
fn quantities_are_printed_in_kubernetes_canonical_form() {
    let table = [
        ("0", "0"),
        ("0Ki", "0"),
        ("1", "1"),
        ("+1", "1"),
        ("-1", "-1"),
        ("1.5", "1500m"),
        ("0.5", "500m"),
        (".5", "500m"),
        ("1.", "1"),
        ("1500m", "1500m"),
        ("1000m", "1"),
        ("1000", "1k"),
        ("1024", "1024"),
        ("1Ki", "1Ki"),
        ("1024Ki", "1Mi"),
        ("1000Ki", "1000Ki"),
        ("1.5Gi", "1536Mi"),
        ("0.5Ki", "512"),
        ("0.3Ki", "307200m"),
        ("2000Gi", "2000Gi"),
        ("500G", "500G"),
        ("500000000000", "500G"),
        ("12e6", "12e6"),
        ("12E6", "12e6"),
        ("1e-3", "1e-3"),
        ("1200e3", "1200e3"),
        ("1E", "1E"),
        ("100u", "100u"),
        ("1n", "1n"),
        ("0.1n", "1n"),
        ("1.0000000001", "1000000001n"),
        ("1T", "1T"),
        ("1P", "1P"),
        ("1Ti", "1Ti"),
        ("1Pi", "1Pi"),
        ("1Ei", "1Ei"),
        ("0001", "1"),
        ("-1.5Gi", "-1536Mi"),
        // Binary quantities are capped at the largest 64-bit integer.
        ("100Ei", "9223372036854775807"),
    ];
    for (text, canonical) in table {
        assert_eq!(q(text).to_string(), canonical, "{text}");
    }
}

#[test]
fn what_is_no_quantity_is_refused_in_kubernetes_words() {
    for text in [
        "", "abc", "1 Gi", "1.2.3", "--1", "1Gi ", "1Gib", "%", "1e3x", "+", "-",
    ] {
        assert_eq!(
            text.parse::<Quantity>(),
            Err(QuantityError::Format),
            "{text}"
        );
    }
    for text in [
        "1i",
        "1KK",
        "1e",
        "1mm",
        "1K",
        "1Kim",
        "1e9999999999999999999999",
    ] {
        assert_eq!(
            text.parse::<Quantity>(),
            Err(QuantityError::Suffix),
            "{text}"
        );
    }
    assert_eq!(".".parse::<Quantity>(), Err(QuantityError::Numeric));
    assert!(
        QuantityError::Format
            .to_string()
            .starts_with("quantities must match the regular expression")
    );
}

#[test]
fn values_round_up_and_saturate() {
    let table = [
        ("1500m", 2, 1500),
        ("1", 1, 1000),
        ("0.1m", 1, 1),
        ("-1500m", -1, -1500),
        ("1Gi", 1 << 30, (1 << 30) * 1000),
        ("1e40", i64::MAX, i64::MAX),
        ("-1e40", i64::MIN, i64::MIN),
        ("1e-40", 1, 1),
    ];
    for (text, value, milli) in table {
        assert_eq!((q(text).value(), q(text).milli()), (value, milli), "{text}");
    }
}

#[test]
fn order_and_equality_look_at_the_number_alone() {
    assert_eq!(q("1Ki"), q("1024"));
    assert_eq!(q("1"), q("1000m"));
    assert!(q("1G") < q("1Gi"));
    assert!(q("-1") < q("0"));
    assert!(q("999m") < q("1"));
}

#[test]
fn sums_print_like_their_first_term() {
    assert_eq!((q("1Gi") + q("1Gi")).to_string(), "2Gi");
    assert_eq!((q("0") + q("1Gi")).to_string(), "1Gi");
    assert_eq!((q("500m") + q("500m")).to_string(), "1");
    assert_eq!((q("1") - q("1500m")).to_string(), "-500m");
    assert_eq!(
        [q("1"), q("2"), q("3")].into_iter().sum::<Quantity>(),
        q("6")
    );
}

#[test]
fn quantities_of_objects_are_read_and_written() {
    assert_eq!(Quantity::parse_k8s(&K8sQuantity("2".into())), Ok(q("2")));
    assert_eq!(Quantity::from_bytes(1 << 30).to_k8s().0, "1Gi");
    assert_eq!(Quantity::from_milli(250).to_k8s().0, "250m");
    assert!(q("0").is_zero() && q("-1").is_negative() && !q("1500m").is_whole());
}

#[test]
fn the_largest_quantities_add_up_to_the_largest() {
    let (most, least) = (q("1e29"), q("-1e29"));
    assert_eq!(most + most, most);
    assert_eq!(least - most, least);
    assert_eq!(most + least, q("0"));
}

const SUFFIXES: [&str; 19] = [
    "n", "u", "m", "", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei", "e3",
    "E-2", "e+1",
];

proptest! {
    #[test]
    fn printing_and_reading_again_keeps_the_number(
        negative in any::<bool>(), whole in 0_u64..10_000_000, fraction in "[0-9]{0,9}", suffix in 0..SUFFIXES.len()
    ) {
        let sign = if negative { "-" } else { "" };
        let point = if fraction.is_empty() { "" } else { "." };
        let text = format!("{sign}{whole}{point}{fraction}{}", SUFFIXES[suffix]);
        let read = q(&text);
        let printed = read.to_string();
        prop_assert_eq!(q(&printed), read, "{} printed as {}", text, printed);
        prop_assert_eq!(q(&printed).to_string(), printed);
    }

    #[test]
    fn whole_numbers_are_exact(n in any::<i32>()) {
        prop_assert_eq!(q(&n.to_string()).value(), i64::from(n));
        prop_assert_eq!(Quantity::from_value(i64::from(n)), q(&n.to_string()));
        prop_assert_eq!(q(&format!("{n}m")).milli(), i64::from(n));
        prop_assert_eq!(q(&format!("{n}Ki")).value(), i64::from(n) * 1024);
    }

    #[test]
    fn order_is_that_of_the_numbers(a in -1_000_000_000_i64..1_000_000_000, b in -1_000_000_000_i64..1_000_000_000) {
        prop_assert_eq!(q(&format!("{a}m")).cmp(&q(&format!("{b}m"))), a.cmp(&b));
        prop_assert_eq!(q(&format!("{a}Mi")).cmp(&q(&format!("{b}Mi"))), a.cmp(&b));
    }

    #[test]
    fn no_text_makes_the_parser_panic(text in "\\PC{0,40}") {
        let _ = text.parse::<Quantity>();
    }

    #[test]
    fn no_likely_text_makes_the_parser_panic(text in "[-+0-9.eEinumkKMGTP]{0,60}") {
        if let Ok(quantity) = text.parse::<Quantity>() {
            let _ = (quantity.to_string(), quantity.value(), quantity.milli(), quantity + quantity);
        }
    }
}
