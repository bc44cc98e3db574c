//! Owns the check of a YAML text before it is read: its depth and its size, determined event by
//! event, so that a text beyond the bounds is refused before any of it is stored. Does not read
//! values.
//!
//! serde_norway, which reads the values, first collects every event of a document. Its scanner,
//! libyaml's, visits all open flow levels (`[`, `{`) for every token, because a level whose key has
//! been seen is never skipped. `{a: ` 150,000 times therefore takes more than a minute, and the
//! depth is known only afterwards. This module first runs the same scanner and stops at the maximum
//! depth, so that each token costs at most [`MOST_DEPTH`] steps. Because both scans use the same
//! scanner, they always agree on whether a bracket is text or nests.
//!
//! Two other costs of the scanner grow quadratically and are bounded from the text's bytes alone:
//! `%TAG` directives, and runs of white space inside a scalar.

use std::ffi::CStr;
use std::mem::MaybeUninit;

#[expect(
    clippy::unsafe_removed_from_name,
    reason = "each call stands in an unsafe block of its own"
)]
use unsafe_libyaml_norway as libyaml;

use crate::limits::{
    MOST_DEPTH, MOST_EXPANDED_BYTES, MOST_VALUES, MOST_YAML_DIRECTIVES, MOST_YAML_FOLDING,
};

/// Why a text is refused.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Excess {
    /// It is nested deeper than the bound.
    Depth,
    /// It exceeds the bound on size; contains the message.
    Amount(String),
}

/// The relevant content of an event.
enum YamlStep {
    Open,
    Close,
    Scalar,
    Other,
    End,
}

/// Refuses a text beyond the bounds. An invalid YAML text passes if it is within the bounds up to
/// its error: the decoder reports the error.
pub(crate) fn survey(text: &[u8]) -> Result<(), Excess> {
    survey_bytes(text)?;
    let mut events = YamlEvents::of(text);
    let (mut depth, mut values, mut tags) = (0_usize, 0_usize, 0_usize);
    while let Some((step, tag)) = events.step() {
        tags = tags.saturating_add(tag);
        match step {
            YamlStep::Open => {
                depth += 1;
                values += 1;
            }
            YamlStep::Close => depth = depth.saturating_sub(1),
            YamlStep::Scalar => values += 1,
            YamlStep::Other => {}
            YamlStep::End => break,
        }
        if depth > MOST_DEPTH {
            return Err(Excess::Depth);
        }
        if values > MOST_VALUES {
            return Err(Excess::Amount(format!(
                "the body has more than {MOST_VALUES} keys and values"
            )));
        }
        if tags > MOST_EXPANDED_BYTES {
            return Err(Excess::Amount(format!(
                "the body's tags take more than {MOST_EXPANDED_BYTES} bytes"
            )));
        }
    }
    Ok(())
}

/// The checks that need no scanner.
fn survey_bytes(text: &[u8]) -> Result<(), Excess> {
    let (mut directives, mut runs, mut longest, mut run) = (0_usize, 0_u64, 0_u64, 0_u64);
    for (at, byte) in text.iter().enumerate() {
        // The bytes of every line break in YAML 1.1, and of a few letters: at worst this counts too
        // many.
        if matches!(
            byte,
            b' ' | b'\t' | b'\n' | b'\r' | 0xC2 | 0x85 | 0xE2 | 0x80 | 0xA8 | 0xA9
        ) {
            runs += u64::from(run == 0);
            run += 1;
            longest = longest.max(run);
            continue;
        }
        run = 0;
        directives += usize::from(*byte == b'%' && begins_line(&text[..at]));
    }
    if directives > MOST_YAML_DIRECTIVES {
        return Err(Excess::Amount(format!(
            "the body has more than {MOST_YAML_DIRECTIVES} lines that begin with \"%\""
        )));
    }
    if longest.saturating_mul(runs) > MOST_YAML_FOLDING {
        return Err(Excess::Amount(
            "the body has too many long runs of white space; send it as JSON".to_owned(),
        ));
    }
    Ok(())
}

/// True if a line begins after these bytes.
fn begins_line(before: &[u8]) -> bool {
    const BREAKS: [&[u8]; 5] = [
        b"\n",
        b"\r",
        "\u{85}".as_bytes(),
        "\u{2028}".as_bytes(),
        "\u{2029}".as_bytes(),
    ];
    before.is_empty()
        || before == "\u{feff}".as_bytes()
        || BREAKS.iter().any(|end| before.ends_with(end))
}

