//! Volumes, hosts files and host names, as a container sees them.

use std::fs;
use std::path::Path;

use runtime::{ExitReason, Mount, MountSource};

use super::*;

fn volume(house: &House, name: &str) -> PathBuf {
    let dir = house.path(name);
    fs::create_dir_all(&dir).expect("a directory");
    fs::write(dir.join("file"), format!("{name}\n")).expect("a file");
    dir
}

#[tokio::test]
async fn volumes_appear_at_paths_that_the_node_lacks_and_the_node_stays_as_it_is() {
    let house = House::new().await;
    let before: Vec<_> = fs::read_dir("/")
        .unwrap()
        .flatten()
        .map(|entry| entry.file_name())
        .collect();
    let (one, two) = (volume(&house, "one"), volume(&house, "two"));
    let script = "cat /muster-new/deep/one/file /usr/muster-new/two/file /etc/hostname > /muster-new/deep/one/copy; \
                  ls /usr/bin/env /bin/sh /proc/self/status /dev/null; echo x > /dev/null && touch /muster-new/here";
    let mut spec = house.shell("a", script);
    spec.hostname = Some("inside".into());
    spec.mounts = vec![
        Mount::bind(&one, "/muster-new/deep/one"),
        Mount::bind(&two, "/usr/muster-new/two"),
    ];
    let (exit, output) = house.run(spec).await;
    assert_eq!(exit.code, 0, "{exit:?} {output}");
    assert_eq!(
        output,
        "/bin/sh\n/dev/null\n/proc/self/status\n/usr/bin/env\n"
    );
    assert_eq!(
        fs::read_to_string(one.join("copy")).unwrap(),
        "one\ntwo\ninside\n"
    );
    assert!(!Path::new("/muster-new").exists() && !Path::new("/usr/muster-new").exists());
    let after: Vec<_> = fs::read_dir("/")
        .unwrap()
        .flatten()
        .map(|entry| entry.file_name())
        .collect();
    assert_eq!(before, after);
}

#[tokio::test]
async fn writes_beside_a_new_mount_point_still_reach_the_node() {
    let house = House::new().await;
    let shared = house.path("shared/existing");
    fs::create_dir_all(&shared).unwrap();
    let source = volume(&house, "one");
    let mut spec = house.shell(
        "a",
        &format!(
            "echo kept > {}/result; cat {}/new/file",
            shared.display(),
            house.path("shared").display()
        ),
    );
    spec.mounts = vec![Mount::bind(source, house.path("shared/new"))];
    let (exit, output) = house.run(spec).await;
    assert_eq!((exit.code, output.as_str()), (0, "one\n"));
    assert_eq!(fs::read_to_string(shared.join("result")).unwrap(), "kept\n");
    assert!(!house.path("shared/new").exists());
}

#[tokio::test]
async fn a_read_only_volume_refuses_writes_and_holds_another_volume() {
    let house = House::new().await;
    let (outer, inner) = (volume(&house, "outer"), volume(&house, "inner"));
    let script = "cat /muster-new/file /muster-new/sub/file; echo x > /muster-new/file || echo refused; echo y > /muster-new/sub/file";
    let mut spec = house.shell("a", script);
    spec.mounts = vec![
        Mount::bind(&inner, "/muster-new/sub"),
        Mount::bind(&outer, "/muster-new").read_only(),
    ];
    let (_, output) = house.run(spec).await;
    assert!(
        output.starts_with("outer\ninner\n") && output.contains("refused\n"),
        "{output}"
    );
    assert_eq!(fs::read_to_string(inner.join("file")).unwrap(), "y\n");
    assert!(!outer.join("sub").exists());
}

#[tokio::test]
async fn a_sub_path_is_made_if_missing_and_cannot_lead_outside() {
    let house = House::new().await;
    let base = volume(&house, "base");
    let sub = |path: &str| Mount {
        sub_path: Some(path.into()),
        ..Mount::bind(&base, "/muster-new")
    };
    let mut spec = house.shell("a", "echo made > /muster-new/here");
    spec.mounts = vec![sub("x/y")];
    assert_eq!(house.run(spec).await.0.code, 0);
    assert_eq!(fs::read_to_string(base.join("x/y/here")).unwrap(), "made\n");

    let mut spec = house.shell("file", "cat /muster-new");
    spec.mounts = vec![sub("file")];
    assert_eq!(house.run(spec).await.1, "base\n");

    std::os::unix::fs::symlink("/etc", base.join("out")).unwrap();
    let mut spec = house.shell("b", "true");
    spec.mounts = vec![sub("out")];
    let (exit, _) = house.run(spec).await;
    assert_eq!(exit.reason, ExitReason::StartError);
    assert!(
        exit.message.contains("leads out of the volume"),
        "{}",
        exit.message
    );

    let mut spec = house.shell("c", "true");
    spec.mounts = vec![sub("../..")];
    assert!(
        house
            .runtime
            .start(spec)
            .await
            .unwrap_err()
            .to_string()
            .contains("without '..'")
    );
}

