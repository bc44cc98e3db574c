//! The search over what the reader may see: pages, saved views, jobs, nodes, queues, teams and users. It is a page of its own, and
//! JSON for the search that `Ctrl K` opens over any page. Rights are those of the pages that the rows lead to.

use askama::Template;
use axum::Json;
use axum::extract::{Query, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use resources::access::Caller;
use serde::{Deserialize, Serialize};

use super::account::role_name;
use super::{PageCaller, PageFrame, escape, page, teams};
use crate::people;
use crate::state::{Portal, VOLCANO_GROUP};

/// The most rows of one group in an answer.
const GROUP_ROWS_MAX: usize = 16;
/// The most characters of a question that are read.
const QUESTION_MAX: usize = 100;

/// The reader's question.
#[derive(Deserialize, Default)]
#[serde(default)]
pub struct FindQuery {
    q: String,
    /// `json` for the script of the pages.
    format: String,
}

/// The words of a question.
struct Words(Vec<String>);

/// How well a name answers a question; the least is the best.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    /// The name is the first word.
    Exact,
    /// The name begins with the first word.
    Begins,
    /// The first word is in the name.
    Within,
    /// The first word is in another field.
    Beside,
}

/// True if a text has a word in it; the case of ASCII letters does not matter.
fn has(text: &str, word: &str) -> bool {
    let mut places = text.as_bytes().windows(word.len().max(1));
    places.any(|place| place.eq_ignore_ascii_case(word.as_bytes()))
}

impl Words {
    /// `team-a/train failed` has three words.
    fn of(question: &str) -> Words {
        let read: String = question.chars().take(QUESTION_MAX).collect();
        let words = read.split(|one: char| one.is_whitespace() || one == '/');
        let words = words.filter(|word| !word.is_empty());
        Words(words.map(str::to_owned).collect())
    }

    /// The rank of what has this name; none unless each word is in the name or in one of the other fields.
    fn rank(&self, name: &str, beside: &[&str]) -> Option<Rank> {
        let found = |word: &String| has(name, word) || beside.iter().any(|text| has(text, word));
        if !self.0.iter().all(found) {
            return None;
        }
        let Some(first) = self.0.first() else {
            return Some(Rank::Exact);
        };
        let begin = name.as_bytes().get(..first.len());
        let begins = begin.is_some_and(|begin| begin.eq_ignore_ascii_case(first.as_bytes()));
        Some(match (begins, name.len() == first.len()) {
            (true, true) => Rank::Exact,
            (true, false) => Rank::Begins,
            _ if has(name, first) => Rank::Within,
            _ => Rank::Beside,
        })
    }
}

/// A row of the answer.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Row {
    name: String,
    note: String,
    href: String,
}

/// The rows of one sort.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Group {
    title: &'static str,
    rows: Vec<Row>,
    /// How many rows are left out.
    more: usize,
}

impl Group {
    /// The best of the candidates, equal ones in their order; none if there is none.
    fn of<T>(
        title: &'static str,
        candidates: impl Iterator<Item = (Option<Rank>, T)>,
        row: impl Fn(T) -> Row,
    ) -> Option<Group> {
        let ranked = candidates.filter_map(|(rank, candidate)| Some((rank?, candidate)));
        let mut found: Vec<(Rank, T)> = ranked.collect();
        found.sort_by_key(|(rank, _)| *rank);
        let more = found.len().saturating_sub(GROUP_ROWS_MAX);
        found.truncate(GROUP_ROWS_MAX);
        let rows: Vec<Row> = found.into_iter().map(|(_, found)| row(found)).collect();
        (!rows.is_empty()).then_some(Group { title, rows, more })
    }
}

/// A page: its name, what is on it, its address, and who may open it.
type Page = (
    &'static str,
    &'static str,
    &'static str,
    fn(&Portal, &Caller) -> bool,
);

