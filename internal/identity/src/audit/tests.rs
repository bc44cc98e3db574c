//! The log across restarts, rotation and crashes, and the problems that a check finds.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use resources::audit::{
    API_VERSION, AuditEvent, AuditLevel, AuditPolicy, AuditStage, ResponseStatus, UserInfo,
};

use super::super::{AuditLog, AuditOptions};
use super::*;

pub(super) fn event(user: &str) -> AuditEvent {
    AuditEvent {
        kind: "Event".into(),
        api_version: API_VERSION.into(),
        level: AuditLevel::Metadata,
        audit_id: "a".into(),
        stage: AuditStage::ResponseComplete,
        request_uri: "/api/v1/namespaces/default/pods".into(),
        verb: "create".into(),
        user: UserInfo {
            username: user.into(),
            groups: Vec::new(),
        },
        impersonated_user: None,
        source_ips: vec!["127.0.0.1".into()],
        user_agent: String::new(),
        object_ref: None,
        response_status: ResponseStatus {
            code: 201,
            ..ResponseStatus::default()
        },
        request_object: None,
        response_object: None,
        request_received_timestamp: "2026-11-23T12:00:00.000000Z".into(),
        stage_timestamp: "2026-11-23T12:00:00.000000Z".into(),
        annotations: BTreeMap::new(),
    }
}

pub(super) fn options(directory: &Path, file_bytes: u64) -> AuditOptions {
    AuditOptions {
        directory: directory.to_owned(),
        file_bytes,
        files: 3,
        policy: AuditPolicy::built_in(),
    }
}

pub(super) fn write(directory: &Path, file_bytes: u64, count: usize) {
    let log = AuditLog::open(options(directory, file_bytes)).unwrap();
    let events = log.events();
    for i in 0..count {
        events.blocking_send(event(&format!("user-{i}"))).unwrap();
    }
    drop(events);
    log.finish();
}

fn directory() -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let audit = directory.path().join("audit");
    (directory, audit)
}

