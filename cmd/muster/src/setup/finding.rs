//! The result of one check as data, and as one line of text.

use std::fmt;

/// What a finding means for the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// As it should be.
    Ok,
    /// The service works, but with less than it could.
    Warning,
    /// The service does not start, or runs no work.
    Problem,
}

impl Severity {
    /// The level as one word.
    pub fn as_str(self) -> &'static str {
        match self {
            Severity::Ok => "ok",
            Severity::Warning => "warning",
            Severity::Problem => "problem",
        }
    }
}

/// The result of one check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What the finding means for the service.
    pub level: Severity,
    /// What was checked, in one to three words.
    pub subject: String,
    /// What was found.
    pub reason: String,
    /// The command or the change that mends it; empty if there is nothing to mend.
    pub remedy: String,
}

impl Finding {
    /// A check that passed.
    pub fn ok(subject: impl Into<String>, reason: impl Into<String>) -> Finding {
        Finding::new(Severity::Ok, subject, reason, "")
    }

    /// A check that found something that costs a part of the service.
    pub fn warning(
        subject: impl Into<String>,
        reason: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Finding {
        Finding::new(Severity::Warning, subject, reason, remedy)
    }

    /// A check that found something that stops the service.
    pub fn problem(
        subject: impl Into<String>,
        reason: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Finding {
        Finding::new(Severity::Problem, subject, reason, remedy)
    }

    fn new(
        level: Severity,
        subject: impl Into<String>,
        reason: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Finding {
        Finding {
            level,
            subject: subject.into(),
            reason: reason.into(),
            remedy: remedy.into(),
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (level, subject) = (self.level.as_str(), &self.subject);
        write!(f, "{level:<8} {subject:<22} {}", one_line(&self.reason))?;
        if self.remedy.is_empty() {
            return Ok(());
        }
        write!(f, "; to fix it: {}", self.remedy)
    }
}

/// A text of several lines, such as the output of another program, as one line.
fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// How many of the findings are problems.
pub fn problems(findings: &[Finding]) -> usize {
    let problems = findings.iter().filter(|one| one.level == Severity::Problem);
    problems.count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_is_one_line_with_its_remedy_last() {
        let found = [
            Finding::ok("clock", "synchronised"),
            Finding::warning("clock", "not\nsynchronised", "timedatectl set-ntp true"),
            Finding::problem("port", "in use", "choose another"),
        ];
        let lines: Vec<String> = found.iter().map(Finding::to_string).collect();
        assert_eq!(
            lines,
            [
                "ok       clock                  synchronised",
                "warning  clock                  not synchronised; to fix it: timedatectl set-ntp true",
                "problem  port                   in use; to fix it: choose another",
            ]
        );
        assert_eq!(problems(&found), 1);
    }
}
