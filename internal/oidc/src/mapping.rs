//! The mapping of claims to a role and teams: the file's form, its checks, and its application.
//!
//! A user's record has one role, in all namespaces, in some or in none; a user is in any number of teams, with one role
//! in each. So a mapping gives at most one role, that of the first rule in the file that applies and has one, and every
//! team of every rule that applies, with the strongest role of each. A user that has teams only is a member without
//! namespaces, as after `muster user create --no-namespaces`.
//!
//! Example: with the rules (1) group `ml` gives member in `research`, (2) group `ops` gives admin, (3) group `ml` gives
//! the team `vision`, a token with both groups gives the role member in `research` and the team `vision`: rule 2 applies
//! too, but comes after rule 1.

use std::collections::{BTreeMap, BTreeSet};

use resources::access::UserRole;
use serde::{Deserialize, Serialize};

use crate::claims::Claims;
use crate::limits::{RULES_MAX, TEAMS_PER_USER_MAX};

/// The most namespaces of a role, as in a user's record.
const NAMESPACES_MAX: usize = 100;

/// A role in a team, the strongest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TeamRole {
    /// Leads the team.
    Lead,
    /// Runs work.
    Member,
    /// Reads.
    Viewer,
}

impl TeamRole {
    /// The role's name.
    pub fn as_str(self) -> &'static str {
        match self {
            TeamRole::Lead => "lead",
            TeamRole::Member => "member",
            TeamRole::Viewer => "viewer",
        }
    }
}

/// A role and where it holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoleGrant {
    /// The role.
    pub role: UserRole,
    /// Its namespaces: all if absent, none if empty.
    pub namespaces: Option<Vec<String>>,
}

/// Why a rule applies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleHit {
    /// The rule's place in the file, from 1.
    pub rule: usize,
    /// What the rule asks, in words.
    pub condition: String,
    /// What it gives, in words.
    pub gives: String,
    /// True if an earlier rule gave the role, so that this rule's role does not count.
    pub role_ignored: bool,
}

/// What a mapping gives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Granted {
    /// The role.
    pub role: RoleGrant,
    /// The role in each team.
    pub teams: BTreeMap<String, TeamRole>,
    /// The rules that apply.
    pub rules: Vec<RuleHit>,
}

/// Why a mapping is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MappingError {
    /// The text is no TOML, or has an unknown key.
    #[error("{0}")]
    Syntax(String),
    /// A rule is invalid.
    #[error("rule {rule}: {problem}")]
    Rule {
        /// The rule's place, from 1.
        rule: usize,
        /// The problem and the valid form.
        problem: RuleProblem,
    },
    /// There is no rule.
    #[error("it has no rule, so that no user could sign in; add a [[rule]]")]
    Empty,
    /// Too many rules.
    #[error("it has {0} rules; use at most {RULES_MAX}")]
    TooManyRules(usize),
}

/// The form of a rule's namespaces.
const NAMESPACES_FORM: &str = "write namespaces = \"all\", or namespaces = [\"NAME\", ...]";

/// Why a rule of a mapping is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RuleProblem {
    /// A team has an invalid name.
    #[error("team = {0:?}: write the name of a team")]
    TeamName(String),
    /// Too many teams.
    #[error("team: it has {0} names; use at most {TEAMS_PER_USER_MAX}")]
    TooManyTeams(usize),
    /// A role in teams, but no team.
    #[error("team-role: it needs team; add the team's name")]
    TeamRoleAlone,
    /// Neither a role nor a team.
    #[error("it gives nothing; add role with namespaces, or team")]
    GivesNothing,
    /// No condition, or several.
    #[error(
        "it needs one condition: group = \"NAME\", or claim = \"NAME\" with value = \"VALUE\", or everyone = true"
    )]
    Condition,
    /// A field without a name.
    #[error("{0}: it is empty; write at least one name")]
    EmptyField(&'static str),
    /// Namespaces, but no role.
    #[error("namespaces: it needs role; add the role")]
    NamespacesAlone,
    /// A role, but no namespaces.
    #[error("role: it needs namespaces; {NAMESPACES_FORM}")]
    RoleAlone,
    /// An administrator's role with namespaces.
    #[error(
        "role = \"admin\": an administrator has this role in all namespaces; leave namespaces out"
    )]
    AdminNamespaces,
    /// One word that is not `all`.
    #[error("namespaces = {0:?}: {NAMESPACES_FORM}")]
    NamespacesForm(String),
    /// Too many namespaces.
    #[error("namespaces: it has {0} names; use at most {NAMESPACES_MAX}")]
    TooManyNamespaces(usize),
    /// A namespace has an invalid name.
    #[error("namespaces: {0:?} is no name of a namespace; use lower-case letters, digits and '-'")]
    NamespaceName(String),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MappingFile {
    #[serde(default)]
    rule: Vec<RuleEntry>,
}

