//! Descriptions, good and bad, and machines that have what they describe.

use std::fs;
use std::time::Instant;

use serde_json::json;

use super::check::Checks;
use super::*;

/// A description of what lies in a directory, with these fields as well.
fn described(directory: &Path, more: Value) -> Vendor {
    let at = |name: &str| directory.join(name).display().to_string();
    let mut document = json!({"resource": "example.com/card", "device": at("dev/card{number}")});
    let fields = document.as_object_mut().expect("a mapping");
    fields.extend(more.as_object().expect("a mapping").clone());
    Vendor::read(&document).expect("a description")
}

fn devices(vendor: &Vendor) -> Vec<Device> {
    super::look::devices(vendor, Path::new("/"))
}

fn machine(files: &[(&str, &str)]) -> tempfile::TempDir {
    let directory = tempfile::tempdir().expect("a directory");
    for (name, text) in files {
        let path = directory.path().join(name);
        fs::create_dir_all(path.parent().expect("a directory")).expect("it is made");
        fs::write(path, text).expect("it is written");
    }
    directory
}

#[test]
fn what_is_wrong_is_said_with_its_field_its_value_and_what_would_be_right() {
    let with = |more: Value| {
        let mut document = json!({"resource": "amd.com/gpu", "device": "/dev/x{number}"});
        let fields = document.as_object_mut().expect("a mapping");
        fields.extend(more.as_object().expect("a mapping").clone());
        document
    };
    let cases = [
        (json!([]), ["the document: []", "a mapping of resource"]),
        (json!({}), ["resource: missing", "amd.com/gpu"]),
        (
            with(json!({"resource": "gpu"})),
            ["resource: \"gpu\"", "amd.com/gpu"],
        ),
        (
            with(json!({"resource": "nvidia.com/gpu"})),
            ["resource: \"nvidia.com/gpu\"", "another vendor than NVIDIA"],
        ),
        (
            with(json!({"device": "/dev/x"})),
            ["device: \"/dev/x\"", "{number} in one place"],
        ),
        (
            with(json!({"device": "dev/x{number}"})),
            ["device: \"dev/x{number}\"", "an absolute path"],
        ),
        (
            with(json!({"device": "/dev/x{number}/y{number}"})),
            ["device: \"/dev/x{number}/y{number}\"", "in one place"],
        ),
        (
            with(json!({"devices": []})),
            ["devices: no such field", "device"],
        ),
        (
            with(json!({"only": {"is": "1"}})),
            ["only.file: missing", "/dev/dri"],
        ),
        (
            with(json!({"only": {"file": "/s/{number}", "is": 2}})),
            ["only.is: 2", "what the file says"],
        ),
        (
            with(json!({"with": "/dev/y{number}"})),
            ["with: \"/dev/y{number}\"", "a list"],
        ),
        (
            with(json!({"with": ["/dev/y"]})),
            ["with[0]: \"/dev/y\"", "{number}"],
        ),
        (
            with(json!({"always": ["kfd"]})),
            ["always[0]: \"kfd\"", "/dev/kfd"],
        ),
        (
            with(json!({"environment": {"A": 1}})),
            ["environment.A: 1", "{numbers} and {files}"],
        ),
        (
            with(json!({"environment": {"A": "{number}"}})),
            ["environment.A: \"{number}\"", "{numbers} and {files}"],
        ),
        (
            with(json!({"mounts": [{"to": "/x"}]})),
            ["mounts[0].from: missing", "an absolute path"],
        ),
        (
            with(json!({"mounts": [{"from": "/x", "readOnly": 1}]})),
            ["mounts[0].readOnly: 1", "true or false"],
        ),
        (
            with(json!({"health": {}})),
            ["health.command: missing", "a program"],
        ),
        (
            with(json!({"health": {"command": ["x", 1]}})),
            ["health.command[1]: 1", "a word"],
        ),
        (
            with(json!({"health": {"command": ["x"], "timeoutSeconds": 0}})),
            ["health.timeoutSeconds: 0", "from 1 to 3600"],
        ),
        (
            with(json!({"health": {"command": ["x"], "timeoutSeconds": 20, "everySeconds": 10}})),
            ["health.timeoutSeconds: 20", "at most everySeconds, 10"],
        ),
    ];
    for (document, words) in cases {
        let why = Vendor::read(&document).expect_err(&document.to_string());
        for word in words {
            assert!(why.contains(word), "{why}: lacks {word}");
        }
    }
}

