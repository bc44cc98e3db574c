//! Lines of a log as a page shows them: colours become classes, a line that a program wrote again after a carriage
//! return is shown in its last form, other control characters are left out. Pure. The escape sequences are those of
//! ECMA-48 (SGR); `web/assets/muster.js` does the same for lines that arrive while the page is open.

/// The most characters of one line that are shown.
const LINE_MAX: usize = 4000;

/// A part of a line with one appearance.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogSpan {
    /// The CSS classes: `fg1` to `fg15`, `bg1` to `bg15`, `bold`, `faint`; empty for plain text.
    pub class: String,
    /// The text, not escaped.
    pub text: String,
}

/// A line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogLine {
    /// When it was written, in RFC 3339, if the log was read with times.
    pub at: String,
    /// Its parts.
    pub spans: Vec<LogSpan>,
}

impl LogLine {
    /// The line without colours.
    pub fn plain(&self) -> String {
        self.spans.iter().map(|span| span.text.as_str()).collect()
    }
}

/// The appearance that escape sequences have set so far. It lasts beyond the end of a line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Appearance {
    foreground: Option<u8>,
    background: Option<u8>,
    bold: bool,
    faint: bool,
}

impl Appearance {
    fn class(self) -> String {
        let mut words = Vec::new();
        words.extend(self.foreground.map(|n| format!("fg{n}")));
        words.extend(self.background.map(|n| format!("bg{n}")));
        words.extend(self.bold.then(|| "bold".to_owned()));
        words.extend(self.faint.then(|| "faint".to_owned()));
        words.join(" ")
    }

    /// Applies the parameters of `ESC [ … m`. Colours beyond the 16 named ones keep the text's own colour.
    fn set(&mut self, parameters: &str) {
        let mut numbers = parameters
            .split([';', ':'])
            .map(|n| n.parse::<u8>().unwrap_or(0));
        while let Some(number) = numbers.next() {
            match number {
                0 => *self = Appearance::default(),
                1 => self.bold = true,
                2 => self.faint = true,
                22 => (self.bold, self.faint) = (false, false),
                30..=37 => self.foreground = Some(number - 30),
                38 => self.foreground = indexed(&mut numbers),
                39 => self.foreground = None,
                40..=47 => self.background = Some(number - 40),
                48 => self.background = indexed(&mut numbers),
                49 => self.background = None,
                90..=97 => self.foreground = Some(number - 82),
                100..=107 => self.background = Some(number - 92),
                _ => {}
            }
        }
    }
}

/// The colour of `5;N`, if it is one of the first 16; `2;R;G;B` has none.
fn indexed(numbers: &mut impl Iterator<Item = u8>) -> Option<u8> {
    match numbers.next()? {
        5 => numbers.next().filter(|n| *n < 16),
        2 => {
            let _ = (numbers.next(), numbers.next(), numbers.next());
            None
        }
        _ => None,
    }
}

/// Reads a log. With `times`, each line begins with its time and a space, as `timestamps=true` writes them.
pub fn lines(text: &str, times: bool) -> Vec<LogLine> {
    let mut now = Appearance::default();
    let read = |line: &str| {
        let (at, rest) = match line.split_once(' ') {
            Some((at, rest)) if times && at.parse::<jiff::Timestamp>().is_ok() => (at, rest),
            _ => ("", line),
        };
        LogLine {
            at: at.to_owned(),
            spans: spans(rest, &mut now),
        }
    };
    text.lines().map(read).collect()
}

fn spans(line: &str, now: &mut Appearance) -> Vec<LogSpan> {
    let mut done: Vec<LogSpan> = Vec::new();
    let mut length = 0;
    let mut chars = line.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '\u{1b}' => match chars.next() {
                Some('[') => {
                    let mut parameters = String::new();
                    let mut end = None;
                    for c in chars.by_ref() {
                        if ('\u{40}'..='\u{7e}').contains(&c) {
                            end = Some(c);
                            break;
                        }
                        parameters.push(c);
                    }
                    if end == Some('m') {
                        now.set(&parameters);
                    }
                }
                // A title or a link: up to BEL or ESC \.
                Some(']') => {
                    while let Some(c) = chars.next() {
                        if c == '\u{7}' {
                            break;
                        }
                        if c == '\u{1b}' {
                            chars.next();
                            break;
                        }
                    }
                }
                _ => {}
            },
            // The program begins the line anew; at the line's end nothing follows.
            '\r' if chars.peek().is_some() => {
                done.clear();
                length = 0;
            }
            '\u{8}' => {
                if let Some(last) = done.last_mut() {
                    last.text.pop();
                }
            }
            '\t' => push(&mut done, *now, c, &mut length),
            c if c.is_control() => {}
            c => push(&mut done, *now, c, &mut length),
        }
    }
    done
}

