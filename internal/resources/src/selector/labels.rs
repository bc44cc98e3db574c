//! Label selectors as requirements on labels: building, checking, matching and printing them.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use k8s_openapi::apimachinery::pkg::apis::meta::v1 as meta;
use serde_json::Value;

use super::SelectorError;
use crate::field::{FieldError, aggregate};
use crate::syntax;

/// The operator of a requirement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Operator {
    /// The label is one of the values (also `=` and `==`).
    In,
    /// The label is none of the values, or absent (also `!=`).
    NotIn,
    /// The label is present.
    Exists,
    /// The label is absent.
    DoesNotExist,
    /// The label is an integer above the value.
    GreaterThan,
    /// The label is an integer below the value.
    LessThan,
}

/// One condition on one label.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Requirement {
    /// The label's key.
    pub key: String,
    /// The operator.
    pub operator: Operator,
    /// The values; sorted, without repeats.
    pub values: Vec<String>,
}

impl Requirement {
    /// A validated requirement.
    ///
    /// # Errors
    /// When the key, a value, or the number of values is wrong; worded like Kubernetes.
    pub fn new(key: &str, operator: Operator, values: Vec<String>) -> Result<Self, SelectorError> {
        let mut errors = Vec::new();
        let faults = syntax::qualified_name(key);
        if !faults.is_empty() {
            errors.push(FieldError::invalid("key", key, faults.join("; ")));
        }
        let all = || Value::from(values.clone());
        match operator {
            Operator::In | Operator::NotIn if values.is_empty() => {
                errors.push(FieldError::invalid(
                    "values",
                    all(),
                    "for 'in', 'notin' operators, values set can't be empty",
                ))
            }
            Operator::Exists | Operator::DoesNotExist if !values.is_empty() => {
                errors.push(FieldError::invalid(
                    "values",
                    all(),
                    "values set must be empty for exists and does not exist",
                ))
            }
            Operator::GreaterThan | Operator::LessThan => {
                if values.len() != 1 {
                    errors.push(FieldError::invalid(
                        "values",
                        all(),
                        "for 'Gt', 'Lt' operators, exactly one value is required",
                    ));
                }
                for (i, value) in values.iter().enumerate() {
                    if value.parse::<i64>().is_err() {
                        errors.push(FieldError::invalid(
                            format!("values[{i}]"),
                            value.as_str(),
                            "for 'Gt', 'Lt' operators, the value must be an integer",
                        ));
                    }
                }
            }
            _ => {}
        }
        for (i, value) in values.iter().enumerate() {
            let faults = syntax::label_value(value);
            if !faults.is_empty() {
                errors.push(FieldError::invalid(
                    format!("values[{i}][{key}]"),
                    value.as_str(),
                    faults.join("; "),
                ));
            }
        }
        if !errors.is_empty() {
            return Err(SelectorError(aggregate(&errors)));
        }
        let mut values = values;
        values.sort();
        values.dedup();
        Ok(Self {
            key: key.to_owned(),
            operator,
            values,
        })
    }

    /// True if these labels satisfy it.
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        let label = labels.get(&self.key);
        let among = |value: &String| self.values.binary_search(value).is_ok();
        let numbers = || -> Option<(i64, i64)> {
            Some((label?.parse().ok()?, self.values.first()?.parse().ok()?))
        };
        match self.operator {
            Operator::In => label.is_some_and(among),
            Operator::NotIn => !label.is_some_and(among),
            Operator::Exists => label.is_some(),
            Operator::DoesNotExist => label.is_none(),
            Operator::GreaterThan => numbers().is_some_and(|(label, bound)| label > bound),
            Operator::LessThan => numbers().is_some_and(|(label, bound)| label < bound),
        }
    }
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = &self.key;
        match (self.operator, self.values.as_slice()) {
            (Operator::In, [one]) => write!(f, "{key}={one}"),
            (Operator::NotIn, [one]) => write!(f, "{key}!={one}"),
            (Operator::In, many) => write!(f, "{key} in ({})", many.join(",")),
            (Operator::NotIn, many) => write!(f, "{key} notin ({})", many.join(",")),
            (Operator::Exists, _) => f.write_str(key),
            (Operator::DoesNotExist, _) => write!(f, "!{key}"),
            (Operator::GreaterThan, values) => write!(f, "{key}>{}", values.join(",")),
            (Operator::LessThan, values) => write!(f, "{key}<{}", values.join(",")),
        }
    }
}

/// Requirements that must all hold; an empty selector matches everything.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LabelSelector {
    requirements: Vec<Requirement>,
}

impl LabelSelector {
    /// The selector that matches everything.
    pub fn everything() -> Self {
        Self::default()
    }

    /// A selector of these requirements, in key order.
    pub fn new(mut requirements: Vec<Requirement>) -> Self {
        requirements.sort();
        Self { requirements }
    }

    /// Reads the query string's form: `a=b,c!=d,e in (f,g),h notin (i),j,!k`.
    ///
    /// # Errors
    /// When the text breaks the grammar or a key or value its syntax; worded like Kubernetes.
    pub fn parse(text: &str) -> Result<Self, SelectorError> {
        super::parse::parse(text).map(Self::new)
    }

    /// Reads an object's selector. An empty one matches everything; the caller decides about an absent one.
    ///
    /// # Errors
    /// When an operator is unknown or an expression is malformed.
    pub fn from_k8s(selector: &meta::LabelSelector) -> Result<Self, SelectorError> {
        let mut requirements = Vec::new();
        for (key, value) in selector.match_labels.iter().flatten() {
            requirements.push(Requirement::new(key, Operator::In, vec![value.clone()])?);
        }
        for expression in selector.match_expressions.iter().flatten() {
            let operator = match expression.operator.as_str() {
                "In" => Operator::In,
                "NotIn" => Operator::NotIn,
                "Exists" => Operator::Exists,
                "DoesNotExist" => Operator::DoesNotExist,
                other => {
                    return Err(SelectorError(format!(
                        "\"{other}\" is not a valid label selector operator"
                    )));
                }
            };
            requirements.push(Requirement::new(
                &expression.key,
                operator,
                expression.values.clone().unwrap_or_default(),
            )?);
        }
        Ok(Self::new(requirements))
    }

    /// True if these labels satisfy every requirement.
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        self.requirements
            .iter()
            .all(|requirement| requirement.matches(labels))
    }

    /// True if it matches everything.
    pub fn is_everything(&self) -> bool {
        self.requirements.is_empty()
    }

    /// The requirements, in key order.
    pub fn requirements(&self) -> &[Requirement] {
        &self.requirements
    }
}

impl fmt::Display for LabelSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, requirement) in self.requirements.iter().enumerate() {
            if i > 0 {
                f.write_str(",")?;
            }
            write!(f, "{requirement}")?;
        }
        Ok(())
    }
}

impl FromStr for LabelSelector {
    type Err = SelectorError;
    fn from_str(text: &str) -> Result<Self, SelectorError> {
        Self::parse(text)
    }
}
