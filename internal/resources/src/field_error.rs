//! The error for a field whose value cannot be used.

/// A field whose value cannot be used: the field, the value as written, and the valid form.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {value:?} is not usable; write {valid}")]
pub struct FieldError {
    field: String,
    value: String,
    valid: String,
}

impl FieldError {
    /// The error for `field`, which has `value` and may have `valid`.
    pub fn new(
        field: impl Into<String>,
        value: impl Into<String>,
        valid: impl Into<String>,
    ) -> FieldError {
        FieldError {
            field: field.into(),
            value: value.into(),
            valid: valid.into(),
        }
    }

    /// The field's path.
    pub fn field(&self) -> &str {
        &self.field
    }

    /// The value as written.
    pub fn value(&self) -> &str {
        &self.value
    }

    /// The valid form.
    pub fn valid(&self) -> &str {
        &self.valid
    }
}

#[cfg(test)]
mod tests {
    use super::FieldError;

    #[test]
    fn the_text_has_the_field_the_value_and_the_valid_form() {
        let error = FieldError::new("spec.a", "x\n", "a number");
        assert_eq!(
            error.to_string(),
            r#"spec.a: "x\n" is not usable; write a number"#
        );
        assert_eq!(
            (error.field(), error.value(), error.valid()),
            ("spec.a", "x\n", "a number")
        );
    }
}
