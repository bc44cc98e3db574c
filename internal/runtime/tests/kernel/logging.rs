//! Output on its way to the log.

use futures::StreamExt;
use runtime::LogRead;

use super::*;

#[tokio::test]
async fn no_line_is_lost_to_rotation() {
    let house = House::new().await;
    let mut spec = house.shell(
        "a",
        "i=0; while [ $i -lt 20000 ]; do echo line $i; i=$((i+1)); done",
    );
    spec.log.max_bytes = 50_000;
    spec.log.max_files = 1000;
    let (exit, output) = house.run(spec).await;
    assert_eq!(exit.code, 0);
    let expected: String = (0..20_000).map(|i| format!("line {i}\n")).collect();
    assert_eq!(output, expected);
    assert!(house.path("a.log.10").exists());
}

#[tokio::test]
async fn the_oldest_files_go_when_there_are_too_many() {
    let house = House::new().await;
    let mut spec = house.shell(
        "a",
        "i=0; while [ $i -lt 2000 ]; do echo line $i; i=$((i+1)); done",
    );
    spec.log.max_bytes = 10_000;
    spec.log.max_files = 3;
    let (_, output) = house.run(spec).await;
    assert!(output.ends_with("line 1999\n") && !output.contains("line 0\n"));
    assert!(house.path("a.log.2").exists() && !house.path("a.log.3").exists());
}

#[tokio::test]
async fn a_last_line_without_a_newline_and_bytes_that_are_no_text_are_kept() {
    let house = House::new().await;
    let spec = house.shell("a", "printf 'a\\377b'");
    let id = spec.id.clone();
    house.start(spec).await;
    within(house.runtime.wait(&id)).await.unwrap();
    let mut stream = house.runtime.logs(&id, LogRead::default()).unwrap();
    assert_eq!(
        within(stream.next()).await.unwrap().unwrap(),
        &b"a\xffb\n"[..]
    );
}

#[tokio::test]
async fn a_follower_sees_lines_as_they_come_and_ends_with_the_container() {
    let house = House::new().await;
    let go = house.path("go");
    let spec = house.shell(
        "a",
        &format!(
            "echo one; until [ -e {} ]; do sleep 0.02; done; echo two",
            go.display()
        ),
    );
    let id = spec.id.clone();
    house.start(spec).await;
    let mut stream = house
        .runtime
        .logs(
            &id,
            LogRead {
                follow: true,
                ..LogRead::default()
            },
        )
        .unwrap();
    assert_eq!(within(stream.next()).await.unwrap().unwrap(), "one\n");
    std::fs::write(&go, "").unwrap();
    assert_eq!(within(stream.next()).await.unwrap().unwrap(), "two\n");
    assert!(within(stream.next()).await.is_none());
}

#[tokio::test]
async fn the_log_outlasts_the_container() {
    let house = House::new().await;
    let spec = house.shell("a", "echo kept");
    let (id, log) = (spec.id.clone(), spec.log.path.clone());
    house.run(spec).await;
    house.runtime.remove(&id).await.unwrap();
    let chunks: Vec<_> = within(runtime::read_logs(log, LogRead::default(), || true).try_collect())
        .await
        .unwrap();
    assert_eq!(chunks.concat(), b"kept\n");
}
