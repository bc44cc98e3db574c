//! The offer of GPUs that are not partitioned, partitioned for claims, or partitioned by others.

use std::path::Path;

use hardware::Inventory;
use hardware::description::MachineDescription;
use hardware::mig;
use hardware::partition::GpuLayout;

use super::super::claimable;
use super::super::prepared::PreparedDevice;
use super::*;

const H100: &str = "NVIDIA H100 80GB HBM3";
const ID: &str = "GPU-5b9a1e1c-0000-4000-8000-000000000000";
const NAME: &str = "gpu-5b9a1e1c-0000-4000-8000-000000000000";

/// A H100 that shows these slices as found, and a card.
fn found(mig: &str, more: &str) -> DiscoveredDevices {
    let text = format!(
        "[[gpu]]\nmodel = \"{H100}\"\nmemory_mib = 81559\nid = [\"{ID}\"]\n{mig}\n{more}\n\
         [[nic]]\nname = \"mlx5_0\"\nports = [{{ gbits = 400, layer = \"InfiniBand\" }}]\n"
    );
    let mut inventory = Inventory::default();
    let description = MachineDescription::parse(&text, Path::new("m.toml"));
    description.expect("a machine").apply(&mut inventory);
    DiscoveredDevices {
        devices: claimable::all(&inventory),
        gpus: claimable::gpus(&inventory),
    }
}

fn place(profile: &str, start: u32) -> InstancePosition {
    InstancePosition {
        profile: profile.to_owned(),
        start,
    }
}

/// The GPU with these instances, numbered from 1, each one slice of the ids.
fn card(instances: &[(&str, u32, &str)]) -> Card {
    let profiles: Vec<InstanceProfile> = mig::profiles(H100)
        .iter()
        .map(InstanceProfile::from)
        .collect();
    let instance = |(number, (name, start, _)): (u32, &(&str, u32, &str))| {
        let profile = profiles.iter().find(|it| it.name == *name);
        let profile = profile.expect("a profile");
        GpuInstance {
            id: number,
            profile: profile.id,
            start: *start,
            computes: vec![(0, profile.slices)],
        }
    };
    let layout = GpuLayout {
        enabled: !instances.is_empty(),
        instances: (1..).zip(instances).map(instance).collect(),
    };
    let slices = (1..)
        .zip(instances)
        .map(|(number, (.., id))| ((*id).to_owned(), number));
    Card {
        id: ID.to_owned(),
        capable: true,
        slices: slices.collect(),
        layout,
        profiles,
        ..Card::default()
    }
}

fn cards(card: Result<Card, CardError>) -> GpuLayouts {
    GpuLayouts::from([(ID.to_owned(), card)])
}

/// A claim that has a partition.
fn prepared(at: &InstancePosition, slice: &str) -> Prepared {
    let device = name(ID, &at.profile, at.start);
    let cut = CreatedPartition {
        gpu: ID.to_owned(),
        place: at.clone(),
        slice: slice.to_owned(),
    };
    Prepared {
        uid: "1".to_owned(),
        devices: vec![PreparedDevice {
            request: "r".to_owned(),
            device: device.clone(),
            admin: false,
        }],
        cuts: BTreeMap::from([(device, cut)]),
        ..Prepared::default()
    }
}

/// The names of those that are offered.
fn names(all: &[Claimable]) -> Vec<&str> {
    let well = all.iter().filter(|one| one.problem.is_empty());
    well.map(|one| one.device.name.as_str()).collect()
}

#[test]
fn a_gpu_is_offered_in_every_slice_and_as_a_whole_small_ones_and_high_places_first() {
    let offer = offer(&found("", ""), &cards(Ok(card(&[]))), &[]);
    assert!(offer.shares(NAME) && offer.shared.len() == 1);
    let all = names(&offer.devices);
    assert_eq!(all.len(), 27);
    let short = |name: &str| name.strip_prefix(NAME).map(str::to_owned);
    let first: Vec<Option<String>> = all[..9].iter().map(|name| short(name)).collect();
    let expected = (0..7).rev().map(|start| format!("-1g-10gb-{start}"));
    let media = ["-1g-10gb-me-6", "-1g-10gb-me-5"].map(str::to_owned);
    assert_eq!(first, expected.chain(media).map(Some).collect::<Vec<_>>());
    assert_eq!(all[25..], [NAME, "nic-mlx5-0"]);
    assert_eq!(names(&offer.apart), [NAME, "nic-mlx5-0"]);
    assert_eq!(offer.apart[0].device.consumes_counters, None);
    let large = offer
        .devices
        .iter()
        .find(|one| one.device.name.ends_with("3g-40gb-4"));
    let large = serde_json::to_value(&large.expect("it is there").device).expect("plain data");
    let text = |name: &str| large["attributes"][name]["string"].clone();
    assert_eq!([text("type"), text("profile")], ["mig", "3g.40gb"]);
    assert_eq!([text("parentUUID"), text("productName")], [ID, H100]);
    assert_eq!(large["attributes"]["parentIndex"]["int"], 0);
    assert_eq!(large["capacity"]["memory"]["value"], "40448Mi");
    assert!(text("uuid").is_null() && large["attributes"]["index"].is_null());
    assert_eq!(large["consumesCounters"][0]["counterSet"], NAME);
}

