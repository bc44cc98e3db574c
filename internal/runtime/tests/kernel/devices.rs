//! Devices kept from a container, with harmless ones in the place of GPUs.

use std::path::Path;

use runtime::DevicePolicy;

use super::*;

#[tokio::test]
async fn a_denied_device_cannot_be_opened_and_the_others_can() {
    let house = House::new().await;
    let mut spec = house.shell(
        "a",
        "echo x > /dev/null; (: < /dev/full) || echo refused; head -c 12345 /dev/zero | wc -c",
    );
    spec.devices = DevicePolicy {
        denied: vec!["/dev/full".into(), "/dev/no-such-gpu".into()],
        ..DevicePolicy::default()
    };
    let (exit, output) = house.run(spec).await;
    assert_eq!(exit.code, 0);
    assert!(
        output.contains("refused") && output.contains("12345\n"),
        "{output}"
    );
    std::fs::File::open("/dev/full").unwrap();
}

#[tokio::test]
async fn not_even_root_opens_a_denied_device_by_another_name() {
    needs_root!();
    if !Path::new("/sys/fs/cgroup/devices").exists() {
        eprintln!("no devices cgroup of version 1: nothing tested");
        return;
    }
    let house = House::new().await;
    let node = house.path("node");
    let script = format!(
        "mknod {0} c 1 7 2>/dev/null; (: < {0}) && echo opened; umount /dev/full; (: < /dev/full) && echo opened; echo done",
        node.display()
    );
    let mut spec = house.shell("a", &script);
    spec.devices = DevicePolicy {
        denied: vec!["/dev/full".into()],
        ..DevicePolicy::default()
    };
    let (_, output) = house.run(spec).await;
    assert!(
        output.contains("done") && !output.contains("opened"),
        "{output}"
    );
}

#[test]
fn all_gpus_but_the_chosen_are_denied_and_the_control_devices_are_not() {
    let dev = tempfile::tempdir().unwrap();
    for name in [
        "nvidia0",
        "nvidia1",
        "nvidia10",
        "nvidiactl",
        "nvidia-uvm",
        "null",
    ] {
        std::fs::write(dev.path().join(name), "").unwrap();
    }
    let policy = DevicePolicy::nvidia_except(dev.path(), &[1]);
    assert_eq!(
        policy.denied,
        [dev.path().join("nvidia0"), dev.path().join("nvidia10")]
    );
}
