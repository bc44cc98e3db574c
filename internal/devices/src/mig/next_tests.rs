//! The plan for GPUs in each state, with holders of each kind.

use hardware::mig::profiles;
use hardware::partition::{GpuInstance, GpuLayout, InstanceProfile};

use super::*;

const H100: &str = "NVIDIA H100 80GB HBM3";
const SMALL: &str = "1g.10gb";
const LARGE: &str = "3g.40gb";

/// An H100 with these instances, numbered from 1, whose slices are `MIG-GPU-NUMBER`; `None`: it is
/// not in MIG mode.
fn card(index: u32, instances: Option<&[(&str, u32)]>) -> Card {
    let all: Vec<InstanceProfile> = profiles(H100).iter().map(InstanceProfile::from).collect();
    let instances_of = instances.unwrap_or_default().iter().zip(1..);
    let layout = instances_of.map(|((name, start), id)| {
        let profile = all.iter().find(|it| it.name == *name).expect("a profile");
        GpuInstance {
            id,
            profile: profile.id,
            start: *start,
            computes: vec![(0, profile.slices)],
        }
    });
    let layout = GpuLayout {
        enabled: instances.is_some(),
        instances: layout.collect(),
    };
    let slices = layout.instances.iter();
    Card {
        id: format!("GPU-{index}"),
        index,
        model: H100.to_owned(),
        capable: true,
        slices: slices
            .map(|it| (format!("MIG-{index}-{}", it.id), it.id))
            .collect(),
        profiles: all,
        layout,
        ..Card::default()
    }
}

fn wanted(instances: &[(&str, u32)]) -> WantedLayout {
    let named = instances.iter().map(|(name, n)| ((*name).to_owned(), *n));
    WantedLayout {
        enabled: true,
        instances: named.collect(),
    }
}

fn pod(name: &str) -> BlockingHolder {
    BlockingHolder::Pod {
        namespace: "team".to_owned(),
        name: name.to_owned(),
    }
}

fn held(devices: &[(&str, &str)]) -> GpuHolders {
    let mut holders = GpuHolders::default();
    for (device, name) in devices {
        holders.note(device, pod(name));
    }
    holders
}

/// The plan in short form: withheld GPUs, holders that must end, resets, and GPUs with the number
/// of steps.
fn short(next: &RepartitionPlan) -> String {
    let list = |all: Vec<String>| all.join(" ");
    format!(
        "-{} held {} reset {} cut {}",
        list(next.withheld.values().map(u32::to_string).collect()),
        list(next.held.iter().map(ToString::to_string).collect()),
        list(next.resets.iter().map(u32::to_string).collect()),
        list(
            next.ready
                .iter()
                .map(|it| format!("{}x{}", it.index, it.steps.len()))
                .collect()
        ),
    )
}

#[test]
fn gpus_are_withheld_before_a_cut_and_cut_once_the_removed_devices_have_no_holder() {
    let two_small: &[(&str, u32)] = &[(SMALL, 0), (SMALL, 1)];
    let mut waiting = card(0, None);
    waiting.waits = true;
    let mut busy = card(0, None);
    busy.processes = vec![(77, None)];
    let mut busy_slice = card(0, Some(two_small));
    busy_slice.processes = vec![(77, Some(1))];
    let mut unknown = card(0, None);
    unknown.profiles.iter_mut().for_each(|it| it.starts.clear());
    let one = wanted(&[(SMALL, 1)]);
    let off = WantedLayout::default();
    // The present layout, the wanted one, the holders, the plan.
    type Case<'a> = (Card, &'a WantedLayout, &'a [(&'a str, &'a str)], &'a str);
    let cases: [Case<'_>; 13] = [
        (
            card(0, None),
            &off,
            &[("GPU-0", "a")],
            "- held  reset  cut ",
        ),
        (
            card(0, Some(&[(SMALL, 3)])),
            &one,
            &[("MIG-0-1", "a")],
            "- held  reset  cut ",
        ),
        (card(0, None), &one, &[], "-0 held  reset  cut 0x2"),
        (
            card(0, None),
            &one,
            &[("GPU-0", "a")],
            "-0 held pod team/a reset  cut ",
        ),
        (
            card(0, None),
            &one,
            &[("GPU-0::3", "a")],
            "-0 held pod team/a reset  cut ",
        ),
        (
            card(0, None),
            &one,
            &[("gpu-0", "a")],
            "-0 held pod team/a reset  cut ",
        ),
        (
            card(0, None),
            &one,
            &[("GPU-1", "a")],
            "-0 held  reset  cut 0x2",
        ),
        // The used slice stays: the other is removed, and no holder must end.
        (
            card(0, Some(two_small)),
            &one,
            &[("MIG-0-1", "a")],
            "-0 held  reset  cut 0x2",
        ),
        (busy_slice, &one, &[], "-0 held  reset  cut 0x2"),
        (
            card(0, Some(two_small)),
            &one,
            &[("MIG-0-1", "a"), ("MIG-0-2", "b")],
            "-0 held pod team/b reset  cut ",
        ),
        (busy, &one, &[], "-0 held process 77 on GPU 0 reset  cut "),
        (waiting, &one, &[], "-0 held  reset 0 cut "),
        (unknown, &one, &[], "-0 held  reset  cut 0x1"),
    ];
    for (card, wanted, holders, expected) in cases {
        let all = BTreeMap::from([(card.id.clone(), wanted.clone())]);
        let next = next(std::slice::from_ref(&card), &all, &held(holders)).expect("it can be");
        assert_eq!(short(&next), expected, "{card:?} with {holders:?}");
    }
}

#[test]
fn adding_an_instance_beside_others_withholds_no_gpu() {
    let cut = card(0, Some(&[(LARGE, 0)]));
    let all = BTreeMap::from([(cut.id.clone(), wanted(&[(LARGE, 1), (SMALL, 2)]))]);
    let next = next(&[cut], &all, &held(&[("MIG-0-1", "a")])).expect("it can be");
    assert_eq!(short(&next), "- held  reset  cut 0x2");
}

#[test]
fn gpus_that_are_free_are_cut_while_others_are_waited_for_and_the_rest_are_left_alone() {
    let cards = [card(0, None), card(1, None), card(2, None)];
    let both = wanted(&[(SMALL, 7)]);
    let all = BTreeMap::from([
        ("GPU-0".to_owned(), both.clone()),
        ("GPU-2".to_owned(), both),
    ]);
    let holders = held(&[("GPU-0", "a"), ("GPU-1", "b")]);
    let now = next(&cards, &all, &holders).expect("it can be");
    assert_eq!(short(&now), "-0 2 held pod team/a reset  cut 2x8");
    let two = BTreeMap::from([("GPU-1".to_owned(), wanted(&[("4g.40gb", 2)]))]);
    let error = next(&cards, &two, &holders).expect_err("no room");
    assert_eq!(
        error.to_string(),
        format!("GPU 1 ({H100}): 2 of 4g.40gb do not fit in one GPU; 1 of 4g.40gb would")
    );
}
