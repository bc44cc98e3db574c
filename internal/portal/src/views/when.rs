//! Times on pages: relative, with the exact time for the pointer and for programs.

use jiff::Timestamp;
use resources::span::human_duration;

/// A time as every page writes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct When {
    /// The exact time in RFC 3339; empty if there is none.
    pub at: String,
    /// The time relative to now: `13s ago`, `in 5m`.
    pub words: String,
}

impl When {
    /// A time, seen at `now`.
    pub fn of(at: Timestamp, now: Timestamp) -> When {
        let ahead = at.duration_since(now).as_secs();
        let words = match ahead {
            2.. => format!("in {}", human_duration(ahead)),
            -1..=1 => "now".to_owned(),
            _ => format!("{} ago", human_duration(ahead.saturating_neg())),
        };
        When {
            at: at.to_string(),
            words,
        }
    }

    /// A time, seen now.
    pub fn seen(at: &Timestamp) -> When {
        When::of(*at, Timestamp::now())
    }

    /// A time in RFC 3339, seen now; another text stays as it is.
    pub fn read(text: &str) -> When {
        match text.parse() {
            Ok(at) => When::seen(&at),
            Err(_) => When {
                at: String::new(),
                words: text.to_owned(),
            },
        }
    }

    /// A time that may be unknown.
    pub fn maybe(at: Option<Timestamp>, now: Timestamp) -> When {
        at.map(|at| When::of(at, now)).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_written_relative_to_now() {
        let now: Timestamp = "2026-01-01T12:00:00Z".parse().unwrap();
        for (text, words) in [
            ("2026-01-01T11:59:47Z", "13s ago"),
            ("2026-01-01T12:00:00.5Z", "now"),
            ("2026-01-01T15:00:00Z", "in 3h"),
            ("2025-12-29T12:00:00Z", "3d ago"),
        ] {
            let when = When::of(text.parse().unwrap(), now);
            assert_eq!(when.words, words);
        }
        assert_eq!(When::maybe(None, now), When::default());
    }

    #[test]
    fn a_text_that_is_no_time_stays_as_it_is() {
        let read = When::read("2020-01-01T00:00:00Z");
        assert_eq!(read.at, "2020-01-01T00:00:00Z");
        assert!(read.words.ends_with(" ago"), "{}", read.words);
        let other = When::read("soon");
        assert_eq!((other.at.as_str(), other.words.as_str()), ("", "soon"));
    }
}
