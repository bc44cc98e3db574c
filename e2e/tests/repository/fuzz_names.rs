//! The names by which `make fuzz` chooses its tests.

use e2e::repository;

use super::tracked;

/// What the parameters of a test of arbitrary bytes, texts or documents have.
const FUZZED: [&str; 6] = [
    "any::<u8>()",
    "\\\\PC",
    "broken(",
    "changed(",
    "damage()",
    "any_json()",
];

/// The tests of a source that take such parameters.
fn fuzz_tests(source: &str) -> Vec<&str> {
    let tests = source.split("#[test]").skip(1);
    let found = tests.filter_map(|test| {
        let (_, test) = test.split_once("fn ")?;
        let (name, test) = test.split_once('(')?;
        // Braces of a text's repetitions are within the parameters.
        let (parameters, _) = test.split_once(") {\n")?;
        let fuzzed = FUZZED.iter().any(|part| parameters.contains(part));
        (fuzzed && parameters.contains(" in ")).then_some(name)
    });
    found.collect()
}

#[test]
fn make_fuzz_has_every_test_of_arbitrary_bytes_texts_and_documents() {
    let makefile = std::fs::read_to_string(repository().join("Makefile")).unwrap();
    assert!(
        makefile.contains("'(binary(fuzz) + binary(ends) + test(/_panics?$$/)) - package(e2e)'")
    );
    let mut count = 0;
    for file in tracked() {
        let in_crate = file.starts_with("internal/") || file.starts_with("cmd/");
        if !in_crate || !file.ends_with(".rs") || file.contains("/tests/fuzz/") {
            continue;
        }
        let Ok(text) = std::fs::read_to_string(repository().join(&file)) else {
            continue;
        };
        for name in fuzz_tests(&text) {
            count += 1;
            assert!(
                name.ends_with("_panics") || name.ends_with("_panic"),
                "{file}: `make fuzz` does not choose {name}; let its name end in _panics"
            );
        }
    }
    assert!(count >= 50, "only {count} tests were found");
}
