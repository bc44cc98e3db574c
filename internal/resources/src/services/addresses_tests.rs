//! Tests of the addresses and node ports of Services.

use proptest::prelude::*;

use super::*;

fn range(text: &str) -> ServiceRange {
    text.parse().unwrap()
}

fn service(spec: Value) -> Value {
    json!({"metadata": {"name": "web"}, "spec": spec})
}

/// A Service after it got what it lacks, or what is refused.
fn given(spec: Value, old: Option<Value>, taken: &Taken) -> Result<Value, String> {
    let mut object = service(spec);
    let old = old.map(service);
    let range = Some(range("10.96.0.0/24"));
    match allocate(&mut object, old.as_ref(), range, taken, 7) {
        Ok(()) => Ok(object["spec"].clone()),
        Err(errors) => Err(crate::field::aggregate(&errors)),
    }
}

#[test]
fn ranges_are_refused_with_what_to_write() {
    for (text, refused) in [
        ("10.96.0.0/16", false),
        ("10.96.0.0/28", false),
        ("10.96.0.0/29", true),
        ("10.0.0.0/8", true),
        ("10.96.0.1/16", true),
        ("127.0.0.0/16", true),
        ("fd00::/108", true),
    ] {
        assert_eq!(ServiceRange::parse(text).is_err(), refused, "{text}");
    }
    let usual = range("10.96.0.0/16");
    assert_eq!(usual.dns(), Ipv4Addr::new(10, 96, 0, 10));
    let small = ServiceRange::parse("10.0.0.0/30").unwrap_err().to_string();
    assert_eq!(small, "write a prefix from 12 to 28, as 10.96.0.0/16");
}

#[test]
fn a_service_gets_a_free_address_and_keeps_it() {
    let mut taken = Taken::default();
    let first = given(json!({"type": "ClusterIP"}), None, &taken).unwrap();
    assert_eq!(first["clusterIP"], "10.96.0.24");
    assert_eq!(first["clusterIPs"], json!(["10.96.0.24"]));
    taken.add(&service(first.clone()));
    let second = given(json!({"type": "ClusterIP"}), None, &taken).unwrap();
    assert_eq!(second["clusterIP"], "10.96.0.25");
    // Its own address is none of another Service's.
    let kept = given(first.clone(), Some(first.clone()), &Taken::default()).unwrap();
    assert_eq!(kept, first);
    let headless = given(json!({"clusterIP": "None"}), None, &taken).unwrap();
    assert_eq!(headless, json!({"clusterIP": "None"}));
    let named = json!({"type": "ExternalName", "externalName": "example.org"});
    assert_eq!(given(named.clone(), None, &taken).unwrap(), named);
}

#[test]
fn addresses_are_refused_in_kubernetes_words() {
    let mut taken = Taken::default();
    taken.add(&service(json!({"clusterIP": "10.96.0.77"})));
    let refused = |address: &str| given(json!({"clusterIP": address}), None, &taken).unwrap_err();
    for taken in ["10.96.0.77", "10.96.0.1", "10.96.0.10"] {
        assert_eq!(
            refused(taken),
            format!(
                "spec.clusterIPs: Invalid value: [\"{taken}\"]: failed to allocate IP {taken}: provided IP is \
                 already allocated"
            )
        );
    }
    for outside in ["10.97.0.3", "10.96.0.0", "10.96.0.255"] {
        assert_eq!(
            refused(outside),
            format!(
                "spec.clusterIPs: Invalid value: [\"{outside}\"]: failed to allocate IP {outside}: the provided IP \
                 ({outside}) is not in the valid range. The range of valid IPs is 10.96.0.0/24"
            )
        );
    }
    let asked = given(json!({"clusterIP": "10.96.0.5"}), None, &taken).unwrap();
    assert_eq!(asked["clusterIP"], "10.96.0.5");
}

#[test]
fn node_ports_are_given_and_refused() {
    let mut taken = Taken::default();
    taken.add(&service(json!({"ports": [{"nodePort": 30007}]})));
    let spec = json!({"type": "NodePort", "ports": [{"port": 80}, {"port": 81}]});
    let made = given(spec, None, &taken).unwrap();
    assert_eq!(made["ports"][0]["nodePort"], 30008);
    assert_eq!(made["ports"][1]["nodePort"], 30009);
    let refused = |port: u32, old: Option<Value>| {
        let spec = json!({"type": "NodePort", "clusterIP": "10.96.0.9", "ports": [{"port": 80, "nodePort": port}]});
        given(spec, old, &taken)
    };
    assert_eq!(
        refused(30007, None).unwrap_err(),
        "spec.ports[0].nodePort: Invalid value: 30007: provided port is already allocated"
    );
    assert_eq!(
        refused(80, None).unwrap_err(),
        "spec.ports[0].nodePort: Invalid value: 80: provided port is not in the valid range. The range of valid \
         ports is 30000-32767"
    );
    let old = json!({"clusterIP": "10.96.0.9", "ports": [{"port": 80, "nodePort": 30007}]});
    assert!(refused(30007, Some(old)).is_ok());
    // Without a range there are neither addresses nor node ports.
    let mut object = service(json!({"type": "NodePort", "ports": [{"port": 80}]}));
    allocate(&mut object, None, None, &taken, 0).unwrap();
    assert_eq!(object["spec"]["clusterIP"], "None");
    assert!(object["spec"]["ports"][0]["nodePort"].is_null());
}

proptest! {
    #[test]
    fn no_two_services_get_one_address_until_the_range_is_full(
        prefix in 24_u8..=28,
        froms in proptest::collection::vec(any::<u32>(), 300),
    ) {
        let range = ServiceRange(Ipv4Range::around(Ipv4Addr::new(10, 96, 0, 0), prefix).unwrap());
        let mut taken = Taken::default();
        let mut count = 0;
        for from in froms {
            let mut object = service(json!({}));
            if allocate(&mut object, None, Some(range), &taken, from).is_err() {
                break;
            }
            prop_assert!(!taken.conflicts(&object));
            let address: Ipv4Addr = object["spec"]["clusterIP"].as_str().unwrap().parse().unwrap();
            prop_assert!(range.range().contains(address) && !range.is_kept(address));
            taken.add(&object);
            count += 1;
        }
        // All but the first and the last address, the API's and the DNS server's.
        prop_assert_eq!(count, (1_usize << (32 - prefix)) - 4);
    }
}
