//! Finds and reads configuration files, and reads their TOML as entries with lines.

use std::fmt;
use std::io::{ErrorKind, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use toml::de::{DeTable, DeValue};

use super::check::ConfigurationMistake;
use crate::arguments::CombinationError;

/// The directory of the configuration files unless another one is named.
pub const DIRECTORY: &str = "/etc/muster";
/// The first file of a directory.
const MAIN: &str = "muster.toml";
/// The directory of the further files, below that of the first.
const FURTHER: &str = "conf.d";
/// The largest file that is read, in bytes.
const BYTES_MAX: u64 = 1 << 20;
/// The most files that are read.
const FILES_MAX: usize = 1000;

/// A file that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigurationSource {
    /// Its path.
    pub path: PathBuf,
    /// Its content.
    pub text: String,
    /// True if every user of the machine may read it.
    pub world_readable: bool,
}

/// A line of a file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The file.
    pub file: PathBuf,
    /// The line, from 1.
    pub line: usize,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file.display(), self.line)
    }
}

/// A key of a file with its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The section, such as `server.kubernetes`; empty outside of all sections.
    pub section: String,
    /// The key.
    pub key: String,
    /// The value.
    pub value: Value,
    /// Where the key stands.
    pub place: Place,
}

/// A value of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// A string
    Text(String),
    /// An integer
    Number(i128),
    /// A boolean
    Flag(bool),
    /// An array
    List(Vec<Value>),
    /// A table
    Table,
    /// Any other value, which no option takes: its type and its text.
    Other(&'static str, String),
}

impl Value {
    /// What the value is, for errors.
    pub fn kind(&self) -> &'static str {
        match *self {
            Value::Text(_) => "a string",
            Value::Number(_) => "an integer",
            Value::Flag(_) => "a boolean",
            Value::List(_) => "an array",
            Value::Table => "a table",
            Value::Other(kind, _) => kind,
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Text(text) => write!(f, "{text:?}"),
            Value::Number(number) => write!(f, "{number}"),
            Value::Flag(flag) => write!(f, "{flag}"),
            Value::List(values) => {
                let values: Vec<String> = values.iter().map(ToString::to_string).collect();
                write!(f, "[{}]", values.join(", "))
            }
            Value::Table => write!(f, "{{...}}"),
            Value::Other(_, text) => write!(f, "{text}"),
        }
    }
}

/// Why there is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigurationFileError {
    /// A file or directory cannot be read.
    #[error("the configuration {path} cannot be read: {source}; --config names another one")]
    Read {
        /// Its path.
        path: String,
        /// Why not.
        source: std::io::Error,
    },
    /// A named directory has no configuration.
    #[error("the configuration directory {0} has neither muster.toml nor conf.d/*.toml")]
    Empty(String),
    /// A file is too large.
    #[error("the configuration {} is larger than {} bytes; split it into files in conf.d", .0, BYTES_MAX)]
    TooLarge(String),
    /// There are too many files.
    #[error("the configuration directory {} has more than {} files", .0, FILES_MAX)]
    TooMany(String),
    /// Files were read, and are invalid.
    #[error("the configuration is invalid:{}", lines(.0))]
    Invalid(Vec<ConfigurationMistake>),
    /// Options of the command line, the environment and the files do not fit together.
    #[error("{0}")]
    Combination(#[from] CombinationError),
    /// Files were read, and options of a section do not fit together.
    #[error("the configuration is invalid: [{section}]: {error}")]
    SectionCombination {
        /// The section.
        section: String,
        /// Why not.
        error: CombinationError,
    },
    /// Files were read, and the server would refuse its certificate's options or files.
    #[error("the configuration is invalid: {0:#}")]
    Certificate(anyhow::Error),
    /// Files were read, and the server would refuse the settings of OpenID Connect or their files.
    #[error("the configuration is invalid: {0:#}")]
    Oidc(anyhow::Error),
}

