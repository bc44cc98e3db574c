//! Plans for described products, by table and by property, against a GPU that refuses what drivers do.

mod places;

use proptest::prelude::*;

use super::*;

const H100: &str = "NVIDIA H100 80GB HBM3";
const A100: &str = "NVIDIA A100-SXM4-40GB";

fn profiles(model: &str) -> Vec<InstanceProfile> {
    mig::profiles(model)
        .iter()
        .map(InstanceProfile::from)
        .collect()
}

fn wanted(instances: &[(&str, u32)]) -> WantedLayout {
    let named = instances.iter().map(|(name, n)| ((*name).to_owned(), *n));
    WantedLayout {
        enabled: true,
        instances: named.collect(),
    }
}

fn profile<'a>(profiles: &'a [InstanceProfile], name: &str) -> &'a InstanceProfile {
    let found = profiles.iter().find(|profile| profile.name == name);
    found.unwrap_or_else(|| panic!("{name}"))
}

/// A GPU in MIG mode with these instances, numbered from 1, each with one compute instance.
fn cut(model: &str, instances: &[(&str, u32)]) -> GpuLayout {
    let profiles = profiles(model);
    let instances = instances.iter().zip(1..).map(|((name, start), id)| {
        let profile = profile(&profiles, name);
        GpuInstance {
            id,
            profile: profile.id,
            start: *start,
            computes: vec![(0, profile.slices)],
        }
    });
    GpuLayout {
        enabled: true,
        instances: instances.collect(),
    }
}

/// A step, abbreviated.
fn short(step: &PartitionStep) -> String {
    match step {
        PartitionStep::RemoveCompute { instance, .. } => format!("-c{instance}"),
        PartitionStep::Remove { instance } => format!("-{instance}"),
        PartitionStep::Switch { on } => if *on { "on" } else { "off" }.to_owned(),
        PartitionStep::Make { name, start, .. } => format!("{name}@{start}"),
        PartitionStep::MakeCompute { instance } => format!("+c{instance}"),
    }
}

fn plan(
    model: &str,
    now: &GpuLayout,
    wanted: &WantedLayout,
    used: &[u32],
) -> Result<String, LayoutError> {
    let used = used.iter().copied().collect();
    let steps = steps(&profiles(model), now, wanted, &used)?;
    Ok(steps.iter().map(short).collect::<Vec<_>>().join(" "))
}

#[test]
fn steps_go_from_what_is_there_to_what_is_wanted() {
    let off = GpuLayout::default();
    let whole = WantedLayout::default();
    let small = cut(H100, &[("1g.10gb", 0), ("1g.10gb", 1), ("3g.40gb", 4)]);
    let mut bare = small.clone();
    bare.instances[2].computes.clear();
    let mut split = cut(H100, &[("2g.20gb", 0)]);
    split.instances[0].computes = vec![(0, 1), (1, 1)];
    // The current layout; the wanted one; the instances in use; the steps.
    type Case<'a> = (&'a GpuLayout, WantedLayout, &'a [u32], &'a str);
    let cases: [Case<'_>; 11] = [
        (&off, whole.clone(), &[], ""),
        (&off, wanted(&[]), &[], "on"),
        (
            &off,
            wanted(&[("3g.40gb", 2)]),
            &[],
            "on 3g.40gb@0 3g.40gb@4",
        ),
        // With the large instance first there would be no position for the second small one.
        (
            &off,
            wanted(&[("1g.10gb", 2), ("2g.20gb", 1), ("3g.40gb", 1)]),
            &[],
            "on 3g.40gb@4 2g.20gb@0 1g.10gb@2 1g.10gb@3",
        ),
        (&small, whole, &[], "-c1 -1 -c2 -2 -c3 -3 off"),
        (&small, wanted(&[]), &[], "-c1 -1 -c2 -2 -c3 -3"),
        (&small, wanted(&[("1g.10gb", 2), ("3g.40gb", 1)]), &[2], ""),
        // One of the two is removed: the unused one.
        (
            &small,
            wanted(&[("1g.10gb", 1), ("3g.40gb", 1)]),
            &[1],
            "-c2 -2",
        ),
        (
            &small,
            wanted(&[("1g.10gb", 1), ("3g.40gb", 1)]),
            &[2],
            "-c1 -1",
        ),
        // An earlier attempt was interrupted: the instance has no compute instance yet.
        (&bare, wanted(&[("1g.10gb", 2), ("3g.40gb", 1)]), &[], "+c3"),
        // Several compute instances in one GPU instance are not the wanted layout.
        (
            &split,
            wanted(&[("2g.20gb", 1)]),
            &[],
            "-c1 -c1 -1 2g.20gb@0",
        ),
    ];
    for (now, wanted, used, steps) in cases {
        let got = plan(H100, now, &wanted, used);
        assert_eq!(got.as_deref(), Ok(steps), "{now:?} to {wanted:?}");
    }
}

