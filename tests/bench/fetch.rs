//! What fetching costs: drayd, containerd's own client, and containerd itself, each pulling the same image from the same
//! scripted registry in turns on one machine. The client (`ctr`) writes to the content store as drayd does, through the
//! API; containerd's CRI is in the process that has the store. Prints a table and writes it into the file that is
//! named. Asserts no time.

mod document;
mod report;
mod spread;

use std::fs;
use std::process::{self, ExitCode};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use drayd_tests::bed::Bed;
use drayd_tests::cri::Cri;
use drayd_tests::ctr;
use drayd_tests::launch::{Launch, Launched};
use drayd_tests::layer::{LayerTar, Meta, noise};
use drayd_tests::link::Link;
use drayd_tests::peers::Release;
use drayd_tests::place::Place;
use drayd_tests::scripted::image::{Blob, Image};
use drayd_tests::scripted::{Authority, Scripted, Tls};
use drayd_tests::usage::processor_time;

use report::{Case, Puller, Sample};

const RELEASES: [Release; 2] = [Release::V1_7, Release::V2_1];
/// Of the whole image, in bytes: long enough for the window of a long link to open.
const SIZE: usize = 256 << 20;
const ROUNDS: usize = 3;
const DELAY: Duration = Duration::from_millis(50);
/// No new round after this: a machine that is slower gets fewer samples.
const LIMIT: Duration = Duration::from_secs(420);
/// Not compressed: what is measured is fetching, and writing files is the same work for all.
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";

