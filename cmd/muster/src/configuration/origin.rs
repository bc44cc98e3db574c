//! Where an effective value comes from.

use std::fmt;

use clap::parser::ValueSource;
use clap::{Arg, ArgMatches};

use super::check::Settings;
use super::file::Place;
use crate::arguments::Section;

/// Where an option's value comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The command line
    CommandLine,
    /// This environment variable
    Environment(String),
    /// A file
    File(Place),
    /// The option's default
    Default,
    /// The option has no value
    Unset,
}

impl Origin {
    /// The origin of an option's value, from the matches of its command. Values of files are the defaults there.
    pub fn of(option: &Arg, matches: &ArgMatches, section: Section, settings: &Settings) -> Origin {
        let setting = || {
            let key = option.get_long()?;
            settings.get(section, key).map(|one| one.place.clone())
        };
        match matches.value_source(option.get_id().as_str()) {
            Some(ValueSource::CommandLine) => Origin::CommandLine,
            Some(ValueSource::EnvVariable) => {
                let name = option.get_env().unwrap_or_default();
                Origin::Environment(name.to_string_lossy().into_owned())
            }
            Some(_) => setting().map_or(Origin::Default, Origin::File),
            // An empty list in a file is a value too.
            None => setting().map_or(Origin::Unset, Origin::File),
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::CommandLine => write!(f, "command line"),
            Origin::Environment(name) => write!(f, "environment variable {name}"),
            Origin::File(place) => write!(f, "{place}"),
            Origin::Default => write!(f, "default"),
            Origin::Unset => write!(f, "not set"),
        }
    }
}
