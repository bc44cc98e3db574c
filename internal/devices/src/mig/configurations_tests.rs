//! Configurations from files and from profiles, for described machines, and errors in files.

use hardware::mig::profiles;
use serde_json::json;

use super::*;

const H100: &str = "NVIDIA H100 80GB HBM3";
const A100: &str = "NVIDIA A100-SXM4-40GB";

/// A machine with these products, numbered from 0.
fn machine(models: &[&str]) -> Vec<Card> {
    let card = |(model, index): (&&str, u32)| Card {
        id: format!("GPU-{index}"),
        index,
        model: (*model).to_owned(),
        device: if model.contains("A100") {
            0x20b0_10de
        } else {
            0x2330_10de
        },
        capable: !profiles(model).is_empty(),
        profiles: profiles(model).iter().map(InstanceProfile::from).collect(),
        ..Card::default()
    };
    models.iter().zip(0..).map(card).collect()
}

/// The layout of each GPU in short form.
fn words(
    wanted: Result<BTreeMap<String, WantedLayout>, ConfigurationError>,
) -> Result<Vec<String>, String> {
    let one = |(gpu, wanted): (String, WantedLayout)| format!("{gpu}: {}", wanted.message());
    let wanted = wanted.map_err(|error| error.to_string())?;
    Ok(wanted.into_iter().map(one).collect())
}

#[test]
fn without_a_file_configurations_are_made_of_the_gpus_own_profiles() {
    let cards = machine(&[H100, A100, "NVIDIA L4"]);
    let named = |name: &str| words(Configurations::default().wanted(name, &cards));
    let (off, on) = ("MIG mode off", "MIG mode on, and no instances");
    let cases: [(&str, &[(&str, &str)]); 6] = [
        ("all-disabled", &[("GPU-0", off), ("GPU-1", off)]),
        ("all-enabled", &[("GPU-0", on), ("GPU-1", on)]),
        (
            "all-balanced",
            &[
                ("GPU-0", "2 of 1g.10gb and 1 of 2g.20gb and 1 of 3g.40gb"),
                ("GPU-1", "2 of 1g.5gb and 1 of 2g.10gb and 1 of 3g.20gb"),
            ],
        ),
        // Both products have a profile of this name, on one of them with half the slices.
        (
            "all-1g.10gb",
            &[("GPU-0", "7 of 1g.10gb"), ("GPU-1", "4 of 1g.10gb")],
        ),
        ("all-1g.5gb", &[("GPU-1", "7 of 1g.5gb")]),
        ("all-1g.10gb.me", &[("GPU-0", "1 of 1g.10gb+me")]),
    ];
    for (name, wanted) in cases {
        let wanted = wanted
            .iter()
            .map(|(gpu, wanted)| format!("{gpu}: {wanted}"));
        assert_eq!(named(name), Ok(wanted.collect()), "{name}");
    }
    let error = named("all-5g.50gb").unwrap_err();
    assert!(
        error.contains("no configuration all-5g.50gb") && error.contains("all-1g.10gb.me"),
        "{error}"
    );
    let without = Configurations::default().wanted("all-enabled", &machine(&["NVIDIA L4"]));
    assert_eq!(
        words(without),
        Err("no GPU of the node can be partitioned (NVIDIA L4)".to_owned())
    );
    let none = Configurations::default().wanted("all-1g.10gb", &[]);
    assert_eq!(words(none), Err("the node has no GPUs".to_owned()));
    let still = Configurations::default().wanted("all-disabled", &machine(&["NVIDIA L4"]));
    assert_eq!(still, Ok(BTreeMap::new()), "it is so already");
}

