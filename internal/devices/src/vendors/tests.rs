//! Descriptions, valid and invalid, and machines with the described devices.

use std::fs;
use std::time::Instant;

use serde_json::json;

use super::check::Checks;
use super::*;

/// A description of files in a directory, with these additional fields.
fn described(directory: &Path, more: Value) -> Vendor {
    let at = |name: &str| directory.join(name).display().to_string();
    let mut document = json!({"resource": "example.com/card", "device": at("dev/card{number}")});
    let fields = document.as_object_mut().expect("a mapping");
    fields.extend(more.as_object().expect("a mapping").clone());
    Vendor::read(&document).expect("a description")
}

fn devices(vendor: &Vendor) -> Vec<VendorDevice> {
    super::discovery::devices(vendor, Path::new("/"))
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
fn errors_name_the_field_its_value_and_the_accepted_values() {
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
        let why = Vendor::read(&document)
            .expect_err("it is refused")
            .to_string();
        for word in words {
            assert!(why.contains(word), "{why}: lacks {word}");
        }
    }
}

#[test]
fn the_devices_are_the_numbered_files_that_meet_the_condition() {
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
        .map(|device| (device.id.clone(), device.numa, device.healthy()))
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
    // For an agent in a container, the machine's root is elsewhere.
    vendor.device = Pattern::read("/dev/card{number}").expect("a pattern");
    assert_eq!(
        super::discovery::devices(&vendor, directory.path()).len(),
        3
    );
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
    let device = |number: u32| VendorDevice {
        number,
        id: format!("c{number}"),
        numa: None,
        state: VendorDeviceState::Healthy,
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
        assert!(
            now.iter()
                .all(|it| it.state == VendorDeviceState::Unchecked)
        );
        checks.assess(&mut now, begin + Duration::from_secs(seconds));
        now.iter().map(VendorDevice::healthy).collect()
    };
    assert_eq!(well(&mut checks, 0), [true, false]);
    // The result stays until the next check is due.
    fs::write(directory.path().join("state0"), "broken").expect("it is written");
    fs::write(directory.path().join("state1"), "well").expect("it is written");
    assert_eq!(well(&mut checks, 59), [true, false]);
    assert_eq!(well(&mut checks, 60), [false, true]);
    // A new device is checked at once.
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
        checks.assess(&mut now, Instant::now());
        assert!(!now.iter().any(VendorDevice::healthy));
        assert!(matches!(&now[0].state, VendorDeviceState::Unhealthy(said) if said.contains(why)));
    }
}

/// A resource whose device N is `/dev/NAME`N, with these devices and their health.
fn stock(resource: &str, name: &str, devices: &[(u32, VendorDeviceState)]) -> (String, Stock) {
    let vendor = json!({"resource": resource, "device": format!("/dev/{name}{{number}}"),
        "with": [format!("/dev/{name}ctl{{number}}")], "always": ["/dev/all"],
        "environment": {format!("{name}_VISIBLE"): "{numbers}"}, "mounts": [{"from": "/opt/a"}]});
    let device = |(number, state): &(u32, VendorDeviceState)| VendorDevice {
        number: *number,
        id: format!("{name}{number}"),
        numa: Some(*number),
        state: state.clone(),
    };
    let stock = Stock {
        vendor: std::sync::Arc::new(Vendor::read(&vendor).expect("a description")),
        devices: devices.iter().map(device).collect(),
    };
    (resource.to_owned(), stock)
}

#[test]
fn each_device_is_offered_once_by_its_file_with_why_it_is_not_well() {
    let well = |number| (number, VendorDeviceState::Healthy);
    let hot = VendorDeviceState::Unhealthy("it is hot".to_owned());
    let stocks = BTreeMap::from([
        stock(
            "a.com/x",
            "x",
            &[well(0), (1, hot), (2, VendorDeviceState::Unchecked)],
        ),
        stock("b.com/also-x", "x", &[well(0), well(3)]),
        stock("c.com/none", "y", &[]),
        stock("d.com/x-again", "x", &[well(3)]),
    ]);
    let told = offered(&stocks);
    let told: Vec<_> = (told.iter())
        .flat_map(|(resource, devices)| {
            devices
                .iter()
                .map(move |it| (&**resource, &*it.id, &*it.why))
        })
        .collect();
    let wanted = [
        ("a.com/x", "/dev/x0", ""),
        ("a.com/x", "/dev/x1", "it is hot"),
        ("a.com/x", "/dev/x2", "it has not been checked yet"),
        ("b.com/also-x", "/dev/x3", ""),
    ];
    assert_eq!(told, wanted);
    let well = offered(&stocks);
    let well = well.values().flatten().filter(|device| device.healthy);
    assert!(well.map(|device| &*device.id).eq(["/dev/x0", "/dev/x3"]));
}

