//! What the last lines of a failed program's log say about its failure. A program writes them itself, so they are a
//! claim and no proof: they explain, and a policy by class uses them, but they never excuse a failure.
//!
//! Method: one pass over the lines for each sign, in the order GPU, network, Python; the cost is the length of the text,
//! which is at most a termination message. Example: `  File "train.py", line 12, in load` before `ValueError: bad shard
//! 17` is a Python error with the evidence `ValueError: bad shard 17 (train.py line 12, in load)`.

use serde_json::Value;

use super::FailureClass;

/// The most characters of the evidence.
const EVIDENCE_MAX: usize = 300;

/// Texts by which the driver and CUDA report that a GPU, and not the program, is at fault. Sources: CUDA's
/// `cudaErrorECCUncorrectable`, NVML's `NVML_ERROR_GPU_IS_LOST`, and the driver's XID messages.
const GPU_SIGNS: [&str; 6] = [
    "uncorrectable ECC error",
    "GPU is lost",
    "GPU_IS_LOST",
    "fallen off the bus",
    "NVRM: Xid",
    "cudaErrorECCUncorrectable",
];
/// Texts by which NCCL, gloo and the verbs library report an error of a connection. Sources: NCCL's `ncclResult_t` and
/// its warnings, gloo's transports, and the completion statuses of `ibv_wc_status`.
const NETWORK_SIGNS: [&str; 13] = [
    "ncclSystemError",
    "ncclRemoteError",
    "ncclInternalError",
    "ncclUnhandledCudaError",
    "ncclInvalidUsage",
    "NCCL WARN",
    "NCCL error",
    "Watchdog caught collective operation timeout",
    "IBV_WC_",
    "ibv_",
    "gloo/transport",
    "Connection closed by peer",
    "connectFullMesh failed",
];
/// Exceptions that the program would meet again at every start: it cannot be loaded.
const LOAD_ERRORS: [&str; 5] = [
    "SyntaxError",
    "IndentationError",
    "TabError",
    "ImportError",
    "ModuleNotFoundError",
];
/// torchrun's own exception about a process that it started, which says nothing about the cause.
const TORCHRUN: &str = "ChildFailedError";

/// What a log says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogEvidence {
    /// The class; none if the last line is only quoted.
    pub class: Option<FailureClass>,
    /// The evidence, of bounded length.
    pub text: String,
    /// The program cannot be loaded: its next start fails in the same way.
    pub unloadable: bool,
}

/// Reads the last lines of a log, or torchelastic's error file; none if it has no line.
#[must_use]
pub fn of_log(text: &str) -> Option<LogEvidence> {
    if let Some(found) = of_error_file(text) {
        return Some(found);
    }
    let shown: Vec<String> = text.lines().map(shown).collect();
    let lines: Vec<&str> = shown.iter().map(|line| line.trim_end()).collect();
    let sign = |signs: &[&str]| {
        let says = |line: &&&str| signs.iter().any(|sign| line.contains(sign));
        lines.iter().find(says).map(|line| line.trim())
    };
    let found = |class, text: &str| LogEvidence {
        class: Some(class),
        text: bounded(text),
        unloadable: false,
    };
    if let Some(line) = sign(&GPU_SIGNS) {
        return Some(found(FailureClass::GpuError, line));
    }
    if let Some(line) = sign(&NETWORK_SIGNS) {
        return Some(found(FailureClass::NetworkError, line));
    }
    if let Some(error) = python_error(&lines) {
        return Some(error);
    }
    let last = lines.iter().rfind(|line| !line.trim().is_empty())?;
    Some(LogEvidence {
        class: None,
        text: bounded(last.trim()),
        unloadable: false,
    })
}

/// A line as a terminal shows it: what a program wrote over after a carriage return is gone, and so are colours and other
/// escape sequences.
fn shown(line: &str) -> String {
    let line = line.trim_end_matches('\r');
    let line = line.rsplit('\r').next().unwrap_or(line);
    let mut shown = String::with_capacity(line.len());
    let mut rest = line.chars().peekable();
    while let Some(letter) = rest.next() {
        if letter == '\u{1b}' && rest.next_if_eq(&'[').is_some() {
            // A sequence ends with a letter or another character from @ to ~.
            while rest.next().is_some_and(|c| !('@'..='~').contains(&c)) {}
        } else if letter == '\t' || !letter.is_control() {
            shown.push(letter);
        }
    }
    shown
}

