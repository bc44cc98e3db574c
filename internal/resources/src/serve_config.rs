//! Reads the YAML of a Ray Serve configuration, within bounds on what reading it costs.

use serde_json::Value;

/// The longest configuration in bytes.
pub const TEXT_MAX: usize = 262_144;
/// The most opening brackets and braces. The scanner visits the open ones for each token.
pub const BRACKETS_MAX: usize = 4096;
/// The most lines that begin with `%`. The parser compares each directive with all previous ones, and each tag with all
/// of them.
pub const DIRECTIVES_MAX: usize = 64;
/// What ends a line in YAML 1.1.
const LINE_ENDS: [char; 5] = ['\n', '\r', '\u{85}', '\u{2028}', '\u{2029}'];

/// Why a text is no configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidServeConfig {
    /// It is too long.
    #[error("must have at most {TEXT_MAX} bytes")]
    TooLong,
    /// It has too many brackets.
    #[error(
        "must have at most {BRACKETS_MAX} opening brackets and braces: write lists and objects in lines"
    )]
    TooManyBrackets,
    /// It has too many directives.
    #[error("must have at most {DIRECTIVES_MAX} lines that begin with %")]
    TooManyDirectives,
    /// It is no YAML.
    #[error("must be YAML: {0}")]
    NoYaml(String),
    /// It is YAML of something else.
    #[error("must be YAML of an object with the list `applications`, as `serve build` writes it")]
    NoApplications,
}

/// The configuration that a text holds.
///
/// # Errors
/// The text is beyond the bounds, no YAML, or has no list of applications.
pub fn parse(text: &str) -> Result<Value, InvalidServeConfig> {
    let config = read(text)?;
    match config["applications"].is_array() {
        true => Ok(config),
        false => Err(InvalidServeConfig::NoApplications),
    }
}

/// The value of a YAML text within the bounds.
pub(crate) fn read(text: &str) -> Result<Value, InvalidServeConfig> {
    if text.len() > TEXT_MAX {
        return Err(InvalidServeConfig::TooLong);
    }
    let opening = |byte: &u8| matches!(byte, b'[' | b'{');
    if text.bytes().filter(opening).count() > BRACKETS_MAX {
        return Err(InvalidServeConfig::TooManyBrackets);
    }
    let mut lines = text.trim_start_matches('\u{feff}').split(LINE_ENDS);
    if lines.by_ref().filter(|line| line.starts_with('%')).count() > DIRECTIVES_MAX {
        return Err(InvalidServeConfig::TooManyDirectives);
    }
    serde_norway::from_str(text).map_err(|error| InvalidServeConfig::NoYaml(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_is_yaml_with_applications_within_the_bounds() {
        let config = parse("applications:\n- name: a\n  import_path: a:app\n").unwrap();
        assert_eq!(config["applications"][0]["import_path"], "a:app");
        let brackets = "[".repeat(BRACKETS_MAX + 1);
        let directives = "%TAG !a! x\n".repeat(DIRECTIVES_MAX + 1);
        let table = [
            ("a".repeat(TEXT_MAX + 1), InvalidServeConfig::TooLong),
            (brackets, InvalidServeConfig::TooManyBrackets),
            (directives, InvalidServeConfig::TooManyDirectives),
            ("apps: []".to_owned(), InvalidServeConfig::NoApplications),
            ("- a".to_owned(), InvalidServeConfig::NoApplications),
            (String::new(), InvalidServeConfig::NoApplications),
        ];
        for (text, refusal) in table {
            assert_eq!(parse(&text).unwrap_err(), refusal);
        }
        let error = parse("applications: [").unwrap_err();
        assert!(matches!(error, InvalidServeConfig::NoYaml(_)), "{error}");
        // Aliases that would expand to gigabytes are refused soon.
        let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n".to_owned();
        for level in 1..12 {
            let before = format!("*a{}", level - 1);
            let list = [before.as_str(); 9].join(", ");
            bomb.push_str(&format!("a{level}: &a{level} [{list}]\n"));
        }
        bomb.push_str("applications: [*a11]\n");
        let error = parse(&bomb).unwrap_err();
        assert!(matches!(error, InvalidServeConfig::NoYaml(_)), "{error}");
    }
}
