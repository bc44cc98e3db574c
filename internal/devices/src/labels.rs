//! The node's labels about its GPUs: those of NVIDIA's GPU Feature Discovery, with its names and
//! spelling, so that selectors and affinities written for it work. Pure. A value that is unknown,
//! or differs between the machine's GPUs, has no label.
//!
//! One label says less than theirs: `vgpu.present` is false, because guests of NVIDIA's virtual
//! GPUs are not detected.

use std::collections::{BTreeMap, BTreeSet};

use hardware::{Gpu, Inventory, MigDevice, mig};
use resources::devices::{MIG_MIXED, MIG_NONE, MIG_SINGLE};
use resources::names::{NVIDIA_GPU, NVIDIA_MIG};

use crate::sharing::{Sharing, SharingStrategy};

/// The prefix of all labels.
const DOMAIN: &str = "nvidia.com/";
/// The maximum length of a label's value.
const LONGEST: usize = 63;

/// The labels of a node, by name.
pub type NodeLabels = BTreeMap<String, String>;

struct WrittenLabels(NodeLabels);

impl WrittenLabels {
    /// A value that is invalid in a label is left out.
    fn put(&mut self, name: &str, value: impl ToString) {
        let value = value.to_string();
        let end = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
        let inner = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        let good = value.len() <= LONGEST
            && end(value.chars().next())
            && end(value.chars().next_back())
            && value.chars().all(inner);
        if good {
            self.0.insert(format!("{DOMAIN}{name}"), value);
        }
    }
}

/// The labels of a machine, whose agent started at `since` (seconds since 1970). Empty if it has no
/// GPUs.
pub fn of(found: &Inventory, sharing: &Sharing, since: i64) -> NodeLabels {
    let mut labels = WrittenLabels(NodeLabels::new());
    let Some(first) = found.gpus.first() else {
        return labels.0;
    };
    labels.put("gfd.timestamp", since);
    labels.put("gpu.machine", plain(&found.product));
    driver(&mut labels, &first.driver);
    runtime(&mut labels, &found.cuda);
    labels.put("vgpu.present", false);
    labels.put("mps.capable", sharing.strategy == SharingStrategy::Mps);
    let capable = |gpu: &Gpu| gpu.slices.is_some() || !mig::profiles(&gpu.model).is_empty();
    labels.put("mig.capable", found.gpus.iter().any(capable));
    if let Some(clique) = same(&found.gpus, |gpu| gpu.clique.clone()) {
        labels.put("gpu.clique", clique);
    }
    if let Some(mode) = same(&found.gpus, |gpu| gpu.mode.clone()) {
        labels.put("gpu.mode", mode);
    }
    let strategy = match found.mig_strategy.as_str() {
        MIG_NONE => MIG_NONE,
        MIG_SINGLE => MIG_SINGLE,
        _ => MIG_MIXED,
    };
    let cut: Vec<(&Gpu, &MigDevice)> = (found.gpus.iter())
        .flat_map(|gpu| gpu.slices.iter().flatten().map(move |slice| (gpu, slice)))
        .collect();
    if strategy != MIG_NONE {
        labels.put("mig.strategy", strategy);
    }
    let profiles: BTreeSet<&str> = cut
        .iter()
        .map(|(_, slice)| slice.profile.as_str())
        .collect();
    let whole: Vec<&Gpu> = (found.gpus.iter())
        .filter(|gpu| strategy == MIG_NONE || gpu.slices.is_none())
        .collect();
    let single = strategy == MIG_SINGLE && whole.is_empty();
    match (single, profiles.len()) {
        // Every GPU is partitioned into slices of one profile: a slice counts as the GPU.
        (true, 1) => {
            let model = model(found);
            sliced(
                &mut labels,
                "gpu",
                NVIDIA_GPU,
                &cut,
                sharing,
                model.as_deref(),
            );
            generation(&mut labels, &found.gpus.iter().collect::<Vec<_>>());
            return labels.0;
        }
        (true, _) => {
            if let Some(model) = model(found) {
                labels.put("gpu.product", format!("{model}-MIG-INVALID"));
            }
            labels.put("gpu.count", 0);
            labels.put("gpu.replicas", 0);
        }
        (false, _) => gpus(&mut labels, &whole, sharing),
    }
    if strategy != MIG_NONE {
        for profile in profiles {
            let of_it: Vec<(&Gpu, &MigDevice)> = (cut.iter())
                .filter(|(_, slice)| slice.profile == profile)
                .copied()
                .collect();
            // Names of labels can't contain the `+` of `1g.10gb+me`.
            let profile = profile.replace('+', ".");
            let (prefix, resource) = (format!("mig-{profile}"), format!("{NVIDIA_MIG}{profile}"));
            let model = model(found);
            sliced(
                &mut labels,
                &prefix,
                &resource,
                &of_it,
                sharing,
                model.as_deref(),
            );
        }
    }
    labels.0
}

