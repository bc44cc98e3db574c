//! Options of the commands on users and teams.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use super::{Listing, Output, name_and_value};

/// Roles of users.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// May do everything
    Admin,
    /// Runs a team
    Lead,
    /// Runs work
    Member,
    /// Reads
    Viewer,
}

impl Role {
    /// The role's name in the API.
    pub fn as_str(self) -> &'static str {
        match self {
            Role::Admin => "admin",
            Role::Lead => "lead",
            Role::Member => "member",
            Role::Viewer => "viewer",
        }
    }
}

/// Options of `muster user create`.
#[derive(Args, Debug)]
pub struct NewUserArguments {
    /// Name for signing in: 1 to 40 lower-case letters, digits and '-'
    pub name: String,
    /// Role of the user
    #[arg(long, value_enum, default_value = "member")]
    pub role: Role,
    /// Namespaces of the role, separated by commas [default: all but the system's own]
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    pub namespaces: Vec<String>,
    /// Let the role hold in no namespace: role bindings grant the user's rights
    #[arg(long, conflicts_with = "namespaces")]
    pub no_namespaces: bool,
    /// Full name
    #[arg(long, value_name = "NAME")]
    pub display_name: Option<String>,
    /// E-mail address
    #[arg(long, value_name = "ADDRESS")]
    pub email: Option<String>,
    /// File with the first password on its first line [default: print a link by which the user sets it]
    #[arg(long, value_name = "FILE")]
    pub password_file: Option<PathBuf>,
}

/// The claim with a user's name, unless --oidc-username-claim names another.
pub const OIDC_USERNAME_CLAIM: &str = "preferred_username";

/// The claim with a user's groups, unless --oidc-groups-claim names another.
pub const OIDC_GROUPS_CLAIM: &str = "groups";

/// Options of `muster user explain-sign-in`, named as the server's.
#[derive(Args, Debug)]
pub struct ExplainSignIn {
    /// File with the claims of an ID token, as a JSON object
    #[arg(long, value_name = "FILE")]
    pub claims: PathBuf,
    /// File of the mapping, as of the server's option
    #[arg(long, value_name = "FILE")]
    pub oidc_mapping: PathBuf,
    /// Claim with the user's name
    #[arg(long, value_name = "CLAIM", default_value = OIDC_USERNAME_CLAIM)]
    pub oidc_username_claim: String,
    /// Claim with the user's groups
    #[arg(long, value_name = "CLAIM", default_value = OIDC_GROUPS_CLAIM)]
    pub oidc_groups_claim: String,
    /// Claim that the token must have with this value (repeatable)
    #[arg(long = "oidc-required-claim", value_name = "CLAIM=VALUE")]
    pub oidc_required_claims: Vec<oidc::RequiredClaim>,
}

/// Commands of `muster user`.
#[derive(Subcommand, Debug)]
pub enum UserCommand {
    /// Create a user; prints a link, valid once and for 24 hours, by which the user sets its password
    Create(NewUserArguments),
    /// List users
    List(Listing),
    /// Show one user
    Show {
        /// Name of the user
        name: String,
        /// Output format [default: a text for people]
        #[arg(short, long, value_enum)]
        output: Option<Output>,
    },
    /// Disable a user: end its sessions and refuse its tokens, until it is enabled again
    Disable {
        /// Name of the user
        name: String,
    },
    /// Enable a disabled user
    Enable {
        /// Name of the user
        name: String,
    },
    /// Delete a user, with its sessions and tokens
    Delete {
        /// Name of the user
        name: String,
    },
    /// Print a link by which a user sets a new password, once; earlier links of the user end
    ResetPassword {
        /// Name of the user
        name: String,
        /// Time that the link is valid, in hours
        #[arg(long, default_value_t = 24, value_parser = clap::value_parser!(u64).range(1..=168))]
        hours: u64,
    },
    /// Remove the second factor of a user that lost its app and its recovery codes: its password alone signs it in
    /// then
    ResetTotp {
        /// Name of the user
        name: String,
    },
    /// Change your own password: reads the old and the new one from the terminal or from lines of standard input. Your
    /// sessions end
    Passwd {
        /// File with the new password on its first line [default: standard input, twice]
        #[arg(long, value_name = "FILE")]
        password_file: Option<PathBuf>,
    },
    /// Give a user another role, or other namespaces
    SetRole {
        /// Name of the user
        name: String,
        /// Role of the user
        #[arg(value_enum)]
        role: Role,
        /// Namespaces of the role, separated by commas [default: as before]
        #[arg(long, value_delimiter = ',', value_name = "NAMES")]
        namespaces: Vec<String>,
        /// Let the role hold in all namespaces but the system's own
        #[arg(long, conflicts_with = "namespaces")]
        all_namespaces: bool,
        /// Let the role hold in no namespace
        #[arg(long, conflicts_with_all = ["namespaces", "all_namespaces"])]
        no_namespaces: bool,
    },
    /// Show what a mapping of OpenID Connect claims gives to a user: the rules that apply, role and teams. Reads files
    /// only, and asks neither the server nor the provider. Exit status 1 if the user would be refused
    ExplainSignIn(ExplainSignIn),
    /// List the browser sessions of a user
    Sessions {
        /// Name of the user [default: you]
        name: Option<String>,
    },
    /// End the browser sessions of a user, or one of them
    EndSessions {
        /// Name of the user [default: you]
        name: Option<String>,
        /// Session to end, as listed by `sessions` [default: all]
        #[arg(long)]
        id: Option<String>,
    },
}