#[test]
fn the_chain_goes_on_over_restarts_and_is_whole() {
    let (_keep, audit) = directory();
    write(&audit, 1 << 20, 5);
    write(&audit, 1 << 20, 4);
    let verdict = verify(&audit).unwrap();
    assert!(verdict.sound(), "{verdict:?}");
    assert_eq!((verdict.events, verdict.first, verdict.last), (9, 1, 9));
    let mode = fs::metadata(audit.join(log::CURRENT))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn a_line_that_is_changed_removed_or_put_in_and_an_end_that_is_cut_off_are_found() {
    type Tamper = fn(&mut Vec<String>);
    let cases: [(&str, Tamper); 5] = [
        ("changed", |lines| {
            lines[2] = lines[2].replace("user-2", "user-9")
        }),
        ("removed", |lines| {
            lines.remove(2);
        }),
        ("inserted", |lines| lines.insert(3, "{}".into())),
        ("cut off", |lines| lines.truncate(4)),
        ("changed", |lines| {
            let last = lines.len() - 1;
            lines[last] = lines[last].replace("user-5", "user-8");
        }),
    ];
    for (what, tamper) in cases {
        let (_keep, audit) = directory();
        write(&audit, 1 << 20, 6);
        let path = audit.join(log::CURRENT);
        let text = fs::read_to_string(&path).unwrap();
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        tamper(&mut lines);
        fs::write(&path, lines.join("\n") + "\n").unwrap();
        let verdict = verify(&audit).unwrap();
        assert!(
            verdict
                .problems
                .iter()
                .any(|problem| problem.contains(what)),
            "{what}: {verdict:?}"
        );
    }
}

#[test]
fn files_are_closed_at_their_size_only_so_many_are_kept_and_the_chain_runs_through_them() {
    let (_keep, audit) = directory();
    for _ in 0..12 {
        write(&audit, 2000, 6);
    }
    assert_eq!(log::closed_files(&audit).unwrap().len(), 3);
    let verdict = verify(&audit).unwrap();
    assert!(verdict.sound(), "{verdict:?}");
    assert!(verdict.first > 1, "the oldest files are gone");
    assert_eq!(verdict.last, 72);
    // A closed file between two others is missing.
    let middle = &log::closed_files(&audit).unwrap()[1];
    fs::remove_file(middle).unwrap();
    assert!(verify(&audit).unwrap().problems[0].contains("removed"));
}

#[test]
fn a_line_that_was_being_written_at_a_crash_is_cut_off_and_the_log_goes_on() {
    let (_keep, audit) = directory();
    write(&audit, 1 << 20, 2);
    let path = audit.join(log::CURRENT);
    let mut text = fs::read_to_string(&path).unwrap();
    text.push_str("{\"kind\":\"Ev");
    fs::write(&path, text).unwrap();
    assert!(
        verify(&audit).unwrap().sound(),
        "a part of a line is being written"
    );
    write(&audit, 1 << 20, 1);
    let verdict = verify(&audit).unwrap();
    assert!(verdict.sound(), "{verdict:?}");
    assert_eq!(verdict.last, 3);
}

#[test]
fn a_log_whose_end_is_no_event_is_put_aside_and_named_and_the_server_starts() {
    let (_keep, audit) = directory();
    fs::create_dir_all(&audit).unwrap();
    fs::write(audit.join(log::CURRENT), "something else\n").unwrap();
    write(&audit, 1 << 20, 2);
    let verdict = verify(&audit).unwrap();
    assert!(verdict.sound(), "{verdict:?}");
    assert_eq!(verdict.last, 2);
}

#[test]
fn a_crash_between_the_steps_of_a_rotation_loses_nothing() {
    let (_keep, audit) = directory();
    fs::create_dir_all(&audit).unwrap();
    assert!(verify(&audit).is_err(), "without any file there is no log");
    write(&audit, 1 << 20, 3);
    // The file was renamed, and its successor was not made yet.
    let closed = audit.join(format!("audit-{:020}.log", 1));
    fs::rename(audit.join(log::CURRENT), closed).unwrap();
    let verdict = verify(&audit).unwrap();
    assert!(verdict.sound(), "{verdict:?}");
    assert_eq!(verdict.last, 3);
    write(&audit, 1 << 20, 2);
    let verdict = verify(&audit).unwrap();
    assert!(verdict.sound(), "{verdict:?}");
    assert_eq!((verdict.files, verdict.last), (2, 5));
}

#[test]
fn a_rotation_that_fails_is_tried_again_and_overwrites_no_closed_file() {
    let (_keep, audit) = directory();
    let log = AuditLog::open(options(&audit, 2000)).unwrap();
    let events = log.events();
    // A directory has the name of the first closed file, so that the rename fails.
    let closed = audit.join(format!("audit-{:020}.log", 1));
    fs::create_dir(&closed).unwrap();
    for i in 0..20 {
        events.blocking_send(event(&format!("user-{i}"))).unwrap();
    }
    drop(events);
    log.finish();
    fs::remove_dir(&closed).unwrap();
    assert!(log::closed_files(&audit).unwrap().is_empty());
    write(&audit, 2000, 1);
    assert_eq!(log::closed_files(&audit).unwrap(), [closed]);
    let verdict = verify(&audit).unwrap();
    assert!(verdict.sound(), "{verdict:?}");
    assert_eq!((verdict.first, verdict.last), (1, 21));
}

#[test]
fn a_chain_that_begins_behind_a_damaged_file_shows_the_gap() {
    let (_keep, audit) = directory();
    write(&audit, 2000, 6);
    write(&audit, 2000, 6);
    let closed = log::closed_files(&audit).unwrap();
    assert!(!closed.is_empty(), "twelve events fill a file");
    fs::write(audit.join(log::CURRENT), "something else\n").unwrap();
    write(&audit, 1 << 20, 12);
    let verdict = verify(&audit).unwrap();
    assert!(!verdict.sound(), "the file that was put aside is missed");
    assert_eq!(verdict.last, 24, "its numbers are not given out again");
    for file in closed {
        assert!(file.exists(), "{}", file.display());
    }
}
