//! Configurations, valid and invalid, and the cards that they select.

use hardware::CardPort;
use serde_json::{Value, json};

use super::*;
use crate::config_values::ConfigValueError;

/// Two InfiniBand cards on one NUMA node, and one for Ethernet on another.
fn machine() -> RdmaDevices {
    let card = |number: u32, layer: &str, model: &str, netdev: &str| RdmaDevice {
        name: format!("mlx5_{number}"),
        vendor: "15b3".into(),
        model: model.into(),
        driver: "mlx5_core".into(),
        netdevs: vec![netdev.into()],
        numa: Some(number / 2),
        ports: vec![CardPort {
            number: 1,
            state: "ACTIVE".into(),
            layer: layer.into(),
            ..CardPort::default()
        }],
        files: vec![format!("uverbs{number}")],
    };
    RdmaDevices {
        cards: vec![
            card(0, "InfiniBand", "1021", "ib0"),
            card(1, "InfiniBand", "101b", "ib1"),
            card(2, "Ethernet", "101b", "ens1"),
        ],
        rdma_cm: true,
    }
}

fn read(one: Value) -> Result<RdmaSettings, ConfigValueError> {
    RdmaSettings::read(&json!({"configList": [one]}))
}

/// The cards of a resource with these fields.
fn chosen(more: Value) -> Vec<String> {
    let mut one = json!({"resourceName": "a"});
    let fields = one.as_object_mut().expect("a mapping");
    fields.extend(more.as_object().expect("a mapping").clone());
    let settings = read(one).expect("a configuration");
    let pool = settings.resources[0].pool(&machine());
    pool.cards.into_iter().collect()
}

#[test]
fn a_card_must_be_one_of_each_list_that_is_given() {
    let all = ["mlx5_0", "mlx5_1", "mlx5_2"];
    for (more, wanted) in [
        (json!({}), &all[..]),
        (json!({"selectors": {"vendors": ["15b3"]}}), &all),
        (json!({"selectors": {"vendors": ["0x15B3"]}}), &all),
        (json!({"selectors": {"vendors": ["8086"]}}), &[]),
        (json!({"selectors": {"deviceIDs": ["1021"]}}), &all[..1]),
        (
            json!({"selectors": {"drivers": ["mlx5_core", "irdma"]}}),
            &all,
        ),
        (json!({"selectors": {"drivers": ["irdma"]}}), &[]),
        (
            json!({"selectors": {"ifNames": ["ib1", "ens1"]}}),
            &all[1..],
        ),
        (
            json!({"selectors": {"linkTypes": ["infiniband"]}}),
            &all[..2],
        ),
        (json!({"selectors": {"linkTypes": ["ether"]}}), &all[2..]),
        (
            json!({"selectors": {"deviceIDs": ["101b"], "linkTypes": ["infiniband"]}}),
            &all[1..2],
        ),
        // The older form.
        (json!({"devices": ["ib0", "ib7"]}), &all[..1]),
    ] {
        assert_eq!(chosen(more.clone()), wanted, "{more}");
    }
}

#[test]
fn the_incumbents_own_configuration_is_read() {
    let document = json!({"kubeletRootDir": "/var/lib/kubelet", "periodicUpdateInterval": 300,
        "configList": [
            {"resourceName": "hca_shared_devices_a", "rdmaHcaMax": 1000, "devices": ["ib0", "ib1"]},
            {"resourceName": "hca_shared_devices_b", "rdmaHcaMax": 500, "resourcePrefix": "example.com",
             "selectors": {"vendors": ["15b3"], "deviceIDs": ["1017"], "ifNames": ["ib3", "ib4"]}}]});
    let settings = RdmaSettings::read(&document).expect("a configuration");
    let said: Vec<(&str, usize)> = (settings.resources.iter())
        .map(|shared| (shared.resource.as_str(), shared.containers))
        .collect();
    let wanted = [
        ("rdma/hca_shared_devices_a", 1000),
        ("example.com/hca_shared_devices_b", 500),
    ];
    assert_eq!(said, wanted);
    assert_eq!(
        settings.unused,
        ["kubeletRootDir", "periodicUpdateInterval"]
    );
    let usual = RdmaSettings::usual();
    assert_eq!(usual.resources[0].resource, wanted[0].0);
    assert_eq!(usual.resources[0].pool(&machine()).cards.len(), 3);
}