/// One value or several.
#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMore {
    One(String),
    More(Vec<String>),
}

impl OneOrMore {
    fn into_set(self) -> BTreeSet<String> {
        match self {
            OneOrMore::One(one) => BTreeSet::from([one]),
            OneOrMore::More(all) => all.into_iter().collect(),
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct RuleEntry {
    group: Option<OneOrMore>,
    claim: Option<String>,
    value: Option<OneOrMore>,
    #[serde(default)]
    everyone: bool,
    role: Option<UserRole>,
    namespaces: Option<OneOrMore>,
    team: Option<OneOrMore>,
    team_role: Option<TeamRole>,
}

/// What a rule asks.
#[derive(Clone, Debug)]
enum Condition {
    Everyone,
    Group(BTreeSet<String>),
    Claim(String, BTreeSet<String>),
}

#[derive(Clone, Debug)]
struct Rule {
    condition: Condition,
    role: Option<RoleGrant>,
    teams: BTreeSet<String>,
    team_role: TeamRole,
}

/// The rules, in the file's order.
#[derive(Clone, Debug, Default)]
pub struct Mapping(Vec<Rule>);

impl Mapping {
    /// Reads a mapping in TOML.
    ///
    /// # Errors
    /// The text is no mapping; the error names the rule, the field and the valid form.
    pub fn parse(text: &str) -> Result<Mapping, MappingError> {
        let file: MappingFile = toml::from_str(text)
            .map_err(|error| MappingError::Syntax(error.to_string().trim().to_owned()))?;
        match file.rule.len() {
            0 => return Err(MappingError::Empty),
            count if count > RULES_MAX => return Err(MappingError::TooManyRules(count)),
            _ => {}
        }
        let mut rules = Vec::new();
        for (at, entry) in file.rule.into_iter().enumerate() {
            let rule = rule(entry).map_err(|problem| MappingError::Rule {
                rule: at + 1,
                problem,
            })?;
            rules.push(rule);
        }
        Ok(Mapping(rules))
    }

    /// What the rules give to a user with these claims and groups; none if no rule applies.
    pub fn apply(&self, claims: &Claims, groups: &[String]) -> Option<Granted> {
        let mut role: Option<RoleGrant> = None;
        let mut teams: BTreeMap<String, TeamRole> = BTreeMap::new();
        let mut rules = Vec::new();
        for (at, rule) in self.0.iter().enumerate() {
            let Some(condition) = rule.condition.met(claims, groups) else {
                continue;
            };
            rules.push(RuleHit {
                rule: at + 1,
                condition,
                gives: rule.gives(),
                role_ignored: role.is_some() && rule.role.is_some(),
            });
            role = role.or_else(|| rule.role.clone());
            for team in &rule.teams {
                let held = teams.get(team).copied();
                if held.is_none() && teams.len() >= TEAMS_PER_USER_MAX {
                    continue;
                }
                let strongest = held.map_or(rule.team_role, |held| held.min(rule.team_role));
                teams.insert(team.clone(), strongest);
            }
        }
        if rules.is_empty() {
            return None;
        }
        let role = role.unwrap_or(RoleGrant {
            role: UserRole::Member,
            namespaces: Some(Vec::new()),
        });
        Some(Granted { role, teams, rules })
    }
}

impl RoleGrant {
    /// The role and where it holds, in words.
    pub fn words(&self) -> String {
        let place = match self.namespaces.as_deref() {
            None => "in all namespaces".to_owned(),
            Some([]) => "in no namespace".to_owned(),
            Some(names) => format!("in {}", names.join(", ")),
        };
        format!("role {} {place}", name_of(self.role))
    }
}

fn name_of(role: UserRole) -> &'static str {
    match role {
        UserRole::Admin => "admin",
        UserRole::Lead => "lead",
        UserRole::Member => "member",
        UserRole::Viewer => "viewer",
    }
}

impl Condition {
    /// Why the condition is met; none if it is not.
    fn met(&self, claims: &Claims, groups: &[String]) -> Option<String> {
        match self {
            Condition::Everyone => Some("everyone".to_owned()),
            Condition::Group(wanted) => {
                let found = groups.iter().find(|group| wanted.contains(*group))?;
                Some(format!("group {found:?}"))
            }
            Condition::Claim(claim, wanted) => {
                let values = claims.values(claim);
                let found = values.into_iter().find(|value| wanted.contains(value))?;
                Some(format!("claim {claim:?} is {found:?}"))
            }
        }
    }
}

impl Rule {
    fn gives(&self) -> String {
        let role = self.role.as_ref().map(RoleGrant::words);
        let teams = self
            .teams
            .iter()
            .map(|team| format!("{} of team {team}", self.team_role.as_str()));
        role.into_iter().chain(teams).collect::<Vec<_>>().join(", ")
    }
}

fn rule(entry: RuleEntry) -> Result<Rule, RuleProblem> {
    let role = role_of(entry.role, entry.namespaces)?;
    let teams = entry.team.map(OneOrMore::into_set).unwrap_or_default();
    if let Some(wrong) = teams.iter().find(|name| !is_dns_label(name)) {
        return Err(RuleProblem::TeamName(wrong.clone()));
    }
    if teams.len() > TEAMS_PER_USER_MAX {
        return Err(RuleProblem::TooManyTeams(teams.len()));
    }
    if entry.team_role.is_some() && teams.is_empty() {
        return Err(RuleProblem::TeamRoleAlone);
    }
    if role.is_none() && teams.is_empty() {
        return Err(RuleProblem::GivesNothing);
    }
    let condition = match (entry.group, entry.claim, entry.value, entry.everyone) {
        (Some(group), None, None, false) => Condition::Group(filled("group", group)?),
        (None, Some(claim), Some(value), false) if !claim.is_empty() => {
            Condition::Claim(claim, filled("value", value)?)
        }
        (None, None, None, true) => Condition::Everyone,
        _ => return Err(RuleProblem::Condition),
    };
    Ok(Rule {
        condition,
        role,
        teams,
        team_role: entry.team_role.unwrap_or(TeamRole::Member),
    })
}

fn filled(field: &'static str, values: OneOrMore) -> Result<BTreeSet<String>, RuleProblem> {
    let values = values.into_set();
    match values.is_empty() || values.contains("") {
        true => Err(RuleProblem::EmptyField(field)),
        false => Ok(values),
    }
}

fn role_of(
    role: Option<UserRole>,
    namespaces: Option<OneOrMore>,
) -> Result<Option<RoleGrant>, RuleProblem> {
    let (role, namespaces) = match (role, namespaces) {
        (None, None) => return Ok(None),
        (None, Some(_)) => return Err(RuleProblem::NamespacesAlone),
        // An administrator has its role everywhere.
        (Some(UserRole::Admin), None) => (UserRole::Admin, None),
        (Some(_), None) => return Err(RuleProblem::RoleAlone),
        (Some(role), Some(OneOrMore::One(word))) if word == "all" => (role, None),
        (Some(UserRole::Admin), Some(_)) => return Err(RuleProblem::AdminNamespaces),
        (Some(_), Some(OneOrMore::One(word))) => {
            return Err(RuleProblem::NamespacesForm(word));
        }
        (Some(role), Some(OneOrMore::More(names))) => (role, Some(names)),
    };
    if let Some(names) = &namespaces {
        if names.len() > NAMESPACES_MAX {
            return Err(RuleProblem::TooManyNamespaces(names.len()));
        }
        if let Some(wrong) = names.iter().find(|name| !is_dns_label(name)) {
            return Err(RuleProblem::NamespaceName(wrong.clone()));
        }
    }
    Ok(Some(RoleGrant { role, namespaces }))
}

fn is_dns_label(name: &str) -> bool {
    let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    (1..=63).contains(&name.len())
        && name.chars().all(|c| inner(c) || c == '-')
        && name.starts_with(inner)
        && name.ends_with(inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = r#"
[[rule]]
group = ["ops", "sre"]
role = "admin"

[[rule]]
claim = "department"
value = "research"
role = "member"
namespaces = ["research", "scratch"]

[[rule]]
group = "ml"
team = ["vision", "speech"]

[[rule]]
group = "vision-leads"
team = "vision"
team-role = "lead"

[[rule]]
group = "auditors"
role = "viewer"
namespaces = "all"
"#;

    fn given(claims: serde_json::Value, groups: &[&str]) -> Option<Granted> {
        let claims = Claims::of(claims).unwrap();
        let groups: Vec<String> = groups.iter().map(|group| (*group).to_owned()).collect();
        Mapping::parse(FILE).unwrap().apply(&claims, &groups)
    }

    #[test]
    fn the_first_role_and_every_team_with_its_strongest_role_are_given() {
        let none = serde_json::json!({});
        assert_eq!(given(none.clone(), &[]), None);
        assert_eq!(given(none.clone(), &["Ops", "op"]), None);
        let admin = given(none.clone(), &["auditors", "sre"]).unwrap();
        assert_eq!(admin.role.words(), "role admin in all namespaces");
        let ignored: Vec<_> = admin.rules.iter().map(|hit| hit.role_ignored).collect();
        assert_eq!(ignored, [false, true]);
        let teams = given(none, &["ml", "vision-leads"]).unwrap();
        assert_eq!(teams.role.words(), "role member in no namespace");
        let shown: Vec<_> = teams
            .teams
            .iter()
            .map(|(team, role)| (team.as_str(), role.as_str()))
            .collect();
        assert_eq!(shown, [("speech", "member"), ("vision", "lead")]);
        for department in [
            serde_json::json!("research"),
            serde_json::json!(["sales", "research"]),
        ] {
            let claims = serde_json::json!({"department": department});
            let found = given(claims, &[]).unwrap();
            assert_eq!(found.role.words(), "role member in research, scratch");
            assert_eq!(
                found.rules[0].condition,
                "claim \"department\" is \"research\""
            );
        }
    }

    #[test]
    fn a_mistake_is_named_with_its_rule_and_the_valid_form() {
        let rule =
            |text: &str| format!("[[rule]]\neveryone = true\nteam = \"a\"\n[[rule]]\n{text}");
        for (text, words) in [
            ("group = \"a\"", "rule 2: it gives nothing"),
            ("role = \"admin\"", "rule 2: it needs one condition"),
            (
                "group = \"a\"\neveryone = true\nrole = \"admin\"",
                "it needs one condition",
            ),
            ("claim = \"a\"\nteam = \"b\"", "it needs one condition"),
            ("group = []\nteam = \"b\"", "group: it is empty"),
            ("group = \"\"\nteam = \"b\"", "group: it is empty"),
            ("group = \"a\"\nteam = \"B\"", "team = \"B\""),
            ("group = \"a\"\nteam-role = \"lead\"", "it needs team"),
            (
                "group = \"a\"\nrole = \"member\"",
                "namespaces = \"all\", or",
            ),
            (
                "group = \"a\"\nrole = \"member\"\nnamespaces = \"x\"",
                "namespaces = \"x\"",
            ),
            (
                "group = \"a\"\nrole = \"lead\"\nnamespaces = [\"X\"]",
                "no name of a namespace",
            ),
            (
                "group = \"a\"\nrole = \"admin\"\nnamespaces = [\"x\"]",
                "leave namespaces out",
            ),
            ("group = \"a\"\nrole = \"root\"", "root"),
            ("groups = \"a\"", "groups"),
            (
                "group = \"a\"\nnamespaces = [\"x\"]\nteam = \"b\"",
                "it needs role",
            ),
        ] {
            let error = Mapping::parse(&rule(text)).unwrap_err().to_string();
            assert!(error.contains(words), "{text}: {error}");
        }
        assert_eq!(Mapping::parse("").unwrap_err(), MappingError::Empty);
        let many = "[[rule]]\neveryone = true\nteam = \"a\"\n".repeat(RULES_MAX + 1);
        assert_eq!(
            Mapping::parse(&many).unwrap_err(),
            MappingError::TooManyRules(RULES_MAX + 1)
        );
    }

    proptest::proptest! {
        #[test]
        fn a_group_more_takes_no_team_away(mut groups in proptest::collection::vec("(ml|ops|vision-leads|auditors|x)", 0..4), more in "(ml|ops|vision-leads|auditors|x)") {
            let claims = Claims::of(serde_json::json!({})).unwrap();
            let mapping = Mapping::parse(FILE).unwrap();
            let before = mapping.apply(&claims, &groups);
            groups.push(more);
            let after = mapping.apply(&claims, &groups);
            if let Some(before) = before {
                let after = after.unwrap();
                for (team, role) in before.teams {
                    proptest::prop_assert!(after.teams[&team] <= role);
                }
            }
        }

        #[test]
        fn no_text_panics(text in "\\PC{0,80}", key in "(group|claim|value|everyone|role|namespaces|team|team-role)", value in "\\PC{0,20}") {
            let _ = Mapping::parse(&text);
            let _ = Mapping::parse(&format!("[[rule]]\n{key} = {value}\n"));
        }
    }
}