fn lines(problems: &[ConfigurationMistake]) -> String {
    let lines: Vec<String> = problems.iter().map(|one| format!("\n  {one}")).collect();
    lines.concat()
}

fn unreadable(path: &Path) -> impl FnOnce(std::io::Error) -> ConfigurationFileError {
    let path = path.display().to_string();
    move |source| ConfigurationFileError::Read { path, source }
}

/// Reads the configuration files, the ones that take precedence last: of a directory, `muster.toml` and then
/// `conf.d/*.toml` by name. Without a path it is [`DIRECTORY`], which may be absent or have none.
///
/// # Errors
/// A file cannot be read or is too large, or there are too many; or a named directory has none.
pub fn sources(path: Option<&Path>) -> Result<Vec<ConfigurationSource>, ConfigurationFileError> {
    let directory = match path {
        Some(path) if !path.is_dir() => return Ok(vec![read(path)?]),
        Some(path) => path,
        None => Path::new(DIRECTORY),
    };
    let files = files(directory)?;
    if files.is_empty() && path.is_some() {
        return Err(ConfigurationFileError::Empty(
            directory.display().to_string(),
        ));
    }
    files.iter().map(|file| read(file)).collect()
}

fn files(directory: &Path) -> Result<Vec<PathBuf>, ConfigurationFileError> {
    let main = directory.join(MAIN);
    let exists = main.try_exists().map_err(unreadable(&main))?;
    let further = directory.join(FURTHER);
    let mut files = Vec::new();
    match std::fs::read_dir(&further) {
        Ok(entries) => {
            for (count, entry) in entries.enumerate() {
                if count >= FILES_MAX {
                    let further = further.display().to_string();
                    return Err(ConfigurationFileError::TooMany(further));
                }
                let file = entry.map_err(unreadable(&further))?.path();
                let hidden = file
                    .file_name()
                    .is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
                if !hidden && file.extension().is_some_and(|end| end == "toml") {
                    files.push(file);
                }
            }
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(unreadable(&further)(error)),
    }
    files.sort();
    if exists {
        files.insert(0, main);
    }
    Ok(files)
}

fn read(path: &Path) -> Result<ConfigurationSource, ConfigurationFileError> {
    let file = std::fs::File::open(path).map_err(unreadable(path))?;
    let mode = file
        .metadata()
        .map_err(unreadable(path))?
        .permissions()
        .mode();
    let mut text = String::new();
    file.take(BYTES_MAX + 1)
        .read_to_string(&mut text)
        .map_err(unreadable(path))?;
    if text.len() as u64 > BYTES_MAX {
        return Err(ConfigurationFileError::TooLarge(path.display().to_string()));
    }
    Ok(ConfigurationSource {
        path: path.to_owned(),
        text,
        world_readable: mode & 0o004 != 0,
    })
}

/// Reads a file's TOML. A table is a section if it has one of these names; any other table is an entry's value.
///
/// # Errors
/// The text is not TOML: the line and the reason.
pub fn entries(
    source: &ConfigurationSource,
    sections: &[String],
) -> Result<Vec<Entry>, (Place, String)> {
    let breaks: Vec<usize> = source.text.match_indices('\n').map(|(at, _)| at).collect();
    let place = |start: usize| Place {
        file: source.path.clone(),
        line: breaks.partition_point(|end| *end < start) + 1,
    };
    let document = DeTable::parse(&source.text).map_err(|error| {
        let start = error.span().map_or(0, |span| span.start);
        (place(start), error.message().to_owned())
    })?;
    let mut entries = Vec::new();
    // A section's name has at most two words, so this does not go deep.
    let mut tables = vec![(String::new(), document.get_ref())];
    while let Some((section, table)) = tables.pop() {
        for (key, value) in table {
            let name: &str = key.get_ref();
            if let DeValue::Table(inner) = value.get_ref() {
                let inner_section = match section.as_str() {
                    "" => name.to_owned(),
                    outer => format!("{outer}.{name}"),
                };
                if sections.contains(&inner_section) {
                    tables.push((inner_section, inner));
                    continue;
                }
            }
            entries.push(Entry {
                section: section.clone(),
                key: name.to_owned(),
                value: read_value(value.get_ref()),
                place: place(key.span().start),
            });
        }
    }
    entries.sort_by(|one, other| one.place.cmp(&other.place));
    Ok(entries)
}

fn read_value(value: &DeValue<'_>) -> Value {
    match value {
        DeValue::String(text) => Value::Text(text.to_string()),
        DeValue::Integer(number) => match i128::from_str_radix(number.as_str(), number.radix()) {
            Ok(number) => Value::Number(number),
            Err(_) => Value::Other("an integer out of range", number.to_string()),
        },
        DeValue::Boolean(flag) => Value::Flag(*flag),
        DeValue::Array(values) => {
            let values = values.iter();
            Value::List(values.map(|value| read_value(value.get_ref())).collect())
        }
        DeValue::Float(number) => Value::Other("a float", number.to_string()),
        DeValue::Datetime(time) => Value::Other("a date or time", time.to_string()),
        DeValue::Table(_) => Value::Table,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_have_their_section_and_line() {
        let source = ConfigurationSource {
            path: PathBuf::from("f.toml"),
            text: "# x\n[server]\n\nlisten = \"a\"\nnode-grace = 0x10\n\n[server.kubernetes]\nkinds = [\n  \"none\",\n]\n[odd]\nx = 1.5\n"
                .to_owned(),
            world_readable: true,
        };
        let sections = ["server".to_owned(), "server.kubernetes".to_owned()];
        let found = entries(&source, &sections).unwrap();
        let found: Vec<String> = found
            .iter()
            .map(|one| format!("{} {} {} {}", one.place, one.section, one.key, one.value))
            .collect();
        assert_eq!(
            found,
            [
                "f.toml:4 server listen \"a\"",
                "f.toml:5 server node-grace 16",
                "f.toml:8 server.kubernetes kinds [\"none\"]",
                "f.toml:11  odd {...}",
            ]
        );
    }

    #[test]
    fn a_text_that_is_no_toml_is_refused_with_its_line() {
        for text in [
            "[server]\nlisten\n",
            "[server]\nx = 1\nx = 2\n",
            "a = 1\n[b\n",
        ] {
            let source = ConfigurationSource {
                path: PathBuf::from("f.toml"),
                text: text.to_owned(),
                world_readable: true,
            };
            let (place, reason) = entries(&source, &["server".to_owned()]).unwrap_err();
            assert!(place.line >= 2 && !reason.is_empty(), "{text}: {place}");
        }
    }

    #[test]
    fn a_directory_is_muster_toml_and_then_conf_d_by_name() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        let wrong = sources(Some(directory.path())).unwrap_err().to_string();
        assert!(wrong.contains("neither muster.toml nor conf.d"), "{wrong}");
        std::fs::create_dir(at("conf.d")).unwrap();
        for name in [
            "conf.d/20.toml",
            "conf.d/10.toml",
            "conf.d/.x.toml",
            "conf.d/a.txt",
        ] {
            std::fs::write(at(name), "").unwrap();
        }
        std::fs::write(at("muster.toml"), "").unwrap();
        let found = sources(Some(directory.path())).unwrap();
        let found: Vec<PathBuf> = found.into_iter().map(|source| source.path).collect();
        assert_eq!(
            found,
            [
                at("muster.toml"),
                at("conf.d/10.toml"),
                at("conf.d/20.toml")
            ]
        );
        let missing = sources(Some(&at("none.toml"))).unwrap_err().to_string();
        assert!(missing.contains("none.toml"), "{missing}");
    }

    #[test]
    fn a_file_that_is_too_large_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("f.toml");
        std::fs::write(&file, vec![b'\n'; BYTES_MAX as usize + 1]).unwrap();
        let wrong = sources(Some(&file)).unwrap_err();
        assert!(
            matches!(wrong, ConfigurationFileError::TooLarge(_)),
            "{wrong}"
        );
    }
}
