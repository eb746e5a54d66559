//! A whole bed: registries, images and one containerd. Goes away with its guard, unless it is told to stay.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::containerd::Containerd;
use crate::images::Images;
use crate::peers::Release;
use crate::place::Place;
use crate::registry::{Account, Registry};

/// The account of the registry that wants one.
const USER: &str = "bed-user";
const PASSWORD: &str = "bed-password";

/// A running bed.
#[derive(Debug)]
pub struct Bed {
    /// The images, already in both registries.
    pub images: Images,
    /// Answers everybody.
    pub registry: Registry,
    /// Holds the same, for its account only.
    pub private: Registry,
    /// containerd, with the nydus-snapshotter.
    pub containerd: Containerd,
    // Last, so that clearing finds the servers above already ended in order.
    clearing: Clearing,
}

impl Bed {
    /// Starts a bed named `id`.
    pub async fn start(release: Release, id: &str) -> Result<Self> {
        let clearing = Clearing { place: Place::make(id)?, armed: true };
        let place = clearing.place.clone();
        let images = Images::build()?;
        let storage = place.root().join("registry");
        let account = Account { user: USER.into(), password: PASSWORD.into() };
        let registry = Registry::start("registry", place.run(), &storage, None)?;
        let private = Registry::start("private", place.run(), &storage, Some(account))?;
        for image in images.all() {
            image.push(registry.address())?;
        }
        let plain_http = [registry.address(), private.address()];
        let pause = images.pause.reference(registry.address());
        let containerd = Containerd::start(release, &place, &plain_http, &pause).await?;
        Ok(Self { images, registry, private, containerd, clearing })
    }

    /// Sockets, logs and scratch files of this bed.
    pub fn run(&self) -> &Path {
        self.clearing.place.run()
    }

    /// Where containerd and the nydus-snapshotter keep what they have.
    pub fn root(&self) -> &Path {
        self.clearing.place.root()
    }

    /// What the registries hold, for one more of them.
    pub fn storage(&self) -> PathBuf {
        self.clearing.place.root().join("registry")
    }

    /// Removes every image but the sandbox image, with all that only they held, so that the next pull starts cold.
    pub async fn empty(&self) -> Result<()> {
        self.containerd.empty(&self.images.pause.config.digest).await
    }

    /// Removes every image, the sandbox image too, with all that only they held.
    pub async fn bare(&self) -> Result<()> {
        self.empty().await?;
        self.containerd
            .cri()
            .remove(&self.images.pause.config.digest)
            .await
            .context("cannot remove pause")?;
        self.containerd.probe().force_gc().await
    }

    /// Leaves the servers running when this program ends; `Place::clear` ends them.
    pub fn stay(mut self) -> Result<()> {
        self.clearing.armed = false;
        let place = self.clearing.place.clone();
        self.registry.leave();
        self.private.leave();
        place.own(self.containerd.leave())
    }
}

/// Clears the place when the bed goes, whether it ever stood completely or not.
#[derive(Debug)]
struct Clearing {
    place: Place,
    armed: bool,
}

impl Drop for Clearing {
    fn drop(&mut self) {
        if self.armed
            && let Err(error) = self.place.clear()
        {
            eprintln!("bed {}: {error:#}", self.place.id());
        }
    }
}
