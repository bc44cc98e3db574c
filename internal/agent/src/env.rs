//! A container's environment, composed as Kubernetes does: envFrom first, then env in order with
//! `$(VAR)` of earlier variables. Pure.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod};
use rpc::agent::v1::ContainerEnv;

use crate::expand::expand;
use crate::fields::{self, ApiAddress, NodeFieldValues, ReferenceError};

/// Variables in order; a later value of the same name replaces the earlier one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Variables {
    order: Vec<String>,
    values: BTreeMap<String, String>,
}

impl Variables {
    /// Sets a variable.
    pub fn set(&mut self, name: &str, value: impl Into<String>) {
        if self.values.insert(name.to_owned(), value.into()).is_none() {
            self.order.push(name.to_owned());
        }
    }

    /// Sets a variable unless it has a value.
    pub fn set_default(&mut self, name: &str, value: &str) {
        if !self.values.contains_key(name) {
            self.set(name, value);
        }
    }

    /// A variable's value.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.values.get(name).map(String::as_str)
    }

    /// Expands `$(VAR)` in a text.
    pub fn expand(&self, text: &str) -> String {
        expand(text, |name| self.get(name))
    }

    /// Name and value of each, in order.
    pub fn into_pairs(mut self) -> Vec<(String, String)> {
        let values = &mut self.values;
        self.order
            .into_iter()
            .filter_map(|name| {
                let value = values.remove(&name)?;
                Some((name, value))
            })
            .collect()
    }
}

/// Why a container's variables can't be composed yet.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EnvError {
    /// The server lacks a ConfigMap, a Secret or a key; in its words.
    #[error("{0}")]
    Source(String),
    /// A variable's reference has no value.
    #[error(transparent)]
    Reference(#[from] ReferenceError),
}

/// The variables from the container's spec, with `resolved` for values from ConfigMaps and Secrets.
///
/// # Errors
///
/// When the container waits for a source, or a reference can't have a value.
pub fn variables(
    pod: &Pod,
    container: &Container,
    resolved: Option<&ContainerEnv>,
    node: &NodeFieldValues,
) -> Result<Variables, EnvError> {
    let mut variables = Variables::default();
    // First, as in Kubernetes: the author's variables may refer to them, and replace them.
    for (name, value) in node.api.iter().flat_map(ApiAddress::variables) {
        variables.set(name, value);
    }
    if let Some(resolved) = resolved {
        if !resolved.problem.is_empty() {
            return Err(EnvError::Source(resolved.problem.clone()));
        }
        for variable in &resolved.from {
            // An invalid variable name is left out, as in Kubernetes.
            if valid(&variable.name) {
                variables.set(&variable.name, variable.value.clone());
            }
        }
    }
    for env in container.env.iter().flatten() {
        let Some(from) = &env.value_from else {
            let value = variables.expand(env.value.as_deref().unwrap_or_default());
            variables.set(&env.name, value);
            continue;
        };
        if let Some(selector) = &from.field_ref {
            variables.set(&env.name, fields::field(pod, node, selector)?);
        } else if let Some(selector) = &from.resource_field_ref {
            let value = fields::resource(pod, Some(container), node, selector)?;
            variables.set(&env.name, value);
        } else if let Some(value) = resolved.and_then(|resolved| resolved.values.get(&env.name)) {
            variables.set(&env.name, value.clone());
        }
        // An optional key that doesn't exist leaves the variable unset.
    }
    Ok(variables)
}

fn valid(name: &str) -> bool {
    !name.is_empty()
        && name
            .bytes()
            .all(|byte| (0x20..0x7f).contains(&byte) && byte != b'=')
}

#[cfg(test)]
mod tests {
    use super::*;
    use rpc::agent::v1::EnvVar;
    use serde_json::json;

    fn run(
        env: serde_json::Value,
        resolved: &ContainerEnv,
    ) -> Result<Vec<(String, String)>, EnvError> {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "p"},
            "spec": {"containers": [{"name": "main", "env": env}]}}))
        .unwrap();
        let container = pod.spec.as_ref().unwrap().containers[0].clone();
        variables(
            &pod,
            &container,
            Some(resolved),
            &NodeFieldValues::default(),
        )
        .map(Variables::into_pairs)
    }

    fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect()
    }

    #[test]
    fn values_see_what_came_before_them_and_nothing_later() {
        let env = json!([
            {"name": "A", "value": "1"},
            {"name": "B", "value": "$(A)$(C)$$(A)"},
            {"name": "C", "value": "$(B)"},
            {"name": "A", "value": "2"},
        ]);
        assert_eq!(
            run(env, &ContainerEnv::default()).unwrap(),
            pairs(&[("A", "2"), ("B", "1$(C)$(A)"), ("C", "1$(C)$(A)")])
        );
    }

    #[test]
    fn env_takes_the_place_of_env_from_and_sees_it() {
        let resolved = ContainerEnv {
            from: vec![
                EnvVar {
                    name: "X".to_owned(),
                    value: "from".to_owned(),
                },
                EnvVar {
                    name: "bad=name".to_owned(),
                    value: "-".to_owned(),
                },
            ],
            values: [("KEY".to_owned(), "$(X)".to_owned())].into(),
            ..ContainerEnv::default()
        };
        let env = json!([
            {"name": "Y", "value": "$(X)"},
            {"name": "X", "value": "own"},
            {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
            {"name": "NONE", "valueFrom": {"secretKeyRef": {"name": "s", "key": "n", "optional": true}}},
            {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        ]);
        assert_eq!(
            run(env, &resolved).unwrap(),
            pairs(&[("X", "own"), ("Y", "from"), ("KEY", "$(X)"), ("POD", "p")])
        );
    }

    #[test]
    fn a_container_waits_for_a_missing_source() {
        let resolved = ContainerEnv {
            problem: "configmap \"c\" not found".to_owned(),
            ..ContainerEnv::default()
        };
        assert_eq!(
            run(json!([]), &resolved).unwrap_err().to_string(),
            "configmap \"c\" not found"
        );
    }
}
