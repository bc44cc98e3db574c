//! Amounts of resources in a form's field, as `nvidia.com/gpu=8, pods=100`.

use administration::team::Amounts;

use crate::problem::Problem;

/// Reads the amounts; the API checks names and quantities.
pub fn read(field: &str, text: &str) -> Result<Amounts, Problem> {
    let parts = text.split(|c: char| c == ',' || c.is_whitespace());
    let mut amounts = Amounts::new();
    for part in parts.filter(|part| !part.is_empty()) {
        let pair = part.split_once('=');
        let pair = pair.filter(|(name, amount)| !name.is_empty() && !amount.is_empty());
        let Some((name, amount)) = pair else {
            return Err(Problem::invalid(format!(
                "{field}: Invalid value: {part:?}: write NAME=AMOUNT, such as nvidia.com/gpu=8"
            )));
        };
        amounts.insert(name.to_owned(), amount.to_owned());
    }
    Ok(amounts)
}

/// The field's text for amounts.
pub fn write<'a>(amounts: impl IntoIterator<Item = (&'a str, &'a str)>) -> String {
    let pairs = amounts
        .into_iter()
        .map(|(name, amount)| format!("{name}={amount}"));
    pairs.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_read_as_they_are_written() {
        let read = |text: &str| read("quota", text);
        let amounts = read(" nvidia.com/gpu=8,pods=100\n cpu=64, ").unwrap();
        assert_eq!(amounts.len(), 3);
        let pairs = amounts
            .iter()
            .map(|(name, amount)| (name.as_str(), amount.as_str()));
        let text = write(pairs);
        assert_eq!(text, "cpu=64, nvidia.com/gpu=8, pods=100");
        assert_eq!(read(&text).unwrap(), amounts);
        for bad in ["8", "gpu=", "=8", "cpu=1, x"] {
            let problem = read(bad).unwrap_err();
            assert!(
                problem.detail().starts_with("quota: Invalid value: "),
                "{bad}"
            );
        }
        assert!(read(" , ").unwrap().is_empty());
    }
}