#[test]
fn a_container_has_its_allocated_devices_and_no_others() {
    let all = [0, 1, 2].map(|number| (number, VendorDeviceState::Healthy));
    let stocks = BTreeMap::from([
        stock("a.com/x", "x", &all),
        stock("b.com/y", "y", &all[..1]),
    ]);
    let of = |asked: usize, chosen: &[&str]| {
        let resource = || "a.com/x".to_owned();
        let ids = chosen.iter().map(|id| (*id).to_owned()).collect();
        let chosen = BTreeMap::from([(resource(), ids)]);
        equipment(
            &stocks,
            "main",
            &BTreeMap::from([(resource(), asked)]),
            &chosen,
        )
    };
    let paths = |names: &[&str]| -> Vec<PathBuf> {
        names
            .iter()
            .map(|name| format!("/dev/{name}").into())
            .collect()
    };
    let two = of(2, &["/dev/x2", "/dev/x0"]).expect("it has them");
    assert_eq!(two.files, paths(&["x2", "xctl2", "x0", "xctl0", "all"]));
    assert_eq!(two.denied, paths(&["x1", "xctl1", "y0", "yctl0"]));
    assert_eq!(two.mounts.len(), 1);
    let variables = BTreeMap::from([("x_VISIBLE".to_owned(), "2,0".to_owned())]);
    assert_eq!(two.variables, variables);

    let none = equipment(&stocks, "main", &BTreeMap::new(), &BTreeMap::new());
    let none = none.expect("it asks for none");
    assert_eq!(none.denied.len(), 8);
    let denied = none.denied.clone();
    assert_eq!(
        none,
        ContainerDevices {
            denied,
            ..ContainerDevices::default()
        }
    );

    let few = of(2, &["/dev/x2"]).expect_err("too few").to_string();
    assert!(
        few.contains("asks for 2 of a.com/x, but 1 were chosen"),
        "{few}"
    );
    let gone = of(1, &["/dev/x7"])
        .expect_err("it is not there")
        .to_string();
    assert!(
        gone.contains("\"/dev/x7\"") && gone.contains("no such a.com/x"),
        "{gone}"
    );
    let chosen = BTreeMap::from([("z.com/z".to_owned(), vec!["/dev/z0".to_owned()])]);
    let lost = equipment(&stocks, "main", &BTreeMap::new(), &chosen);
    let lost = lost.expect_err("it is not described").to_string();
    assert!(
        lost.contains("z.com/z") && lost.contains("--vendor"),
        "{lost}"
    );
}

#[tokio::test]
async fn device_changes_are_notified_and_without_descriptions_there_are_none() {
    let directory = machine(&[("dev/card0", ""), ("state0", "well")]);
    let state = directory.path().join("state{number}").display().to_string();
    let health =
        json!({"command": ["grep", "-qx", "well", state], "everySeconds": 1, "timeoutSeconds": 1});
    let vendor = described(directory.path(), json!({"health": health}));
    let mut seen = DeviceStock::watch(&[vendor], Path::new("/")).await;
    let well = |seen: &DeviceStock| -> Vec<bool> {
        let now = seen.now();
        now["example.com/card"]
            .devices
            .iter()
            .map(VendorDevice::healthy)
            .collect()
    };
    assert_eq!(well(&seen), [true], "its first check is waited for");
    fs::write(directory.path().join("state0"), "broken").expect("it is written");
    seen.news().await;
    assert_eq!(well(&seen), [false]);

    let mut none = DeviceStock::watch(&[], Path::new("/")).await;
    assert!(none.now().is_empty());
    let news = tokio::time::timeout(Duration::ZERO, none.news()).await;
    assert!(news.is_err());
}