const PAGES: [Page; 13] = [
    (
        "Overview",
        "what needs attention, GPUs by node",
        "/ui/",
        all_may,
    ),
    ("Jobs", "jobs of every kind, and pods", "/ui/jobs", all_may),
    (
        "My jobs",
        "jobs that I submitted",
        "/ui/jobs?whose=mine",
        all_may,
    ),
    (
        "Submit a job",
        "a command, or manifests in YAML",
        "/ui/submit",
        all_may,
    ),
    (
        "Nodes",
        "machines, their GPUs and load",
        "/ui/nodes",
        may_list_nodes,
    ),
    ("Queues", "shares and limits", "/ui/queues", may_list_queues),
    ("Usage", "GPU hours by team and user", "/ui/usage", all_may),
    (
        "Idle GPUs",
        "jobs whose GPUs do nothing, limits of teams",
        "/ui/idle",
        all_may,
    ),
    ("Alerts", "what fires, silences", "/ui/alerts", all_may),
    ("Teams", "members and quotas", "/ui/teams", all_may),
    ("Users", "accounts and roles", "/ui/users", may_list_users),
    (
        "Account",
        "my password and sessions",
        "/ui/account",
        all_may,
    ),
    ("Design", "the parts of the pages", "/ui/design", all_may),
];

fn all_may(_: &Portal, _: &Caller) -> bool {
    true
}

fn may_list_nodes(portal: &Portal, caller: &Caller) -> bool {
    portal.permits_cluster(caller, "list", "", "nodes", None)
}

fn may_list_queues(portal: &Portal, caller: &Caller) -> bool {
    portal.permits_cluster(caller, "list", VOLCANO_GROUP, "queues", None)
}

fn may_list_users(portal: &Portal, caller: &Caller) -> bool {
    people::require(portal, caller, "list").is_ok()
}

fn pages(portal: &Portal, caller: &Caller, words: &Words) -> Option<Group> {
    let open = PAGES.iter().filter(|(_, _, _, may)| may(portal, caller));
    let ranked = open.map(|one| (words.rank(one.0, &[one.1]), one));
    Group::of("Pages", ranked, |(name, note, href, _)| Row {
        name: (*name).to_owned(),
        note: (*note).to_owned(),
        href: (*href).to_owned(),
    })
}

fn views(portal: &Portal, caller: &Caller, words: &Words) -> Option<Group> {
    let user = portal.identity.user(&caller.user)?;
    let ranked = user.views.into_iter();
    let ranked = ranked.map(|view| (words.rank(&view.name, &["saved view"]), view));
    Group::of("Saved views", ranked, |view| Row {
        href: format!("/ui/jobs?{}", view.query),
        note: "jobs".to_owned(),
        name: view.name,
    })
}

fn jobs(portal: &Portal, caller: &Caller, words: &Words) -> Option<Group> {
    let entries = portal.entries(caller);
    let ranked = entries.iter().map(|entry| {
        let job = entry.base();
        let beside: [&str; 5] = [&job.namespace, job.kind, job.label(), &job.queue, &job.user];
        (words.rank(&job.name, &beside), job)
    });
    Group::of("Jobs", ranked, |job| Row {
        name: job.name.clone(),
        note: format!("{} · {} · {}", job.namespace, job.kind, job.label()),
        href: job.href(),
    })
}

fn nodes(portal: &Portal, caller: &Caller, words: &Words) -> Option<Group> {
    if !may_list_nodes(portal, caller) {
        return None;
    }
    let all = portal.board.node_states().into_iter();
    let ranked = all.map(|node| (words.rank(&node.0, &[&node.1]), node));
    Group::of("Nodes", ranked, |(name, status)| Row {
        href: format!("/ui/nodes/{}", escape(&name)),
        note: status,
        name,
    })
}

fn queues(portal: &Portal, caller: &Caller, words: &Words) -> Option<Group> {
    let all = portal.queues(caller).unwrap_or_default().into_iter();
    let ranked = all.map(|queue| (words.rank(&queue.name, &[&queue.state]), queue));
    Group::of("Queues", ranked, |queue| Row {
        href: format!("/ui/queues/{}", escape(&queue.name)),
        note: format!("{} running, {} waiting", queue.running, queue.pending),
        name: queue.name,
    })
}

fn team_rows(portal: &Portal, caller: &Caller, words: &Words) -> Option<Group> {
    let all = teams::teams(portal, caller).into_iter();
    let ranked = all.map(|team| {
        let beside: Vec<&str> = team.namespaces.iter().map(String::as_str).collect();
        (words.rank(&team.name, &beside), team)
    });
    Group::of("Teams", ranked, |team| Row {
        href: format!("/ui/teams/{}", escape(&team.name)),
        note: format!("namespaces: {}", team.namespaces.join(", ")),
        name: team.name,
    })
}