/// libyaml's events of a text, which must outlive them.
struct YamlEvents<'t> {
    /// On the heap, because libyaml stores the parser's own address in it.
    parser: *mut libyaml::yaml_parser_t,
    failed: bool,
    text: std::marker::PhantomData<&'t [u8]>,
}

impl<'t> YamlEvents<'t> {
    fn of(text: &'t [u8]) -> Self {
        let room = Box::new(MaybeUninit::<libyaml::yaml_parser_t>::uninit());
        let parser = Box::into_raw(room).cast::<libyaml::yaml_parser_t>();
        // SAFETY: `parser` points to room for a parser, which `yaml_parser_initialize` fills. The text is borrowed
        // for as long as the parser lives.
        let failed = unsafe {
            let failed = libyaml::yaml_parser_initialize(parser).fail;
            if !failed {
                libyaml::yaml_parser_set_encoding(parser, libyaml::YAML_UTF8_ENCODING);
                libyaml::yaml_parser_set_input_string(parser, text.as_ptr(), text.len() as u64);
            }
            failed
        };
        assert!(!failed, "libyaml initialises a parser or ends the process");
        YamlEvents {
            parser,
            failed,
            text: std::marker::PhantomData,
        }
    }

    /// The next event and the length of its tag; none after an error.
    fn step(&mut self) -> Option<(YamlStep, usize)> {
        if self.failed {
            return None;
        }
        let mut room = MaybeUninit::<libyaml::yaml_event_t>::uninit();
        let event = room.as_mut_ptr();
        // SAFETY: the parser was initialised and has not failed. The event is read only after it was written, each
        // member of its union only where its type says that it is there, and it is freed once.
        unsafe {
            if libyaml::yaml_parser_parse(self.parser, event).fail {
                self.failed = true;
                return None;
            }
            let found = match (*event).type_ {
                libyaml::YAML_SEQUENCE_START_EVENT => {
                    (YamlStep::Open, length((*event).data.sequence_start.tag))
                }
                libyaml::YAML_MAPPING_START_EVENT => {
                    (YamlStep::Open, length((*event).data.mapping_start.tag))
                }
                libyaml::YAML_SCALAR_EVENT => (YamlStep::Scalar, length((*event).data.scalar.tag)),
                libyaml::YAML_ALIAS_EVENT => (YamlStep::Scalar, 0),
                libyaml::YAML_SEQUENCE_END_EVENT | libyaml::YAML_MAPPING_END_EVENT => {
                    (YamlStep::Close, 0)
                }
                libyaml::YAML_STREAM_END_EVENT => (YamlStep::End, 0),
                _ => (YamlStep::Other, 0),
            };
            libyaml::yaml_event_delete(event);
            Some(found)
        }
    }
}

impl Drop for YamlEvents<'_> {
    fn drop(&mut self) {
        // SAFETY: the parser was initialised in `of`, which alone makes it, and its room came from a box.
        unsafe {
            libyaml::yaml_parser_delete(self.parser);
            drop(Box::from_raw(
                self.parser.cast::<MaybeUninit<libyaml::yaml_parser_t>>(),
            ));
        }
    }
}

