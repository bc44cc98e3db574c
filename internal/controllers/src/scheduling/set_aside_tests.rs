//! Which objects are left out after a panic, and for how long.

use serde_json::json;

use super::*;

fn pod(name: &str, node: &str) -> Event {
    let pod = json!({
        "metadata": {"namespace": "ns", "name": name, "uid": name},
        "spec": {"nodeName": node, "containers": []},
    });
    Event::PodChanged(Box::new(serde_json::from_value(pod).unwrap()))
}

fn lone(name: &str) -> SetAsideUnit {
    SetAsideUnit::Gang(GroupRef {
        namespace: "ns".to_owned(),
        name: name.to_owned(),
        lone: true,
    })
}

fn names(events: &[Event]) -> Vec<String> {
    events.iter().map(|event| object_of(event).0.2).collect()
}

#[test]
fn an_object_that_panicked_is_left_out_twice_as_long_each_time() {
    let (mut aside, mut now) = (SetAside::default(), Instant::now());
    let mut waits = Vec::new();
    for _ in 0..12 {
        aside.begin();
        // The change comes while the gang is left out, or while it is retried.
        if aside.admit(pod("a", "")).is_none() {
            now = aside.next_due().unwrap();
            assert!(aside.release(now - Duration::from_millis(1)).is_empty());
            let events = aside.release(now);
            assert_eq!(names(&events), ["a"]);
            assert!(aside.admit(pod("a", "")).is_some());
        }
        aside.blame(subjects_of(&pod("a", "")), now);
        waits.push((aside.next_due().unwrap() - now).as_secs());
    }
    assert_eq!(waits[..4], [2, 4, 8, 16]);
    assert_eq!(waits.last(), Some(&600));
    // After a retry and a successful plan the gang is like any other.
    now = aside.next_due().unwrap();
    aside.release(now);
    aside.record_success();
    aside.blame(subjects_of(&pod("a", "")), now);
    assert_eq!((aside.next_due().unwrap() - now).as_secs(), 2);
}

#[test]
fn of_many_gangs_the_guilty_one_is_soon_isolated() {
    let (mut aside, mut now) = (SetAside::default(), Instant::now());
    let all: Vec<String> = (0..1000).map(|n| format!("p-{n:04}")).collect();
    let (mut panics, mut placed): (u32, BTreeSet<String>) = (0, BTreeSet::new());
    let mut told: BTreeSet<String> = BTreeSet::new();
    let list = |aside: &mut SetAside, told: &mut BTreeSet<String>| {
        aside.begin();
        told.clear();
        let let_in = all
            .iter()
            .filter(|name| aside.admit(pod(name, "")).is_some());
        told.extend(let_in.cloned());
    };
    list(&mut aside, &mut told);
    for _ in 0..1000 {
        if told.contains("p-0613") {
            panics += 1;
            assert!(!aside.blame_plan(now).is_empty());
            list(&mut aside, &mut told);
        } else {
            aside.record_success();
            placed.extend(told.iter().cloned());
            if placed.len() == 999 {
                break;
            }
            now = aside.next_due().unwrap();
            for event in aside.release(now) {
                told.extend(names(&[aside.admit(event).unwrap()]));
            }
        }
    }
    assert_eq!(placed.len(), 999, "all others are planned for");
    assert!((10..=100).contains(&panics), "{panics}");
}

#[test]
fn a_pod_with_a_node_takes_its_node_out_with_it() {
    let (mut aside, now) = (SetAside::default(), Instant::now());
    let subjects = subjects_of(&pod("a", "n1"));
    assert_eq!(subjects.len(), 2);
    aside.blame(subjects, now);
    let node = json!({"metadata": {"name": "n1"}});
    let node = Event::NodeChanged(Box::new(serde_json::from_value(node).unwrap()));
    assert!(aside.admit(node).is_none());
    assert!(aside.admit(pod("a", "n1")).is_none());
    assert!(aside.admit(pod("b", "n2")).is_some());
    // The deletion is passed on, and the object never comes back.
    assert!(
        aside
            .admit(Event::PodGone("ns".into(), "a".into()))
            .is_some()
    );
    assert_eq!(names(&aside.release(now + LONGEST)), ["n1"]);
}

#[test]
fn a_plan_that_panics_without_a_suspect_suspects_all_the_next_time() {
    let (mut aside, now) = (SetAside::default(), Instant::now());
    aside.begin();
    assert!(aside.admit(pod("a", "")).is_some());
    aside.record_success();
    aside.begin();
    assert!(aside.admit(pod("a", "")).is_some());
    assert!(
        aside.blame_plan(now).is_empty(),
        "it was part of a plan that went well"
    );
    aside.begin();
    assert!(aside.admit(pod("a", "")).is_some());
    assert_eq!(aside.blame_plan(now), [lone("a")]);
    // A gang that changed after a successful plan is a suspect.
    let mut aside = SetAside::default();
    aside.begin();
    assert!(aside.admit(pod("a", "")).is_some() && aside.admit(pod("b", "")).is_some());
    aside.record_success();
    assert!(aside.admit(pod("b", "")).is_some());
    assert_eq!(aside.blame_plan(now), [lone("b")]);
}

#[test]
fn a_pod_that_was_bound_while_its_gang_is_left_out_does_not_wait_again() {
    let (mut aside, now) = (SetAside::default(), Instant::now());
    aside.blame(vec![lone("a")], now);
    assert!(aside.admit(pod("a", "")).is_none());
    // A binding that was in flight when the loop panicked reaches the API after the list.
    assert!(aside.admit(pod("a", "n1")).is_some());
    assert_eq!(names(&aside.release(now + LONGEST)), Vec::<String>::new());
}

#[test]
fn a_pod_that_comes_after_one_of_its_name_is_gone_is_another_one() {
    let (mut aside, now) = (SetAside::default(), Instant::now());
    aside.blame(subjects_of(&pod("a", "")), now);
    assert!(aside.admit(pod("a", "")).is_none());
    let gone = Event::PodGone("ns".into(), "a".into());
    assert!(aside.admit(gone).is_some());
    assert!(aside.admit(pod("a", "")).is_some());
    assert_eq!(aside.next_due(), None);
}
