//! The benchmark's own code on a small scale, so that it works when needed.

use e2e::rush::{Binder, Rush};

#[test]
fn every_gang_is_bound_at_the_cost_of_at_most_one_write_a_pod_beside_the_binding() {
    let rush = Rush {
        nodes: 20,
        gpus: 8,
        shape: "5x20".parse().expect("a shape"),
        kwok: false,
    };
    for binder in [Binder::Plain, Binder::Muster] {
        let outcome = rush.run(binder);
        assert_eq!(outcome.bound, 100);
        let writes = &outcome.writes;
        assert!(outcome.writes_a_pod() <= 1.0, "{binder:?} wrote {writes:?}");
    }
}