#[test]
fn partitions_of_claims_do_not_change_the_offer_and_are_the_only_ones_apart() {
    let at = place("1g.10gb", 6);
    let whole = offer(&found("", ""), &cards(Ok(card(&[]))), &[]);
    // Before it is created, while its slice is not recorded yet, and afterwards.
    for (there, slice) in [(false, ""), (true, ""), (true, "MIG-1")] {
        let instances = [("1g.10gb", 6, "MIG-1")];
        let card = card(if there { &instances } else { &[] });
        let found = found(if there { "mig = [\"1g.10gb\"]" } else { "" }, "");
        let cut = offer(&found, &cards(Ok(card)), &[prepared(&at, slice)]);
        assert_eq!(cut.devices, whole.devices);
        assert_eq!(cut.shared, whole.shared);
        let only = format!("{NAME}-1g-10gb-6");
        assert_eq!(names(&cut.apart), [only.as_str(), "nic-mlx5-0"]);
    }
}

#[test]
fn a_gpu_partitioned_by_others_is_offered_as_it_is() {
    let found = found("mig = [\"1g.10gb\", \"3g.40gb\"]", "");
    let slices: Vec<String> = (found.devices.iter())
        .filter(|one| one.gpu().is_some())
        .map(|one| one.id.clone())
        .collect();
    let card = card(&[("1g.10gb", 6, &slices[0]), ("3g.40gb", 0, &slices[1])]);
    let at = place("1g.10gb", 6);
    // None of them is a claim's; one is; the slice at the place now is not the one that was
    // created.
    for (claims, others) in [
        (vec![], vec![0, 1]),
        (vec![prepared(&at, &slices[0])], vec![1]),
        (vec![prepared(&at, "MIG-before")], vec![0, 1]),
    ] {
        let offer = offer(&found, &cards(Ok(card.clone())), &claims);
        assert_eq!(offer.shared, []);
        assert_eq!(offer.devices, offer.apart);
        let ids = offer.devices.iter().filter(|one| one.problem.is_empty());
        let ids: Vec<&str> = ids.map(|one| one.id.as_str()).collect();
        let mut expected: Vec<&str> = others.iter().map(|at| slices[*at].as_str()).collect();
        expected.push("mlx5_0");
        assert_eq!(ids, expected);
        // The claim's device stays known.
        let own = offer.devices.iter().find(|one| !one.problem.is_empty());
        assert_eq!(own.is_some(), !claims.is_empty());
        if let Some(own) = own {
            assert_eq!(own.device.name, format!("{NAME}-1g-10gb-6"));
            assert_eq!(
                own.problem,
                "GPU 0 has partitions that Muster did not create"
            );
        }
    }
}

#[test]
fn a_gpu_without_mig_or_with_unknown_layout_is_offered_as_found_or_not_at_all() {
    let not_capable = Card {
        capable: false,
        ..card(&[])
    };
    let mut unknown = card(&[]);
    unknown.profiles[0].starts.clear();
    let waiting = Card {
        waits: true,
        ..card(&[])
    };
    let ill = found("", "healthy = false");
    let well = found("", "");
    let both = vec![NAME, "nic-mlx5-0"];
    let nic = vec!["nic-mlx5-0"];
    type Case<'a> = (&'a DiscoveredDevices, GpuLayouts, Vec<&'a str>);
    let cases: [Case<'_>; 6] = [
        (&well, GpuLayouts::new(), both.clone()),
        (&well, cards(Ok(not_capable)), both.clone()),
        (&well, cards(Ok(unknown)), both),
        (&well, cards(Ok(waiting)), nic.clone()),
        (
            &well,
            cards(Err(CardError::Unread("lost".to_owned()))),
            nic.clone(),
        ),
        (&ill, cards(Ok(card(&[]))), nic),
    ];
    for (found, cards, expected) in cases {
        let offer = offer(found, &cards, &[]);
        assert_eq!(names(&offer.devices), expected);
        assert_eq!(names(&offer.apart), expected);
    }
}

#[test]
fn the_claim_of_a_withheld_device_gets_the_reason() {
    let waiting = Card {
        waits: true,
        ..card(&[("1g.10gb", 6, "MIG-1")])
    };
    let claims = [prepared(&place("1g.10gb", 6), "MIG-1")];
    let found = found("mig = []", "");
    let offer = offer(&found, &cards(Ok(waiting)), &claims);
    let problem = |name: &str| {
        let mut all = offer.devices.iter().filter(|one| one.device.name == name);
        let one = all.next().map(|one| one.problem.clone());
        assert!(all.next().is_none(), "{name} is there twice");
        one.unwrap_or_default()
    };
    for name in [
        NAME,
        &format!("{NAME}-1g-10gb-6"),
        &format!("{NAME}-3g-40gb-0"),
    ] {
        let said = problem(name);
        assert!(said.contains("--gpu-reset -i 0"), "{name}: {said:?}");
    }
}

#[test]
fn partitions_that_overlap_are_one_and_a_whole_is_all_of_them() {
    let offer = offer(&found("", ""), &cards(Ok(card(&[]))), &[]);
    let of = |end: &str| {
        let mut all = offer.devices.iter();
        all.find(|one| one.device.name == format!("{NAME}{end}"))
            .expect("it is there")
    };
    for (one, other, overlaps) in [
        ("-1g-10gb-6", "-3g-40gb-4", true),
        ("-1g-10gb-6", "-3g-40gb-0", false),
        ("-2g-20gb-2", "-4g-40gb-0", true),
        ("-1g-10gb-1", "", true),
        ("-1g-10gb-1", "-1g-10gb-2", false),
        ("-1g-10gb-1", "-1g-10gb-me-1", true),
    ] {
        assert_eq!(of(one).overlaps(of(other)), overlaps, "{one} and {other:?}");
        assert_eq!(of(other).overlaps(of(one)), overlaps, "{other:?} and {one}");
    }
    let nic = offer.devices.last().expect("a card");
    assert!(!nic.overlaps(of("")) && nic.overlaps(nic));
}
