//! The requests of programs: by tables, by their bounds, and against a simple model under random steps.

use super::*;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + second).unwrap()
}

fn code(number: usize) -> UserCode {
    let digits = (0..8_u32).map(|place| u8::try_from(number / 20_usize.pow(place) % 20).unwrap());
    UserCode::of_random(&digits.collect::<Vec<u8>>()).unwrap()
}

fn request(from: &str) -> DeviceRequest {
    DeviceRequest {
        client: "ann@laptop".to_owned(),
        from: Some(from.parse().unwrap()),
        user: None,
        token_ttl: Duration::from_secs(3600),
    }
}

fn begin(logins: &mut DeviceLogins, number: usize, from: &str, second: i64) -> bool {
    let device = format!("d{number}");
    logins
        .begin(device, code(number), request(from), at(second))
        .is_ok()
}

/// One request, begun at second 0.
fn one() -> DeviceLogins {
    let mut logins = DeviceLogins::default();
    assert!(begin(&mut logins, 0, "10.0.0.1", 0));
    logins
}

fn typed(number: usize) -> String {
    code(number).to_string()
}

#[test]
fn an_approved_request_gives_its_user_once() {
    let mut logins = one();
    assert_eq!(logins.poll("d0", at(1)), DevicePoll::Pending);
    let shown = logins.find(&typed(0), "ann", at(2)).unwrap();
    assert_eq!(shown.request, request("10.0.0.1"));
    assert_eq!((shown.begun, shown.expires), (at(0), at(600)));
    logins.decide(&typed(0), "ann", true, at(3)).unwrap();
    // A second decision, of the same user or another one.
    for (user, approve) in [("ann", true), ("ann", false), ("bob", true)] {
        let again = logins.decide(&typed(0), user, approve, at(4));
        assert!(matches!(again, Err(IdentityError::UserCodeUsed)), "{user}");
    }
    let DevicePoll::Approved(approved) = logins.poll("d0", at(4)) else {
        panic!("it is approved");
    };
    assert_eq!(approved.user, "ann");
    assert_eq!(logins.poll("d0", at(5)), DevicePoll::Unknown);
    let gone = logins.find(&typed(0), "ann", at(5));
    assert!(matches!(gone, Err(IdentityError::NoSuchUserCode)));
    // The token could not be stored: the program asks again.
    logins.put_back(*approved);
    assert!(matches!(logins.poll("d0", at(6)), DevicePoll::Approved(_)));
}

#[test]
fn a_refused_request_is_answered_once_and_an_expired_one_too() {
    let mut logins = one();
    logins.decide(&typed(0), "bob", false, at(3)).unwrap();
    assert_eq!(logins.poll("d0", at(4)), DevicePoll::Refused);
    assert_eq!(logins.poll("d0", at(5)), DevicePoll::Unknown);

    for (second, answer) in [
        (599, DevicePoll::Pending),
        (600, DevicePoll::Expired),
        (-1, DevicePoll::Expired),
    ] {
        assert_eq!(one().poll("d0", at(second)), answer, "{second}");
        let found = one().decide(&typed(0), "ann", true, at(second));
        assert_eq!(found.is_ok(), answer == DevicePoll::Pending, "{second}");
    }
    // An approval in time whose token is fetched too late.
    let mut logins = one();
    logins.decide(&typed(0), "ann", true, at(599)).unwrap();
    assert_eq!(logins.poll("d0", at(600)), DevicePoll::Expired);
    // It is forgotten after a while.
    let mut logins = one();
    assert!(begin(&mut logins, 1, "10.0.0.1", 659));
    assert_eq!(logins.held.len(), 2);
    assert!(begin(&mut logins, 2, "10.0.0.1", 660));
    assert_eq!(logins.held.len(), 2);
    assert_eq!(logins.poll("d0", at(660)), DevicePoll::Unknown);
}

#[test]
fn a_program_that_asks_too_often_waits_longer_up_to_a_bound() {
    let mut logins = one();
    let mut polls = |second| logins.poll("d0", at(second));
    assert_eq!(polls(1), DevicePoll::Pending);
    assert_eq!(polls(6), DevicePoll::Pending);
    assert_eq!(polls(10), DevicePoll::SlowDown);
    assert_eq!(polls(19), DevicePoll::SlowDown);
    assert_eq!(polls(34), DevicePoll::Pending);
    for _ in 0..100 {
        assert_eq!(polls(34), DevicePoll::SlowDown);
    }
    assert_eq!(polls(94), DevicePoll::Pending);
}

#[test]
fn a_request_for_one_user_is_decided_by_that_user_only() {
    let mut logins = DeviceLogins::default();
    let of_ann = DeviceRequest {
        user: Some("ann".to_owned()),
        ..request("10.0.0.1")
    };
    logins.begin("d0".into(), code(0), of_ann, at(0)).unwrap();
    for approve in [true, false] {
        let other = logins.decide(&typed(0), "bob", approve, at(1));
        assert!(matches!(other, Err(IdentityError::UserCodeOfAnother)));
    }
    assert!(logins.find(&typed(0), "bob", at(1)).is_err());
    assert_eq!(logins.poll("d0", at(1)), DevicePoll::Pending);
    assert!(logins.decide(&typed(0), "ann", true, at(2)).is_ok());
}

