//! The benchmark's own code on a small scale, so that it works when somebody measures with it.

use e2e::rush::{Binder, Rush};

#[test]
fn every_pod_of_every_gang_is_bound_once() {
    let rush = Rush {
        nodes: 20,
        shape: "5x20".parse().expect("a shape"),
        kwok: false,
    };
    for binder in [Binder::Plain, Binder::Muster] {
        assert_eq!(rush.run(binder).bound, 100);
    }
}
