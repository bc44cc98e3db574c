//! Schemathesis over the served OpenAPI documents: no answer is an internal error, none violates the documents'
//! schema, and every refusal is a Status.

use e2e::{Platform, python, repository, run};

/// Examples per operation; if it is set, every operation is tried.
const EXAMPLES: &str = "MUSTER_SCHEMATHESIS_EXAMPLES";
/// The seed of the examples and, in a short round, of the operations.
const SEED: &str = "MUSTER_SCHEMATHESIS_SEED";
/// The size of a short round: examples per operation, and one of this many operations.
const SHORT: (&str, &str) = ("4", "5");

#[test]
fn what_is_made_from_the_served_documents_is_answered_as_they_say() {
    let platform = Platform::server(&[]);
    let script = repository().join("e2e/clients/schemathesis_run.py");
    let script = script.display().to_string();
    let seed = std::env::var(SEED).unwrap_or_else(|_| "1".to_owned());
    let (examples, share) = match std::env::var(EXAMPLES) {
        Ok(examples) => (examples, "1".to_owned()),
        Err(_) => (SHORT.0.to_owned(), SHORT.1.to_owned()),
    };
    let arguments = [
        script.as_str(),
        examples.as_str(),
        seed.as_str(),
        share.as_str(),
    ];
    let ran = run(&mut platform.command(&python(), &arguments));
    print!("{}", ran.out);
    let out = ran.ok();
    assert!(out.contains(" 0 failures"), "{out}");
}