#[test]
fn a_user_guesses_a_bounded_number_of_codes() {
    let mut logins = one();
    for number in 1..=DEVICE_GUESSES_MAX {
        let wrong = logins.find(&typed(number), "eve", at(1));
        assert!(matches!(wrong, Err(IdentityError::NoSuchUserCode)));
    }
    // Also the right code is refused now, to this user.
    for second in [1, 600] {
        let refused = logins.decide(&typed(0), "eve", true, at(second));
        let Err(IdentityError::TooManyCodes { wait }) = refused else {
            panic!("{refused:?}");
        };
        assert_eq!(wait.as_secs(), u64::try_from(601 - second).unwrap());
    }
    assert!(logins.find(&typed(0), "ann", at(1)).is_ok());
    assert!(begin(&mut logins, 5, "10.0.0.1", 601));
    assert!(logins.find(&typed(5), "eve", at(601)).is_ok());
    // The guesses of a user are forgotten.
    let _ = logins.find("none", "bob", at(602));
    assert_eq!(logins.guesses.len(), 1);
}

#[test]
fn an_address_has_a_bounded_number_of_codes() {
    let mut logins = DeviceLogins::default();
    for number in 0..DEVICE_CODES_PER_ADDRESS_MAX {
        let from = format!("2001:db8::{number:x}");
        assert!(begin(&mut logins, number, &from, 10));
    }
    let more = logins.begin("more".into(), code(99), request("2001:db8::ffff:1"), at(20));
    let Err(IdentityError::TooManyDeviceCodes { wait }) = more else {
        panic!("{more:?}");
    };
    assert_eq!(wait.as_secs(), 590);
    assert!(begin(&mut logins, 98, "2001:db8:0:1::1", 20));
    // Expired ones do not count.
    assert!(begin(&mut logins, 97, "2001:db8::1", 610));
}

#[test]
fn no_more_codes_are_held_than_the_bound_and_the_busiest_address_loses_its_oldest() {
    let mut logins = DeviceLogins::default();
    for number in 0..DEVICE_CODES_PER_ADDRESS_MAX {
        assert!(begin(
            &mut logins,
            number,
            "192.0.2.1",
            i64::try_from(number).unwrap()
        ));
    }
    for number in DEVICE_CODES_PER_ADDRESS_MAX..DEVICE_CODES_MAX {
        let from = format!("10.{}.{}.1", number / 200, number % 200);
        assert!(begin(&mut logins, number, &from, 20));
    }
    assert!(begin(&mut logins, DEVICE_CODES_MAX, "10.9.9.9", 30));
    assert_eq!(logins.held.len(), DEVICE_CODES_MAX);
    assert!(!logins.has(&code(0)) && logins.has(&code(1)));
}

proptest::proptest! {
    #[test]
    fn a_token_is_given_once_to_the_program_that_asked_and_for_the_user_that_approved(
        steps in proptest::collection::vec((0..4_u8, 0..3_usize, 0..2_usize, 0..200_i64), 0..60),
    ) {
        #[derive(Clone, PartialEq)]
        enum Model { Open, Approved(&'static str), Refused }
        let mut logins = DeviceLogins::default();
        let mut model: BTreeMap<usize, (Model, i64)> = BTreeMap::new();
        let (mut now, mut next) = (0, 0);
        let mut numbers = [0; 3];
        for (step, which, user, passed) in steps {
            now += passed;
            let user = ["ann", "bob"][user];
            let number = numbers[which];
            let live = model.get(&number).filter(|(_, begun)| now < begun + 600).map(|(state, _)| state.clone());
            match step {
                0 => {
                    next += 1;
                    numbers[which] = next;
                    if begin(&mut logins, next, "10.0.0.1", now) {
                        model.insert(next, (Model::Open, now));
                    }
                }
                1 | 2 => {
                    let decided = logins.decide(&typed(number), user, step == 1, at(now)).is_ok();
                    // A user may have guessed too often.
                    proptest::prop_assert!(!decided || live == Some(Model::Open));
                    if decided {
                        let state = if step == 1 { Model::Approved(user) } else { Model::Refused };
                        model.get_mut(&number).unwrap().0 = state;
                    }
                }
                _ => {
                    let answer = logins.poll(&format!("d{number}"), at(now));
                    let right = match (&answer, live) {
                        (DevicePoll::Approved(approved), Some(Model::Approved(user))) => approved.user == user,
                        (DevicePoll::Refused, Some(Model::Refused)) => true,
                        (DevicePoll::Pending | DevicePoll::SlowDown, Some(Model::Open)) => true,
                        (DevicePoll::Expired | DevicePoll::Unknown, None) => true,
                        _ => false,
                    };
                    proptest::prop_assert!(right, "{:?}", answer);
                    if !matches!(answer, DevicePoll::Pending | DevicePoll::SlowDown) {
                        model.remove(&number);
                    }
                }
            }
            proptest::prop_assert!(logins.held.len() <= DEVICE_CODES_PER_ADDRESS_MAX + 60);
        }
    }
}