fn driver(labels: &mut WrittenLabels, version: &str) {
    let mut parts = version.splitn(3, '.');
    for (old, new) in [
        ("cuda.driver.major", "cuda.driver-version.major"),
        ("cuda.driver.minor", "cuda.driver-version.minor"),
        ("cuda.driver.rev", "cuda.driver-version.revision"),
    ] {
        if let Some(part) = parts.next() {
            labels.put(old, part);
            labels.put(new, part);
        }
    }
    labels.put("cuda.driver-version.full", version);
}

fn runtime(labels: &mut WrittenLabels, version: &str) {
    if let Some((major, minor)) = version.split_once('.') {
        for (name, part) in [("major", major), ("minor", minor)] {
            labels.put(&format!("cuda.runtime.{name}"), part);
            labels.put(&format!("cuda.runtime-version.{name}"), part);
        }
        labels.put("cuda.runtime-version.full", version);
    }
}

/// GPUs that are offered whole.
fn gpus(labels: &mut WrittenLabels, whole: &[&Gpu], sharing: &Sharing) {
    labels.put("gpu.count", whole.len());
    let shared = replicas(labels, "gpu", NVIDIA_GPU, sharing);
    if let Some(product) = same(whole.iter().copied(), |gpu| plain(&gpu.model)) {
        labels.put("gpu.product", format!("{product}{shared}"));
    }
    if let Some(memory) = same(whole.iter().copied(), |gpu| gpu.memory_mib) {
        labels.put("gpu.memory", memory);
    }
    generation(labels, whole);
}

/// The common values of GPUs of one kind.
fn generation(labels: &mut WrittenLabels, gpus: &[&Gpu]) {
    let Some(capability) = same(gpus.iter().copied(), |gpu| gpu.compute_capability.clone()) else {
        return;
    };
    let Some((major, minor)) = capability.split_once('.') else {
        return;
    };
    labels.put("gpu.compute.major", major);
    labels.put("gpu.compute.minor", minor);
    labels.put("gpu.family", family(major, minor));
}

/// The architecture's name for a compute capability; empty if unknown.
pub fn family(major: &str, minor: &str) -> &'static str {
    match (major, minor) {
        ("3", _) => "kepler",
        ("5", _) => "maxwell",
        ("6", _) => "pascal",
        ("7", "5") => "turing",
        ("7", _) => "volta",
        ("8", "9") => "ada-lovelace",
        ("8", _) => "ampere",
        ("9", _) => "hopper",
        ("10" | "12", _) => "blackwell",
        _ => "",
    }
}

/// Slices of one profile, under a prefix.
fn sliced(
    labels: &mut WrittenLabels,
    prefix: &str,
    resource: &str,
    slices: &[(&Gpu, &MigDevice)],
    sharing: &Sharing,
    model: Option<&str>,
) {
    let Some((gpu, slice)) = slices.first() else {
        return;
    };
    labels.put(&format!("{prefix}.count"), slices.len());
    let shared = replicas(labels, prefix, resource, sharing);
    let profile = slice.profile.replace('+', ".");
    if let Some(model) = model {
        labels.put(
            &format!("{prefix}.product"),
            format!("{model}-MIG-{profile}{shared}"),
        );
    }
    labels.put(&format!("{prefix}.memory"), slice.memory_mib);
    let Some(known) = mig::profile(&gpu.model, &slice.profile) else {
        return;
    };
    let media = u32::from(known.media);
    for (name, value) in [
        ("multiprocessors", known.multiprocessors),
        ("slices.gi", known.slices),
        ("slices.ci", known.slices),
        ("engines.copy", known.copiers),
        ("engines.decoder", known.decoders),
        // No GPU with MIG encodes video.
        ("engines.encoder", 0),
        ("engines.jpeg", media),
        ("engines.ofa", media),
    ] {
        labels.put(&format!("{prefix}.{name}"), value);
    }
}

