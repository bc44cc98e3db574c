//! A pod's labels in compact form: there are a hundred thousand of them and they are rarely read.

use std::collections::BTreeMap;
use std::sync::Arc;

/// Separates keys and values; no label contains it.
const BETWEEN: char = '\u{1f}';

/// Labels in one string.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Labels(Option<Arc<str>>);

impl Labels {
    pub(crate) fn new(map: Option<&BTreeMap<String, String>>) -> Labels {
        let Some(map) = map.filter(|map| !map.is_empty()) else {
            return Labels(None);
        };
        let mut text = String::new();
        for (key, value) in map {
            text.push_str(key);
            text.push(BETWEEN);
            text.push_str(value);
            text.push(BETWEEN);
        }
        Labels(Some(Arc::from(text)))
    }

    pub(crate) fn map(&self) -> BTreeMap<String, String> {
        let mut words = self.0.as_deref().unwrap_or_default().split(BETWEEN);
        let mut map = BTreeMap::new();
        while let (Some(key), Some(value)) = (words.next(), words.next()) {
            map.insert(key.to_owned(), value.to_owned());
        }
        map
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_come_back_as_they_went_in() {
        let map: BTreeMap<String, String> = [("app", "train"), ("empty", ""), ("z", "1")]
            .map(|(k, v)| (k.to_owned(), v.to_owned()))
            .into();
        assert_eq!(Labels::new(Some(&map)).map(), map);
        assert!(Labels::new(None).map().is_empty());
    }
}