/// torchelastic's error file, which a program may write as its termination message: `{"message": {"message":
/// "ValueError: ...", "extraInfo": {"py_callstack": "..."}}}`, or with a plain text as message.
fn of_error_file(text: &str) -> Option<LogEvidence> {
    let text = text.trim();
    let file: Value = text
        .starts_with('{')
        .then(|| serde_json::from_str(text).ok())??;
    let message = &file["message"];
    let stack = message["extraInfo"]["py_callstack"].as_str();
    let lines: Vec<&str> = stack.into_iter().flat_map(str::lines).collect();
    if let Some(error) = python_error(&lines) {
        return Some(error);
    }
    let text = message.as_str().or_else(|| message["message"].as_str())?;
    Some(python(text, None))
}

/// The exception that ended the program: the last one that Python printed, except torchrun's.
fn python_error(lines: &[&str]) -> Option<LogEvidence> {
    let errors = (0..lines.len()).rev().filter_map(|at| exception(lines, at));
    let mut of_torchrun = None;
    for (error, frame) in errors {
        if !error.contains(TORCHRUN) {
            return Some(python(error, frame));
        }
        of_torchrun.get_or_insert((error, frame));
    }
    of_torchrun.map(|(error, frame)| python(error, frame))
}

/// The exception and its last frame, if this line is one: it is not indented, begins with a dotted name, and follows
/// indented lines of which one names a file.
fn exception<'l>(lines: &[&'l str], at: usize) -> Option<(&'l str, Option<&'l str>)> {
    let line = *lines.get(at)?;
    let name = line.split(':').next()?;
    let is_name = !name.is_empty()
        && name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "._".contains(c));
    if !is_name {
        return None;
    }
    let before = lines.get(..at)?.iter().rev();
    let block = before.take_while(|line| line.starts_with(' '));
    let frame = block
        .map(|line| line.trim())
        .find(|line| line.starts_with("File \""))?;
    Some((line, Some(frame)))
}

fn python(error: &str, frame: Option<&str>) -> LogEvidence {
    let error = error.lines().next().unwrap_or_default().trim();
    let name = error.split(':').next().unwrap_or_default();
    let name = name.rsplit('.').next().unwrap_or_default();
    let place = frame.and_then(place).map(|place| format!(" ({place})"));
    LogEvidence {
        class: Some(FailureClass::PythonError),
        text: format!("{}{}", bounded(error), place.unwrap_or_default()),
        unloadable: LOAD_ERRORS.contains(&name),
    }
}

/// `File "/app/train.py", line 12, in load` as `train.py line 12, in load`.
fn place(frame: &str) -> Option<String> {
    let (path, rest) = frame.strip_prefix("File \"")?.split_once('"')?;
    let file = path.rsplit('/').next().unwrap_or(path);
    let rest = rest.trim_start_matches(',').trim();
    Some(bounded(format!("{file} {rest}").trim_end()))
}

