//! The grammar of label selectors in query strings, token by token, with Kubernetes' messages.

use super::{Operator, Requirement, SelectorError};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SelectorToken {
    Identifier,
    Not,
    In,
    NotIn,
    Equals,
    NotEquals,
    Greater,
    Less,
    Open,
    Close,
    Comma,
    End,
    Wrong,
}

const BINARY_OPERATORS: &str = "in, notin, =, ==, !=, gt, lt";

fn is_special(c: char) -> bool {
    matches!(c, '=' | '!' | '(' | ')' | ',' | '>' | '<')
}

fn is_space(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\r' | '\n')
}

fn scan(text: &str) -> Vec<(SelectorToken, &str)> {
    let mut out = Vec::new();
    let mut rest = text.trim_start_matches(is_space);
    while let Some(first) = rest.chars().next() {
        let (token, length) = if is_special(first) {
            let two = rest.get(..2).unwrap_or_default();
            match (first, two) {
                (_, "==") => (SelectorToken::Equals, 2),
                (_, "!=") => (SelectorToken::NotEquals, 2),
                ('=', _) => (SelectorToken::Equals, 1),
                ('!', _) => (SelectorToken::Not, 1),
                ('(', _) => (SelectorToken::Open, 1),
                (')', _) => (SelectorToken::Close, 1),
                (',', _) => (SelectorToken::Comma, 1),
                ('>', _) => (SelectorToken::Greater, 1),
                ('<', _) => (SelectorToken::Less, 1),
                _ => (SelectorToken::Wrong, first.len_utf8()),
            }
        } else {
            let end = rest
                .find(|c| is_special(c) || is_space(c))
                .unwrap_or(rest.len());
            let token = match &rest[..end] {
                "in" => SelectorToken::In,
                "notin" => SelectorToken::NotIn,
                _ => SelectorToken::Identifier,
            };
            (token, end)
        };
        out.push((token, &rest[..length]));
        rest = rest[length..].trim_start_matches(is_space);
    }
    out.push((SelectorToken::End, ""));
    out
}

struct Parser<'a> {
    items: Vec<(SelectorToken, &'a str)>,
    at: usize,
}

/// Why a requirement is invalid.
#[derive(Debug, thiserror::Error)]
enum RequirementError {
    /// The found token is not one of the expected ones.
    #[error("found '{found}', expected: {expected}")]
    Unexpected {
        found: String,
        expected: &'static str,
    },
    /// Kubernetes' message for this case has no comma.
    #[error("found '{found}' expected: '('")]
    NoOpening { found: String },
    /// Its key or values are invalid.
    #[error(transparent)]
    Refused(#[from] SelectorError),
}

impl RequirementError {
    fn unexpected(found: &str, expected: &'static str) -> RequirementError {
        RequirementError::Unexpected {
            found: found.to_owned(),
            expected,
        }
    }
}

type Parsed<T> = Result<T, RequirementError>;

impl<'a> Parser<'a> {
    /// The next token, with keywords as identifiers.
    fn ahead(&self) -> (SelectorToken, &'a str) {
        let (token, literal) = self
            .items
            .get(self.at)
            .copied()
            .unwrap_or((SelectorToken::End, ""));
        match token {
            SelectorToken::In | SelectorToken::NotIn => (SelectorToken::Identifier, literal),
            token => (token, literal),
        }
    }

    fn take(&mut self) -> (SelectorToken, &'a str) {
        let ahead = self.ahead();
        self.at += 1;
        ahead
    }

    fn take_operator(&mut self) -> (SelectorToken, &'a str) {
        let item = self
            .items
            .get(self.at)
            .copied()
            .unwrap_or((SelectorToken::End, ""));
        self.at += 1;
        item
    }

    fn requirement(&mut self) -> Parsed<Requirement> {
        let (mut token, mut key) = self.take();
        let negated = token == SelectorToken::Not;
        if negated {
            (token, key) = self.take();
        }
        if token != SelectorToken::Identifier {
            return Err(RequirementError::unexpected(key, "identifier"));
        }
        if negated || matches!(self.ahead().0, SelectorToken::End | SelectorToken::Comma) {
            let operator = if negated {
                Operator::DoesNotExist
            } else {
                Operator::Exists
            };
            return Ok(Requirement::new(key, operator, Vec::new())?);
        }
        let (token, literal) = self.take_operator();
        let operator = match token {
            SelectorToken::In | SelectorToken::Equals => Operator::In,
            SelectorToken::NotIn | SelectorToken::NotEquals => Operator::NotIn,
            SelectorToken::Greater => Operator::GreaterThan,
            SelectorToken::Less => Operator::LessThan,
            _ => return Err(RequirementError::unexpected(literal, BINARY_OPERATORS)),
        };
        let values = if matches!(token, SelectorToken::In | SelectorToken::NotIn) {
            self.values()?
        } else {
            vec![self.value()?]
        };
        Ok(Requirement::new(key, operator, values)?)
    }

    fn value(&mut self) -> Parsed<String> {
        match self.ahead() {
            (SelectorToken::End | SelectorToken::Comma, _) => Ok(String::new()),
            (SelectorToken::Identifier, literal) => {
                self.at += 1;
                Ok(literal.to_owned())
            }
            (_, literal) => Err(RequirementError::unexpected(literal, "identifier")),
        }
    }

    fn values(&mut self) -> Parsed<Vec<String>> {
        let (token, literal) = self.take();
        if token != SelectorToken::Open {
            let found = literal.to_owned();
            return Err(RequirementError::NoOpening { found });
        }
        let mut values = Vec::new();
        // Nothing between two commas is the empty value.
        let mut last_was_value = false;
        loop {
            match self.take() {
                (SelectorToken::Identifier, literal) if !last_was_value => {
                    values.push(literal.to_owned());
                    last_was_value = true;
                }
                (SelectorToken::Comma, _) => {
                    if !last_was_value {
                        values.push(String::new());
                    }
                    last_was_value = false;
                }
                (SelectorToken::Close, _) => {
                    if !last_was_value {
                        values.push(String::new());
                    }
                    return Ok(values);
                }
                (_, literal) if last_was_value => {
                    return Err(RequirementError::unexpected(literal, "',' or ')'"));
                }
                (_, literal) => {
                    return Err(RequirementError::unexpected(literal, "',', or identifier"));
                }
            }
        }
    }
}

pub(super) fn parse(text: &str) -> Result<Vec<Requirement>, SelectorError> {
    let mut parser = Parser {
        items: scan(text),
        at: 0,
    };
    let mut out = Vec::new();
    loop {
        match parser.ahead() {
            (SelectorToken::Identifier | SelectorToken::Not, _) => {
                let requirement = parser
                    .requirement()
                    .map_err(|e| SelectorError(format!("unable to parse requirement: {e}")))?;
                out.push(requirement);
                match parser.take() {
                    (SelectorToken::End, _) => return Ok(out),
                    (SelectorToken::Comma, _) => {
                        let (token, literal) = parser.ahead();
                        if !matches!(token, SelectorToken::Identifier | SelectorToken::Not) {
                            return Err(SelectorError(format!(
                                "found '{literal}', expected: identifier after ','"
                            )));
                        }
                    }
                    (_, literal) => {
                        return Err(SelectorError(format!(
                            "found '{literal}', expected: ',' or 'end of string'"
                        )));
                    }
                }
            }
            (SelectorToken::End, _) => return Ok(out),
            (_, literal) => {
                return Err(SelectorError(format!(
                    "found '{literal}', expected: !, identifier, or 'end of string'"
                )));
            }
        }
    }
}