#[test]
fn a_file_says_it_by_product_and_by_index() {
    let configurations = Configurations::read(&json!({"version": "v1", "mig-configs": {
        "off": [{"devices": "all", "mig-enabled": false}],
        "by-product": [
            {"device-filter": ["0x233010DE", "0x233110DE"], "devices": "all", "mig-enabled": true,
             "mig-devices": {"1g.10gb": 7}},
            {"device-filter": "0x20b010de", "devices": "all", "mig-enabled": true,
             "mig-devices": {"1g.5gb": 7}},
        ],
        "by-index": [
            {"devices": [0], "mig-enabled": false},
            {"devices": [1, 2], "mig-enabled": true, "mig-devices": {"3g.20gb": 2}},
        ],
        "far": [{"devices": [7], "mig-enabled": false}],
        "twice": [
            {"devices": "all", "mig-enabled": false},
            {"devices": [1], "mig-enabled": true},
        ],
        "other": [{"device-filter": "0x12345678", "devices": "all", "mig-enabled": true}],
    }}))
    .expect("it is good");
    let cards = machine(&[H100, A100, A100, "NVIDIA L4"]);
    let named = |name: &str| words(configurations.wanted(name, &cards));
    let off = |gpu: usize| format!("GPU-{gpu}: MIG mode off");
    let seven = |gpu: usize, profile: &str| format!("GPU-{gpu}: 7 of {profile}");
    assert_eq!(named("off"), Ok(vec![off(0), off(1), off(2)]));
    let by_product = vec![seven(0, "1g.10gb"), seven(1, "1g.5gb"), seven(2, "1g.5gb")];
    // By its PCI device number the L4 counts as an H100.
    assert!(
        named("by-product")
            .unwrap_err()
            .contains("GPU 3 (NVIDIA L4) cannot be partitioned")
    );
    assert_eq!(
        words(configurations.wanted("by-product", &cards[..3])),
        Ok(by_product)
    );
    let halves = |gpu: usize| format!("GPU-{gpu}: 2 of 3g.20gb");
    assert_eq!(named("by-index"), Ok(vec![off(0), halves(1), halves(2)]));
    for (name, words) in [
        (
            "far",
            "mig-configs.far[0].devices: there is no GPU 7; the node has 4",
        ),
        (
            "twice",
            "mig-configs.twice[1]: entry 0 partitions GPU 1 in another way",
        ),
        (
            "other",
            "mig-configs.other: no entry names one of the node's GPUs: NVIDIA A100-SXM4-40GB (0x20B010DE)",
        ),
        (
            "none",
            "there is no configuration none; the file has by-index, by-product, far",
        ),
    ] {
        let error = named(name).unwrap_err();
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn errors_in_a_file_are_named() {
    let with = |entry: Value| {
        let file = json!({"version": "v1", "mig-configs": {"x": [entry]}});
        Configurations::read(&file).unwrap_err()
    };
    let cases = [
        (
            with(json!({"devices": "some", "mig-enabled": true})),
            "mig-configs.x[0].devices: \"some\"",
        ),
        (
            with(json!({"devices": [-1], "mig-enabled": true})),
            "mig-configs.x[0].devices: -1",
        ),
        (
            with(json!({"devices": "all"})),
            "mig-configs.x[0].mig-enabled: missing",
        ),
        (
            with(json!({"devices": "all", "mig-enable": true})),
            "mig-configs.x[0].mig-enable: no such field",
        ),
        (
            with(json!({"devices": "all", "mig-enabled": true, "mig-devices": {"1g.5gb": 0}})),
            "mig-configs.x[0].mig-devices.1g.5gb: 0 is not usable; write a number, at least 1",
        ),
        (
            with(json!({"devices": "all", "mig-enabled": true, "mig-devices": {"1c.3g.20gb": 1}})),
            "mig-configs.x[0].mig-devices.1c.3g.20gb: instances that several compute in",
        ),
        (
            with(json!({"devices": "all", "mig-enabled": false, "mig-devices": {"1g.5gb": 1}})),
            "write nothing, as mig-enabled is false",
        ),
        (
            with(json!({"device-filter": "233010DE", "devices": "all", "mig-enabled": true})),
            "mig-configs.x[0].device-filter: \"233010DE\" is not usable",
        ),
        (
            Configurations::read(&json!({"version": "v2"})).unwrap_err(),
            "version: \"v2\"",
        ),
        (
            Configurations::read(&json!({"version": "v1"})).unwrap_err(),
            "mig-configs: missing",
        ),
        (
            Configurations::read(&json!({"version": "v1", "mig-configs": {"1g.10gb+me": []}}))
                .unwrap_err(),
            "mig-configs.1g.10gb+me: no label can name it",
        ),
        (
            Configurations::read(&json!({"version": "v1", "mig-configs": {"x": {}}})).unwrap_err(),
            "mig-configs.x: {} is not usable; write a list",
        ),
    ];
    for (error, words) in cases {
        let error = error.to_string();
        assert!(
            error.starts_with(words) || error.ends_with(words),
            "{error}"
        );
    }
}

#[test]
fn possible_layouts_are_published_by_the_resources_that_they_offer() {
    let two = machine(&[H100, H100]);
    let mixed = machine(&[H100, "NVIDIA L4"]);
    let by_profiles = Configurations::default();
    let of = |all: &Possible, name: &str| -> Vec<(String, u32)> {
        let devices = all.get(name).into_iter().flatten();
        devices
            .map(|(name, count)| (name.clone(), *count))
            .collect()
    };
    let named = |all: &[(&str, u32)]| -> Vec<(String, u32)> {
        all.iter()
            .map(|(name, count)| ((*name).to_owned(), *count))
            .collect()
    };
    let all = possible(&by_profiles, &two);
    assert_eq!(
        of(&all, "all-1g.10gb"),
        named(&[("nvidia.com/mig-1g.10gb", 14)])
    );
    assert_eq!(
        of(&all, "all-1g.10gb.me"),
        named(&[("nvidia.com/mig-1g.10gb.me", 2)])
    );
    assert_eq!(of(&all, "all-disabled"), named(&[("nvidia.com/gpu", 2)]));
    let balanced = ["1g.10gb", "2g.20gb", "3g.40gb"].map(|it| format!("nvidia.com/mig-{it}"));
    let counts: Vec<(String, u32)> = balanced.into_iter().zip([4, 2, 2]).collect();
    assert_eq!(of(&all, "all-balanced"), counts);
    // A GPU without MIG is offered whole under any name.
    let all = possible(&by_profiles, &mixed);
    let both = named(&[("nvidia.com/gpu", 1), ("nvidia.com/mig-3g.40gb", 2)]);
    assert_eq!(of(&all, "all-3g.40gb"), both);
    assert!(possible(&by_profiles, &machine(&["NVIDIA L4"])).is_empty());
    // Names of a file, without those that do not fit.
    let file = json!({"version": "v1", "mig-configs": {
        "first": [{"devices": [0], "mig-enabled": true, "mig-devices": {"3g.40gb": 1}}],
        "much": [{"devices": "all", "mig-enabled": true, "mig-devices": {"7g.80gb": 2}}],
        "third": [{"devices": [2], "mig-enabled": true}],
    }});
    let file = Configurations::read(&file).expect("a file");
    let all = possible(&file, &two);
    assert_eq!(all.keys().collect::<Vec<_>>(), ["first"]);
    let one = named(&[("nvidia.com/gpu", 1), ("nvidia.com/mig-3g.40gb", 1)]);
    assert_eq!(of(&all, "first"), one);
}