#[tokio::test]
async fn a_sub_path_that_is_made_is_the_volumes_owners() {
    needs_root!();
    use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
    let house = House::new().await;
    let base = volume(&house, "base");
    chown(&base, Some(1234), Some(4321)).unwrap();
    fs::set_permissions(&base, fs::Permissions::from_mode(0o2770)).unwrap();
    let mut spec = house.shell("a", "true");
    spec.mounts = vec![Mount {
        sub_path: Some("x/y".into()),
        ..Mount::bind(&base, "/muster-new")
    }];
    assert_eq!(house.run(spec).await.0.code, 0);
    for made in ["x", "x/y"] {
        let meta = fs::metadata(base.join(made)).unwrap();
        let owner = (meta.uid(), meta.gid(), meta.mode() & 0o7777);
        assert_eq!(owner, (1234, 4321, 0o2770), "{made}");
    }
}

#[tokio::test]
async fn a_mount_point_is_never_made_through_a_link_in_a_volume() {
    let house = House::new().await;
    let (base, inner) = (volume(&house, "base"), volume(&house, "inner"));
    let outside = house.path("outside");
    fs::create_dir(&outside).unwrap();
    for (link, to) in [("out", outside.clone()), ("none", outside.join("made"))] {
        std::os::unix::fs::symlink(to, base.join(link)).unwrap();
    }
    let cases = [
        ("a", inner.clone(), "/muster-new/out/made"),
        ("b", inner.join("file"), "/muster-new/out/made"),
        ("c", inner.join("file"), "/muster-new/none"),
    ];
    for (name, source, target) in cases {
        let mut spec = house.shell(name, "true");
        spec.mounts = vec![
            Mount::bind(&base, "/muster-new"),
            Mount::bind(source, target),
        ];
        let (exit, _) = house.run(spec).await;
        assert_eq!(exit.reason, ExitReason::StartError, "{target}");
        assert!(exit.message.contains("leads out"), "{}", exit.message);
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 0, "{target}");
    }
}

#[tokio::test]
async fn a_memory_volume_has_its_size_and_is_gone_afterwards() {
    let house = House::new().await;
    let mut spec = house.shell("a", "head -c 100000 /dev/zero > /muster-new/fits && ! head -c 9000000 /dev/zero > /muster-new/too-much");
    spec.mounts = vec![Mount {
        target: "/muster-new".into(),
        source: MountSource::Tmpfs(Some(1 << 20)),
        sub_path: None,
        read_only: false,
    }];
    assert_eq!(house.run(spec).await.0.code, 0);
}

#[tokio::test]
async fn a_volume_that_is_not_there_is_a_start_error() {
    let house = House::new().await;
    let mut spec = house.shell("a", "true");
    spec.mounts = vec![Mount::bind("/no/such/source", "/muster-new")];
    let (exit, _) = house.run(spec).await;
    assert_eq!(exit.reason, ExitReason::StartError);
    assert!(exit.message.contains("/no/such/source"), "{}", exit.message);
}

#[tokio::test]
async fn a_hosts_file_changed_in_place_is_seen_by_a_running_container() {
    let house = House::new().await;
    let hosts = house.path("hosts");
    runtime::volumes::write_in_place(&hosts, b"127.0.0.1 localhost and-a-long-first-line\n")
        .unwrap();
    let mut spec = house.shell("a", "hostname; cat /etc/hosts; until grep -q peer /etc/hosts; do sleep 0.02; done; cat /etc/hosts");
    spec.hosts_file = Some(hosts.clone());
    spec.hostname = Some("job-master-0".into());
    let id = spec.id.clone();
    house.start(spec).await;
    house.says(&id, "first-line").await;
    runtime::volumes::write_in_place(&hosts, b"10.0.0.2 peer\n").unwrap();
    let exit = within(house.runtime.wait(&id)).await.unwrap();
    assert_eq!(exit.code, 0);
    let output = house.output(&id).await;
    assert!(
        output.starts_with("job-master-0\n127.0.0.1") && output.ends_with("10.0.0.2 peer\n"),
        "{output}"
    );
}

#[tokio::test]
async fn a_memory_directory_can_be_shared_and_taken_away() {
    needs_root!();
    let house = House::new().await;
    let dir = house.path("memory");
    for _ in 0..2 {
        runtime::volumes::mount_memory(&dir, Some(1 << 20)).unwrap();
    }
    let mut spec = house.shell("a", "echo shared > /muster-new/x");
    spec.mounts = vec![Mount::bind(&dir, "/muster-new")];
    assert_eq!(house.run(spec).await.0.code, 0);
    assert_eq!(fs::read_to_string(dir.join("x")).unwrap(), "shared\n");
    for _ in 0..2 {
        runtime::volumes::unmount(&dir).unwrap();
    }
    assert!(!dir.join("x").exists());
}

#[tokio::test]
async fn a_file_mounted_into_dev_leaves_the_devices_usable() {
    let house = House::new().await;
    let message = house.path("message");
    fs::write(&message, "").unwrap();
    let script = "echo last words > /dev/termination-log; echo x > /dev/null; head -c 9 /dev/urandom | wc -c; \
                  echo y > /dev/shm/muster-test-$$ && rm /dev/shm/muster-test-$$; echo out > /dev/stdout; \
                  (: < /dev/full) || echo refused";
    let mut spec = house.shell("a", script);
    spec.mounts = vec![Mount::bind(&message, "/dev/termination-log")];
    spec.devices.denied = vec!["/dev/full".into()];
    let (exit, output) = house.run(spec).await;
    assert_eq!(exit.code, 0, "{output}");
    assert!(
        output.contains("9\n") && output.contains("out\n") && output.contains("refused\n"),
        "{output}"
    );
    assert_eq!(fs::read_to_string(&message).unwrap(), "last words\n");
    assert!(!Path::new("/dev/termination-log").exists());
}