/// The length of a text that ends with a zero byte.
///
/// # Safety
/// `text` is null or points to such a text.
unsafe fn length(text: *const u8) -> usize {
    if text.is_null() {
        return 0;
    }
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(text.cast()) }.to_bytes().len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn amount(text: &str) -> bool {
        matches!(survey(text.as_bytes()), Err(Excess::Amount(_)))
    }

    #[test]
    fn depth_is_taken_to_its_bound_in_every_way_to_nest() {
        /// A kind of nesting by its name, and the text with that depth.
        type Way = (&'static str, fn(usize) -> String);
        let ways: [Way; 6] = [
            ("flow lists", |n| "[".repeat(n) + &"]".repeat(n)),
            ("flow mappings", |n| {
                format!("{}1{}", "{a: ".repeat(n), "}".repeat(n))
            }),
            ("block lists", |n| format!("{}1\n", "- ".repeat(n))),
            ("complex keys", |n| format!("{}1\n", "? ".repeat(n))),
            ("complex keys in flow", |n| {
                format!("{}1{}", "{? ".repeat(n), "}".repeat(n))
            }),
            ("block mappings", |n| {
                (0..n).map(|at| format!("{}a:\n", " ".repeat(at))).collect()
            }),
        ];
        for (way, nested) in ways {
            assert_eq!(survey(nested(MOST_DEPTH).as_bytes()), Ok(()), "{way}");
            let deeper = nested(MOST_DEPTH + 1);
            assert_eq!(survey(deeper.as_bytes()), Err(Excess::Depth), "{way}");
        }
    }

    #[test]
    fn what_nests_a_hundred_thousand_levels_ends_at_the_bound() {
        for opening in ["{a: ", "[", "{? ", "- ", "? ", "[{a: [", "!t {a: ", "&x ["] {
            let text = opening.repeat(150_000);
            assert_eq!(survey(text.as_bytes()), Err(Excess::Depth), "{opening}");
        }
    }

    #[test]
    fn brackets_that_are_text_do_not_nest() {
        let brackets = "[{".repeat(5000);
        for text in [
            format!("a: x{brackets}\n"),
            format!("a: '{brackets}'\n"),
            format!("a: \"{brackets}\"\n"),
            format!("a: |\n  {brackets}\n  {brackets}\n"),
            format!("a: >-\n  {brackets}\n"),
            format!("a: 1 # {brackets}\n"),
            format!("# {brackets}\na: 1\n"),
            format!("a: |\n{}", "  - - - ? ? {a: [\n".repeat(5000)),
        ] {
            assert_eq!(survey(text.as_bytes()), Ok(()), "{text:.40}");
        }
    }

    #[test]
    fn keys_and_values_are_taken_to_their_bound() {
        let list = |items: usize| format!("[{}]", "1,".repeat(items));
        assert_eq!(survey(list(MOST_VALUES - 1).as_bytes()), Ok(()));
        assert!(amount(&list(MOST_VALUES)));
        let aliases = |count: usize| format!("[&a 1,{}]", "*a,".repeat(count));
        assert_eq!(survey(aliases(MOST_VALUES - 2).as_bytes()), Ok(()));
        assert!(amount(&aliases(MOST_VALUES - 1)));
    }

    #[test]
    fn directives_are_taken_to_their_bound_and_percent_signs_elsewhere_are_not_counted() {
        let directives = |count: usize| {
            let lines: String = (0..count).map(|at| format!("%TAG !t{at}! x\n")).collect();
            format!("{lines}---\na: 1\n")
        };
        assert_eq!(survey(directives(MOST_YAML_DIRECTIVES).as_bytes()), Ok(()));
        assert!(amount(&directives(MOST_YAML_DIRECTIVES + 1)));
        assert!(amount(&directives(1000).replace('\n', "\u{2028}")));
        let text = format!("a: |\n{}", "  %d\n  100 %\n  é% %\n".repeat(1000));
        assert_eq!(survey(text.as_bytes()), Ok(()));
    }

    #[test]
    fn tags_that_a_directive_makes_long_are_counted_as_they_become() {
        let prefix = "x".repeat(1 << 20);
        let text = format!("%TAG !t! {prefix}\n---\n[{}]\n", "!t!a 1,".repeat(10));
        assert!(amount(&text));
        let text = format!("%TAG !t! {prefix}\n---\n[!t!a 1]\n");
        assert_eq!(survey(text.as_bytes()), Ok(()));
    }

    #[test]
    fn white_space_that_costs_the_square_of_its_length_is_refused() {
        let text = |longest: usize, runs: usize| {
            format!("a: b{}{}\n", " ".repeat(longest), "c ".repeat(runs))
        };
        assert_eq!(survey(text(1_000_000, 1000).as_bytes()), Ok(()));
        assert!(amount(&text(1_000_000, 10_000)));
        assert_eq!(survey(text(100, 1_000_000).as_bytes()), Ok(()));
    }

    #[test]
    fn invalid_yaml_passes_to_the_decoder() {
        for text in ["a: [", "\t- b: {", "'", "%", "a: *b", "\u{0}", ""] {
            assert_eq!(survey(text.as_bytes()), Ok(()), "{text:?}");
        }
        assert_eq!(survey(b"\xff\xfe"), Ok(()));
    }
}
