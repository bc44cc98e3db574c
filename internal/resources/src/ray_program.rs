//! What a RayJob submits to Ray by HTTP: the runtime environment as JSON, and a name that an address may have.

use serde_json::{Value, json};

use crate::serve_config::{self, InvalidServeConfig};

/// The longest name of a program in Ray, in bytes.
pub const ID_MAX: usize = 253;

/// Why a text is no runtime environment.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidRuntimeEnv {
    /// It is no YAML, or beyond the bounds on what reading it costs.
    #[error(transparent)]
    NoYaml(InvalidServeConfig),
    /// It is YAML of something else.
    #[error("must be YAML of an object, such as `env_vars: {{NAME: value}}`")]
    NoObject,
}

/// The runtime environment that a text holds; an empty one for an empty text.
///
/// # Errors
/// The text is beyond the bounds of [`serve_config`], no YAML, or no object.
pub fn runtime_env(text: &str) -> Result<Value, InvalidRuntimeEnv> {
    match serve_config::read(text).map_err(InvalidRuntimeEnv::NoYaml)? {
        Value::Null => Ok(json!({})),
        env @ Value::Object(_) => Ok(env),
        _ => Err(InvalidRuntimeEnv::NoObject),
    }
}

/// Whether a name can be a part of the address `/api/jobs/NAME` as it is.
#[must_use]
pub fn is_id(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    (1..=ID_MAX).contains(&name.len()) && name.bytes().all(plain) && ![".", ".."].contains(&name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_runtime_environment_is_an_object_or_nothing() {
        let env = runtime_env("env_vars:\n  A: b\npip: [x]\n").expect("YAML");
        assert_eq!(env, json!({"env_vars": {"A": "b"}, "pip": ["x"]}));
        for empty in ["", " \n", "# nothing\n", "{}"] {
            assert_eq!(runtime_env(empty), Ok(json!({})), "{empty:?}");
        }
        for other in ["- a", "text", "5"] {
            assert_eq!(runtime_env(other), Err(InvalidRuntimeEnv::NoObject));
        }
        let error = runtime_env("pip: [").expect_err("no YAML");
        assert!(matches!(error, InvalidRuntimeEnv::NoYaml(_)), "{error}");
    }

    #[test]
    fn a_name_in_ray_is_one_part_of_an_address() {
        for good in ["demo-x1", "raysubmit_A.1", "a"] {
            assert!(is_id(good), "{good}");
        }
        let long = "a".repeat(ID_MAX + 1);
        for bad in ["", ".", "..", "a/b", "a b", "a?b", "a%2f", "ä", &long] {
            assert!(!is_id(bad), "{bad}");
        }
    }
}
