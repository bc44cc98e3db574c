//! Instances at given positions: a new one lies at the requested position and leaves the others alone.

use super::*;
use crate::partition::place::{self, InstancePosition, PlaceError};

fn at(profile: &str, start: u32) -> InstancePosition {
    InstancePosition {
        profile: profile.to_owned(),
        start,
    }
}

#[test]
fn an_instance_is_made_at_its_place_once_and_ended_there() {
    let profiles = profiles(H100);
    let off = GpuLayout::default();
    let full = cut(H100, &[("3g.40gb", 4), ("1g.10gb+me", 0)]);
    let mut bare = full.clone();
    bare.instances[0].computes.clear();
    let made = |layout: &GpuLayout, place: &InstancePosition| {
        let steps = place::made(&profiles, layout, place)?;
        Ok(steps.iter().map(short).collect::<Vec<_>>().join(" "))
    };
    // The current layout, the wanted position, and the steps or a part of the refusal.
    type Case<'a> = (&'a GpuLayout, InstancePosition, Result<&'a str, &'a str>);
    let cases: [Case<'_>; 7] = [
        (&off, at("3g.40gb", 4), Ok("on 3g.40gb@4")),
        (&full, at("3g.40gb", 4), Ok("")),
        (&bare, at("3g.40gb", 4), Ok("+c1")),
        (&full, at("1g.10gb", 1), Ok("1g.10gb@1")),
        (
            &full,
            at("1g.10gb", 4),
            Err("would overlap 3g.40gb at memory slice 4"),
        ),
        (
            &full,
            at("1g.10gb+me", 1),
            Err("the engines that 1g.10gb+me takes"),
        ),
        (
            &off,
            at("3g.40gb", 1),
            Err("lists no 3g.40gb at memory slice 1"),
        ),
    ];
    for (layout, place, expected) in cases {
        let got: Result<String, PlaceError> = made(layout, &place);
        match (got, expected) {
            (Ok(steps), Ok(expected)) => assert_eq!(steps, expected, "{place:?}"),
            (Err(error), Err(words)) => assert!(error.to_string().contains(words), "{error}"),
            (got, expected) => panic!("{place:?}: {got:?}, not {expected:?}"),
        }
    }
    let ended = |place: &InstancePosition| {
        let steps = place::ended(&profiles, &full, place);
        steps.iter().map(short).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(ended(&at("3g.40gb", 4)), "-c1 -1");
    assert_eq!(ended(&at("3g.40gb", 0)), "");
    let mut split = full.clone();
    split.instances[0].computes = vec![(0, 1), (1, 2)];
    let refused = place::made(&profiles, &split, &at("3g.40gb", 4));
    let refused = refused.unwrap_err().to_string();
    assert!(refused.contains("-dci -gi 1"), "{refused}");
}

proptest! {
    /// For any layout: a position is refused if a GPU would refuse it, a new instance lies there while all others
    /// stay, and its removal restores the GPU.
    #[test]
    fn what_is_made_at_a_place_fits_there_and_nothing_else_changes(
        (profiles, now, _, _) in case(), number in 0..7_usize, start in 0..8_u32,
    ) {
        let profile = &profiles[number];
        let place = at(&profile.name, start);
        prop_assume!(place::instance(&profiles, &now, &place).is_none());
        let before = Card::of(profiles.clone(), now.clone());
        let fits = before.lies(profile, start);
        let steps = place::made(&profiles, &now, &place);
        prop_assert_eq!(steps.is_ok(), fits, "{:?}", steps);
        let Ok(steps) = steps else { return Ok(()) };
        let mut card = before;
        steps.iter().for_each(|step| card.take(step));
        let made = place::instance(&profiles, &card.layout, &place).expect("it is there").clone();
        prop_assert_eq!(&made.computes, &vec![(0, profile.slices)]);
        prop_assert_eq!(place::made(&profiles, &card.layout, &place), Ok(Vec::new()));
        let ends = place::ended(&profiles, &card.layout, &place);
        ends.iter().for_each(|step| card.take(step));
        prop_assert_eq!(card.layout, GpuLayout { enabled: true, ..now });
    }
}
