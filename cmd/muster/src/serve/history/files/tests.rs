//! The history's files: what is read after kills at any time is what was measured, once.

use measurements::{HOUR, Metric, Subject};

use super::*;

const START: i64 = 492_000 * HOUR;

fn series(node: &str) -> Series {
    Subject::Node(node.to_owned()).series(Metric::Cpu)
}

fn query(from: i64, to: i64, step: i64, fine: bool) -> HistoryQuery {
    let time = |second: i64| jiff::Timestamp::from_second(second).unwrap();
    HistoryQuery {
        series: vec![series("n1"), series("none")],
        from: time(from),
        to: time(to),
        step,
        fine,
    }
}

fn points(files: &HistoryFiles, asked: &HistoryQuery) -> Vec<(i64, f64, f64)> {
    let (mut points, findings) = files.answer(asked);
    assert!(findings.is_empty(), "{findings:?}");
    assert!(points.pop().unwrap().is_empty());
    let points = points.pop().unwrap().into_iter();
    // Means of 5 minutes are kept with seven digits.
    let mean = |mean: f64| (mean * 1000.0).round() / 1000.0;
    points
        .map(|point| (point.at, mean(point.mean), point.max))
        .collect()
}

#[test]
fn values_are_found_again_across_hours_restarts_and_a_torn_log() {
    let directory = tempfile::tempdir().unwrap();
    let open = |now: i64| HistoryFiles::open(directory.path(), now).unwrap();
    let mut at = START;
    let mut expected = Vec::new();
    // Three hours, with a restart after each 77 values.
    while at < START + 3 * HOUR {
        let (files, findings) = open(at);
        assert!(findings.is_empty(), "{findings:?}");
        for _ in 0..77 {
            let value = (at % 977) as f64;
            files.append(at, vec![(series("n1"), value)]).unwrap();
            expected.push((at, value, value));
            at += 15;
        }
    }
    let (files, _) = open(at);
    let all = query(START, at, 15, true);
    assert_eq!(points(&files, &all), expected);
    // The same in 5 minutes: the day's file, and the present hour.
    let coarse = points(&files, &query(START, at, 300, false));
    assert_eq!(coarse, points(&files, &query(START, at, 300, true)));
    assert!(coarse.len() >= 36);

    // A kill in the middle of a write.
    drop(files);
    let log = directory.path().join(LOG);
    let bytes = fs::read(&log).unwrap();
    fs::write(&log, &bytes[..bytes.len() - 3]).unwrap();
    let (files, findings) = open(at);
    assert_eq!(findings.len(), 1);
    assert!(
        findings[0].contains("present.log were not written completely"),
        "{findings:?}"
    );
    expected.pop();
    assert_eq!(points(&files, &all), expected);
    // What comes after it is kept.
    files.append(at + 15, vec![(series("n1"), 1.0)]).unwrap();
    let (files, findings) = open(at + 30);
    assert!(findings.is_empty(), "{findings:?}");
    expected.push((at + 15, 1.0, 1.0));
    assert_eq!(points(&files, &query(START, at + 30, 15, true)), expected);
}

#[test]
fn a_kill_between_sealing_and_the_new_log_counts_nothing_twice() {
    let directory = tempfile::tempdir().unwrap();
    let (files, _) = HistoryFiles::open(directory.path(), START).unwrap();
    for tick in 0..20 {
        let value = f64::from(tick);
        files
            .append(START + i64::from(tick) * 15, vec![(series("n1"), value)])
            .unwrap();
    }
    let log = fs::read(directory.path().join(LOG)).unwrap();
    files
        .append(START + HOUR, vec![(series("n1"), 7.0)])
        .unwrap();
    let asked = query(START, START + HOUR, 300, false);
    let before = points(&files, &asked);
    assert_eq!(before, [(START, 9.5, 19.0)]);
    // The hour is sealed, and its log is still there.
    fs::write(directory.path().join(LOG), &log).unwrap();
    let (files, _) = HistoryFiles::open(directory.path(), START + HOUR).unwrap();
    assert_eq!(points(&files, &asked), before);
    files
        .append(START + HOUR + 15, vec![(series("n1"), 8.0)])
        .unwrap();
    assert_eq!(points(&files, &asked), before);
    assert_eq!(
        points(&files, &query(START, START + HOUR, 300, true)),
        before
    );
}

#[test]
fn damaged_and_old_files_cost_only_themselves() {
    let directory = tempfile::tempdir().unwrap();
    let (files, _) = HistoryFiles::open(directory.path(), START).unwrap();
    for hour in 0..3 {
        files
            .append(START + hour * HOUR, vec![(series("n1"), 1.0)])
            .unwrap();
    }
    let first = directory
        .path()
        .join(FileSpan::Hour(START / HOUR).file_name());
    let mut bytes = fs::read(&first).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    fs::write(&first, &bytes).unwrap();
    let (points, findings) = files.answer(&query(START, START + 3 * HOUR, 15, true));
    assert_eq!(points[0].len(), 2);
    assert!(
        findings[0].contains("\"node/n1/cpu\" is damaged"),
        "{findings:?}"
    );
    fs::write(&first, b"short").unwrap();
    let (_, findings) = files.answer(&query(START, START + 3 * HOUR, 15, true));
    assert!(findings[0].contains("cannot be read"), "{findings:?}");
    files.retain(START + 26 * HOUR).unwrap();
    assert!(!first.exists());
    files.retain(START + 40 * 24 * HOUR).unwrap();
    let left: Vec<_> = fs::read_dir(directory.path()).unwrap().flatten().collect();
    assert_eq!(left.len(), 1, "only the log is left");
    // Something else in the log's place is put away.
    fs::write(directory.path().join(LOG), b"something else entirely").unwrap();
    let (_, findings) = HistoryFiles::open(directory.path(), START).unwrap();
    assert!(
        findings[0].contains("does not begin as a log"),
        "{findings:?}"
    );
}
