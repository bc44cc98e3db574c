//! Volcano's Queue: the same kind, except fields without effect here.

use serde_json::Value;

use super::{Fields, Mapped, MappingError, name_of};
use crate::kinds::Queue;

pub(super) fn read(object: &Value, mapped: &mut Mapped) -> Result<(), MappingError> {
    let name = name_of(object);
    let mut object = object.clone();
    if object["spec"].is_null() {
        object["spec"] = Value::Object(serde_json::Map::new());
    }
    let spec = Fields::of(&name, "spec", &object["spec"]);
    for key in ["capability", "deserved", "guaranteed"] {
        spec.list(key)?;
    }
    spec.inner("guarantee").list("resource")?;
    for key in ["weight", "reclaimable", "parent", "priority"] {
        spec.get(key);
    }
    if spec.word("dequeueStrategy") == Some("fifo") {
        spec.warn(
            "dequeueStrategy",
            "the head of a queue does not block the gangs behind it; a reservation protects it",
            &mut mapped.warnings,
        );
    }
    spec.rest(&mut mapped.warnings);
    let wrong = |error: serde_json::Error| spec.wrong("", error.to_string(), WANTED.to_owned());
    let queue: Queue = serde_json::from_value(object.clone()).map_err(wrong)?;
    mapped.queues.push(queue);
    Ok(())
}

const WANTED: &str = "the fields as scheduling.volcano.sh/v1beta1 has them";