fn bounded(text: &str) -> String {
    text.chars().take(EVIDENCE_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> (Option<FailureClass>, String) {
        let found = of_log(text).unwrap();
        (found.class, found.text)
    }

    #[test]
    fn progress_bars_and_colours_are_no_evidence() {
        let bar = "10%\r20%\r\u{1b}[31mValueError: <b>bad shard 17</b>\u{1b}[0m\n";
        assert_eq!(
            read(bar),
            (None, "ValueError: <b>bad shard 17</b>".to_owned())
        );
        assert_eq!(read("a\tb\u{7}\r\n"), (None, "a\tb".to_owned()));
        assert_eq!(read("cut \u{1b}[3"), (None, "cut".to_owned()));
    }

    #[test]
    fn the_last_lines_tell_the_class_and_its_evidence() {
        let python = Some(FailureClass::PythonError);
        let trace = "step 7\nTraceback (most recent call last):\n  File \"/app/train.py\", line 40, in <module>\n    \
                     main()\n  File \"/app/train.py\", line 12, in load\n    raise ValueError(f\"bad\")\n    ^^^^^\n\
                     ValueError: bad shard 17\nmore words of it\n";
        let torchrun = format!(
            "{trace}Traceback (most recent call last):\n  File \"/usr/bin/torchrun\", line 8, in <module>\n    \
             sys.exit(main())\ntorch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n=====\ntrain.py FAILED\n"
        );
        let of_torchrun = &torchrun[trace.len()..];
        let table = [
            (
                trace,
                python,
                "ValueError: bad shard 17 (train.py line 12, in load)",
            ),
            (
                torchrun.as_str(),
                python,
                "ValueError: bad shard 17 (train.py line 12, in load)",
            ),
            (
                of_torchrun,
                python,
                "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: (torchrun line 8, in <module>)",
            ),
            (
                "  File \"train.py\", line 3\n    def x(\n         ^\nSyntaxError: '(' was never closed",
                python,
                "SyntaxError: '(' was never closed (train.py line 3)",
            ),
            (
                "Traceback (most recent call last):\n  File \"a.py\", line 1, in <module>\nKeyboardInterrupt\n",
                python,
                "KeyboardInterrupt (a.py line 1, in <module>)",
            ),
            (
                "x\nRuntimeError: CUDA error: uncorrectable ECC error encountered\ny",
                Some(FailureClass::GpuError),
                "RuntimeError: CUDA error: uncorrectable ECC error encountered",
            ),
            (
                "n1:7:9 [0] NCCL WARN NET/IB : Got completion from peer with status=12\nTraceback\n",
                Some(FailureClass::NetworkError),
                "n1:7:9 [0] NCCL WARN NET/IB : Got completion from peer with status=12",
            ),
            (
                "Traceback (most recent call last):\n  File \"t.py\", line 1, in f\nRuntimeError: \
                 [../third_party/gloo/gloo/transport/tcp/pair.cc:598] Connection closed by peer [10.0.0.2]:4711",
                Some(FailureClass::NetworkError),
                "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:598] Connection closed by peer [10.0.0.2]:4711",
            ),
            ("one\nno shard 17  \n\n", None, "no shard 17"),
            // A line with a colon is no exception unless frames precede it.
            ("  indented\nnote: see below", None, "note: see below"),
            (
                r#"{"message": {"message": "ValueError: x", "extraInfo": {"py_callstack":
                "Traceback (most recent call last):\n  File \"t.py\", line 4, in step\n    f()\nValueError: x\n", "timestamp": "1"}}}"#,
                python,
                "ValueError: x (t.py line 4, in step)",
            ),
            (
                r#"{"message": "RuntimeError: y"}"#,
                python,
                "RuntimeError: y",
            ),
            (r#"{"loss": 1}"#, None, r#"{"loss": 1}"#),
        ];
        for (text, class, evidence) in table {
            assert_eq!(read(text), (class, evidence.to_owned()), "{text}");
        }
        assert_eq!(of_log(" \n\n"), None);
        assert!(read(&"x".repeat(9000)).1.len() == EVIDENCE_MAX);
    }

    #[test]
    fn a_program_that_cannot_be_loaded_is_told_from_one_that_failed_later() {
        let with = |error: &str| {
            let text = format!("  File \"t.py\", line 1, in <module>\n    import x\n{error}: no");
            of_log(&text).unwrap().unloadable
        };
        for error in LOAD_ERRORS {
            assert!(with(error), "{error}");
        }
        assert!(!with("ValueError") && !with("torch.OutOfMemoryError"));
    }

    proptest::proptest! {
        #[test]
        fn no_text_of_a_failure_panics(text in "[ -~\n\u{e4}]{0,400}", json in "\\{\"message\": [ -~]{0,60}\\}") {
            for text in [text, json] {
                if let Some(found) = of_log(&text) {
                    proptest::prop_assert!(found.text.chars().count() <= 2 * EVIDENCE_MAX + 3);
                }
            }
        }
    }
}