#[test]
fn what_cannot_be_is_told_with_what_would_fit() {
    let off = GpuLayout::default();
    type Case<'a> = (&'a str, &'a [(&'a str, u32)], &'a str);
    let cases: [Case<'_>; 4] = [
        (
            H100,
            &[("1g.5gb", 7)],
            "it has no profile 1g.5gb; there are 1g.10gb, 1g.10gb+me",
        ),
        (
            H100,
            &[("4g.40gb", 2)],
            "2 of 4g.40gb do not fit in one GPU; 1 of 4g.40gb would",
        ),
        (
            A100,
            &[("1g.5gb", 70), ("7g.40gb", 1)],
            "70 of 1g.5gb and 1 of 7g.40gb do not fit in one GPU; 1 of 7g.40gb would",
        ),
        (
            "NVIDIA L4",
            &[("1g.5gb", 1)],
            "its driver lists no profiles",
        ),
    ];
    for (model, instances, words) in cases {
        let error = plan(model, &off, &wanted(instances), &[]).unwrap_err();
        assert!(error.to_string().contains(words), "{error}");
    }
}

#[test]
fn a_product_may_give_every_instance_engines_of_its_own() {
    let quarter = InstanceProfile {
        name: "1g.24gb".to_owned(),
        id: 14,
        slices: 1,
        memory_mib: 24_000,
        size: 2,
        starts: vec![0, 2, 4, 6],
        most: 4,
        engines: 1,
    };
    let all = wanted(&[("1g.24gb", 4)]);
    let steps = steps(&[quarter], &GpuLayout::default(), &all, &BTreeSet::new());
    assert_eq!(steps.map(|steps| steps.len()), Ok(5));
}

/// A GPU that executes steps, or refuses them as a driver does.
struct Card {
    profiles: Vec<InstanceProfile>,
    layout: GpuLayout,
    next: u32,
}

impl Card {
    fn of(profiles: Vec<InstanceProfile>, layout: GpuLayout) -> Card {
        let ids = layout.instances.iter().map(|it| it.id);
        let next = ids.max().unwrap_or(0) + 1;
        Card {
            profiles,
            layout,
            next,
        }
    }

    fn by_id(&self, id: u32) -> &InstanceProfile {
        self.profiles.iter().find(|it| it.id == id).unwrap()
    }

    fn take(&mut self, step: &PartitionStep) {
        match step {
            PartitionStep::RemoveCompute { instance, compute } => {
                let found = self
                    .layout
                    .instances
                    .iter_mut()
                    .find(|it| it.id == *instance);
                let computes = &mut found.unwrap().computes;
                let before = computes.len();
                computes.retain(|(id, _)| id != compute);
                assert_eq!(computes.len() + 1, before, "it was there");
            }
            PartitionStep::Remove { instance } => {
                let found = self.layout.instances.iter().find(|it| it.id == *instance);
                assert!(found.unwrap().computes.is_empty(), "in use");
                self.layout.instances.retain(|it| it.id != *instance);
            }
            PartitionStep::Switch { on } => {
                assert!(self.layout.instances.is_empty() && self.layout.enabled != *on);
                self.layout.enabled = *on;
            }
            PartitionStep::Make { profile, start, .. } => {
                assert!(self.layout.enabled);
                let profile = self.by_id(*profile);
                assert!(self.lies(profile, *start), "{} at {start}", profile.name);
                let made = GpuInstance {
                    id: self.next,
                    profile: profile.id,
                    start: *start,
                    computes: vec![(0, profile.slices)],
                };
                self.next += 1;
                self.layout.instances.push(made);
            }
            PartitionStep::MakeCompute { instance } => {
                let found = self
                    .layout
                    .instances
                    .iter()
                    .position(|it| it.id == *instance);
                let found = found.unwrap();
                let slices = self.by_id(self.layout.instances[found].profile).slices;
                assert!(self.layout.instances[found].computes.is_empty());
                self.layout.instances[found].computes.push((0, slices));
            }
        }
    }

    /// Whether a profile fits there: counted slice by slice, unlike in the plan.
    fn lies(&self, profile: &InstanceProfile, start: u32) -> bool {
        let mut taken = [false; 8];
        for it in &self.layout.instances {
            let other = self.by_id(it.profile);
            (it.start..it.start + other.size).for_each(|at| taken[at as usize] = true);
        }
        let media = (self.layout.instances.iter()).any(|it| self.by_id(it.profile).engines > 0);
        profile.starts.contains(&start)
            && (start..start + profile.size).all(|at| !taken[at as usize])
            && !(profile.engines > 0 && media)
    }