/// The number of replicas of each device of a resource; returns the suffix of the product's name
/// for that.
fn replicas(
    labels: &mut WrittenLabels,
    prefix: &str,
    resource: &str,
    sharing: &Sharing,
) -> &'static str {
    let shared = sharing.resources.iter().find(|one| one.name == resource);
    let count = shared.map_or(1, |one| one.replicas);
    labels.put(&format!("{prefix}.replicas"), count);
    // With MPS a GPU may also be offered in parts without a fixed number.
    let by_mps = shared.is_some() && sharing.strategy == SharingStrategy::Mps;
    let strategy = if count > 1 || by_mps {
        sharing.strategy.label()
    } else {
        "none"
    };
    labels.put(&format!("{prefix}.sharing-strategy"), strategy);
    let renamed = shared.is_some_and(|one| one.rename.is_some()) || sharing.rename_by_default;
    if count > 1 && !renamed { "-SHARED" } else { "" }
}

/// The product of all GPUs, if they have only one.
fn model(found: &Inventory) -> Option<String> {
    same(&found.gpus, |gpu| plain(&gpu.model))
}

/// The common value of all GPUs, if they have one.
fn same<'a, T: PartialEq>(
    gpus: impl IntoIterator<Item = &'a Gpu>,
    value: impl Fn(&Gpu) -> T,
) -> Option<T> {
    let mut gpus = gpus.into_iter();
    let first = value(gpus.next()?);
    gpus.all(|gpu| value(gpu) == first).then_some(first)
}

