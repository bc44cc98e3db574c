//! What a RayService says of itself in its conditions. Pure.

use serde_json::Value;

/// What only a RayService has among its conditions.
const OF_RAY_SERVICE: &str = "UpgradeInProgress";

/// Whether a RayService answers requests, what it waits for, and which cluster is about to take over; none for another
/// kind.
pub fn sentence(status: &Value) -> Option<String> {
    let conditions = status["conditions"].as_array()?;
    let of = |type_: &str| conditions.iter().find(|one| one["type"] == type_);
    let upgrade = of(OF_RAY_SERVICE)?;
    let upgrades = Some(upgrade).filter(|one| one["status"] == "True");
    let texts = [of("Ready"), upgrades].into_iter().flatten();
    let texts = texts.filter_map(|one| one["message"].as_str());
    let texts: Vec<&str> = texts.filter(|text| !text.is_empty()).collect();
    Some(texts.join(" "))
}
