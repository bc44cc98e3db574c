//! `muster team`: a team's namespaces, queue, quota and members, made of ordinary objects with the label
//! `muster.io/team`. The commands ask the API as the caller; nothing repairs the objects between two commands.

mod objects;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams};
use resources::names::{QUEUE_NAME, TEAM};
use serde_json::{Value, json};

use super::connection::ServerConnection;
use super::outcome::CommandOutcome;
use super::output::{self, Table};
use super::{failure, kinds};
use crate::arguments::{NewTeam, TeamCommand, TeamRole};
use objects::{Amounts, Members, TeamQueue};

/// The field manager of a team's objects.
const FIELD_MANAGER: &str = "muster-team";

/// How long a drained team's pods may take to end.
const DRAIN: Duration = Duration::from_secs(300);

/// How often the command looks whether they have.
const LOOK: Duration = Duration::from_secs(1);

/// The kinds that a drain deletes, owners first.
const DRAINED: [&str; 6] = [
    "cronjobs.batch",
    "deployments.apps",
    "replicasets.apps",
    "pytorchjobs.kubeflow.org",
    "jobs.batch",
    "pods",
];

/// Manages teams.
pub async fn team(connection: &ServerConnection, command: TeamCommand) -> Result<CommandOutcome> {
    match command {
        TeamCommand::Create(new) => create(connection, new).await?,
        TeamCommand::List => list(connection).await?,
        TeamCommand::Show { name } => show(connection, &name).await?,
        TeamCommand::AddMember { team, user, role } => {
            change_members(connection, &team, |members| {
                members.insert(user.clone(), role);
            })
            .await?;
            output::put_line(&format!("user {user} is {} of team {team}", role.as_str()))?;
        }
        TeamCommand::RemoveMember { team, user } => {
            let mut was = false;
            change_members(connection, &team, |members| {
                was = members.remove(&user).is_some();
            })
            .await?;
            if !was {
                bail!(
                    "user {user:?} is no member of team {team:?}; `muster team show {team}` lists the members"
                );
            }
            output::put_line(&format!("user {user} left team {team}"))?;
        }
        TeamCommand::SetQuota { team, amounts } => {
            let namespaces = namespaces_of(connection, &team).await?;
            put_quota(
                connection,
                &team,
                &namespaces,
                &amounts.into_iter().collect(),
            )
            .await?;
            output::put_line(&format!(
                "quota of team {team} set in {}",
                namespaces.join(", ")
            ))?;
        }
        TeamCommand::Delete { name, drain } => delete(connection, &name, drain).await?,
    }
    Ok(CommandOutcome::Yes)
}

/// Objects of a kind with a team's label (any team's if none is given), in one namespace or without one.
async fn labelled(
    connection: &ServerConnection,
    kind: &str,
    namespace: &str,
    team: Option<&str>,
) -> Result<Vec<Value>> {
    let selector = match team {
        Some(team) => format!("{TEAM}={team}"),
        None => TEAM.to_owned(),
    };
    let api = connection.api_in(kinds::kind(kind)?, namespace);
    let found = api.list(&ListParams::default().labels(&selector)).await?;
    let objects = found.items.iter().map(serde_json::to_value);
    Ok(objects.collect::<Result<_, _>>()?)
}

fn name_of(object: &Value) -> String {
    object["metadata"]["name"]
        .as_str()
        .unwrap_or_default()
        .to_owned()
}

/// The team's namespaces.
async fn namespaces_of(connection: &ServerConnection, team: &str) -> Result<Vec<String>> {
    let found = labelled(connection, "namespaces", "", Some(team)).await?;
    if found.is_empty() {
        return Err(failure::not_found(format!(
            "there is no team {team:?}\n  `muster team list` lists the teams"
        )));
    }
    Ok(found.iter().map(name_of).collect())
}

async fn apply(connection: &ServerConnection, kind: &str, object: &Value) -> Result<()> {
    let namespace = object["metadata"]["namespace"].as_str().unwrap_or_default();
    let name = name_of(object);
    let parameters = PatchParams::apply(FIELD_MANAGER).force();
    connection
        .api_in(kinds::kind(kind)?, namespace)
        .patch(&name, &parameters, &Patch::Apply(object))
        .await
        .with_context(|| format!("{kind}/{name}"))?;
    Ok(())
}