    /// The number of complete instances of each profile.
    fn counts(&self) -> BTreeMap<String, u32> {
        let mut counts = BTreeMap::new();
        for it in &self.layout.instances {
            let profile = self.by_id(it.profile);
            assert_eq!(it.computes, [(0, profile.slices)], "all of it computes");
            *counts.entry(profile.name.clone()).or_default() += 1;
        }
        counts
    }

    /// Whether these fit in some order at some positions, by trying all.
    fn holds(&mut self, names: &[String]) -> bool {
        let Some((first, rest)) = names.split_first() else {
            return true;
        };
        let profile = profile(&self.profiles, first).clone();
        profile.starts.iter().any(|start| {
            if !self.lies(&profile, *start) {
                return false;
            }
            self.layout.instances.push(GpuInstance {
                id: 0,
                profile: profile.id,
                start: *start,
                computes: Vec::new(),
            });
            let fits = self.holds(rest);
            self.layout.instances.pop();
            fits
        })
    }
}

/// A product, random positions of its instances, the compute instances in each, the instances in use, and the wanted
/// number of each profile.
fn case() -> impl Strategy<Value = (Vec<InstanceProfile>, GpuLayout, BTreeSet<u32>, Vec<u32>)> {
    let models = prop_oneof![Just(H100), Just(A100), Just("NVIDIA A100-SXM4-80GB")];
    let tries = proptest::collection::vec((0..7_usize, 0..8_u32, 0..4_u32, any::<bool>()), 0..9);
    let counts =
        proptest::collection::vec(prop_oneof![4 => Just(0), 3 => 1..4_u32, 1 => 4..9_u32], 7);
    (models, any::<bool>(), tries, counts).prop_map(|(model, enabled, tries, counts)| {
        let profiles = profiles(model);
        let mut card = Card::of(
            profiles.clone(),
            GpuLayout {
                enabled,
                instances: Vec::new(),
            },
        );
        let mut used = BTreeSet::new();
        for (number, start, computes, in_use) in tries {
            let profile = &profiles[number];
            if enabled && card.lies(profile, start) {
                let computes = match computes {
                    0 => Vec::new(),
                    1 if profile.slices > 1 => vec![(0, 1), (1, 1)],
                    _ => vec![(0, profile.slices)],
                };
                let id = card.next;
                card.next += 1;
                if in_use {
                    used.insert(id);
                }
                let instance = GpuInstance {
                    id,
                    profile: profile.id,
                    start,
                    computes,
                };
                card.layout.instances.push(instance);
            }
        }
        (profiles, card.layout, used, counts)
    })
}

proptest! {
    #[test]
    fn whatever_is_there_the_steps_are_legal_keep_what_they_can_and_end_as_wanted(
        (profiles, now, used, counts) in case(), enabled in any::<bool>(),
    ) {
        let named = profiles.iter().zip(&counts).filter(|(_, count)| **count > 0);
        let instances: BTreeMap<String, u32> =
            named.map(|(profile, count)| (profile.name.clone(), *count)).collect();
        let wanted = WantedLayout { enabled, instances: instances.clone() };
        let names: Vec<String> = instances.iter()
            .flat_map(|(name, count)| std::iter::repeat_n(name.clone(), *count as usize))
            .collect();
        let size: u32 = names.iter().map(|name| profile(&profiles, name).size).sum();
        let possible = !enabled || size <= 8
            && Card::of(profiles.clone(), GpuLayout::default()).holds(&names);
        let steps = steps(&profiles, &now, &wanted, &used);
        prop_assert_eq!(steps.is_ok(), possible, "{:?}", steps);
        let Ok(steps) = steps else { return Ok(()) };
        let mut card = Card::of(profiles.clone(), now.clone());
        steps.iter().for_each(|step| card.take(step));
        prop_assert_eq!(card.layout.enabled, enabled);
        let expected = if enabled { instances } else { BTreeMap::new() };
        prop_assert_eq!(card.counts(), expected);
        // Kept instances are untouched, and no new instance is removed again.
        let ended: BTreeSet<u32> = steps.iter().filter_map(PartitionStep::ends).collect();
        for it in &now.instances {
            let after = card.layout.instances.iter().find(|after| after.id == it.id);
            prop_assert_eq!(after.is_none(), ended.contains(&it.id));
            if let Some(after) = after {
                prop_assert_eq!(after.start, it.start);
                prop_assert!(it.computes.is_empty() || it.computes == after.computes);
            }
        }
        // A second plan is empty.
        let again = super::steps(&profiles, &card.layout, &wanted, &used);
        prop_assert_eq!(again, Ok(Vec::new()));
    }
}
