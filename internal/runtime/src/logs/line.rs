//! One line of a CRI log. Owns parsing and printing; pure.

use jiff::Timestamp;

/// Longest piece of a line kept in one record, bytes; a longer one is split into parts.
pub const MAX_PIECE: usize = 16 * 1024;

/// Which output a line came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputStream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

impl OutputStream {
    /// As written in the file.
    pub fn as_str(self) -> &'static str {
        match self {
            OutputStream::Stdout => "stdout",
            OutputStream::Stderr => "stderr",
        }
    }
}

/// A record, borrowed from the file's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogLine<'a> {
    /// When it was read from the container, as written.
    pub time: &'a str,
    /// Where it came from.
    pub output: OutputStream,
    /// Whether the line ends here; a part (`P`) goes on in the next record.
    pub full: bool,
    /// The text without a newline.
    pub text: &'a [u8],
}

impl LogLine<'_> {
    /// The time as a time; `None` if it is not one.
    pub fn at(&self) -> Option<Timestamp> {
        self.time.parse().ok()
    }
}

/// Parses a record without its newline; `None` if it is not one.
pub fn parse(record: &[u8]) -> Option<LogLine<'_>> {
    let mut fields = record.splitn(4, |b| *b == b' ');
    let time = std::str::from_utf8(fields.next()?).ok()?;
    let output = match fields.next()? {
        b"stdout" => OutputStream::Stdout,
        b"stderr" => OutputStream::Stderr,
        _ => return None,
    };
    // Tags may be followed by others after a colon; the first says full or part.
    let full = match fields.next()?.split(|b| *b == b':').next()? {
        b"F" => true,
        b"P" => false,
        _ => return None,
    };
    Some(LogLine {
        time,
        output,
        full,
        text: fields.next().unwrap_or_default(),
    })
}

/// Appends a record with its newline to `into`. The time has nine decimals, so records
/// compare as text.
pub fn print(into: &mut Vec<u8>, time: Timestamp, output: OutputStream, full: bool, text: &[u8]) {
    into.extend_from_slice(
        format!(
            "{time:.9} {} {} ",
            output.as_str(),
            if full { 'F' } else { 'P' }
        )
        .as_bytes(),
    );
    into.extend_from_slice(text);
    into.push(b'\n');
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn records_of_other_runtimes_are_read() {
        let line = parse(b"2016-10-06T00:17:09.669794202Z stderr P:x log  content ").unwrap();
        assert_eq!(line.output, OutputStream::Stderr);
        assert!(!line.full);
        assert_eq!(line.text, b"log  content ");
        assert_eq!(
            line.at(),
            Some("2016-10-06T00:17:09.669794202Z".parse().unwrap())
        );
        for rubbish in [&b""[..], b"x", b"t stdout", b"t other F x", b"t stdout Q x"] {
            assert_eq!(parse(rubbish), None);
        }
    }

    proptest! {
        #[test]
        fn what_is_printed_is_parsed_back_and_no_bytes_panic(text in proptest::collection::vec(any::<u8>().prop_filter("newline", |b| *b != b'\n'), 0..200), full: bool, nanos in 0i64..4_000_000_000_000_000_000) {
            let time = Timestamp::from_nanosecond(i128::from(nanos)).unwrap();
            let mut bytes = Vec::new();
            print(&mut bytes, time, OutputStream::Stdout, full, &text);
            let line = parse(bytes.strip_suffix(b"\n").unwrap()).unwrap();
            prop_assert_eq!(line.at(), Some(time));
            prop_assert_eq!(line.full, full);
            prop_assert_eq!(line.text, &text[..]);
        }

        #[test]
        fn no_bytes_make_the_parser_panic(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            let _ = parse(&bytes);
        }
    }
}
