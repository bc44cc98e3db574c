//! Natural sort order of names: `rack-2` before `rack-10`.

use std::cmp::Ordering;
use std::sync::Arc;

/// A name that compares runs of digits as numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Natural(Arc<str>);

impl Natural {
    pub(crate) fn new(name: &str) -> Natural {
        Natural(Arc::from(name))
    }
}

impl PartialOrd for Natural {
    fn partial_cmp(&self, other: &Natural) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Natural {
    fn cmp(&self, other: &Natural) -> Ordering {
        // Names that compare equal by number (`a1`, `a01`) are ordered byte by byte.
        compare(self.0.as_bytes(), other.0.as_bytes()).then_with(|| self.0.cmp(&other.0))
    }
}

fn compare(mut a: &[u8], mut b: &[u8]) -> Ordering {
    loop {
        match (a.first(), b.first()) {
            (None, None) => return Ordering::Equal,
            (None, _) => return Ordering::Less,
            (_, None) => return Ordering::Greater,
            (Some(x), Some(y)) if x.is_ascii_digit() && y.is_ascii_digit() => {
                let (m, rest_a) = run(a);
                let (n, rest_b) = run(b);
                let order = m.len().cmp(&n.len()).then_with(|| m.cmp(n));
                if order != Ordering::Equal {
                    return order;
                }
                (a, b) = (rest_a, rest_b);
            }
            (Some(x), Some(y)) => {
                if x != y {
                    return x.cmp(y);
                }
                (a, b) = (&a[1..], &b[1..]);
            }
        }
    }
}

/// The leading digits without leading zeros, and the rest.
fn run(text: &[u8]) -> (&[u8], &[u8]) {
    let end = text
        .iter()
        .position(|c| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (digits, rest) = text.split_at(end);
    let start = digits.iter().position(|c| *c != b'0').unwrap_or(end);
    (&digits[start..], rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_in_names_count_as_numbers() {
        let mut names = [
            "rack-10", "rack-2", "b1", "rack-02", "b", "rack-2-x", "a12b3", "a12b20",
        ];
        names.sort_by_key(|name| Natural::new(name));
        let want = [
            "a12b3", "a12b20", "b", "b1", "rack-02", "rack-2", "rack-2-x", "rack-10",
        ];
        assert_eq!(names, want);
    }
}
