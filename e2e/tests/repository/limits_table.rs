//! The table of web/docs/limits.md has the bounds of the code.

use e2e::repository;

/// The value of a number in the code or in the table of limits, in its unit or in milliseconds: `3 * 1024`, `1 <<
/// 20`, `Duration::from_secs(5)`, `64 KiB`, `5 s`.
fn amount(text: &str) -> Option<u64> {
    let text = text.trim();
    let within = |begin: &str| text.strip_prefix(begin)?.strip_suffix(')');
    if let Some(seconds) = within("Duration::from_secs(") {
        return amount(seconds)?.checked_mul(1000);
    }
    if let Some(milliseconds) = within("Duration::from_millis(") {
        return amount(milliseconds);
    }
    if let Some((number, by)) = text.split_once("<<") {
        return amount(number)?.checked_shl(u32::try_from(amount(by)?).ok()?);
    }
    if let Some((one, rest)) = text.split_once('*') {
        return amount(one)?.checked_mul(amount(rest)?);
    }
    // The numbers in a range.
    if let Some((first, last)) = text.split_once("..=") {
        return (amount(last)? + 1).checked_sub(amount(first)?);
    }
    let (number, unit) = text.split_once(' ').unwrap_or((text, ""));
    let unit = match unit {
        "" => 1,
        "s" => 1000,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        _ => return None,
    };
    let number: u64 = number.replace('_', "").parse().ok()?;
    number.checked_mul(unit)
}

/// The declared value of a constant.
fn declared<'a>(source: &'a str, name: &str) -> Option<&'a str> {
    let (_, declaration) = source.split_once(&format!("const {name}: "))?;
    let (_, value) = declaration.split_once('=')?;
    value.split(';').next()
}

#[test]
fn numbers_of_limits_are_read() {
    for (text, expected) in [
        ("3 * 1024 * 1024", Some(3 << 20)),
        ("1 << 33", Some(1 << 33)),
        ("1_572_864", Some(1_572_864)),
        ("Duration::from_secs(12 * 3600)", Some(43_200_000)),
        ("43200 s", Some(43_200_000)),
        ("64 KiB", Some(65_536)),
        ("12_000..=12_999", Some(1000)),
        ("half", None),
        ("5 apples", None),
    ] {
        assert_eq!(amount(text), expected, "{text}");
    }
}

#[test]
fn the_table_of_limits_says_what_the_code_has() {
    let table = std::fs::read_to_string(repository().join("web/docs/limits.md")).unwrap();
    let mut compared = 0;
    for line in table.lines() {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let [_, what, value, _, constant, _] = cells.as_slice() else {
            continue;
        };
        let Some((path, name)) = constant.split_once(' ') else {
            continue;
        };
        let (path, name) = (path.trim_matches('`'), name.trim_matches('`'));
        let path = match path.starts_with("cmd/") {
            true => repository().join(path),
            false => repository().join("internal").join(path),
        };
        let source = std::fs::read_to_string(&path);
        let source = source.unwrap_or_else(|error| panic!("{what}: {}: {error}", path.display()));
        let code = declared(&source, name);
        let code = code.unwrap_or_else(|| panic!("{what}: {name} is not in {}", path.display()));
        assert!(amount(code).is_some(), "{name}: {code:?} is not understood");
        assert_eq!(amount(value), amount(code), "{what}: {name} is {code}");
        compared += 1;
    }
    assert!(compared >= 50, "only {compared} rows were compared");
}