/// A name as a label's value: without invalid characters, words joined by `-`.
fn plain(name: &str) -> String {
    let kept = |c: &char| c.is_ascii_alphanumeric() || "-_. ".contains(*c);
    let kept: String = name.chars().filter(kept).collect();
    kept.split_whitespace().collect::<Vec<_>>().join("-")
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use hardware::description::MachineDescription;

    use super::*;
    use crate::sharing::Replicated;

    fn labels(machine: &str, sharing: &Sharing) -> NodeLabels {
        let text = format!("[machine]\ndriver = \"550.54.15\"\ncuda = \"12.4\"\n{machine}");
        let mut inventory = Inventory {
            product: "DGXH100 (rev. 2)".into(),
            ..Inventory::default()
        };
        let description = MachineDescription::parse(&text, Path::new("m.toml"));
        description.expect("a machine").apply(&mut inventory);
        of(&inventory, sharing, 1_700_000_000)
    }

    const H100: &str = "[[gpu]]\nmodel = \"NVIDIA H100 80GB HBM3\"\nmemory_mib = 81559\ncompute_capability = \"9.0\"\n";

    fn value<'a>(labels: &'a NodeLabels, name: &str) -> Option<&'a str> {
        labels
            .get(&format!("nvidia.com/{name}"))
            .map(String::as_str)
    }

    #[test]
    fn a_machine_of_whole_gpus_has_every_label_that_feature_discovery_writes() {
        let labels = labels(&format!("{H100}count = 8\n"), &Sharing::default());
        let expected = [
            ("cuda.driver-version.full", "550.54.15"),
            ("cuda.driver-version.major", "550"),
            ("cuda.driver-version.minor", "54"),
            ("cuda.driver-version.revision", "15"),
            ("cuda.driver.major", "550"),
            ("cuda.driver.minor", "54"),
            ("cuda.driver.rev", "15"),
            ("cuda.runtime-version.full", "12.4"),
            ("cuda.runtime-version.major", "12"),
            ("cuda.runtime-version.minor", "4"),
            ("cuda.runtime.major", "12"),
            ("cuda.runtime.minor", "4"),
            ("gfd.timestamp", "1700000000"),
            ("gpu.compute.major", "9"),
            ("gpu.compute.minor", "0"),
            ("gpu.count", "8"),
            ("gpu.family", "hopper"),
            ("gpu.machine", "DGXH100-rev.-2"),
            ("gpu.memory", "81559"),
            ("gpu.product", "NVIDIA-H100-80GB-HBM3"),
            ("gpu.replicas", "1"),
            ("gpu.sharing-strategy", "none"),
            ("mig.capable", "true"),
            ("mig.strategy", "mixed"),
            ("mps.capable", "false"),
            ("vgpu.present", "false"),
        ];
        let found: Vec<(&str, &str)> = (labels.iter())
            .map(|(name, value)| (name.trim_start_matches("nvidia.com/"), value.as_str()))
            .collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn shared_gpus_say_so_in_their_products_name_unless_their_resource_has_another() {
        let mut sharing = Sharing {
            resources: vec![Replicated {
                name: NVIDIA_GPU.into(),
                replicas: 4,
                ..Replicated::default()
            }],
            ..Sharing::default()
        };
        let shared = labels(H100, &sharing);
        assert_eq!(
            value(&shared, "gpu.product"),
            Some("NVIDIA-H100-80GB-HBM3-SHARED")
        );
        assert_eq!(value(&shared, "gpu.replicas"), Some("4"));
        assert_eq!(value(&shared, "gpu.sharing-strategy"), Some("time-slicing"));
        sharing.rename_by_default = true;
        let renamed = labels(H100, &sharing);
        assert_eq!(
            value(&renamed, "gpu.product"),
            Some("NVIDIA-H100-80GB-HBM3")
        );
    }

    #[test]
    fn slices_have_labels_of_their_own_or_are_the_gpus_as_the_strategy_says() {
        let cut = |strategy: &str, slices: &str| {
            labels(
                &format!("mig_strategy = \"{strategy}\"\n{H100}mig = {slices}\n"),
                &Sharing::default(),
            )
        };
        let mixed = cut("mixed", r#"["1g.10gb", "1g.10gb", "1g.10gb+me"]"#);
        assert_eq!(value(&mixed, "gpu.count"), Some("0"));
        assert_eq!(value(&mixed, "mig-1g.10gb.count"), Some("2"));
        assert_eq!(
            value(&mixed, "mig-1g.10gb.product"),
            Some("NVIDIA-H100-80GB-HBM3-MIG-1g.10gb")
        );
        assert_eq!(value(&mixed, "mig-1g.10gb.multiprocessors"), Some("16"));
        assert_eq!(value(&mixed, "mig-1g.10gb.engines.copy"), Some("1"));
        assert_eq!(value(&mixed, "mig-1g.10gb.me.engines.jpeg"), Some("1"));
        let single = cut("single", r#"["3g.40gb", "3g.40gb"]"#);
        assert_eq!(value(&single, "gpu.count"), Some("2"));
        assert_eq!(
            value(&single, "gpu.product"),
            Some("NVIDIA-H100-80GB-HBM3-MIG-3g.40gb")
        );
        assert_eq!(value(&single, "gpu.memory"), Some("40448"));
        assert_eq!(value(&single, "gpu.slices.gi"), Some("3"));
        assert_eq!(value(&single, "gpu.family"), Some("hopper"));
        let invalid = cut("single", r#"["3g.40gb", "1g.10gb"]"#);
        assert_eq!(
            value(&invalid, "gpu.product"),
            Some("NVIDIA-H100-80GB-HBM3-MIG-INVALID")
        );
        assert_eq!(value(&invalid, "gpu.count"), Some("0"));
        let none = cut("none", r#"["3g.40gb"]"#);
        assert_eq!(
            (value(&none, "gpu.count"), value(&none, "mig.strategy")),
            (Some("1"), None)
        );
    }

    #[test]
    fn a_value_that_differs_between_gpus_or_is_missing_has_no_label() {
        let l4 = "[[gpu]]\nmodel = \"NVIDIA L4\"\nmemory_mib = 23034\n";
        let two = labels(&format!("{H100}{l4}"), &Sharing::default());
        assert_eq!(value(&two, "gpu.count"), Some("2"));
        for name in ["gpu.product", "gpu.memory", "gpu.family", "gpu.clique"] {
            assert_eq!(value(&two, name), None, "{name}");
        }
        assert!(of(&Inventory::default(), &Sharing::default(), 1).is_empty());
    }
}
