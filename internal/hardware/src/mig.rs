//! MIG: the profiles of products, their placements in a GPU, and the remaining room. Pure. The
//! numbers are those that `nvidia-smi mig -lgip` and `-lgipp` print on such cards.

/// A GPU instance profile of one product.
#[derive(Debug, PartialEq, Eq)]
pub struct MigProfile {
    /// Its name, `1g.10gb`.
    pub name: &'static str,
    /// NVML's number for profiles of this shape (`NVML_GPU_INSTANCE_PROFILE_*`).
    pub shape: u32,
    /// The product's number for it.
    pub id: u32,
    /// Its slices of the GPU's seven.
    pub slices: u32,
    /// Its memory, MiB.
    pub memory_mib: u64,
    /// Its multiprocessors.
    pub multiprocessors: u32,
    /// Its copy engines.
    pub copiers: u32,
    /// Its video decoders.
    pub decoders: u32,
    /// Whether it has the GPU's engines for JPEG and optical flow.
    pub media: bool,
    /// The memory slices, of the GPU's eight, at which it can begin.
    pub starts: &'static [u32],
    /// Its size in memory slices.
    pub size: u32,
}

/// Memory slices of a GPU.
const MEMORY_SLICES: u32 = 8;

const ANY: &[u32] = &[0, 1, 2, 3, 4, 5, 6];
const PAIRS: &[u32] = &[0, 2, 4];
const EVEN: &[u32] = &[0, 2, 4, 6];
const HALVES: &[u32] = &[0, 4];
const WHOLE: &[u32] = &[0];

/// The values that the profiles of one shape share on all products.
const fn shaped(
    (name, memory_mib, multiprocessors): (&'static str, u64, u32),
    (shape, id, slices): (u32, u32, u32),
    (copiers, decoders, media): (u32, u32, bool),
    (starts, size): (&'static [u32], u32),
) -> MigProfile {
    MigProfile {
        name,
        shape,
        id,
        slices,
        memory_mib,
        multiprocessors,
        copiers,
        decoders,
        media,
        starts,
        size,
    }
}

static A100_40: [MigProfile; 7] = [
    shaped(("1g.5gb", 4864, 14), (0, 19, 1), (1, 0, false), (ANY, 1)),
    shaped(("1g.5gb+me", 4864, 14), (7, 20, 1), (1, 1, true), (ANY, 1)),
    shaped(("1g.10gb", 9984, 14), (9, 15, 1), (1, 1, false), (EVEN, 2)),
    shaped(("2g.10gb", 9984, 28), (1, 14, 2), (2, 1, false), (PAIRS, 2)),
    shaped(
        ("3g.20gb", 20_096, 42),
        (2, 9, 3),
        (3, 2, false),
        (HALVES, 4),
    ),
    shaped(
        ("4g.20gb", 20_096, 56),
        (3, 5, 4),
        (4, 2, false),
        (WHOLE, 4),
    ),
    shaped(("7g.40gb", 40_448, 98), (4, 0, 7), (7, 5, true), (WHOLE, 8)),
];

static A100_80: [MigProfile; 7] = [
    shaped(("1g.10gb", 9728, 14), (0, 19, 1), (1, 0, false), (ANY, 1)),
    shaped(("1g.10gb+me", 9728, 14), (7, 20, 1), (1, 1, true), (ANY, 1)),
    shaped(
        ("1g.20gb", 19_968, 14),
        (9, 15, 1),
        (1, 1, false),
        (EVEN, 2),
    ),
    shaped(
        ("2g.20gb", 19_968, 28),
        (1, 14, 2),
        (2, 1, false),
        (PAIRS, 2),
    ),
    shaped(
        ("3g.40gb", 40_192, 42),
        (2, 9, 3),
        (3, 2, false),
        (HALVES, 4),
    ),
    shaped(
        ("4g.40gb", 40_192, 56),
        (3, 5, 4),
        (4, 2, false),
        (WHOLE, 4),
    ),
    shaped(("7g.80gb", 80_640, 98), (4, 0, 7), (7, 5, true), (WHOLE, 8)),
];

static H100_80: [MigProfile; 7] = [
    shaped(("1g.10gb", 9984, 16), (0, 19, 1), (1, 1, false), (ANY, 1)),
    shaped(("1g.10gb+me", 9984, 16), (7, 20, 1), (1, 1, true), (ANY, 1)),
    shaped(
        ("1g.20gb", 20_096, 26),
        (9, 15, 1),
        (1, 1, false),
        (EVEN, 2),
    ),
    shaped(
        ("2g.20gb", 20_096, 32),
        (1, 14, 2),
        (2, 2, false),
        (PAIRS, 2),
    ),
    shaped(
        ("3g.40gb", 40_448, 60),
        (2, 9, 3),
        (3, 3, false),
        (HALVES, 4),
    ),
    shaped(
        ("4g.40gb", 40_448, 64),
        (3, 5, 4),
        (4, 4, false),
        (WHOLE, 4),
    ),
    shaped(
        ("7g.80gb", 81_152, 132),
        (4, 0, 7),
        (8, 7, true),
        (WHOLE, 8),
    ),
];

/// The profiles of a product; none if it does not support MIG, or is not known.
pub fn profiles(model: &str) -> &'static [MigProfile] {
    let mut words = model.split([' ', '-']);
    let has = |word: &str| model.split([' ', '-']).any(|other| other == word);
    match words.find(|word| ["A100", "H100"].contains(word)) {
        Some("A100") if has("80GB") => &A100_80,
        Some("A100") => &A100_40,
        Some("H100") if has("80GB") => &H100_80,
        _ => &[],
    }
}

/// The product's profile of this name.
pub fn profile(model: &str, name: &str) -> Option<&'static MigProfile> {
    profiles(model).iter().find(|profile| profile.name == name)
}

