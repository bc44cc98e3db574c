//! Exit statuses and their descriptions in help texts and man pages. Scripts rely on the numbers:
//! new ones may be added, and existing ones never change their meaning.

/// Why a command ends with a status other than 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExitCause {
    /// The answer is no, or the command failed.
    Failed,
    /// The arguments are invalid.
    Usage,
    /// The named object does not exist.
    NotFound,
    /// The server refused the request.
    Refused,
    /// No server answered.
    Unreachable,
    /// A wait timed out.
    TimedOut,
    /// The reader closed standard output.
    ClosedPipe,
}

impl ExitCause {
    /// The exit status.
    pub fn code(self) -> u8 {
        match self {
            ExitCause::Failed => 1,
            ExitCause::Usage => 2,
            ExitCause::NotFound => 3,
            ExitCause::Refused => 4,
            ExitCause::Unreachable => 5,
            ExitCause::TimedOut => 124,
            // The status that a shell shows for a program ended by SIGPIPE.
            ExitCause::ClosedPipe => 141,
        }
    }
}

/// The statuses for the help text.
pub const HELP: &str = "\
Exit status:
  0    done, or yes
  1    the answer is no (a job failed, a check found a fault), or the command failed
  2    the arguments are invalid
  3    the named object does not exist
  4    the server refused: no permission, a conflict, an invalid field
  5    no server answered
  124  a wait timed out
  `muster run` and `muster exec` end with the exit status of their command.";

/// Addition for `muster run`.
pub const RUN_HELP: &str = "\
Exit status:
  0 when the job succeeded; when it failed, the exit status of the replica that failed first
  (128 and the signal's number if a signal ended it), or 1 if no replica reported one.

Examples:
  muster run -- hostname
  muster run --replicas 4 --gpus 1 --queue research -- python3 train.py --epochs 3";

/// Addition for `muster wait`.
pub const WAIT_HELP: &str = "\
Exit status:
  0 if the condition came true, 1 if it cannot come true any more, 124 if the wait timed out.

Examples:
  muster wait train
  muster wait node/n1 --for condition=Ready --timeout 60
  muster wait pod/p --for delete";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_is_in_the_help_and_none_is_used_twice() {
        let all = [
            ExitCause::Failed,
            ExitCause::Usage,
            ExitCause::NotFound,
            ExitCause::Refused,
            ExitCause::Unreachable,
            ExitCause::TimedOut,
        ];
        let mut codes: Vec<u8> = all.iter().map(|exit| exit.code()).collect();
        for code in &codes {
            assert!(HELP.contains(&format!("\n  {code:<4} ")), "{code}");
        }
        codes.dedup();
        assert_eq!(codes.len(), all.len());
    }
}
