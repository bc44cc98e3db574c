//! For whom work runs: whoever makes it, unless an administrator says another. Queues bound what one user
//! holds by it (`muster.io/user-limit`), so nobody may say what he likes.

use serde_json::{Map, Value};

use crate::access::{Caller, Role};
use crate::names::USER;

/// The kinds of what runs for somebody; what is made of them says the same.
pub const OWNED: [&str; 4] = ["Pod", "PodGroup", "PyTorchJob", "Job"];

/// Somebody says that work runs for somebody else.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "metadata.annotations[{USER}] {said:?}: work runs for whoever makes it; leave it out or say {caller:?}, or have an administrator say another"
)]
pub struct NotYours {
    /// For whom it is said to run.
    pub said: String,
    /// Who says so.
    pub caller: String,
}

/// Settles for whom an object of one of these kinds runs, by its annotation (or, where it has none, its
/// label) `muster.io/user`: a new one that doesn't say runs for its maker, and one that is written again
/// without it for whom it did. What parts of Muster make says already for whom.
///
/// # Errors
/// When somebody who is no administrator says that it runs for another.
pub fn owner(caller: &Caller, object: &mut Value, live: Option<&Value>) -> Result<(), NotYours> {
    if matches!(caller.role, Role::Component | Role::Node) {
        return Ok(());
    }
    let before = live.and_then(said);
    let Some(now) = said(object) else {
        let mine = live.is_none().then(|| caller.user.clone());
        if let Some(user) = before.or(mine) {
            note(object, user);
        }
        return Ok(());
    };
    let may = caller.role == Role::Admin || now == caller.user || before.as_ref() == Some(&now);
    may.then_some(()).ok_or_else(|| NotYours {
        said: now,
        caller: caller.user.clone(),
    })
}

fn said(object: &Value) -> Option<String> {
    let metadata = &object["metadata"];
    let value = |of: &str| metadata[of].get(USER).and_then(Value::as_str);
    let found = value("annotations").or_else(|| value("labels"));
    found.map(str::to_owned)
}

fn note(object: &mut Value, user: String) {
    let annotations = &mut object["metadata"]["annotations"];
    match annotations {
        Value::Object(all) => {
            all.insert(USER.to_owned(), user.into());
        }
        empty => *empty = Map::from_iter([(USER.to_owned(), user.into())]).into(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn caller(user: &str, role: Role) -> Caller {
        Caller {
            user: user.to_owned(),
            groups: Vec::new(),
            role,
            namespaces: None,
        }
    }

    fn object(annotations: Value, labels: Value) -> Value {
        json!({"metadata": {"name": "o", "annotations": annotations, "labels": labels}})
    }

    #[test]
    fn work_runs_for_whoever_makes_it_unless_an_administrator_says_another() {
        let (ann, bob) = (json!({USER: "ann"}), json!({USER: "bob"}));
        let none = Value::Null;
        let table = [
            (Role::Member, &none, &none, Ok(Some("ann"))),
            (Role::Lead, &ann, &none, Ok(Some("ann"))),
            (Role::Member, &none, &ann, Ok(None)),
            (Role::Member, &bob, &none, Err("bob")),
            (Role::Lead, &none, &bob, Err("bob")),
            // The annotation is what counts, where there are both.
            (Role::Member, &ann, &bob, Ok(Some("ann"))),
            (Role::Admin, &none, &none, Ok(Some("ann"))),
            (Role::Admin, &bob, &none, Ok(Some("bob"))),
            (Role::Component, &none, &none, Ok(None)),
            (Role::Component, &bob, &none, Ok(Some("bob"))),
        ];
        for (role, annotations, labels, want) in table {
            let mut made = object(annotations.clone(), labels.clone());
            let got = owner(&caller("ann", role), &mut made, None);
            let got = got.map_err(|error| error.said);
            let note = made["metadata"]["annotations"][USER].as_str();
            let want = want.map_err(str::to_owned);
            assert_eq!(got.map(|()| note), want, "{role:?} {annotations} {labels}");
        }
    }

    #[test]
    fn whom_work_runs_for_is_kept_and_is_not_handed_on() {
        let live = object(json!({USER: "bob"}), Value::Null);
        let member = caller("ann", Role::Member);
        let mut without = object(json!({"other": "x"}), Value::Null);
        owner(&member, &mut without, Some(&live)).unwrap();
        assert_eq!(without["metadata"]["annotations"][USER], "bob");
        assert_eq!(without["metadata"]["annotations"]["other"], "x");
        let mut same = live.clone();
        assert_eq!(owner(&member, &mut same, Some(&live)), Ok(()));
        let mut another = object(json!({USER: "carol"}), Value::Null);
        let error = owner(&member, &mut another, Some(&live)).unwrap_err();
        assert_eq!(
            error.to_string(),
            "metadata.annotations[muster.io/user] \"carol\": work runs for whoever makes it; leave it out or say \"ann\", or have an administrator say another"
        );
        // What was there before anybody asked says nothing, and goes on so.
        let mut old = object(Value::Null, Value::Null);
        owner(&member, &mut old, Some(&object(Value::Null, Value::Null))).unwrap();
        assert!(old["metadata"]["annotations"].is_null());
    }
}