/// Refuses to take over an object of this name that exists without the team's label.
async fn require_free(
    connection: &ServerConnection,
    kind: &str,
    name: &str,
    team: &str,
    adopts: bool,
) -> Result<()> {
    let found: Option<DynamicObject> = connection
        .api_in(kinds::kind(kind)?, "")
        .get_opt(name)
        .await?;
    let Some(found) = found else { return Ok(()) };
    let found = serde_json::to_value(found)?;
    match objects::team_of(&found) {
        Some(owner) if owner == team => Ok(()),
        Some(owner) => bail!("{kind} {name:?} belongs to team {owner:?}; choose another name"),
        None if adopts => Ok(()),
        None => bail!(
            "{kind} {name:?} exists already and belongs to no team; choose another name for the team"
        ),
    }
}

async fn create(connection: &ServerConnection, new: NewTeam) -> Result<()> {
    let team = new.name.as_str();
    let namespaces = match new.namespaces.as_slice() {
        [] => vec![team.to_owned()],
        given => given.to_vec(),
    };
    let mut members = Members::new();
    for (users, role) in [
        (&new.viewers, TeamRole::Viewer),
        (&new.members, TeamRole::Member),
        (&new.leads, TeamRole::Lead),
    ] {
        members.extend(users.iter().map(|user| (user.clone(), role)));
    }
    objects::check(team, &namespaces, &members)?;
    require_free(connection, "queue", team, team, false).await?;
    for name in &namespaces {
        // A namespace that an administrator made before becomes the team's.
        require_free(connection, "namespace", name, team, true).await?;
    }
    let asked = TeamQueue {
        parent: new.parent.clone(),
        weight: new.weight,
        guarantee: new.guarantee.into_iter().collect(),
        limits: new.limits.into_iter().collect(),
    };
    apply(connection, "queue", &objects::queue(team, &asked)).await?;
    for name in &namespaces {
        apply(connection, "namespace", &objects::namespace(team, name)).await?;
    }
    let quota: Amounts = new.quota.into_iter().collect();
    if !quota.is_empty() {
        put_quota(connection, team, &namespaces, &quota).await?;
    }
    put_members(connection, team, &namespaces, &members).await?;
    output::put_line(&format!(
        "team {team} created: queue {team}, {} member(s), namespace(s) {}",
        members.len(),
        namespaces.join(", ")
    ))
}

async fn put_quota(
    connection: &ServerConnection,
    team: &str,
    namespaces: &[String],
    amounts: &Amounts,
) -> Result<()> {
    for namespace in namespaces {
        apply(
            connection,
            "resourcequota",
            &objects::quota(team, namespace, amounts),
        )
        .await?;
    }
    Ok(())
}

async fn put_members(
    connection: &ServerConnection,
    team: &str,
    namespaces: &[String],
    members: &Members,
) -> Result<()> {
    for namespace in namespaces {
        for binding in objects::bindings(team, namespace, members) {
            apply(connection, "rolebinding", &binding).await?;
        }
    }
    Ok(())
}

async fn members(
    connection: &ServerConnection,
    team: &str,
    namespaces: &[String],
) -> Result<Members> {
    let mut bindings = Vec::new();
    for namespace in namespaces {
        bindings.extend(labelled(connection, "rolebindings", namespace, Some(team)).await?);
    }
    Ok(objects::members_of(&bindings))
}

async fn change_members(
    connection: &ServerConnection,
    team: &str,
    change: impl FnOnce(&mut Members),
) -> Result<()> {
    let namespaces = namespaces_of(connection, team).await?;
    let mut members = members(connection, team, &namespaces).await?;
    change(&mut members);
    objects::check(team, &namespaces, &members)?;
    put_members(connection, team, &namespaces, &members).await
}

async fn list(connection: &ServerConnection) -> Result<()> {
    let mut teams: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for namespace in labelled(connection, "namespaces", "", None).await? {
        let team = objects::team_of(&namespace).unwrap_or_default().to_owned();
        teams.entry(team).or_default().push(name_of(&namespace));
    }
    let mut table = Table::new(["TEAM", "NAMESPACES", "MEMBERS"]);
    for (team, namespaces) in teams {
        let count = members(connection, &team, &namespaces).await?.len();
        table.row([team, namespaces.join(","), count.to_string()]);
    }
    output::put(&table.render())
}