/// Roles in a team.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum TeamRole {
    /// May do everything in the team's namespaces but change the team's quota
    Lead,
    /// Runs work
    Member,
    /// Reads
    Viewer,
}

impl From<TeamRole> for administration::team::TeamRole {
    fn from(role: TeamRole) -> Self {
        match role {
            TeamRole::Lead => Self::Lead,
            TeamRole::Member => Self::Member,
            TeamRole::Viewer => Self::Viewer,
        }
    }
}

/// Options of `muster team create`.
#[derive(Args, Debug)]
pub struct NewTeam {
    /// Name of the team and of its queue
    pub name: String,
    /// Namespaces of the team, separated by commas; missing ones are created [default: one with the team's name]
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    pub namespaces: Vec<String>,
    /// Queue that the team's queue is part of [default: root]
    #[arg(long, value_name = "QUEUE")]
    pub parent: Option<String>,
    /// Weight of the team's queue among its siblings [default: 1]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=65_535))]
    pub weight: Option<u32>,
    /// Amounts reserved for the team's queue, such as nvidia.com/gpu=2, separated by commas
    #[arg(long, value_delimiter = ',', value_name = "NAME=AMOUNT", value_parser = name_and_value)]
    pub guarantee: Vec<(String, String)>,
    /// The most that the team's queue may hold, such as nvidia.com/gpu=8, separated by commas
    #[arg(long, value_delimiter = ',', value_name = "NAME=AMOUNT", value_parser = name_and_value)]
    pub limits: Vec<(String, String)>,
    /// Quota in each of the team's namespaces, such as nvidia.com/gpu=8,pods=100
    #[arg(long, value_delimiter = ',', value_name = "NAME=AMOUNT", value_parser = name_and_value)]
    pub quota: Vec<(String, String)>,
    /// Users that lead the team, separated by commas
    #[arg(long, value_delimiter = ',', value_name = "USERS")]
    pub leads: Vec<String>,
    /// Users that run work in the team, separated by commas
    #[arg(long, value_delimiter = ',', value_name = "USERS")]
    pub members: Vec<String>,
    /// Users that read what is in the team's namespaces, separated by commas
    #[arg(long, value_delimiter = ',', value_name = "USERS")]
    pub viewers: Vec<String>,
    /// Let the team's pods be reached from the team's own namespaces only (a NetworkPolicy in each of them)
    #[arg(long)]
    pub isolate_network: bool,
}

/// Networks of a team.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum TeamNetwork {
    /// The team's pods are reached from the team's own namespaces only
    Isolated,
    /// The team's pods are reached from everywhere, if no other policy says otherwise
    Open,
}

/// Commands of `muster team`.
#[derive(Subcommand, Debug)]
pub enum TeamCommand {
    /// Create a team: its queue, its namespaces, their quota, and role bindings of its members. Repeating the command
    /// completes a team that was made in part
    Create(NewTeam),
    /// List teams
    List,
    /// Show a team: namespaces, quota with use, members
    Show {
        /// Name of the team
        name: String,
    },
    /// Add a user to a team, or give a member another role
    AddMember {
        /// Name of the team
        team: String,
        /// Name of the user
        user: String,
        /// Role of the user in the team
        #[arg(long, value_enum, default_value = "member")]
        role: TeamRole,
    },
    /// Remove a user from a team
    RemoveMember {
        /// Name of the team
        team: String,
        /// Name of the user
        user: String,
    },
    /// Replace the quota in each of a team's namespaces; pods that run stay
    SetQuota {
        /// Name of the team
        team: String,
        /// Amounts, such as nvidia.com/gpu=8 pods=100
        #[arg(required = true, value_name = "NAME=AMOUNT", value_parser = name_and_value)]
        amounts: Vec<(String, String)>,
    },
    /// Isolate the network of a team's namespaces, or open it again
    SetNetwork {
        /// Name of the team
        team: String,
        /// Network of the team's namespaces
        #[arg(value_enum)]
        network: TeamNetwork,
    },
    /// Delete a team: its queue, quota and role bindings. Its namespaces stay. Refused while work runs in them
    Delete {
        /// Name of the team
        name: String,
        /// Delete the jobs, deployments and pods in the team's namespaces first, and wait until they have ended
        #[arg(long)]
        drain: bool,
    },
}
