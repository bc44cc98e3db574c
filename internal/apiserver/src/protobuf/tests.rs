//! Objects as Go programs send them.

use serde_json::json;

use super::*;

/// A field that contains bytes, for messages shorter than 128 bytes.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let mut out = vec![number << 3 | 2, u8::try_from(bytes.len()).unwrap()];
    out.extend_from_slice(bytes);
    out
}

fn number(field: u8, value: u8) -> Vec<u8> {
    vec![field << 3, value]
}

fn envelope(api_version: &str, kind: &str, raw: &[u8]) -> Vec<u8> {
    let meta = [field(1, api_version.as_bytes()), field(2, kind.as_bytes())].concat();
    [
        MAGIC.to_vec(),
        field(1, &meta),
        field(2, raw),
        field(3, b""),
        field(4, b""),
    ]
    .concat()
}

#[test]
fn an_object_is_read_and_what_go_writes_for_nothing_is_left_out() {
    let entry = [field(1, b"k"), field(2, b"v")].concat();
    let meta = [field(1, b"a"), field(2, b""), field(8, b"")].concat();
    let raw = [field(1, &meta), field(2, &entry)].concat();
    assert_eq!(
        decode(&envelope("v1", "ConfigMap", &raw)).unwrap(),
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"k": "v"}})
    );
}

#[test]
fn pointers_to_zero_empty_messages_and_inlined_ones_differ_from_absent_fields() {
    let empty_dir = field(2, b"");
    let volume = [field(1, b"scratch"), field(2, &empty_dir)].concat();
    let spec = [field(1, &volume), [4 << 3, 0].to_vec(), number(11, 0)].concat();
    assert_eq!(
        decode(&envelope("v1", "Pod", &field(2, &spec))).unwrap()["spec"],
        json!({"volumes": [{"name": "scratch", "emptyDir": {}}], "terminationGracePeriodSeconds": 0})
    );
}

#[test]
fn times_bytes_and_quantities_are_written_as_json_has_them() {
    let secret = [field(1, b"k"), field(2, b"\x01\x02")].concat();
    let value = decode(&envelope("v1", "Secret", &field(2, &secret))).unwrap();
    assert_eq!(value["data"]["k"], "AQI=");

    let renewed = [number(1, 100), [2 << 3, 0xe8, 0x07].to_vec()].concat();
    let lease = field(2, &field(4, &renewed));
    let value = decode(&envelope("coordination.k8s.io/v1", "Lease", &lease)).unwrap();
    assert_eq!(value["spec"]["renewTime"], "1970-01-01T00:01:40.000001Z");

    let amount = [field(1, b"pods"), field(2, &field(1, b"10"))].concat();
    let quota = field(2, &field(1, &amount));
    let value = decode(&envelope("v1", "ResourceQuota", &quota)).unwrap();
    assert_eq!(value["spec"]["hard"], json!({"pods": "10"}));
}

#[test]
fn delete_options_are_one_message_under_every_group() {
    for version in ["v1", "batch/v1", "meta.k8s.io/v1"] {
        let value = decode(&envelope(version, "DeleteOptions", &number(1, 0))).unwrap();
        assert_eq!(value["gracePeriodSeconds"], 0);
    }
}

#[test]
fn damaged_bytes_are_refused_and_never_panic() {
    let whole = envelope("v1", "Pod", &field(2, &field(2, &field(1, b"name"))));
    for length in 0..whole.len() {
        let _ = decode(&whole[..length]);
    }
    for position in 0..whole.len() {
        let mut damaged = whole.clone();
        damaged[position] ^= 0xff;
        let _ = decode(&damaged);
    }
    assert!(decode(b"{}").is_err());
    assert!(
        decode(&envelope("kubeflow.org/v1", "PyTorchJob", b""))
            .unwrap_err()
            .to_string()
            .contains("send it as JSON")
    );
    let unknown = envelope("v1", "ConfigMap", &field(15, b"later"));
    assert_eq!(
        decode(&unknown).unwrap(),
        json!({"apiVersion": "v1", "kind": "ConfigMap"})
    );
}
