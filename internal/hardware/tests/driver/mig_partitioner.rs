//! GPUs are partitioned as planned, with the driver's own profiles and placements.

use std::collections::BTreeSet;

use hardware::InventorySources;
use hardware::mig;
use hardware::mig_partitioner::{Card, ChangeEffect, MigPartitioner, PartitionerError};
use hardware::partition::place::{self, InstancePosition};
use hardware::partition::{GpuLayout, InstanceProfile, PartitionStep, WantedLayout, steps};

use crate::standin::StandIn;
use crate::tree;

const SMALL: &str = "1g.10gb";

fn partitioner(standin: &StandIn) -> MigPartitioner {
    MigPartitioner::new(&InventorySources {
        library: Some(standin.library()),
        ..InventorySources::default()
    })
}

fn wanted(instances: &[(&str, u32)]) -> WantedLayout {
    let named = instances.iter().map(|(name, n)| ((*name).to_owned(), *n));
    WantedLayout {
        enabled: true,
        instances: named.collect(),
    }
}

fn card(partitioner: &mut MigPartitioner, index: usize) -> Card {
    partitioner
        .observe()
        .expect("the driver answers")
        .swap_remove(index)
}

fn cut(
    partitioner: &mut MigPartitioner,
    index: usize,
    wanted: &WantedLayout,
) -> Result<ChangeEffect, PartitionerError> {
    let card = card(partitioner, index);
    let steps = steps(&card.profiles, &card.layout, wanted, &BTreeSet::new())?;
    partitioner.take(&card.id, &steps)
}

#[test]
fn a_gpu_is_cut_cut_anew_around_what_stays_and_made_whole() {
    let standin = StandIn::of("hgx-h100.toml");
    tree::make(&standin.root(), &standin.described().inventory);
    let mut partitioner = partitioner(&standin);
    let mut machine = standin.machine();
    let whole = card(&mut partitioner, 2);
    assert!(whole.capable && !whole.layout.enabled && !whole.waits && whole.is_known());
    let known = mig::profiles(&whole.model)
        .iter()
        .map(InstanceProfile::from);
    let mut known: Vec<InstanceProfile> = known.collect();
    known.sort_by_key(|profile| profile.id);
    let mut told = whole.profiles.clone();
    told.sort_by_key(|profile| profile.id);
    assert_eq!(
        told, known,
        "the driver's are those that are known of the product"
    );

    let all = wanted(&[(SMALL, 2), ("2g.20gb", 1), ("3g.40gb", 1)]);
    assert_eq!(cut(&mut partitioner, 2, &all).unwrap(), ChangeEffect::Now);
    let first = card(&mut partitioner, 2);
    assert_eq!(WantedLayout::of(&first.profiles, &first.layout), all);
    let seen = machine.observe().unwrap().gpus[2].slices.clone().unwrap();
    let ids: BTreeSet<&String> = seen.iter().map(|slice| &slice.id).collect();
    assert_eq!(ids, first.slices.keys().collect());
    assert_eq!(
        cut(&mut partitioner, 2, &all).unwrap(),
        ChangeEffect::Now,
        "nothing is to be done"
    );

    // The larger instance stays, with its id.
    let large = seen
        .iter()
        .find(|slice| slice.profile == "3g.40gb")
        .unwrap();
    let fewer = wanted(&[("1g.20gb", 2), ("3g.40gb", 1)]);
    assert_eq!(cut(&mut partitioner, 2, &fewer).unwrap(), ChangeEffect::Now);
    let second = card(&mut partitioner, 2);
    assert_eq!(WantedLayout::of(&second.profiles, &second.layout), fewer);
    assert_eq!(second.slices.len(), 3);
    assert_eq!(second.slices.get(&large.id), first.slices.get(&large.id));

    assert_eq!(
        cut(&mut partitioner, 2, &WantedLayout::default()).unwrap(),
        ChangeEffect::Now
    );
    assert_eq!(card(&mut partitioner, 2).layout, GpuLayout::default());
    assert_eq!(machine.observe().unwrap().gpus[2].slices, None);
}

#[test]
fn where_a_step_fails_the_gpu_is_left_as_it_was_and_both_are_told() {
    let standin = StandIn::of("hgx-h100.toml");
    let mut partitioner = partitioner(&standin);
    let before = wanted(&[("3g.40gb", 2)]);
    cut(&mut partitioner, 0, &before).unwrap();
    standin.with("[[state]]\ngpu = 0\nmig_refused = [\"1g.20gb\"]\n");
    let error = cut(
        &mut partitioner,
        0,
        &wanted(&[("3g.40gb", 1), ("1g.20gb", 2)]),
    );
    let error = error.unwrap_err().to_string();
    assert!(
        error.starts_with("making 1g.20gb at memory slice "),
        "{error}"
    );
    assert!(
        error.ends_with("; it was put back to what it was: 2 of 3g.40gb"),
        "{error}"
    );
    let after = card(&mut partitioner, 0);
    assert_eq!(WantedLayout::of(&after.profiles, &after.layout), before);

    // The earlier instance cannot be created again either.
    standin.with("[[state]]\ngpu = 0\nmig_refused = [\"1g.20gb\", \"3g.40gb\"]\n");
    let error = cut(&mut partitioner, 0, &wanted(&[("1g.20gb", 1)]));
    let error = error.unwrap_err().to_string();
    assert!(
        error.contains("could not be put back to what it was, 2 of 3g.40gb (making 3g.40gb")
            && error.ends_with("and is now: MIG mode on, and no instances"),
        "{error}"
    );
}

