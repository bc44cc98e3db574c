//! What tables share: ages, durations, the columns that every kind has.

use jiff::Timestamp;
use serde_json::Value;

use super::Column;
use crate::json;

/// The object's name.
pub(super) const NAME: Column = Column {
    name: "Name",
    type_: "string",
    format: "name",
    description: "Name must be unique within a namespace. Is required when creating resources, although some resources may allow a client to request the generation of an appropriate name automatically. Name is primarily intended for creation idempotence and configuration definition. Cannot be updated. More info: https://kubernetes.io/docs/concepts/overview/working-with-objects/names#names",
    priority: 0,
    value: |object, _| json::at(object, &["metadata", "name"]).clone(),
};

/// How long ago it was created.
pub(super) const AGE: Column = Column {
    name: "Age",
    type_: "string",
    format: "",
    description: "CreationTimestamp is a timestamp representing the server time when this object was created. It is not guaranteed to be set in happens-before order across separate operations. Clients may not set this value. It is represented in RFC3339 form and is in UTC.",
    priority: 0,
    value: |object, now| {
        Value::from(since(
            json::at(object, &["metadata", "creationTimestamp"]),
            now,
        ))
    },
};

/// Name and age only.
pub(super) const NAME_AND_AGE: &[Column] = &[NAME, AGE];

/// A column shown always.
pub(super) const fn column(
    name: &'static str,
    type_: &'static str,
    description: &'static str,
    value: fn(&Value, Timestamp) -> Value,
) -> Column {
    Column {
        name,
        type_,
        format: "",
        description,
        priority: 0,
        value,
    }
}

/// A column shown with `-o wide`.
pub(super) const fn wide(
    name: &'static str,
    type_: &'static str,
    description: &'static str,
    value: fn(&Value, Timestamp) -> Value,
) -> Column {
    Column {
        name,
        type_,
        format: "",
        description,
        priority: 1,
        value,
    }
}

/// How long ago a timestamp was, as kubectl prints it; `<unknown>` where there is none.
pub(super) fn since(timestamp: &Value, now: Timestamp) -> String {
    match instant(timestamp) {
        Some(then) => human_duration(now.as_second() - then.as_second()),
        None => "<unknown>".to_owned(),
    }
}

/// A timestamp of an object.
pub(super) fn instant(timestamp: &Value) -> Option<Timestamp> {
    timestamp.as_str()?.parse().ok()
}

/// Text, or `<none>` where it is empty.
pub(super) fn or_none(text: &str) -> Value {
    Value::from(if text.is_empty() { "<none>" } else { text })
}

/// Seconds as kubectl prints durations: `45s`, `3m20s`, `7d`, `2y10d`.
pub fn human_duration(seconds: i64) -> String {
    let with_rest = |big: i64, unit: char, rest: i64, rest_unit: char| {
        if rest == 0 {
            format!("{big}{unit}")
        } else {
            format!("{big}{unit}{rest}{rest_unit}")
        }
    };
    // Clocks differ a little: a second in the future is now.
    if seconds < -1 {
        return "<invalid>".to_owned();
    }
    let seconds = seconds.max(0);
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    if seconds < 120 {
        format!("{seconds}s")
    } else if minutes < 10 {
        with_rest(minutes, 'm', seconds % 60, 's')
    } else if minutes < 180 {
        format!("{minutes}m")
    } else if hours < 8 {
        with_rest(hours, 'h', minutes % 60, 'm')
    } else if hours < 48 {
        format!("{hours}h")
    } else if hours < 192 {
        with_rest(days, 'd', hours % 24, 'h')
    } else if days < 730 {
        format!("{days}d")
    } else if days < 8 * 365 {
        with_rest(days / 365, 'y', days % 365, 'd')
    } else {
        format!("{}y", days / 365)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_as_kubectl_prints_them() {
        let table = [
            (-5, "<invalid>"),
            (-1, "0s"),
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (125, "2m5s"),
            (600, "10m"),
            (10_799, "179m"),
            (10_800, "3h"),
            (10_860, "3h1m"),
            (28_800, "8h"),
            (172_799, "47h"),
            (172_800, "2d"),
            (180_000, "2d2h"),
            (691_200, "8d"),
            (63_072_000, "2y"),
            (63_158_400, "2y1d"),
            (315_360_000, "10y"),
        ];
        for (seconds, text) in table {
            assert_eq!(human_duration(seconds), text, "{seconds}");
        }
    }

    #[test]
    fn an_object_without_a_time_has_an_unknown_age() {
        assert_eq!(since(&Value::Null, Timestamp::UNIX_EPOCH), "<unknown>");
        assert_eq!(
            since(&Value::from("1970-01-01T00:00:00Z"), Timestamp::UNIX_EPOCH),
            "0s"
        );
    }
}
