//! Damaged configuration files never make their parser or the checks panic, and what is valid starts a command.

use std::path::PathBuf;

use clap::CommandFactory as _;
use proptest::prelude::*;

use super::*;
use crate::documents::{broken, damage, damaged};

const SOUND: [&str; 3] = [
    "[global]\ndata = \"/g\"\nlog-format = \"json\"\n\n[server]\nlisten = \"127.0.0.1:8443\"\nnode-grace = 50\n\
     audit-log-maxsize = 5\nadvertise = [\"a\", \"b\"]\n\n[server.kubernetes]\nkinds = [\"none\"]\n",
    "[agent]\nserver = \"https://s:8443\"\nhost-images = true\npod-pids-limit = 0x400\n",
    "[up]\nhost-images = false\n[up.x]\na = 1.5\nb = 2026-01-01T00:00:00Z\nc = {d = [[1], [\"\\u00e9\"]]}\n",
];

fn source(text: &str) -> file::ConfigurationSource {
    file::ConfigurationSource {
        path: PathBuf::from("f.toml"),
        text: text.to_owned(),
        world_readable: true,
    }
}

/// Texts whose nesting or number of parts is large.
fn deep() -> impl Strategy<Value = String> {
    let open = prop::sample::select(vec!["[", "[[", "{a=", "a.", "[a]\n", "a=1\n", "\"", "#"]);
    (open, 1..4000_usize, any::<bool>()).prop_map(|(open, times, valued)| {
        let text = open.repeat(times);
        match valued {
            true => format!("[server]\nadvertise = {text}"),
            false => text,
        }
    })
}

proptest! {
    #[test]
    fn no_settings_file_panics(
        text in prop_oneof![8 => broken(SOUND.to_vec()), 1 => deep()],
        damage in damage(),
    ) {
        let bytes = damaged(text.into_bytes(), &damage);
        let text = String::from_utf8_lossy(&bytes);
        let all: Vec<String> = Section::ALL.iter().map(|section| section.name()).collect();
        match file::entries(&source(&text), &all) {
            Ok(entries) => {
                let lines = text.lines().count();
                for entry in entries {
                    prop_assert!((1..=lines).contains(&entry.place.line), "{}", entry.place);
                    let _ = (entry.value.kind(), entry.value.to_string());
                }
            }
            Err((place, reason)) => prop_assert!(place.line >= 1 && !reason.is_empty()),
        }
    }
}

/// The checks read the definition of the whole command line in each case, which takes most of the time.
const CHECKED_CASES: u32 = 64;

proptest! {
    #![proptest_config(ProptestConfig {
        cases: std::env::var("PROPTEST_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(CHECKED_CASES) / 16 + 16,
        ..ProptestConfig::default()
    })]
    #[test]
    fn no_checked_settings_panic(text in broken(SOUND.to_vec()), other in broken(SOUND.to_vec())) {
        let sources = [source(&text), source(&other)];
        let command = Arguments::command();
        match check::check(&command, &sources) {
            Ok(checked) => for section in Section::ALL {
                let command = with_settings(Arguments::command(), section, &checked.settings);
                let words = std::iter::once("muster").chain(section.path().iter().copied());
                // A setting that the checks accept is one that the command line accepts.
                let started = without_requirements(command).try_get_matches_from(words);
                prop_assert!(started.is_ok(), "{section:?}: {started:?}\n{text}\n{other}");
            },
            Err(mistakes) => {
                prop_assert!(!mistakes.is_empty());
                for mistake in mistakes {
                    prop_assert!(!mistake.to_string().is_empty());
                }
            }
        }
    }
}
