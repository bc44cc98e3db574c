//! The former spelling of the engine, `--engine kubernetes`, as the subcommand that replaced it. It is accepted for one
//! release, so that units and charts of the former release keep working.

use std::ffi::{OsStr, OsString};

/// The commands that have an engine.
const COMMANDS: [&str; 2] = ["agent", "server"];
/// The engine's subcommand of these commands.
const KUBERNETES: &str = "kubernetes";
const FLAG: &str = "--engine";
/// Options before a command that take the next word as their value.
const WITH_VALUE: [&str; 4] = ["--data", "--kubeconfig", "--namespace", "-n"];

/// A command line with the subcommand in place of the flag: `server --engine kubernetes --kinds none` becomes `server
/// kubernetes --kinds none`, and `--engine embedded` is left out. Anything else stays as it is, and clap refuses the
/// flag together with the subcommand.
pub fn as_subcommand(mut words: Vec<OsString>) -> Vec<OsString> {
    let Some(command) = command_at(&words) else {
        return words;
    };
    if words
        .get(command + 1)
        .is_some_and(|word| word == KUBERNETES)
    {
        return words;
    }
    let options = words.iter().take_while(|word| *word != "--").count();
    for at in command + 1..options {
        let (engine, length) = match words[at].to_str() {
            Some(FLAG) => (words.get(at + 1).and_then(|word| word.to_str()), 2),
            Some(word) => match word
                .strip_prefix(FLAG)
                .and_then(|rest| rest.strip_prefix('='))
            {
                Some(engine) => (Some(engine), 1),
                None => continue,
            },
            None => continue,
        };
        let kubernetes = match engine {
            Some(KUBERNETES) => true,
            Some("embedded") => false,
            // clap refuses the flag and shows the valid options.
            _ => return words,
        };
        words.drain(at..at + length);
        if kubernetes {
            words.insert(command + 1, KUBERNETES.into());
        }
        return words;
    }
    words
}

/// The index of the command's word, if the command has an engine.
fn command_at(words: &[OsString]) -> Option<usize> {
    let mut at = 1;
    loop {
        let word: &OsStr = words.get(at)?;
        match word.to_str()? {
            word if WITH_VALUE.contains(&word) => at += 2,
            word if word.starts_with('-') => at += 1,
            word => return COMMANDS.contains(&word).then_some(at),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;
    use crate::arguments::Arguments;

    fn words(line: &str) -> Vec<OsString> {
        line.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn the_flag_is_the_subcommand_and_nothing_else_changes() {
        for (line, wanted) in [
            (
                "muster server --engine kubernetes --kinds none",
                "muster server kubernetes --kinds none",
            ),
            (
                "muster --data server agent --node-name a --engine=kubernetes --pair",
                "muster --data server agent kubernetes --node-name a --pair",
            ),
            (
                "muster -n x server --engine embedded --node-grace 60",
                "muster -n x server --node-grace 60",
            ),
        ] {
            assert_eq!(as_subcommand(words(line)), words(wanted), "{line}");
        }
        for same in [
            "muster",
            "muster --data",
            "muster server --node-grace 60",
            "muster server --engine",
            "muster server --engine mesos",
            "muster server kubernetes --engine kubernetes",
            "muster server kubernetes --engine embedded",
            "muster run --engine kubernetes -- server --engine kubernetes",
            "muster get server --engine kubernetes",
        ] {
            assert_eq!(as_subcommand(words(same)), words(same), "{same}");
        }
    }

    #[test]
    fn the_flag_together_with_the_subcommand_is_refused() {
        for line in [
            "muster server kubernetes --engine kubernetes",
            "muster server --engine kubernetes kubernetes",
            "muster server --engine embedded kubernetes --engine kubernetes",
            "muster agent kubernetes --engine embedded",
        ] {
            let parsed = Arguments::command().try_get_matches_from(as_subcommand(words(line)));
            assert!(parsed.is_err(), "{line}");
        }
    }

    #[test]
    fn all_options_before_a_command_are_known() {
        let command = Arguments::command();
        let mut options: Vec<String> = command
            .get_arguments()
            .filter(|option| option.get_action().takes_values())
            .flat_map(|option| {
                let long = option.get_long().map(|long| format!("--{long}"));
                let short = option.get_short().map(|short| format!("-{short}"));
                long.into_iter().chain(short)
            })
            .collect();
        options.sort();
        assert_eq!(options, WITH_VALUE);
    }
}