async fn show(connection: &ServerConnection, team: &str) -> Result<()> {
    let namespaces = namespaces_of(connection, team).await?;
    let members = members(connection, team, &namespaces).await?;
    output::put_line(&format!("Name:       {team}"))?;
    output::put_line(&format!("Namespaces: {}", namespaces.join(", ")))?;
    output::put_line(&format!(
        "Queue:      {team} (`muster queue {team}` shows it)"
    ))?;
    for namespace in &namespaces {
        for quota in labelled(connection, "resourcequotas", namespace, Some(team)).await? {
            let hard = quota["spec"]["hard"].as_object().into_iter().flatten();
            let used = &quota["status"]["used"];
            let amounts = hard.map(|(name, most)| {
                let text = |value: &Value| value.as_str().unwrap_or("0").to_owned();
                format!("{name} {} of {}", text(&used[name]), text(most))
            });
            let amounts: Vec<String> = amounts.collect();
            output::put_line(&format!("Quota:      {namespace}: {}", amounts.join(", ")))?;
        }
    }
    output::put_line("Members:")?;
    for (user, role) in &members {
        output::put_line(&format!("  {user} ({})", role.as_str()))?;
    }
    Ok(())
}

/// The pods of the team that wait or run.
async fn running(connection: &ServerConnection, namespaces: &[String]) -> Result<BTreeSet<String>> {
    let mut found = BTreeSet::new();
    for namespace in namespaces {
        let pods = connection.api_in(kinds::kind("pods")?, namespace);
        for pod in pods.list(&ListParams::default()).await?.items {
            let phase = pod.data["status"]["phase"].as_str().unwrap_or_default();
            if !["Succeeded", "Failed"].contains(&phase) {
                let name = pod.metadata.name.unwrap_or_default();
                found.insert(format!("{namespace}/{name}"));
            }
        }
    }
    Ok(found)
}

async fn delete(connection: &ServerConnection, team: &str, drain: bool) -> Result<()> {
    let namespaces = namespaces_of(connection, team).await?;
    let pods = running(connection, &namespaces).await?;
    if !pods.is_empty() && !drain {
        bail!(objects::running_refusal(team, &pods));
    }
    // The members submit nothing more while their work ends.
    for namespace in &namespaces {
        delete_labelled(connection, "rolebindings", namespace, team).await?;
    }
    if drain {
        drained(connection, &namespaces).await?;
    }
    for namespace in &namespaces {
        delete_labelled(connection, "resourcequotas", namespace, team).await?;
        let patch = json!({"metadata": {"labels": {TEAM: null, QUEUE_NAME: null}}});
        connection
            .api_in(kinds::kind("namespace")?, "")
            .patch(namespace, &PatchParams::default(), &Patch::Merge(patch))
            .await?;
    }
    delete_labelled(connection, "queues", "", team).await?;
    output::put_line(&format!(
        "team {team} deleted; its namespaces stay, with all that is in them: {}",
        namespaces.join(", ")
    ))
}

async fn delete_labelled(
    connection: &ServerConnection,
    kind: &str,
    namespace: &str,
    team: &str,
) -> Result<()> {
    let api = connection.api_in(kinds::kind(kind)?, namespace);
    for object in labelled(connection, kind, namespace, Some(team)).await? {
        let name = name_of(&object);
        match api.delete(&name, &DeleteParams::default()).await {
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            answer => drop(answer.with_context(|| format!("{kind}/{name}"))?),
        }
    }
    Ok(())
}

/// Deletes the work in these namespaces and waits until its pods are gone.
async fn drained(connection: &ServerConnection, namespaces: &[String]) -> Result<()> {
    for namespace in namespaces {
        for kind in DRAINED {
            let api = connection.api_in(kinds::kind(kind)?, namespace);
            let parameters = DeleteParams::background();
            api.delete_collection(&parameters, &ListParams::default())
                .await
                .with_context(|| format!("{kind} in namespace {namespace}"))?;
        }
    }
    let begin = Instant::now();
    loop {
        let left = running(connection, namespaces).await?;
        if left.is_empty() {
            return Ok(());
        }
        if begin.elapsed() > DRAIN {
            let left: Vec<String> = left.into_iter().take(8).collect();
            bail!(
                "these pods did not end within {} s: {}; look at them with `muster describe`, and repeat the command",
                DRAIN.as_secs(),
                left.join(", ")
            );
        }
        tokio::time::sleep(LOOK).await;
    }
}
