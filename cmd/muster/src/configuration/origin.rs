//! Where an effective value comes from.

use std::fmt;

use clap::parser::ValueSource;
use clap::{Arg, ArgMatches};

use super::check::Settings;
use super::file::Place;
use crate::arguments::Section;

/// Where an option's value comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SettingOrigin {
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

impl SettingOrigin {
    /// The origin of an option's value, from the matches of its command. Values of files are the defaults there.
    pub fn of(
        option: &Arg,
        matches: &ArgMatches,
        section: Section,
        settings: &Settings,
    ) -> SettingOrigin {
        let setting = || {
            let key = option.get_long()?;
            settings.get(section, key).map(|one| one.place.clone())
        };
        match matches.value_source(option.get_id().as_str()) {
            Some(ValueSource::CommandLine) => SettingOrigin::CommandLine,
            Some(ValueSource::EnvVariable) => {
                let name = option.get_env().unwrap_or_default();
                SettingOrigin::Environment(name.to_string_lossy().into_owned())
            }
            Some(_) => setting().map_or(SettingOrigin::Default, SettingOrigin::File),
            // An empty list in a file is a value too.
            None => setting().map_or(SettingOrigin::Unset, SettingOrigin::File),
        }
    }
}

impl fmt::Display for SettingOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SettingOrigin::CommandLine => write!(f, "command line"),
            SettingOrigin::Environment(name) => write!(f, "environment variable {name}"),
            SettingOrigin::File(place) => write!(f, "{place}"),
            SettingOrigin::Default => write!(f, "default"),
            SettingOrigin::Unset => write!(f, "not set"),
        }
    }
}
