//! The expected effects of each manifest, as readable files: lines of both engines, lines of one
//! of them marked with its name, and the reasons.

use std::collections::BTreeMap;
use std::path::PathBuf;

use e2e::repository;

use crate::Lines;

const ENGINES: [&str; 2] = ["embedded", "kubernetes"];
const WHY: &str = "# why: ";

/// The files, by their manifest's name.
pub(crate) struct Golden(BTreeMap<String, Vec<String>>);

fn folder() -> PathBuf {
    repository().join("e2e/tests/seeds/golden")
}

/// Both engines' lines as one text; lines of only one engine are marked.
fn merged(lines: &[Vec<String>; 2]) -> Vec<String> {
    let mut out: Vec<String> = Vec::new();
    for line in &lines[0] {
        match lines[1].contains(line) {
            true => out.push(line.clone()),
            false => out.push(format!("[{}] {line}", ENGINES[0])),
        }
    }
    let only = lines[1].iter().filter(|line| !lines[0].contains(line));
    out.extend(only.map(|line| format!("[{}] {line}", ENGINES[1])));
    out
}

fn differ(lines: &[String]) -> bool {
    let marked = |line: &String| {
        ENGINES
            .iter()
            .any(|name| line.starts_with(&format!("[{name}] ")))
    };
    lines.iter().any(marked)
}

fn why(lines: &[String]) -> Vec<&str> {
    lines
        .iter()
        .filter_map(|line| line.strip_prefix(WHY))
        .collect()
}

impl Golden {
    pub(crate) fn read() -> Golden {
        let files = std::fs::read_dir(folder()).unwrap();
        let read = |path: PathBuf| {
            let name = path.file_stem().unwrap().to_string_lossy().into_owned();
            let text = std::fs::read_to_string(&path).unwrap();
            (name, text.lines().map(str::to_owned).collect())
        };
        Golden(files.map(|file| read(file.unwrap().path())).collect())
    }

    /// The differences from the files, as text; empty if there are none.
    pub(crate) fn compare(&self, seen: &Lines) -> Vec<String> {
        let mut wrong = Vec::new();
        for name in self.0.keys().filter(|name| !seen.contains_key(*name)) {
            wrong.push(format!("{name}: no manifest has this name"));
        }
        for (name, lines) in seen {
            let Some(expected) = self.0.get(name) else {
                wrong.push(format!("{name}: there is no golden file"));
                continue;
            };
            let wanted: Vec<&String> = expected
                .iter()
                .filter(|line| !line.starts_with('#'))
                .collect();
            let found = merged(lines);
            let missing = wanted.iter().filter(|line| !found.contains(line));
            wrong.extend(missing.map(|line| format!("{name}: missing: {line}")));
            let more = found.iter().filter(|line| !wanted.contains(line));
            wrong.extend(more.map(|line| format!("{name}: not expected: {line}")));
            if differ(&found) && why(expected).is_empty() {
                wrong.push(format!(
                    "{name}: the engines differ, and no line starts with {WHY:?}"
                ));
            }
            if !differ(&found) && !why(expected).is_empty() {
                wrong.push(format!(
                    "{name}: it says why the engines differ, and they do not"
                ));
            }
        }
        wrong
    }

    /// Writes the files anew, and keeps their remarks.
    pub(crate) fn bless(&mut self, seen: &Lines) {
        for (name, lines) in seen {
            let now = merged(lines);
            let kept = self.0.remove(name).unwrap_or_default().into_iter();
            let keep =
                |line: &String| line.starts_with('#') && (differ(&now) || !line.starts_with(WHY));
            let mut all: Vec<String> = kept.filter(keep).collect();
            all.extend(now);
            let path = folder().join(format!("{name}.txt"));
            std::fs::write(path, format!("{}\n", all.join("\n"))).unwrap();
            self.0.insert(name.clone(), all);
        }
    }

    /// The table: file, embedded, Kubernetes, equal or not, reason.
    pub(crate) fn table(&self, seen: &Lines) -> String {
        let mut out = format!(
            "{:<40} {:<34} {:<34} {:<5} why\n",
            "file", "embedded", "kubernetes", "same"
        );
        for (name, lines) in seen {
            let [embedded, kubernetes] = lines.each_ref().map(|lines| outcome(lines));
            let same = if differ(&merged(lines)) { "no" } else { "yes" };
            let why = why(&self.0[name]).join(" ");
            out += &format!("{name:<40} {embedded:<34} {kubernetes:<34} {same:<5} {why}\n");
        }
        out
    }
}

/// The effects of a manifest, in a few words.
fn outcome(lines: &[String]) -> String {
    let [mut objects, mut pods, mut bound] = [0, 0, 0];
    let mut refused = false;
    for line in lines {
        let word = line.split([':', ' ']).next().unwrap_or_default();
        refused |= word == "refused";
        if ["apply", "told", "refused", "event"].contains(&word) {
            continue;
        }
        let (count, rest) = match line.split_once(" x ") {
            Some((count, rest)) => (count.parse().unwrap_or(1), rest),
            None => (1, line.as_str()),
        };
        objects += count;
        if rest.starts_with("Pod ") {
            pods += count;
            bound += if rest.contains(": bound") { count } else { 0 };
        }
    }
    let made = if objects == 1 { "object" } else { "objects" };
    match (refused, pods) {
        (true, _) => "refused".to_owned(),
        (false, 0) => format!("{objects} {made}"),
        (false, _) => format!("{objects} {made}, {bound} of {pods} pods bound"),
    }
}
