//! What the names of MIG profiles say. Pure.

/// The memory in MiB that a profile's name says: `1g.10gb`, `1g.10gb+me`.
pub fn profile_mib(profile: &str) -> Option<u64> {
    let (parts, rest) = profile.split_once("g.")?;
    let (gigabytes, more) = rest.split_once("gb")?;
    let good = more.is_empty() || more.starts_with('+');
    let parts: u64 = parts.parse().ok()?;
    let gigabytes: u64 = gigabytes.parse().ok()?;
    (good && parts > 0 && gigabytes > 0).then_some(gigabytes << 10)
}
