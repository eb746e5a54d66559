//! What a pull would do, without doing it: the same choice, the same hosts and the same documents as a pull, and not a
//! byte written.

use std::sync::Arc;

use super::plan::Plan;
use super::request::Request;
use super::resolve;
use super::room::Room;
use super::rules::{self, Decision};
use super::survey::{self, Have};
use super::{Error, Puller};
use crate::fetch::Source;
use crate::node::snapshotter::Choice;
use crate::oci::{ChainId, Descriptor, Digest};
use crate::priority::Priority;
use crate::progress::Progress;
use crate::registry::Asked;
use crate::unpack::Context;

/// What a pull would do.
#[derive(Clone, Debug)]
pub struct Explanation {
    /// The normalised reference.
    pub reference: String,
    /// Where it would be unpacked, and why.
    pub choice: Choice,
    /// How urgent it would be, and why.
    pub decision: Decision,
    /// Whom it would ask, in this order.
    pub hosts: Vec<Asked>,
    /// What the reference points to.
    pub target: Digest,
    /// The manifest for this machine.
    pub manifest: Digest,
    /// Digest of the image config.
    pub image_id: Digest,
    /// The lowest first.
    pub layers: Vec<ExplainedLayer>,
    /// What it would need of the disks.
    pub rooms: Vec<Room>,
}

/// One layer.
#[derive(Clone, Debug)]
pub struct ExplainedLayer {
    /// Its blob.
    pub blob: Descriptor,
    /// Its snapshot.
    pub chain_id: ChainId,
    /// What there is of it.
    pub have: Have,
}

impl Puller {
    /// Explains the pull of a request.
    pub async fn explain(&self, request: &Request) -> Result<Explanation, Error> {
        let table = self.node.table().await?;
        let decision = rules::decide(&self.config.rules, request);
        let choice = table.choose_by(&request.handler, decision.snapshotter.as_ref())?;
        let reference = &request.reference;
        let source = Source::of(reference, request.credentials.clone());
        let hosts = self.fetcher.registry().asked(&source.repository, &source.credentials);
        let hosts = hosts.await.map_err(Error::Resolve)?;
        let progress = Arc::<Progress>::default();
        let named = resolve::name(&self.fetcher, &source, reference, progress.meter()).await?;
        let (containerd, keep_layers) = (self.containerd.clone(), self.config.keep_layers);
        let priority = Priority::new(decision.level);
        let context = Context { containerd, source, progress, priority, keep_layers };
        let resolved = resolve::read(&self.fetcher, &context, reference, named, &self.platform).await?;
        let plan = Plan::new(reference, &resolved)?;
        let have = survey::survey(&self.containerd, &choice.snapshotter.name, &plan).await?;
        let rooms = self.rooms(&choice.snapshotter, &plan, &have).await;
        let layers = plan.layers.into_iter().zip(have);
        Ok(Explanation {
            reference: reference.to_string(),
            choice,
            decision,
            hosts,
            target: resolved.target.digest,
            manifest: resolved.manifest.digest,
            image_id: plan.image_id,
            layers: layers
                .map(|(layer, have)| ExplainedLayer { blob: layer.blob, chain_id: layer.chain_id, have })
                .collect(),
            rooms,
        })
    }
}
