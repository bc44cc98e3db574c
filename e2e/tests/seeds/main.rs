//! Users' manifests, each by `kubectl apply` as it is, on both engines: the created objects, their
//! outcome, messages and refusals. `golden/` has one file per manifest; a line of only one engine
//! is marked with the engine, and the file gives the reason. `MUSTER_BLESS=1` writes the files
//! anew, and keeps the reasons.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod facts;
mod golden;
mod ground;
mod walk;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use e2e::repository;
use facts::Applied;
use golden::Golden;
use ground::Ground;
use serde_json::Value;

/// How long both engines together may take to reach the expected state.
const SETTLED: Duration = Duration::from_secs(120);
/// When files are written anew there is no expected state: nothing may have changed for this long.
const QUIET: Duration = Duration::from_secs(6);
/// The elastic job as its author probably intended it: its master mounts a volume that the
/// manifest declares for the workers only, so that Kubernetes refuses the master's pod.
const WHOLE: &str = "001-pytorchjob-elastic-with-its-volume";
const PACE: Duration = Duration::from_millis(300);

/// A user's manifest.
struct Seed {
    /// Its file's name without the ending.
    name: String,
    path: PathBuf,
    /// Whether the documents name their namespace themselves.
    placed: bool,
    /// The namespace of its objects: the one it names, or its own.
    namespace: String,
    /// Kind and name of every document.
    documents: Vec<(String, String)>,
}

fn seeds(directory: &Path) -> Vec<Seed> {
    let Ok(files) = std::fs::read_dir(directory) else {
        return Vec::new();
    };
    let mut paths: Vec<PathBuf> = files.map(|file| file.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|end| end == "yaml"));
    paths.sort();
    paths.into_iter().map(seed).collect()
}

/// The elastic job with the volume declared for its master, too.
fn whole(directory: &Path, scratch: &Path) -> Seed {
    let text = std::fs::read_to_string(directory.join("001-pytorchjob-elastic.yaml")).unwrap();
    let mut job: Value = serde_norway::from_str(&text).unwrap();
    job["metadata"].as_object_mut().unwrap().remove("namespace");
    let replicas = &mut job["spec"]["pytorchReplicaSpecs"];
    let volumes = replicas["Worker"]["template"]["spec"]["volumes"].clone();
    replicas["Master"]["template"]["spec"]["volumes"] = volumes;
    let path = scratch.join(format!("{WHOLE}.yaml"));
    std::fs::write(&path, job.to_string()).unwrap();
    seed(path)
}

fn seed(path: PathBuf) -> Seed {
    let text = std::fs::read_to_string(&path).unwrap();
    let documents: Vec<Value> = serde_norway::Deserializer::from_str(&text)
        .map(|document| serde::Deserialize::deserialize(document).unwrap())
        .collect();
    let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let name = path.file_stem().unwrap().to_string_lossy().into_owned();
    let own = documents
        .iter()
        .find_map(|document| document["metadata"]["namespace"].as_str());
    Seed {
        placed: own.is_some(),
        namespace: own.map_or_else(|| name.clone(), str::to_owned),
        documents: documents
            .iter()
            .map(|document| (word(&document["kind"]), word(&document["metadata"]["name"])))
            .collect(),
        name,
        path,
    }
}

/// The effects of each manifest on each engine, as lines.
type Lines = BTreeMap<String, [Vec<String>; 2]>;

#[test]
fn every_manifest_that_users_bring_ends_the_same_on_both_engines() {
    let directory = repository().join("../shared/seed-manifests");
    let mut seeds = seeds(&directory);
    if seeds.is_empty() {
        println!("skipped: no manifests in {}", directory.display());
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    seeds.push(whole(&directory, scratch.path()));
    let bless = std::env::var_os("MUSTER_BLESS").is_some_and(|value| value == "1");
    let mut golden = Golden::read();
    let begin = Instant::now();
    let grounds = Ground::both(&seeds);
    println!("both engines run after {:.0?}", begin.elapsed());
    let applied = grounds.each_ref().map(|ground| ground.apply_all(&seeds));
    let look = || -> Lines {
        let [embedded, kubernetes] = facts::look(&grounds);
        let lines = |seed: &Seed| {
            let of = |applied: &BTreeMap<String, Applied>, objects: &facts::Objects| {
                facts::lines(seed, &applied[&seed.name], objects)
            };
            [of(&applied[0], &embedded), of(&applied[1], &kubernetes)]
        };
        seeds
            .iter()
            .map(|seed| (seed.name.clone(), lines(seed)))
            .collect()
    };
    println!("everything is applied after {:.0?}", begin.elapsed());
    if bless {
        let mut last = look();
        let mut since = Instant::now();
        while since.elapsed() < QUIET {
            std::thread::sleep(PACE);
            let now = look();
            if now != last {
                (last, since) = (now, Instant::now());
            }
        }
        golden.bless(&last);
        println!("the golden files are written; run this again without MUSTER_BLESS");
        return;
    }
    let settle = || {
        let begin = Instant::now();
        loop {
            let lines = look();
            let wrong = golden.compare(&lines);
            if wrong.is_empty() {
                return lines;
            }
            assert!(begin.elapsed() < SETTLED, "{}", wrong.join("\n"));
            std::thread::sleep(PACE);
        }
    };
    settle();
    println!("everything is as expected after {:.0?}", begin.elapsed());
    // The last gang is placed on both engines: so all manifests before it have taken effect, and
    // nothing changed.
    for ground in &grounds {
        ground.last_in_line();
    }
    let lines = settle();
    print!("{}", golden.table(&lines));
    std::thread::scope(|scope| {
        for ground in &grounds {
            scope.spawn(|| walk::walk(ground, &seeds));
        }
    });
    for ground in &grounds {
        ground.must_be_well();
    }
    println!("all of it took {:.0?}", begin.elapsed());
}
