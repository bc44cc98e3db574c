//! `muster user explain-sign-in`: what a mapping gives to a user with these claims. The same code decides at a sign-in.

use std::path::Path;

use anyhow::{Context, Result};
use oidc::{ClaimNames, Claims, Granted, Mapping};

use super::outcome::CommandOutcome;
use super::output;
use crate::arguments::ExplainSignIn;

/// Reads the files and prints the answer.
pub fn explain(arguments: &ExplainSignIn) -> Result<CommandOutcome> {
    let read = |option: &str, path: &Path| {
        std::fs::read_to_string(path).with_context(|| format!("--{option} = {}", path.display()))
    };
    let text = read("claims", &arguments.claims)?;
    let shown = arguments.claims.display();
    let claims = serde_json::from_str(&text)
        .with_context(|| format!("--claims = {shown}: write the claims as a JSON object"))?;
    let claims = Claims::of(claims)
        .with_context(|| format!("--claims = {shown}: it is no JSON object of claims"))?;
    let mapping = Mapping::parse(&read("oidc-mapping", &arguments.oidc_mapping)?)
        .with_context(|| format!("--oidc-mapping = {}", arguments.oidc_mapping.display()))?;
    let names = ClaimNames {
        username: arguments.oidc_username_claim.clone(),
        groups: arguments.oidc_groups_claim.clone(),
        required: arguments.oidc_required_claims.clone(),
    };
    match oidc::explain(&claims, &names, &mapping) {
        Ok((name, granted)) => {
            output::put(&words(&name, &granted))?;
            Ok(CommandOutcome::Yes)
        }
        Err(error) => {
            output::put_line(&format!("refused: {error}"))?;
            Ok(CommandOutcome::No)
        }
    }
}

fn words(name: &str, granted: &Granted) -> String {
    let mut text = String::new();
    let mut line = |label: &str, value: &str| {
        text += &format!("{:<9}{value}\n", format!("{label}:"));
    };
    line("User", name);
    for hit in &granted.rules {
        let ignored = match hit.role_ignored {
            true => " (an earlier rule gave the role)",
            false => "",
        };
        let rule = format!(
            "rule {}: {}: {}{ignored}",
            hit.rule, hit.condition, hit.gives
        );
        line("Applies", &rule);
    }
    line("Gets", &granted.role.words());
    for (team, role) in &granted.teams {
        line("Gets", &format!("{} of team {team}", role.as_str()));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_role_and_teams_are_named() {
        let mapping = "[[rule]]\ngroup = \"a\"\nrole = \"viewer\"\nnamespaces = [\"x\"]\n\
                       [[rule]]\neveryone = true\nrole = \"lead\"\nnamespaces = \"all\"\nteam = \"t\"\n";
        let mapping = Mapping::parse(mapping).unwrap();
        let claims = Claims::of(serde_json::json!({})).unwrap();
        let granted = mapping.apply(&claims, &["a".to_owned()]).unwrap();
        assert_eq!(
            words("ann", &granted),
            "User:    ann\n\
             Applies: rule 1: group \"a\": role viewer in x\n\
             Applies: rule 2: everyone: role lead in all namespaces, member of team t (an earlier rule gave the role)\n\
             Gets:    role viewer in x\n\
             Gets:    member of team t\n"
        );
    }
}