/// The memory of a slice in MiB: the product's value, or else the one in its name.
pub fn slice_mib(model: &str, name: &str) -> Option<u64> {
    let known = profile(model, name).map(|profile| profile.memory_mib);
    known.or_else(|| profile_mib(name))
}

/// Instances in a GPU: the profile and the first memory slice of each.
pub type Placed = Vec<(&'static MigProfile, u32)>;

impl MigProfile {
    /// The most instances of it in a GPU.
    pub fn most(&self) -> u32 {
        // A GPU has one set of media engines.
        if self.media {
            return 1;
        }
        u32::try_from(self.starts.len()).unwrap_or(u32::MAX)
    }

    /// Whether it can begin at `start` beside the placed instances.
    pub fn fits(&self, start: u32, placed: &[(&'static MigProfile, u32)]) -> bool {
        let own = start..start + self.size;
        let apart = |(other, at): &(&'static MigProfile, u32)| {
            own.end <= *at || at + other.size <= own.start
        };
        let media = placed.iter().any(|(other, _)| other.media);
        self.starts.contains(&start)
            && own.end <= MEMORY_SLICES
            && placed.iter().all(apart)
            && !(self.media && media)
    }

    /// The first position at which it can begin.
    pub fn first(&self, placed: &[(&'static MigProfile, u32)]) -> Option<u32> {
        let mut starts = self.starts.iter().copied();
        starts.find(|start| self.fits(*start, placed))
    }

    /// How many more instances fit beside the placed ones.
    pub fn room(&'static self, placed: &[(&'static MigProfile, u32)]) -> u32 {
        let mut all = placed.to_vec();
        let mut count = 0;
        while let Some(start) = self.first(&all) {
            all.push((self, start));
            count += 1;
        }
        count
    }
}

/// Places profiles in order, each at its first free position. Fails with the first profile that
/// has none.
pub fn place(profiles: &[&'static MigProfile]) -> Result<Placed, &'static MigProfile> {
    let mut placed: Placed = Vec::new();
    for profile in profiles {
        let start = profile.first(&placed).ok_or(*profile)?;
        placed.push((profile, start));
    }
    Ok(placed)
}

/// The memory in MiB in a profile's name: `1g.10gb`, `1g.10gb+me`.
pub fn profile_mib(profile: &str) -> Option<u64> {
    let (parts, rest) = profile.split_once("g.")?;
    let (gigabytes, more) = rest.split_once("gb")?;
    let good = more.is_empty() || more.starts_with('+');
    let parts: u64 = parts.parse().ok()?;
    let gigabytes: u64 = gigabytes.parse().ok()?;
    (good && parts > 0 && gigabytes > 0).then_some(gigabytes << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    const H100: &str = "NVIDIA H100 80GB HBM3";

    fn of(names: &[&str]) -> Vec<&'static MigProfile> {
        let found = names.iter().map(|name| profile(H100, name));
        found.map(|profile| profile.expect("a profile")).collect()
    }

    #[test]
    fn products_are_told_apart_by_name_and_memory() {
        assert_eq!(profiles("NVIDIA A100-SXM4-40GB")[0].name, "1g.5gb");
        assert_eq!(profiles("NVIDIA A100-SXM4-80GB")[0].memory_mib, 9728);
        assert_eq!(profiles(H100)[0].memory_mib, 9984);
        assert!(profiles("NVIDIA L4").is_empty());
        assert_eq!(slice_mib("NVIDIA L4", "1g.6gb"), Some(6144));
    }

    #[test]
    fn as_many_of_each_fit_as_the_driver_says() {
        let most: Vec<(&str, u32)> = (profiles(H100).iter())
            .map(|profile| (profile.name, profile.room(&[])))
            .collect();
        let expected = [
            ("1g.10gb", 7),
            ("1g.10gb+me", 1),
            ("1g.20gb", 4),
            ("2g.20gb", 3),
            ("3g.40gb", 2),
            ("4g.40gb", 1),
            ("7g.80gb", 1),
        ];
        assert_eq!(most, expected);
        assert!(profiles(H100).iter().all(|it| it.most() == it.room(&[])));
    }

    #[test]
    fn profiles_lie_beside_each_other_or_do_not_fit() {
        let starts = |names: &[&str]| -> Result<Vec<u32>, &str> {
            let placed = place(&of(names)).map_err(|profile| profile.name)?;
            Ok(placed.iter().map(|(_, start)| *start).collect())
        };
        assert_eq!(starts(&["4g.40gb", "3g.40gb"]), Ok(vec![0, 4]));
        assert_eq!(
            starts(&["3g.40gb", "2g.20gb", "1g.10gb"]),
            Ok(vec![0, 4, 6])
        );
        assert_eq!(starts(&["3g.40gb", "4g.40gb"]), Err("4g.40gb"));
        assert_eq!(starts(&["7g.80gb", "1g.10gb"]), Err("1g.10gb"));
        assert_eq!(starts(&["1g.10gb+me", "1g.10gb+me"]), Err("1g.10gb+me"));
    }
}
