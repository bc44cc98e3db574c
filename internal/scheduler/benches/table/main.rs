//! The speed of decisions, as a table: what each case costs on 100, 1,000 and 10,000 nodes, each
//! beside what it is to cost at most on the largest, and how it grows from one to the next. One
//! thread, no API in the way. `make bench-scheduler` prints
//! it; `CASES=word,word` and `SIZES=100,1000` choose. Figures are the time that the thread worked,
//! the median of some runs; on a machine that others use, that is what there is to go by.

mod cases;
mod world;

use std::time::Duration;

/// What the server allocates with, too.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// What was measured: time, or bytes.
#[derive(Clone, Copy)]
pub(crate) enum Figure {
    Time(Duration),
    Bytes(u64),
    /// Pods placed, and in what time.
    Rate(usize, Duration),
}

impl Figure {
    /// It beside what is asked, and whether it is that.
    fn beside(self, asked: Option<Figure>) -> String {
        let Some(asked) = asked else {
            return format!("{} (none asked)", self.message());
        };
        let met = match (self, asked) {
            (Figure::Time(time), Figure::Time(most)) => time <= most,
            (Figure::Bytes(bytes), Figure::Bytes(most)) => bytes <= most,
            (Figure::Rate(..), Figure::Rate(..)) => self.amount() <= asked.amount(),
            _ => false,
        };
        let verdict = if met { "" } else { ", MISSED" };
        format!("{} (asked {}{verdict})", self.message(), asked.brief())
    }

    /// The amount that is to be small: time, bytes, or time for each pod.
    fn amount(self) -> f64 {
        match self {
            Figure::Time(time) => time.as_secs_f64(),
            Figure::Bytes(bytes) => bytes as f64,
            Figure::Rate(pods, time) => time.as_secs_f64() / pods.max(1) as f64,
        }
    }

    fn brief(self) -> String {
        match self {
            Figure::Rate(pods, time) => {
                format!("{:.0} pods/s", pods as f64 / time.as_secs_f64())
            }
            _ => self.message(),
        }
    }

    fn message(self) -> String {
        match self {
            Figure::Time(time) => time_words(time),
            Figure::Bytes(bytes) => format!("{:.0} MiB", bytes as f64 / 1024.0 / 1024.0),
            Figure::Rate(pods, time) => {
                let rate = pods as f64 / time.as_secs_f64().max(1e-9);
                format!("{} ({:.0} pods/s)", time_words(time), rate)
            }
        }
    }
}

fn time_words(time: Duration) -> String {
    let micros = time.as_secs_f64() * 1e6;
    match micros {
        ..1000.0 => format!("{micros:.1} us"),
        ..1_000_000.0 => format!("{:.2} ms", micros / 1e3),
        _ => format!("{:.2} s", micros / 1e6),
    }
}

/// One row of the table.
pub(crate) struct Case {
    /// A word to choose it by.
    pub(crate) word: &'static str,
    pub(crate) name: &'static str,
    /// What it is to cost at most on 10,000 nodes.
    pub(crate) asked: Option<Figure>,
    /// Measures it on so many nodes; none where the case needs more of them.
    pub(crate) run: fn(usize) -> Option<Figure>,
}

fn chosen(name: &str) -> Option<Vec<String>> {
    let list = std::env::var(name).ok().filter(|list| !list.is_empty())?;
    Some(list.split(',').map(str::to_owned).collect())
}

fn main() {
    let sizes: Vec<usize> = match chosen("SIZES") {
        Some(list) => list.iter().filter_map(|n| n.parse().ok()).collect(),
        None => vec![100, 1_000, 10_000],
    };
    let words = chosen("CASES");
    let heads: Vec<String> = sizes.iter().map(|n| format!("{n} nodes")).collect();
    println!("| case | {} | growth |", heads.join(" | "));
    println!("|---|{}---|", "---|".repeat(sizes.len()));
    for case in cases::all() {
        if words
            .as_ref()
            .is_some_and(|words| !words.iter().any(|word| word == case.word))
        {
            continue;
        }
        let figures: Vec<Option<Figure>> = sizes.iter().map(|nodes| (case.run)(*nodes)).collect();
        let cells = figures.iter().map(|figure| match figure {
            Some(figure) => figure.beside(case.asked),
            None => "-".to_owned(),
        });
        let cells: Vec<String> = cells.collect();
        println!(
            "| {} | {} | {} |",
            case.name,
            cells.join(" | "),
            growth(&figures)
        );
    }
}

/// How many times as much each size costs as the one before; of rates, for each pod.
fn growth(figures: &[Option<Figure>]) -> String {
    let pairs = figures.iter().zip(figures.iter().skip(1));
    let times = pairs.map(|pair| match pair {
        (Some(small), Some(large)) => {
            format!("x{:.1}", large.amount() / small.amount().max(1e-9))
        }
        _ => "-".to_owned(),
    });
    times.collect::<Vec<_>>().join(", ")
}