fn push(done: &mut Vec<LogSpan>, now: Appearance, c: char, length: &mut usize) {
    *length += 1;
    let c = match (*length).cmp(&LINE_MAX) {
        std::cmp::Ordering::Less => c,
        std::cmp::Ordering::Equal => '…',
        std::cmp::Ordering::Greater => return,
    };
    let class = now.class();
    match done.last_mut() {
        Some(last) if last.class == class => last.text.push(c),
        _ => done.push(LogSpan {
            class,
            text: c.to_string(),
        }),
    }
}

/// The last line with text, without colours, cut to `most` characters: the error itself in a Python traceback.
pub fn last_words(lines: &[LogLine], most: usize) -> Option<String> {
    let mut words = lines.iter().rev().map(LogLine::plain);
    let found = words.find(|line| !line.trim().is_empty())?;
    Some(found.trim().chars().take(most).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> Vec<Vec<(String, String)>> {
        let pair = |span: LogSpan| (span.class, span.text);
        let of = |line: LogLine| line.spans.into_iter().map(pair).collect();
        lines(text, false).into_iter().map(of).collect()
    }

    #[test]
    fn colours_become_classes_and_last_until_they_are_reset() {
        let pair = |class: &str, text: &str| (class.to_owned(), text.to_owned());
        let table = [
            ("plain", vec![pair("", "plain")]),
            (
                "\u{1b}[31mred\u{1b}[0m no",
                vec![pair("fg1", "red"), pair("", " no")],
            ),
            (
                "\u{1b}[1;92mok\u{1b}[22;39m.",
                vec![pair("fg10 bold", "ok"), pair("", ".")],
            ),
            ("\u{1b}[38;5;196mx", vec![pair("", "x")]),
            ("\u{1b}[38;5;9mx", vec![pair("fg9", "x")]),
            ("\u{1b}[38;2;1;2;3mx\u{1b}[K", vec![pair("", "x")]),
            (
                "\u{1b}]0;title\u{7}x\u{1b}]8;;u\u{1b}\\y",
                vec![pair("", "xy")],
            ),
            ("a\u{0}b\u{8}c", vec![pair("", "ac")]),
            ("\u{1b}[31", vec![]),
            ("\u{1b}", vec![]),
        ];
        for (text, spans) in table {
            assert_eq!(shown(text), [spans], "{text:?}");
        }
        assert_eq!(shown("\u{1b}[2mone\ntwo")[1][0].0, "faint");
    }

    #[test]
    fn a_progress_bar_is_shown_in_its_last_form() {
        let texts =
            |text: &str| -> Vec<String> { lines(text, false).iter().map(LogLine::plain).collect() };
        assert_eq!(texts("\r10%\r20%\r100%\ndone\r\n"), ["100%", "done"]);
        assert_eq!(texts("\u{1b}[32m10%\r20%"), ["20%"]);
        assert_eq!(texts("")[..], [] as [String; 0]);
    }

    #[test]
    fn times_are_read_only_where_they_are_asked_for() {
        let text = "2026-01-01T00:00:00.5Z hello\nno time";
        let read = lines(text, true);
        assert_eq!(read[0].at, "2026-01-01T00:00:00.5Z");
        assert_eq!(
            (read[0].plain().as_str(), read[1].at.as_str()),
            ("hello", "")
        );
        assert_eq!(lines(text, false)[0].at, "");
    }

    #[test]
    fn the_last_words_are_the_error_and_long_lines_are_cut() {
        let text = "Traceback\n  File \"t.py\"\n\u{1b}[31mValueError: bad shard 17\u{1b}[0m\n\n";
        assert_eq!(
            last_words(&lines(text, false), 300).unwrap(),
            "ValueError: bad shard 17"
        );
        assert_eq!(last_words(&lines("\n \n", false), 9), None);
        let long = lines(&"x".repeat(LINE_MAX * 2), false);
        assert_eq!(long[0].plain().chars().count(), LINE_MAX);
    }

    proptest::proptest! {
        #[test]
        fn nothing_but_text_is_left_and_no_log_panics(text in "(\u{1b}\\[[0-9;:]{0,6}[a-zA-Z]?|\\PC|[\r\n\t\u{8}\u{1b}]){0,60}") {
            for line in lines(&text, true) {
                proptest::prop_assert!(line.plain().chars().all(|c| c == '\t' || !c.is_control()));
            }
        }
    }
}