#[test]
fn errors_name_the_field_its_value_and_the_accepted_values() {
    let cases = [
        (
            json!({}),
            ["configList[0].resourceName: missing", "hca_shared"],
        ),
        (
            json!({"resourceName": "a/b"}),
            ["configList[0].resourceName: \"a/b\"", "hca_shared"],
        ),
        (
            json!({"resourceName": "gpu", "resourcePrefix": "nvidia.com"}),
            ["configList[0].resourceName: \"gpu\"", "hca_shared"],
        ),
        (
            json!({"resourceName": "a", "resourcePrefix": 3}),
            ["configList[0].resourcePrefix: 3", "like rdma"],
        ),
        (
            json!({"resourceName": "a", "rdmaHcaMax": 0}),
            ["configList[0].rdmaHcaMax: 0", "from 1 to 10000"],
        ),
        (
            json!({"resourceName": "a", "selectors": {"vendor": ["15b3"]}}),
            ["configList[0].selectors.vendor: no such field", "vendors"],
        ),
        (
            json!({"resourceName": "a", "selectors": {"vendors": "15b3"}}),
            ["configList[0].selectors.vendors: \"15b3\"", "a list"],
        ),
        (
            json!({"resourceName": "a", "selectors": {"vendors": [1593]}}),
            ["configList[0].selectors.vendors: [1593]", "in quotes"],
        ),
        (
            json!({"resourceName": "a", "selectors": {"linkTypes": ["roce"]}}),
            [
                "configList[0].selectors.linkTypes: [\"roce\"]",
                "infiniband",
            ],
        ),
        (
            json!({"resourceName": "a", "devices": ["ib0"], "selectors": {"ifNames": ["ib1"]}}),
            ["configList[0].devices: [\"ib0\"]", "selectors.ifNames"],
        ),
    ];
    for (one, words) in cases {
        let why = read(one).expect_err("it is refused").to_string();
        for word in words {
            assert!(why.contains(word), "{why}: lacks {word}");
        }
    }
    let why = RdmaSettings::read(&json!({"configList": []}))
        .expect_err("nothing is in it")
        .to_string();
    assert!(why.contains("configList: []"), "{why}");
    let twice = json!({"configList": [{"resourceName": "a"}, {"resourceName": "a"}]});
    let why = RdmaSettings::read(&twice)
        .expect_err("one name twice")
        .to_string();
    assert!(why.contains("configList[1].resourceName"), "{why}");
}

#[test]
fn a_pool_has_the_cards_that_can_be_opened_and_their_common_numa_node() {
    let usual = RdmaSettings::usual().resources.remove(0);
    let mut machine = machine();
    assert_eq!(usual.pool(&machine).numa, None);
    machine.cards[2].files.clear();
    let pool = usual.pool(&machine);
    assert_eq!((pool.numa, pool.cards.len()), (Some(0), 2));
    assert_eq!(pool.files, ["uverbs0", "uverbs1", "rdma_cm"]);
    machine.rdma_cm = false;
    assert_eq!(usual.pool(&machine), Pool::default());
}

#[test]
fn a_container_has_the_cards_of_the_resources_that_it_asks_for() {
    let of = |name: &str, interface: &str| json!({"resourceName": name, "selectors": {"ifNames": [interface]}});
    let document = json!({"configList": [of("a", "ib0"), of("b", "ens1")]});
    let (_seen, devices) = channel::channel(machine());
    let cards = NodeRdmaCards {
        settings: RdmaSettings::read(&document).expect("a configuration"),
        seen: devices,
    };
    let has = |asked: &[&str]| {
        let asked = asked.iter().map(ToString::to_string).collect();
        let cards: Option<BTreeSet<String>> = cards.of(&asked);
        cards.map(|cards| cards.into_iter().collect::<Vec<_>>())
    };
    assert_eq!(has(&["nvidia.com/gpu", "cpu"]), None);
    assert_eq!(has(&["rdma/b", "cpu"]), Some(vec!["mlx5_2".to_owned()]));
    assert_eq!(has(&["rdma/a", "rdma/b"]).map(|cards| cards.len()), Some(2));
}

#[test]
fn a_container_has_the_files_of_its_resources_each_once_and_none_of_a_resource_without_cards() {
    let (seen, devices) = channel::channel(machine());
    let of = |name: &str, interfaces: &[&str]| json!({"resourceName": name, "rdmaHcaMax": 7, "selectors": {"ifNames": interfaces}});
    let document =
        json!({"configList": [of("a", &["ib0", "ib1"]), of("b", &["ib1"]), of("c", &["ens9"])]});
    let cards = NodeRdmaCards {
        settings: RdmaSettings::read(&document).expect("a configuration"),
        seen: devices,
    };
    let equipped = |asked: &[&str]| {
        let pools = cards
            .now()
            .into_iter()
            .map(|(name, (pool, _))| (name, pool));
        let asked = asked.iter().map(ToString::to_string).collect();
        equipment(&pools.collect(), &asked)
    };
    assert_eq!(equipped(&["cpu", "rdma/other"]), Ok(None));
    let both = equipped(&["rdma/a", "rdma/b"])
        .expect("cards")
        .expect("some");
    assert_eq!(both.files, ["uverbs0", "uverbs1", "rdma_cm"]);
    assert_eq!(both.cards.len(), 2);
    let one = equipped(&["rdma/b"]).expect("cards").expect("some");
    assert_eq!(one.files, ["uverbs1", "rdma_cm"]);
    let why = equipped(&["rdma/a", "rdma/c"])
        .expect_err("it has no card")
        .to_string();
    assert!(
        why.contains("rdma/c") && why.contains("muster doctor"),
        "{why}"
    );

    let shares = |name: &str| cards.now()[name].1;
    let shared = |healthy| Shares { count: 7, healthy };
    assert_eq!(
        [shares("rdma/b"), shares("rdma/c")],
        [shared(true), shared(false)]
    );
    seen.send_modify(|machine| machine.cards[1].ports[0].state = "DOWN".into());
    assert_eq!(
        [shares("rdma/a"), shares("rdma/b")],
        [shared(true), shared(false)]
    );
}