#[test]
fn the_devices_are_the_files_with_a_number_that_say_what_they_must() {
    let directory = machine(&[
        ("dev/card0", ""),
        ("dev/card10", ""),
        ("dev/card2", ""),
        ("dev/card03", ""),
        ("dev/card", ""),
        ("dev/card_manager", ""),
        ("sys/0/vendor", "0x1\n"),
        ("sys/10/vendor", "0x1"),
        ("sys/2/vendor", "0x2"),
        ("sys/10/numa", "1\n"),
        ("sys/0/numa", "-1\n"),
    ]);
    let at = |name: &str| directory.path().join(name).display().to_string();
    let numbers = |vendor: &Vendor| -> Vec<u32> {
        devices(vendor).iter().map(|device| device.number).collect()
    };
    assert_eq!(numbers(&described(directory.path(), json!({}))), [0, 2, 10]);
    let vendor = described(
        directory.path(),
        json!({"only": {"file": at("sys/{number}/vendor"), "is": "0x1"},
            "numa": at("sys/{number}/numa")}),
    );
    let told: Vec<_> = devices(&vendor)
        .into_iter()
        .map(|device| (device.id, device.numa, device.healthy))
        .collect();
    let wanted = [("card0", None, true), ("card10", Some(1), true)];
    assert_eq!(
        told,
        wanted.map(|(id, numa, well)| (id.to_owned(), numa, well))
    );
    // A number in the middle of a path.
    let mut vendor = described(directory.path(), json!({}));
    vendor.device = Pattern::read(&at("sys/{number}/numa")).expect("a pattern");
    let named: Vec<_> = devices(&vendor).into_iter().map(|it| it.id).collect();
    assert_eq!(named, ["0", "10"]);
    // The machine's root is elsewhere for an agent in a container.
    vendor.device = Pattern::read("/dev/card{number}").expect("a pattern");
    assert_eq!(super::look::devices(&vendor, directory.path()).len(), 3);
    vendor.device = Pattern::read(&at("nowhere/{number}")).expect("a pattern");
    assert!(numbers(&vendor).is_empty());
}

#[test]
fn a_container_has_the_files_and_variables_of_all_its_devices() {
    let vendor = Vendor::read(
        &json!({"resource": "example.com/card", "device": "/dev/c{number}",
        "with": ["/dev/control{number}"], "always": ["/dev/all"],
        "environment": {"N": "{numbers}", "F": "{files}", "PLAIN": "yes"},
        "mounts": [{"from": "/opt/a"}, {"from": "/opt/b", "to": "/b", "readOnly": false}]}),
    );
    let vendor = vendor.expect("a description");
    let device = |number: u32| Device {
        number,
        id: format!("c{number}"),
        numa: None,
        healthy: true,
    };
    let both = [device(3), device(0)];
    let files = [
        "/dev/c3",
        "/dev/control3",
        "/dev/c0",
        "/dev/control0",
        "/dev/all",
    ];
    assert_eq!(vendor.files(&both), files.map(PathBuf::from));
    let variables = [("F", "/dev/c3,/dev/c0"), ("N", "3,0"), ("PLAIN", "yes")];
    let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned()));
    assert_eq!(vendor.variables(&both), variables.into());
    let mounts: Vec<_> = (vendor.mounts.iter())
        .map(|mount| (mount.to.display().to_string(), mount.read_only))
        .collect();
    assert_eq!(
        mounts,
        [("/opt/a".to_owned(), true), ("/b".to_owned(), false)]
    );
}

#[test]
fn a_device_is_well_only_where_its_check_says_so() {
    let directory = machine(&[
        ("dev/card0", ""),
        ("dev/card1", ""),
        ("state0", "well"),
        ("state1", "broken"),
    ]);
    let state = directory.path().join("state{number}").display().to_string();
    let health = json!({"command": ["grep", "-qx", "well", state], "timeoutSeconds": 60,
        "everySeconds": 60});
    let vendor = described(directory.path(), json!({"health": health}));
    let mut checks = Checks::new(vendor.health.clone().expect("a check"));
    let begin = Instant::now();
    let well = |checks: &mut Checks, seconds: u64| -> Vec<bool> {
        let mut now = devices(&vendor);
        assert!(now.iter().all(|device| !device.healthy), "not known yet");
        checks.judge(&mut now, begin + Duration::from_secs(seconds));
        now.iter().map(|device| device.healthy).collect()
    };
    assert_eq!(well(&mut checks, 0), [true, false]);
    // What was found holds until the next check is due.
    fs::write(directory.path().join("state0"), "broken").expect("it is written");
    fs::write(directory.path().join("state1"), "well").expect("it is written");
    assert_eq!(well(&mut checks, 59), [true, false]);
    assert_eq!(well(&mut checks, 60), [false, true]);
    // A device that comes is checked at once.
    fs::write(directory.path().join("dev/card3"), "").expect("it is written");
    fs::write(directory.path().join("state3"), "well").expect("it is written");
    assert_eq!(well(&mut checks, 61), [false, true, true]);
}

#[test]
fn a_check_that_does_not_end_or_cannot_be_run_leaves_its_device_out() {
    let directory = machine(&[("dev/card0", "")]);
    for (command, why) in [
        (json!(["sleep", "1000"]), "more than 1 s"),
        (json!(["/nonexistent/program"]), "/nonexistent/program"),
    ] {
        let health = json!({"command": command, "timeoutSeconds": 1});
        let vendor = described(directory.path(), json!({"health": health}));
        let mut checks = Checks::new(vendor.health.clone().expect("a check"));
        let mut now = devices(&vendor);
        checks.judge(&mut now, Instant::now());
        assert!(now.iter().all(|device| !device.healthy));
        assert!(checks.why(0).is_some_and(|said| said.contains(why)));
    }
}
