//! Regular expressions that users write, in RE2's syntax. Matching takes linear time, and compiling is bounded.

use regex::{Regex, RegexBuilder};

/// The most memory of a compiled expression, in bytes.
const SIZE_MAX: usize = 64 * 1024;
/// The deepest nesting of groups.
const NEST_MAX: u32 = 32;

/// Why a text is no expression, or that it needs too much memory, in one line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct PatternError(String);

/// Compiles an expression.
///
/// # Errors
/// The text is no expression, or it needs too much memory.
pub fn compile(pattern: &str) -> Result<Regex, PatternError> {
    let mut builder = RegexBuilder::new(pattern);
    let built = builder.size_limit(SIZE_MAX).nest_limit(NEST_MAX).build();
    built.map_err(|error| {
        let text = error.to_string();
        let line = text.lines().next_back().unwrap_or_default();
        PatternError(line.trim_start_matches("error: ").to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expression_is_compiled_within_bounds_or_refused_in_one_line() {
        assert!(
            compile("exit code (1|2)")
                .unwrap()
                .is_match("with exit code 2.")
        );
        for wrong in [
            "(",
            "a{1000}{1000}",
            &"(".repeat(200),
            // Tens of kilobytes from few characters: each \\w is all of Unicode's letters and digits.
            r"(\w{9}){9}",
        ] {
            let error = compile(wrong).unwrap_err().to_string();
            assert!(!error.is_empty() && !error.contains('\n'), "{error}");
        }
    }
}
