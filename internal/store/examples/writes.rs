//! Measures the store: commits a second from many writers, each flushed before it is acknowledged,
//! with active watchers; the time of a list and of reopening; the resident memory.
//!
//! `cargo run --release -p store --example writes -- [DIR] [WRITERS] [SECONDS] [BYTES]`

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bytes::Bytes;
use store::{EntryMeta, Options, Store, TransactionView};

fn resident_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok())
        .unwrap_or(0)
        / 1024
}

fn meta(writer: usize) -> EntryMeta {
    EntryMeta {
        labels: [("writer".to_owned(), writer.to_string())].into(),
        fields: [("status.phase".to_owned(), "Pending".to_owned())].into(),
    }
}

async fn write(store: Store, writer: usize, bytes: usize, until: Instant) -> u64 {
    let body = vec![b'x'; bytes];
    let mut count = 0;
    while Instant::now() < until {
        let key = format!("/core/pods/ns-{}/pod-{writer}-{count}", writer % 4);
        let body = Bytes::from(body.clone());
        let outcome = store
            .commit(move |view: &mut TransactionView| {
                view.put(key, meta(writer), |_| body);
                Ok::<(), ()>(())
            })
            .await;
        if let Err(error) = outcome {
            eprintln!("a write failed: {error:?}");
            break;
        }
        count += 1;
    }
    count
}

async fn watch(store: Store) -> usize {
    let mut seen = 0;
    let Ok(mut watch) = store.watch("/core/pods/", None) else {
        return 0;
    };
    drop(store);
    while let Some(Ok(events)) = watch.next_batch().await {
        seen += events.len();
    }
    seen
}

async fn measure(dir: &Path, writers: usize, seconds: u64, bytes: usize, watchers: usize) {
    let Ok(store) = Store::open(dir, Options::default()) else {
        eprintln!("the store in {} cannot be opened", dir.display());
        return;
    };
    let watching: Vec<_> = (0..watchers)
        .map(|_| tokio::spawn(watch(store.clone())))
        .collect();
    let started = Instant::now();
    let until = started + Duration::from_secs(seconds);
    let writing: Vec<_> = (0..writers)
        .map(|writer| tokio::spawn(write(store.clone(), writer, bytes, until)))
        .collect();
    let mut count = 0;
    for writer in writing {
        count += writer.await.unwrap_or(0);
    }
    let rate = count as f64 / started.elapsed().as_secs_f64();
    println!(
        "{writers} writers, {watchers} watchers, {bytes} bytes: {count} commits, {rate:.0}/s, resident {} MiB",
        resident_mib()
    );
    let listing = Instant::now();
    let page = store.list("/core/pods/", None, usize::MAX);
    println!("list of {}: {:?}", page.entries.len(), listing.elapsed());
    drop(page);
    drop(store);
    let mut seen = 0;
    for watcher in watching {
        seen += watcher.await.unwrap_or(0);
    }
    println!("watchers saw {seen} events");
    let opening = Instant::now();
    let again = Store::open(dir, Options::default());
    println!(
        "opened again in {:?}: {}",
        opening.elapsed(),
        again.map_or_else(
            |error| error.to_string(),
            |store| store.revision().to_string()
        )
    );
}

fn main() -> std::io::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let dir = arguments
        .next()
        .map_or_else(|| std::env::temp_dir().join("store-writes"), PathBuf::from);
    let mut number = |default: u64| {
        arguments
            .next()
            .and_then(|text| text.parse::<u64>().ok())
            .unwrap_or(default)
    };
    let (writers, seconds, bytes) = (number(32), number(5), number(2000));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    for watchers in [0, 10] {
        let dir = dir.join(watchers.to_string());
        runtime.block_on(measure(
            &dir,
            writers as usize,
            seconds,
            bytes as usize,
            watchers,
        ));
    }
    Ok(())
}