#[tokio::main]
async fn main() -> ExitCode {
    match measured().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench-fetch: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// One containerd with drayd in front of it.
struct Node {
    release: Release,
    bed: Bed,
    drayd: Launched,
}

/// A way to the registry: `address` begins references.
struct Way {
    secure: bool,
    delayed: bool,
    address: String,
    /// Keeps the delay running.
    _link: Option<Link>,
}

/// Whether `BENCH_CASES` (`4-delay,4`, …; all without it) asks for a case.
fn is_wanted(delayed: bool, layers: usize) -> bool {
    let name = if delayed { format!("{layers}-delay") } else { layers.to_string() };
    std::env::var("BENCH_CASES").map_or(true, |wanted| wanted.split(',').any(|case| case == name))
}

async fn measured() -> Result<()> {
    // What was measured in part is printed and not written.
    let file = std::env::args().nth(1).filter(|_| std::env::var_os("BENCH_CASES").is_none());
    let authority = Authority::new("bench")?;
    let registries = [Scripted::start().await?, Scripted::start_tls(Tls::of(&authority)).await?];
    let images = [image(1)?, image(4)?];
    for image in &images {
        for registry in &registries {
            image.serve(registry);
        }
    }
    let mut ways = Vec::new();
    for (registry, secure) in registries.iter().zip([false, true]) {
        let link = Link::start(registry.address(), DELAY).await?;
        ways.push(Way { secure, delayed: false, address: registry.address().to_owned(), _link: None });
        ways.push(Way { secure, delayed: true, address: link.address().to_owned(), _link: Some(link) });
    }
    let mut nodes = Vec::new();
    for release in RELEASES {
        nodes.push(node(release, &ways, &authority).await?);
    }
    let mut samples = Vec::new();
    let begun = Instant::now();
    for round in 0..ROUNDS {
        if begun.elapsed() > LIMIT {
            eprintln!("bench-fetch: {LIMIT:?} are over after {round} rounds");
            break;
        }
        for way in &ways {
            for (image, layers) in images.iter().zip([1, 4]) {
                let case = Case { secure: way.secure, delayed: way.delayed, layers };
                if !is_wanted(way.delayed, layers) {
                    continue;
                }
                let registry = &registries[usize::from(way.secure)];
                for node in &nodes {
                    // Whoever is first finds the machine as the last one left it: each is first in turn.
                    let mut pullers = [Puller::Drayd, Puller::Client, Puller::Service];
                    let first = round % pullers.len();
                    pullers.rotate_left(first);
                    for puller in pullers {
                        let sample = pull(node, puller, registry, &way.address, image).await;
                        let sample =
                            sample.with_context(|| format!("{case:?} by {puller:?} on {}", node.release))?;
                        samples.push((case, node.release, puller, sample));
                    }
                }
            }
        }
    }
    let text = report::text(&samples, SIZE, DELAY)?;
    println!("{text}");
    file.map_or(Ok(()), |file| document::write(&file, "fetch", &text))
}

async fn node(release: Release, ways: &[Way], authority: &Authority) -> Result<Node> {
    let id = format!("bench-{}-{}", release.to_string().replace('.', ""), process::id());
    Place::named(&id).clear()?;
    let bed = Bed::start(release, &id).await?;
    let hosts = bed.containerd.registry_configuration();
    let ca = bed.run().join("bench-ca.pem");
    fs::write(&ca, authority.pem())?;
    for way in ways {
        let directory = hosts.join(&way.address);
        fs::create_dir_all(&directory)?;
        let text = if way.secure {
            format!("server = \"https://{}\"\nca = \"{}\"\n", way.address, ca.display())
        } else {
            format!("server = \"http://{}\"\n", way.address)
        };
        fs::write(directory.join("hosts.toml"), text)?;
    }
    let mut launch = Launch::new(&bed.containerd.socket(), "bench")?;
    // Four layers at once, as the client fetches them; and files by containerd, as for the others.
    launch.sections = format!(
        "[registry]\nconfig_path = [\"{}\"]\n[pull]\nmax_concurrent_downloads = 4\n[unpack]\nengine = \"differ\"\n",
        hosts.display()
    );
    let drayd = launch.start()?;
    let node = Node { release, bed, drayd };
    let warm = node.bed.images.busybox.reference(node.bed.registry.address());
    for cri in [node.drayd.cri(), node.bed.containerd.cri()] {
        cri.pull(&warm, None, None).await.context("the first pull")?;
        node.bed.empty().await?;
    }
    Ok(node)
}

/// An image of this many layers of noise, [`SIZE`] bytes in all.
fn image(layers: usize) -> Result<Image> {
    let mut image = Image::new(&format!("bench-{layers}"), layers, 1)?;
    for (number, layer) in image.layers.iter_mut().enumerate() {
        let mut tar = LayerTar::default();
        let content = noise(number as u64 * 1009 + layers as u64, SIZE / layers);
        tar.file(&format!("file{number}"), &Meta::mode(0o644), &content)?;
        *layer = Blob::new(LAYER, tar.finish()?);
    }
    image.diff_ids = image.layers.iter().map(|layer| layer.digest.clone()).collect();
    image.config = drayd_tests::scripted::image::config(&image.diff_ids);
    image.manifest = image.manifest_with(&image.config.descriptor());
    Ok(image)
}

/// Pulls onto a node without the image, and takes it away again.
async fn pull(
    node: &Node,
    puller: Puller,
    registry: &Scripted,
    address: &str,
    image: &Image,
) -> Result<Sample> {
    let reference = format!("{address}/{}:1", image.repository);
    // All that have a part in any pull: containerd's store does the writing of the others.
    let processor = || {
        let [drayd, containerd] = [node.drayd.pid(), node.bed.containerd.pid()].map(processor_time);
        Ok::<_, anyhow::Error>(drayd?.own + containerd?.own + processor_time(process::id())?.children)
    };
    registry.take_blob_span();
    let before = processor()?;
    let started = Instant::now();
    match puller {
        Puller::Drayd => pull_by_cri(&node.drayd.cri(), &reference, image).await,
        Puller::Service => pull_by_cri(&node.bed.containerd.cri(), &reference, image).await,
        Puller::Client => ctr::pull(&node.bed.containerd, "k8s.io", &reference).await,
    }
    .with_context(|| format!("cannot pull {reference}"))?;
    let wall = started.elapsed().as_secs_f64();
    let processor = processor()? - before;
    let fetch = registry.take_blob_span().context("nothing was fetched")?.as_secs_f64();
    node.bed.empty().await?;
    // What the disk still owes is not to be the next one's.
    rustix::fs::sync();
    Ok(Sample { fetch, wall, processor })
}

async fn pull_by_cri(cri: &Cri, reference: &str, image: &Image) -> Result<()> {
    let id = cri.pull(reference, None, None).await?;
    ensure!(id == image.config.digest, "its id is {id}");
    Ok(())
}
