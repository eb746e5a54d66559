//! What the calls of `ImageService` cost on a node with many images: drayd's socket, and containerd's own, in turns on one
//! machine. Prints tables and writes them into the file that is named. Asserts no time.

mod calls;
mod document;

use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use drayd_proto::cri;
use drayd_tests::bed::Bed;
use drayd_tests::launch::{Launch, Launched};
use drayd_tests::peers::Release;
use drayd_tests::place::Place;
use drayd_tests::scripted::Scripted;
use drayd_tests::scripted::image::{Blob, CONFIG, Image, architecture};
use drayd_tests::usage;
use serde_json::json;
use tokio::task::JoinSet;

use calls::{Side, Sides};

const RELEASES: [Release; 2] = [Release::V1_7, Release::V2_1];
const IMAGES: usize = 1000;
/// Pulls at a time while the node is filled.
const FILLERS: usize = 8;
/// Calls of each kind and side, in blocks that take turns.
const BLOCKS: usize = 10;
/// Images that are pulled by several callers at once, and callers of each.
const CROWDED: usize = 20;
const CALLERS: usize = 5;
const CROWDS: usize = 3;
/// What kubelet's requests say of every pod, which has annotations even if nobody gave it any.
const ANNOTATION: (&str, &str) = ("kubernetes.io/config.source", "api");