#[test]
fn where_a_step_fails_what_was_there_before_is_not_made_anew() {
    let standin = StandIn::of("hgx-h100.toml");
    let mut partitioner = partitioner(&standin);
    cut(&mut partitioner, 0, &wanted(&[(SMALL, 2)])).unwrap();
    let two = card(&mut partitioner, 0);
    let first = &two.layout.instances[0];
    let (instance, compute) = (first.id, first.computes[0].0);
    let one = [
        PartitionStep::RemoveCompute { instance, compute },
        PartitionStep::Remove { instance },
    ];
    partitioner.take(&two.id, &one).unwrap();
    let before = partitioner.inspect(&two.id).unwrap();

    // Of two instances of one profile, the first one created gets the lower number.
    standin.with("[[state]]\ngpu = 0\nmig_refused = [\"3g.40gb\"]\n");
    let places = [(SMALL, 3), ("3g.40gb", 4)].map(|(profile, start)| InstancePosition {
        profile: profile.to_owned(),
        start,
    });
    let steps =
        |place: &InstancePosition| place::made(&before.profiles, &before.layout, place).unwrap();
    let steps: Vec<PartitionStep> = places.iter().flat_map(steps).collect();
    let error = partitioner.take(&two.id, &steps).unwrap_err().to_string();
    assert!(
        error.contains("put back to what it was: 1 of 1g.10gb"),
        "{error}"
    );
    assert_eq!(partitioner.inspect(&two.id).unwrap(), before);
}

#[test]
fn one_gpu_says_how_it_is_cut_though_another_is_lost() {
    let standin = StandIn::of("hgx-h100.toml");
    let mut partitioner = partitioner(&standin);
    let well = card(&mut partitioner, 3);
    standin.with("[[state]]\ngpu = 0\nlost = true\n");
    assert!(partitioner.observe().is_err());
    assert_eq!(partitioner.inspect(&well.id).unwrap(), well);
    let error = partitioner.inspect("GPU-none").unwrap_err().to_string();
    assert!(
        error.contains("the MIG partitions of GPU-none cannot be read"),
        "{error}"
    );
}

#[test]
fn what_an_agent_that_died_has_begun_another_finishes() {
    let standin = StandIn::of("hgx-h100.toml");
    let mut first = partitioner(&standin);
    let all = wanted(&[(SMALL, 7)]);
    let whole = card(&mut first, 4);
    let plan = steps(&whole.profiles, &whole.layout, &all, &BTreeSet::new()).unwrap();
    assert_eq!(plan.len(), 8);
    for done in 1..plan.len() {
        first.take(&whole.id, &plan[..done]).unwrap();
        // An attempt that died between a GPU instance and its compute instance.
        let last = card(&mut first, 4).layout.instances.pop();
        if let Some(last) = last {
            let (instance, compute) = (last.id, last.computes[0].0);
            let undone = PartitionStep::RemoveCompute { instance, compute };
            first.take(&whole.id, &[undone]).unwrap();
        }
        let mut second = partitioner(&standin);
        assert_eq!(cut(&mut second, 4, &all).unwrap(), ChangeEffect::Now);
        let now = card(&mut second, 4);
        assert_eq!(WantedLayout::of(&now.profiles, &now.layout), all);
        assert_eq!(now.slices.len(), 7);
        cut(&mut second, 4, &WantedLayout::default()).unwrap();
    }
}

#[test]
fn a_mode_that_waits_for_a_reset_is_told_and_nothing_more_is_done_until_then() {
    let standin = StandIn::of("hgx-h100.toml");
    standin.with("[[state]]\ngpu = 1\nmig_waits = true\n");
    let mut partitioner = partitioner(&standin);
    let all = wanted(&[(SMALL, 7)]);
    assert_eq!(
        cut(&mut partitioner, 1, &all).unwrap(),
        ChangeEffect::AfterReset
    );
    let waiting = card(&mut partitioner, 1);
    assert!(waiting.waits && !waiting.layout.enabled);
    standin.with("");
    let reset = card(&mut partitioner, 1);
    assert!(!reset.waits && reset.layout.enabled && reset.slices.is_empty());
    assert_eq!(cut(&mut partitioner, 1, &all).unwrap(), ChangeEffect::Now);
}

#[test]
fn what_can_not_be_cut_is_told_apart() {
    let standin = StandIn::of("8x-l4.toml");
    let l4 = card(&mut partitioner(&standin), 7);
    assert_eq!((l4.index, l4.capable, l4.device), (7, false, 0x10de));
    standin.with("[[state]]\ngpu = 3\nlost = true\n");
    let error = partitioner(&standin).observe().unwrap_err().to_string();
    assert!(
        error.starts_with("the MIG partitions of GPU 3 cannot be read: "),
        "{error}"
    );
    standin.with("[[state]]\ngpu = 0\nprocesses = [{ pid = 77, memory_mib = 1 }]\n");
    assert_eq!(card(&mut partitioner(&standin), 0).processes, [(77, None)]);

    let error = MigPartitioner::new(&InventorySources {
        description: Some(standin.description()),
        ..InventorySources::default()
    })
    .observe()
    .unwrap_err()
    .to_string();
    assert!(error.contains("--machine"), "{error}");
}
