//! Platforms, and which entry of an index serves one. containerd makes the same choice again from the stored index
//! whenever it creates a container, so the order here must be its own (its `platforms.Only`): any other manifest
//! would be fetched in vain.

use std::cmp::Reverse;
use std::collections::HashSet;
use std::fmt;
use std::ops::Range;

use oci_spec::image::{Arch, Os};

use super::descriptor::Descriptor;
use super::document::DocumentError;
use super::excerpt::excerpt;
use super::media_type::{self, Kind};

/// What an image runs on, in Go's names (`linux`, `amd64`), as an index or config gives it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Platform {
    /// Operating system.
    pub os: String,
    /// Processor architecture.
    pub architecture: String,
    /// Level of the architecture, `v7` of `arm`.
    pub variant: Option<String>,
    /// Version of the operating system. Plays no part in [`select`]: only Windows images are bound to one.
    pub os_version: Option<String>,
    /// What the image needs beyond the operating system itself.
    pub os_features: Vec<String>,
}

/// One entry of an index: a manifest or a further index, and what it is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexEntry {
    /// Where the entry points, or why that cannot be told: of interest only once the entry is selected.
    pub descriptor: Result<Descriptor, DocumentError>,
    /// What it runs on, if the index says so.
    pub platform: Option<Platform>,
    /// What it is, if the index says so; images rarely have one.
    pub artifact_type: Option<String>,
}

/// No entry of an index serves the platform.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoPlatform {
    /// What was looked for.
    pub wanted: String,
    /// What the index has images for, in its order, each once.
    pub offered: Vec<String>,
}

/// Marks what build tools put into an index beside the images, such as attestations; its value says what it is.
const REFERENCE_TYPE: &str = "vnd.docker.reference.type";
/// The rank of an entry without a platform: behind all that have one.
const LAST_RESORT: (usize, Reverse<usize>) = (usize::MAX, Reverse(0));
/// How many platforms an error lists. The largest official images have about ten; an index could have thousands.
const MAX_OFFERED: usize = 32;

impl Platform {
    /// The platform this program was built for and so runs on.
    pub fn host() -> Self {
        let architecture = Arch::default();
        let variant = match architecture {
            Arch::ARM64 => Some("v8"),
            // Kubernetes publishes node components for arm from v7 on.
            Arch::ARM => Some("v7"),
            _ => None,
        };
        Self {
            os: Os::default().to_string(),
            architecture: architecture.to_string(),
            variant: variant.map(str::to_owned),
            os_version: None,
            os_features: Vec::new(),
        }
    }
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = |name: &str| if name.is_empty() { "unknown".to_owned() } else { excerpt(name) };
        write!(f, "{}/{}", named(&self.os), named(&self.architecture))?;
        match &self.variant {
            Some(variant) if !variant.is_empty() => write!(f, "/{}", excerpt(variant)),
            _ => Ok(()),
        }
    }
}

impl IndexEntry {
    /// Whether this may be an image. Attestations and artifacts stand beside the images of many indexes.
    fn is_image(&self) -> bool {
        let is_unknown =
            self.platform.as_ref().is_some_and(|p| p.os == "unknown" && p.architecture == "unknown");
        !is_unknown && self.artifact().is_none()
    }

    /// What it says that it is, if that is neither an image nor a further index.
    pub fn artifact(&self) -> Option<&str> {
        let own = self.artifact_type.as_deref();
        let own = own.filter(|own| !own.is_empty() && media_type::kind(own) != Kind::Config);
        let descriptor = self.descriptor.as_ref().ok();
        let by_type = || {
            let media_type = descriptor?.media_type.as_str();
            (!matches!(media_type::kind(media_type), Kind::Index | Kind::Manifest)).then_some(media_type)
        };
        let reference = || descriptor?.annotations.get(REFERENCE_TYPE).map(String::as_str);
        own.or_else(by_type).or_else(reference)
    }
}

impl fmt::Display for NoPlatform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no image for platform {}: ", self.wanted)?;
        if self.offered.is_empty() {
            return f.write_str("the index offers no image at all");
        }
        let listed = &self.offered[..self.offered.len().min(MAX_OFFERED)];
        write!(f, "the index offers {}", listed.join(", "))?;
        match self.offered.len() - listed.len() {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

impl std::error::Error for NoPlatform {}

/// The entry that serves `wanted` best; among equals the first.
///
/// Entries that are no images or need an unknown feature are passed over. An architecture's levels are taken
/// downwards from the wanted one and never upwards: `arm/v7` also runs `v6` and `v5`, `amd64` also runs `386`, but
/// `amd64/v2` is not taken for plain `amd64` even where nothing else is there, since containerd would not find it and
/// the processor may not run it. The first entry without a platform is the last resort, to be [confirmed](confirm) by
/// its config.
pub fn select<'a>(entries: &'a [IndexEntry], wanted: &Platform) -> Result<&'a IndexEntry, NoPlatform> {
    best(entries, wanted, IndexEntry::is_image)
        .ok_or_else(|| NoPlatform { wanted: wanted.to_string(), offered: offered(entries) })
}

/// The entry that containerd takes for `selected`, if it is another: it does not tell an artifact from an image, and
/// so finds no image where an artifact serves the platform as well and stands before it.
pub fn shadow<'a>(
    entries: &'a [IndexEntry],
    wanted: &Platform,
    selected: &IndexEntry,
) -> Option<&'a IndexEntry> {
    best(entries, wanted, |_| true).filter(|taken| !std::ptr::eq(*taken, selected))
}