#[tokio::main]
async fn main() -> ExitCode {
    match measured().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench-cri: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn measured() -> Result<()> {
    let file = std::env::args().nth(1);
    let mut text = format!(
        "{IMAGES} images of one small layer, three names each, on drayd's socket and on containerd's own in turns.\n\
         Times in milliseconds; *CPU* is that of drayd and containerd together, in milliseconds per call. Ratios are\n\
         drayd's number over containerd's. {}\n",
        document::machine()?
    );
    for release in RELEASES {
        let node = Node::start(release).await.with_context(|| format!("containerd {release}"))?;
        let section = node.measure().await.with_context(|| format!("containerd {release}"))?;
        write!(text, "\n### In front of containerd {release}\n\n{section}")?;
    }
    println!("{text}");
    file.map_or(Ok(()), |file| document::write(&file, "cri", &text))
}

/// A containerd with drayd in front of it.
struct Node {
    bed: Bed,
    drayd: Launched,
    registry: Scripted,
}

impl Node {
    async fn start(release: Release) -> Result<Self> {
        let id = format!("bench-cri-{}", release.to_string().replace('.', ""));
        Place::named(&id).clear()?;
        let bed = Bed::start(release, &id).await?;
        let registry = Scripted::start().await?;
        let hosts = bed.containerd.registry_configuration();
        let directory = hosts.join(registry.address());
        std::fs::create_dir_all(&directory)?;
        std::fs::write(directory.join("hosts.toml"), format!("server = \"{}\"\n", registry.url()))?;
        let mut launch = Launch::new(&bed.containerd.socket(), "bench-cri")?;
        launch.sections = format!("[registry]\nconfig_path = [\"{}\"]\n", hosts.display());
        let drayd = launch.start()?;
        Ok(Self { bed, drayd, registry })
    }

    fn sides(&self) -> Sides {
        Sides {
            clients: [self.drayd.cri(), self.bed.containerd.cri()],
            processes: [self.drayd.pid(), self.bed.containerd.pid()],
        }
    }

    async fn measure(&self) -> Result<String> {
        let sides = self.sides();
        let references = self.fill().await?;
        let mut table = calls::Table::default();

        let list = sides.measure(BLOCKS, 20, async |cri, _| {
            let images = cri.list().await?;
            ensure!(images.len() >= IMAGES, "{} images are listed", images.len());
            Ok(())
        });
        table.row("ListImages", &list.await?);
        let status = sides.measure(BLOCKS, 300, async |cri, call| {
            let image = Some(of_a_pod(&references[call * 7 % IMAGES]));
            let request = cri::ImageStatusRequest { image, verbose: false };
            let answer = cri.images.clone().image_status(request).await?.into_inner();
            ensure!(answer.image.is_some(), "an image is not there");
            Ok(())
        });
        table.row("ImageStatus", &status.await?);
        let usage = sides
            .measure(BLOCKS, 50, async |cri, _| cri.images_on_disk().await.map(drop).map_err(Into::into));
        table.row("ImageFsInfo", &usage.await?);
        let passed = sides.measure(BLOCKS, 300, async |cri, _| {
            let request = cri::VersionRequest::default();
            cri.runtime.clone().version(request).await.map(drop).map_err(Into::into)
        });
        table.row("Version, handed through by drayd", &passed.await?);

        let mut text = table.text();
        writeln!(text, "\n{}", self.crowds(&sides).await?)?;
        writeln!(text, "{}", self.memory().await?)?;
        Ok(text)
    }

    /// Has all images pulled.
    async fn fill(&self) -> Result<Vec<String>> {
        let base = Image::new("bench-cri", 1, 4)?;
        let mut references = Vec::with_capacity(IMAGES);
        let mut pulls = JoinSet::new();
        for number in 0..IMAGES {
            let image = sibling(&base, &format!("bench-cri/{number}"), number);
            image.serve(&self.registry);
            references.push(image.reference(&self.registry));
            let (cri, reference) = (self.drayd.cri(), image.reference(&self.registry));
            pulls.spawn(async move { cri.pull(&reference, None, None).await });
            if pulls.len() == FILLERS {
                pulls.join_next().await.context("no pull")???;
            }
        }
        while let Some(pulled) = pulls.join_next().await {
            pulled??;
        }
        Ok(references)
    }

    /// Many callers for a few images that are not there.
    async fn crowds(&self, sides: &Sides) -> Result<String> {
        let mut times: [Vec<Duration>; 2] = [Vec::new(), Vec::new()];
        for crowd in 0..2 * CROWDS {
            let side = [Side::Drayd, Side::Containerd][crowd % 2];
            let mut references = Vec::new();
            for number in 0..CROWDED {
                let image = Image::new(&format!("bench-crowd/{crowd}-{number}"), 2, 256)?;
                image.serve(&self.registry);
                references.push(image.reference(&self.registry));
            }
            let started = Instant::now();
            let mut pulls = JoinSet::new();
            for call in 0..CROWDED * CALLERS {
                let (cri, reference) = (sides.client(side).clone(), references[call % CROWDED].clone());
                pulls.spawn(async move { cri.pull(&reference, None, None).await });
            }
            while let Some(pulled) = pulls.join_next().await {
                pulled??;
            }
            times[crowd % 2].push(started.elapsed());
            for reference in references {
                sides.client(side).remove(&reference).await?;
            }
        }
        let [drayd, containerd] = times.map(|mut times| {
            times.sort();
            times[CROWDS / 2].as_secs_f64()
        });
        Ok(format!(
            "{} PullImage calls at once, {CALLERS} for each of {CROWDED} images of 512 KiB that are not there: \
             {drayd:.2} s, containerd {containerd:.2} s, ratio {:.2}.",
            CROWDED * CALLERS,
            drayd / containerd
        ))
    }

    /// What a drayd that has just started keeps of the images, beside one without any.
    async fn memory(&self) -> Result<String> {
        let full = self.resident("full", IMAGES).await?;
        self.bed.empty().await?;
        let empty = self.resident("empty", 0).await?;
        let each = full.saturating_sub(empty);
        Ok(format!(
            "Resident memory of a drayd that has listed them once: {full} KiB, {each} KiB more than without."
        ))
    }

    async fn resident(&self, name: &str, images: usize) -> Result<u64> {
        let drayd = Launch::new(&self.bed.containerd.socket(), name)?.start()?;
        let listed = drayd.cri().list().await?.len();
        ensure!(listed >= images, "{listed} images are listed");
        usage::memory(drayd.pid(), "VmRSS:")
    }
}

/// An image of the same layers with an ID of its own.
fn sibling(base: &Image, repository: &str, number: usize) -> Image {
    let config = json!({
        "architecture": architecture(), "os": "linux",
        "config": {"Cmd": ["/none"], "User": "1000", "Labels": {"number": number.to_string()}},
        "rootfs": {"type": "layers", "diff_ids": base.diff_ids},
    });
    let mut image = Image { repository: repository.to_owned(), ..base.clone() };
    image.config = Blob::json(CONFIG, &config);
    image.manifest = image.manifest_with(&image.config.descriptor());
    image
}

fn of_a_pod(reference: &str) -> cri::ImageSpec {
    let annotations = [ANNOTATION].map(|(key, value)| (key.to_owned(), value.to_owned())).into();
    cri::ImageSpec { image: reference.to_owned(), annotations, ..cri::ImageSpec::default() }
}
