//! `muster team`: a team's namespaces, queue, quota and members. [`administration::team`] carries the commands out as the
//! caller; this module reads the arguments and prints the answers.

use administration::team::{Members, NewTeam, TeamProblem, TeamQueue, Teams};
use anyhow::{Error, Result, bail};

use super::connection::ServerConnection;
use super::failure;
use super::outcome::CommandOutcome;
use super::output::{self, Table};
use crate::arguments::{self, TeamCommand, TeamNetwork, TeamRole};

/// Manages teams.
pub async fn team(connection: &ServerConnection, command: TeamCommand) -> Result<CommandOutcome> {
    let teams = Teams::new(connection.client.clone());
    match command {
        TeamCommand::Create(new) => create(&teams, new).await?,
        TeamCommand::List => list(&teams).await?,
        TeamCommand::Show { name } => show(&teams, &name).await?,
        TeamCommand::AddMember { team, user, role } => {
            let role = administration::team::TeamRole::from(role);
            let added = teams.add_member(&team, &user, role).await;
            added.map_err(as_error)?;
            output::put_line(&format!("user {user} is {} of team {team}", role.as_str()))?;
        }
        TeamCommand::RemoveMember { team, user } => {
            match teams.remove_member(&team, &user).await {
                Err(problem @ TeamProblem::NoMember { .. }) => {
                    bail!("{problem}; `muster team show {team}` lists the members")
                }
                removed => removed.map_err(as_error)?,
            }
            output::put_line(&format!("user {user} left team {team}"))?;
        }
        TeamCommand::SetQuota { team, amounts } => {
            let amounts = amounts.into_iter().collect();
            let namespaces = teams.set_quota(&team, &amounts).await.map_err(as_error)?;
            output::put_line(&format!(
                "quota of team {team} set in {}",
                namespaces.join(", ")
            ))?;
        }
        TeamCommand::SetNetwork { team, network } => {
            let isolated = network == TeamNetwork::Isolated;
            let set = teams.set_isolation(&team, isolated).await;
            let namespaces = set.map_err(as_error)?.join(", ");
            output::put_line(&match isolated {
                true => {
                    format!("pods in {namespaces} are reached from namespaces of team {team} only")
                }
                false => {
                    format!("the NetworkPolicies of team {team} were removed from {namespaces}")
                }
            })?;
        }
        TeamCommand::Delete { name, drain } => {
            let namespaces = teams.delete(&name, drain).await.map_err(as_error)?;
            output::put_line(&format!(
                "team {name} deleted; its namespaces stay, with all that is in them: {}",
                namespaces.join(", ")
            ))?;
        }
    }
    Ok(CommandOutcome::Yes)
}

/// The error as commands report it: the API's refusals decide the exit status.
fn as_error(problem: TeamProblem) -> Error {
    match problem {
        TeamProblem::Missing(team) => failure::not_found(format!(
            "there is no team {team:?}\n  `muster team list` lists the teams"
        )),
        TeamProblem::Object { object, source } => Error::from(source).context(object),
        TeamProblem::Request(source) => source.into(),
        other => other.into(),
    }
}

async fn create(teams: &Teams, new: arguments::NewTeam) -> Result<()> {
    let mut members = Members::new();
    for (users, role) in [
        (&new.viewers, TeamRole::Viewer),
        (&new.members, TeamRole::Member),
        (&new.leads, TeamRole::Lead),
    ] {
        members.extend(users.iter().map(|user| (user.clone(), role.into())));
    }
    let new = NewTeam {
        name: new.name,
        namespaces: new.namespaces,
        queue: TeamQueue {
            parent: new.parent,
            weight: new.weight,
            guarantee: new.guarantee.into_iter().collect(),
            limits: new.limits.into_iter().collect(),
        },
        quota: new.quota.into_iter().collect(),
        members,
        isolate_network: new.isolate_network,
    };
    teams.create(&new).await.map_err(as_error)?;
    output::put_line(&format!(
        "team {0} created: queue {0}, {1} member(s), namespace(s) {2}",
        new.name,
        new.members.len(),
        new.own_namespaces().join(", ")
    ))
}

async fn list(teams: &Teams) -> Result<()> {
    let mut table = Table::new(["TEAM", "NAMESPACES", "MEMBERS"]);
    for (team, namespaces) in teams.list().await.map_err(as_error)? {
        let members = teams.members(&team, &namespaces).await.map_err(as_error)?;
        table.row([team, namespaces.join(","), members.len().to_string()]);
    }
    output::put(&table.render())
}

async fn show(teams: &Teams, team: &str) -> Result<()> {
    let namespaces = teams.namespaces(team).await.map_err(as_error)?;
    let members = teams.members(team, &namespaces).await.map_err(as_error)?;
    output::put_line(&format!("Name:       {team}"))?;
    output::put_line(&format!("Namespaces: {}", namespaces.join(", ")))?;
    output::put_line(&format!(
        "Queue:      {team} (`muster queue {team}` shows it)"
    ))?;
    for (namespace, amounts) in teams.quotas(team, &namespaces).await.map_err(as_error)? {
        let amounts = amounts.iter();
        let amounts = amounts.map(|(name, used, most)| format!("{name} {used} of {most}"));
        let amounts: Vec<String> = amounts.collect();
        output::put_line(&format!("Quota:      {namespace}: {}", amounts.join(", ")))?;
    }
    let isolated = teams.isolated(team, &namespaces).await;
    let isolated = isolated.map_err(as_error)?;
    if !isolated.is_empty() {
        output::put_line(&format!("Network:    isolated in {}", isolated.join(", ")))?;
    }
    output::put_line("Members:")?;
    for (user, role) in &members {
        output::put_line(&format!("  {user} ({})", role.as_str()))?;
    }
    Ok(())
}