fn best<'a>(
    entries: &'a [IndexEntry],
    wanted: &Platform,
    fits: impl Fn(&IndexEntry) -> bool,
) -> Option<&'a IndexEntry> {
    let runnable = runnable(wanted);
    let ranked = entries.iter().filter(|entry| fits(entry)).filter_map(|entry| {
        let named = entry.platform.as_ref();
        let rank = named.map_or(Some(LAST_RESORT), |platform| rank(platform, wanted, &runnable));
        Some((rank?, entry))
    });
    ranked.min_by_key(|(rank, _)| *rank).map(|(_, entry)| entry)
}

/// Refuses the image of an entry without a platform if its config's platform does not serve `wanted`. Where the config
/// names no operating system, the wanted one is meant.
///
/// There is no second try: containerd takes the one entry that [`select`] takes, and then finds no image in the index
/// if that one does not fit, even where a later entry without a platform would.
pub fn confirm(of_config: &Platform, wanted: &Platform, entries: &[IndexEntry]) -> Result<(), NoPlatform> {
    if rank(of_config, wanted, &runnable(wanted)).is_some() {
        return Ok(());
    }
    let mut offered = offered(entries);
    offered.insert(0, format!("{of_config} in the first entry that names no platform"));
    Err(NoPlatform { wanted: wanted.to_string(), offered })
}

/// How well the platform serves, smaller is better; none if it does not.
fn rank(platform: &Platform, wanted: &Platform, runnable: &[Processor]) -> Option<(usize, Reverse<usize>)> {
    if os_name(&platform.os, wanted) != os_name(&wanted.os, wanted)
        || !platform.os_features.iter().all(|feature| wanted.os_features.contains(feature))
    {
        return None;
    }
    let processor = Processor::of(platform);
    let level = runnable.iter().position(|candidate| *candidate == processor)?;
    // A feature is in `wanted` because something here can use it, so its image goes before the plain one.
    Some((level, Reverse(platform.os_features.len())))
}

/// The operating system in lower case; where none is named, the wanted one is meant, as in containerd.
fn os_name(os: &str, wanted: &Platform) -> String {
    let os = if os.is_empty() { &wanted.os } else { os };
    match os.to_ascii_lowercase().as_str() {
        "macos" => "darwin".to_owned(),
        os => os.to_owned(),
    }
}

/// Architecture and level in the one spelling that compares equal.
#[derive(PartialEq, Eq)]
struct Processor {
    architecture: String,
    variant: String,
}

impl Processor {
    fn new(architecture: &str, variant: &str) -> Self {
        Self { architecture: architecture.to_owned(), variant: variant.to_owned() }
    }

    /// As containerd's `normalizeArch`: the base levels, amd64 `v1` and arm64 `v8`, are written without a variant,
    /// arm's `v7` with one.
    fn of(platform: &Platform) -> Self {
        let architecture = platform.architecture.to_ascii_lowercase();
        let variant = platform.variant.as_deref().unwrap_or_default().to_ascii_lowercase();
        match (architecture.as_str(), variant.as_str()) {
            ("i386", _) => Self::new("386", ""),
            ("x86_64" | "x86-64" | "amd64", "v1") => Self::new("amd64", ""),
            ("x86_64" | "x86-64", _) => Self::new("amd64", &variant),
            ("aarch64" | "arm64", "8" | "v8" | "v8.0") => Self::new("arm64", ""),
            ("aarch64", _) => Self::new("arm64", &variant),
            ("armhf", _) | ("arm", "" | "7") => Self::new("arm", "v7"),
            ("armel", _) => Self::new("arm", "v6"),
            ("arm", "5" | "6" | "8") => Self::new("arm", &format!("v{variant}")),
            _ => Self { architecture, variant },
        }
    }
}

/// Everything that a processor runs, best first. Newer arm64 levels come down to the base without the steps between.
fn runnable(wanted: &Platform) -> Vec<Processor> {
    let own = Processor::of(wanted);
    let level = own.variant.strip_prefix('v').and_then(|level| level.parse::<u8>().ok());
    let arm_levels =
        |levels: Range<u8>| levels.rev().map(|level| Processor::new("arm", &format!("v{level}")));
    let below: Vec<Processor> = match own.architecture.as_str() {
        "amd64" => (2..level.unwrap_or(1))
            .rev()
            .map(|level| Processor::new("amd64", &format!("v{level}")))
            .chain([Processor::new("amd64", ""), Processor::new("386", "")])
            .collect(),
        "arm64" => [Processor::new("arm64", "")].into_iter().chain(arm_levels(5..9)).collect(),
        "arm" => arm_levels(5..level.unwrap_or(5)).collect(),
        _ => Vec::new(),
    };
    [own].into_iter().chain(below).collect()
}

/// The platforms of all images in the index, each once.
fn offered(entries: &[IndexEntry]) -> Vec<String> {
    let mut seen = HashSet::new();
    entries
        .iter()
        .filter(|entry| entry.is_image())
        .filter_map(|entry| entry.platform.as_ref())
        .map(|platform| match platform.os_features.as_slice() {
            [] => platform.to_string(),
            features => format!("{platform} with {}", excerpt(&features.join("+"))),
        })
        .filter(|text| seen.insert(text.clone()))
        .collect()
}

#[cfg(test)]
mod tests;
