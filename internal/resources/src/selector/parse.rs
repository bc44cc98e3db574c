//! The grammar of label selectors in query strings, token by token, with Kubernetes' messages.

use super::{Operator, Requirement, SelectorError};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token {
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

fn scan(text: &str) -> Vec<(Token, &str)> {
    let mut out = Vec::new();
    let mut rest = text.trim_start_matches(is_space);
    while let Some(first) = rest.chars().next() {
        let (token, length) = if is_special(first) {
            let two = rest.get(..2).unwrap_or_default();
            match (first, two) {
                (_, "==") => (Token::Equals, 2),
                (_, "!=") => (Token::NotEquals, 2),
                ('=', _) => (Token::Equals, 1),
                ('!', _) => (Token::Not, 1),
                ('(', _) => (Token::Open, 1),
                (')', _) => (Token::Close, 1),
                (',', _) => (Token::Comma, 1),
                ('>', _) => (Token::Greater, 1),
                ('<', _) => (Token::Less, 1),
                _ => (Token::Wrong, first.len_utf8()),
            }
        } else {
            let end = rest
                .find(|c| is_special(c) || is_space(c))
                .unwrap_or(rest.len());
            let token = match &rest[..end] {
                "in" => Token::In,
                "notin" => Token::NotIn,
                _ => Token::Identifier,
            };
            (token, end)
        };
        out.push((token, &rest[..length]));
        rest = rest[length..].trim_start_matches(is_space);
    }
    out.push((Token::End, ""));
    out
}

struct Parser<'a> {
    items: Vec<(Token, &'a str)>,
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
    fn ahead(&self) -> (Token, &'a str) {
        let (token, literal) = self.items.get(self.at).copied().unwrap_or((Token::End, ""));
        match token {
            Token::In | Token::NotIn => (Token::Identifier, literal),
            token => (token, literal),
        }
    }

    fn take(&mut self) -> (Token, &'a str) {
        let ahead = self.ahead();
        self.at += 1;
        ahead
    }

    fn take_operator(&mut self) -> (Token, &'a str) {
        let item = self.items.get(self.at).copied().unwrap_or((Token::End, ""));
        self.at += 1;
        item
    }

    fn requirement(&mut self) -> Parsed<Requirement> {
        let (mut token, mut key) = self.take();
        let negated = token == Token::Not;
        if negated {
            (token, key) = self.take();
        }
        if token != Token::Identifier {
            return Err(RequirementError::unexpected(key, "identifier"));
        }
        if negated || matches!(self.ahead().0, Token::End | Token::Comma) {
            let operator = if negated {
                Operator::DoesNotExist
            } else {
                Operator::Exists
            };
            return Ok(Requirement::new(key, operator, Vec::new())?);
        }
        let (token, literal) = self.take_operator();
        let operator = match token {
            Token::In | Token::Equals => Operator::In,
            Token::NotIn | Token::NotEquals => Operator::NotIn,
            Token::Greater => Operator::GreaterThan,
            Token::Less => Operator::LessThan,
            _ => return Err(RequirementError::unexpected(literal, BINARY_OPERATORS)),
        };
        let values = if matches!(token, Token::In | Token::NotIn) {
            self.values()?
        } else {
            vec![self.value()?]
        };
        Ok(Requirement::new(key, operator, values)?)
    }

    fn value(&mut self) -> Parsed<String> {
        match self.ahead() {
            (Token::End | Token::Comma, _) => Ok(String::new()),
            (Token::Identifier, literal) => {
                self.at += 1;
                Ok(literal.to_owned())
            }
            (_, literal) => Err(RequirementError::unexpected(literal, "identifier")),
        }
    }

    fn values(&mut self) -> Parsed<Vec<String>> {
        let (token, literal) = self.take();
        if token != Token::Open {
            let found = literal.to_owned();
            return Err(RequirementError::NoOpening { found });
        }
        let mut values = Vec::new();
        // Nothing between two commas is the empty value.
        let mut last_was_value = false;
        loop {
            match self.take() {
                (Token::Identifier, literal) if !last_was_value => {
                    values.push(literal.to_owned());
                    last_was_value = true;
                }
                (Token::Comma, _) => {
                    if !last_was_value {
                        values.push(String::new());
                    }
                    last_was_value = false;
                }
                (Token::Close, _) => {
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
            (Token::Identifier | Token::Not, _) => {
                let requirement = parser
                    .requirement()
                    .map_err(|e| SelectorError(format!("unable to parse requirement: {e}")))?;
                out.push(requirement);
                match parser.take() {
                    (Token::End, _) => return Ok(out),
                    (Token::Comma, _) => {
                        let (token, literal) = parser.ahead();
                        if !matches!(token, Token::Identifier | Token::Not) {
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
            (Token::End, _) => return Ok(out),
            (_, literal) => {
                return Err(SelectorError(format!(
                    "found '{literal}', expected: !, identifier, or 'end of string'"
                )));
            }
        }
    }
}
