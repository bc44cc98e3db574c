//! Answers as a table for the terminal: failures first, equal answers in one row. Pure.

use std::fmt::Write as _;

use crate::rdma::{CheckOutcome, RdmaCheck};

/// The most places that a row without a fault names; the others are counted.
const NAMED: usize = 3;

/// A row and its places.
struct TableRow<'a> {
    check: &'a RdmaCheck,
    places: Vec<&'a str>,
}

/// Draws a table of four columns: answer, question, place, found value. A remedy is in a line
/// below its row.
pub fn draw(checks: &[RdmaCheck]) -> String {
    let mut rows: Vec<TableRow<'_>> = Vec::new();
    for check in checks {
        let same = |row: &&mut TableRow<'_>| {
            let key = |it: &RdmaCheck| (it.answer, it.name, it.found.clone(), it.advice.clone());
            key(row.check) == key(check)
        };
        match rows.iter_mut().find(same) {
            Some(row) => row.places.push(&check.place),
            None => rows.push(TableRow {
                check,
                places: vec![&check.place],
            }),
        }
    }
    // A stable sort keeps the order of the questions within an answer.
    rows.sort_by_key(|row| std::cmp::Reverse(row.check.answer));
    let places: Vec<String> = rows.iter().map(places).collect();
    let width = |texts: &mut dyn Iterator<Item = &str>| {
        texts.map(|text| text.chars().count()).max().unwrap_or(0)
    };
    let names = width(&mut rows.iter().map(|row| row.check.name));
    let wide = width(&mut places.iter().map(String::as_str));
    let mut text = String::new();
    for (row, place) in rows.iter().zip(&places) {
        let RdmaCheck { name, found, .. } = row.check;
        let answer = row.check.answer.as_str();
        // Writing to a String can't fail.
        let _ = writeln!(
            text,
            "  {answer:<7}  {name:<names$}  {place:<wide$}  {found}"
        );
        if !row.check.advice.is_empty() {
            let _ = writeln!(
                text,
                "  {:<7}  {:<names$}  do: {}",
                "", "", row.check.advice
            );
        }
    }
    text
}

fn places(row: &TableRow<'_>) -> String {
    let all = &row.places;
    if row.check.answer == CheckOutcome::Fail || all.len() <= NAMED + 1 {
        return all.join(", ");
    }
    format!("{} and {} more", all[..NAMED].join(", "), all.len() - NAMED)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rdma::{CheckQuestion, FailureSeverity};

    #[test]
    fn faults_come_first_and_what_is_alike_is_one_row() {
        let state = CheckQuestion("port state", FailureSeverity::Breaks);
        let mut checks =
            vec![CheckQuestion("cards", FailureSeverity::Breaks).unknown("", "9 found", "count")];
        for card in 0..7 {
            checks.push(state.pass(&format!("mlx5_{card}/1"), "ACTIVE"));
        }
        for card in 7..9 {
            checks.push(state.fail(&format!("mlx5_{card}/1"), "DOWN", "look at the cable"));
        }
        let wanted = "  fail     port state  mlx5_7/1, mlx5_8/1                      DOWN
                       do: look at the cable
  unknown  cards                                               9 found
                       do: count
  pass     port state  mlx5_0/1, mlx5_1/1, mlx5_2/1 and 4 more  ACTIVE
";
        let flat = |text: &str| -> Vec<Vec<String>> {
            let words = |line: &str| line.split_whitespace().map(str::to_owned).collect();
            text.lines().map(words).collect()
        };
        assert_eq!(flat(&draw(&checks)), flat(wanted));
        let columns: Vec<Option<usize>> = draw(&checks)
            .lines()
            .map(|line| {
                line.find("DOWN")
                    .or(line.find("9 found"))
                    .or(line.find("ACTIVE"))
            })
            .collect();
        assert!(
            columns[0] == columns[2] && columns[2] == columns[4],
            "{columns:?}"
        );
    }
}