fn users(portal: &Portal, caller: &Caller, words: &Words) -> Option<Group> {
    if !may_list_users(portal, caller) {
        return None;
    }
    let all = portal.identity.users().into_iter();
    let ranked = all.map(|user| {
        let beside = [&user.display_name, &user.email];
        let beside = beside.map(|text| text.as_deref().unwrap_or_default());
        (words.rank(&user.name, &beside), user)
    });
    Group::of("Users", ranked, |user| Row {
        href: format!("/ui/users#user-{}", escape(&user.name)),
        note: match &user.display_name {
            Some(name) => format!("{name} · {}", role_name(user.role)),
            None => role_name(user.role).to_owned(),
        },
        name: user.name,
    })
}

/// Finds the rows of one group.
type Finder = fn(&Portal, &Caller, &Words) -> Option<Group>;

/// All groups in the order of an answer.
const FINDERS: [Finder; 7] = [pages, views, jobs, nodes, queues, team_rows, users];

/// What a caller may see that answers a question; the pages and the saved views if the question is empty.
fn find(portal: &Portal, caller: &Caller, question: &str) -> Vec<Group> {
    let words = Words::of(question);
    let finders = match words.0.is_empty() {
        true => &FINDERS[..2],
        false => &FINDERS[..],
    };
    let found = finders.iter().filter_map(|of| of(portal, caller, &words));
    found.collect()
}

#[derive(Template)]
#[template(path = "find.html")]
struct FindPage {
    frame: PageFrame,
    q: String,
    groups: Vec<Group>,
}

/// The answer for the script.
#[derive(Serialize)]
struct Answer {
    groups: Vec<Group>,
}

/// The page, or the same as JSON.
pub async fn show(
    State(portal): State<Portal>,
    PageCaller(caller): PageCaller,
    Query(query): Query<FindQuery>,
) -> Response {
    let groups = find(&portal, &caller, &query.q);
    if query.format == "json" {
        let fresh = [(header::CACHE_CONTROL, "no-store")];
        return (fresh, Json(Answer { groups })).into_response();
    }
    page(&FindPage {
        frame: PageFrame::still(&caller, "find"),
        q: query.q.chars().take(QUESTION_MAX).collect(),
        groups,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_name_is_ranked_by_where_the_first_word_is() {
        let beside = ["team-a", "PyTorchJob", "Failed"];
        for (question, rank) in [
            ("", Some(Rank::Exact)),
            ("train-1", Some(Rank::Exact)),
            ("TRAIN", Some(Rank::Begins)),
            ("rain", Some(Rank::Within)),
            ("failed train", Some(Rank::Beside)),
            ("team-a/train-1", Some(Rank::Beside)),
            ("train pytorch  fail", Some(Rank::Begins)),
            ("train running", None),
            ("train-12", None),
            ("trän", None),
        ] {
            let words = Words::of(question);
            assert_eq!(words.rank("train-1", &beside), rank, "{question}");
        }
    }

    proptest! {
        #[test]
        fn arbitrary_questions_have_bounded_words_and_no_panics(
            question in "\\PC{0,200}",
            name in "\\PC{0,20}",
        ) {
            let words = Words::of(&question);
            let length: usize = words.0.iter().map(|word| word.chars().count()).sum();
            prop_assert!(length <= QUESTION_MAX);
            prop_assert!(words.0.iter().all(|word| !word.is_empty()));
            let _ = words.rank(&name, &["", &question]);
            // What is asked by its whole name is found.
            let named = Words::of(&name).rank(&name, &[]);
            prop_assert!(named.is_some(), "{name:?}");
        }
    }

    #[test]
    fn a_group_has_the_best_rows_to_its_bound() {
        let names = (0..GROUP_ROWS_MAX + 3).map(|at| format!("a-job-{at}"));
        let names: Vec<String> = names
            .chain(["job".to_owned(), "other".to_owned()])
            .collect();
        let words = Words::of("job");
        let ranked = names.iter().map(|name| (words.rank(name, &[]), name));
        let row = |name: &String| Row {
            name: name.clone(),
            note: String::new(),
            href: String::new(),
        };
        let group = Group::of("Jobs", ranked, row).unwrap();
        assert_eq!(group.rows.len(), GROUP_ROWS_MAX);
        assert_eq!((group.rows[0].name.as_str(), group.more), ("job", 4));
        assert_eq!(group.rows[1].name, "a-job-0");
        let nothing = names.iter().map(|name| (None, name));
        assert_eq!(Group::of("Jobs", nothing, row), None);
    }
}
