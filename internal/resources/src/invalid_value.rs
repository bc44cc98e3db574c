//! The error for a field whose value cannot be used: one type and one wording for every reader of written values.

/// A field whose value cannot be used: the field, the value as written, and the valid form.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {value:?} is not usable; write {valid}")]
pub struct InvalidValue {
    field: String,
    value: String,
    valid: String,
}

impl InvalidValue {
    /// The error for `field` with the text `value`; `valid` completes the sentence "write ...".
    pub fn new(
        field: impl Into<String>,
        value: impl Into<String>,
        valid: impl Into<String>,
    ) -> Self {
        Self {
            field: field.into(),
            value: value.into(),
            valid: valid.into(),
        }
    }

    /// The field's path or the option's name.
    #[must_use]
    pub fn field(&self) -> &str {
        &self.field
    }

    /// The value as written.
    #[must_use]
    pub fn value(&self) -> &str {
        &self.value
    }

    /// The valid form.
    #[must_use]
    pub fn valid(&self) -> &str {
        &self.valid
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sentence_names_the_field_the_value_and_the_valid_form() {
        let error = InvalidValue::new("spec.placement", "tight", "one of pack, spread");
        assert_eq!(
            error.to_string(),
            "spec.placement: \"tight\" is not usable; write one of pack, spread"
        );
    }
}
