//! `grpc.health.v1`: whether drayd can do its work, which is whether its containerd answers. Says so for drayd as a
//! whole (the empty name) and for `ImageService`; the runtime is containerd's, and has no name here.

use drayd_proto::cri::image_service_server::ImageServiceServer;
use tonic::server::NamedService as _;
use tonic_health::ServingStatus;
use tonic_health::pb::health_server::HealthServer;
use tonic_health::server::{HealthReporter, HealthService};

use super::service::ImageEndpoint;
use crate::node::Node;

/// Keeps the answers true; see [`Health::run`].
#[derive(Debug)]
pub struct Health {
    reporter: HealthReporter,
    node: Node,
}

impl Health {
    /// Not serving until [`Health::run`] has seen containerd.
    pub async fn new(node: Node) -> Self {
        let health = Self { reporter: HealthReporter::new(), node };
        health.report(ServingStatus::NotServing).await;
        health
    }

    /// What answers to callers.
    pub(super) fn service(&self) -> HealthServer<HealthService> {
        HealthServer::new(HealthService::from_health_reporter(self.reporter.clone()))
    }

    /// Follows containerd; runs until dropped.
    pub async fn run(&self) {
        loop {
            self.node.until(true).await;
            self.report(ServingStatus::Serving).await;
            self.node.until(false).await;
            self.report(ServingStatus::NotServing).await;
        }
    }

    async fn report(&self, status: ServingStatus) {
        for name in ["", ImageServiceServer::<ImageEndpoint>::NAME] {
            self.reporter.set_service_status(name, status).await;
        }
    }
}
