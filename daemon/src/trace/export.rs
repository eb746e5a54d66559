//! The way of spans to their collector, over OTLP and gRPC.

use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry::trace::TracerProvider as _;
use opentelemetry_otlp::{ExporterBuildError, SpanExporter, WithExportConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider};
use tracing_opentelemetry::OpenTelemetryLayer;

/// How long a collector may take for what is sent to it, and at the end of drayd.
const PATIENCE: Duration = Duration::from_secs(3);

/// Why spans cannot be sent.
#[derive(Debug, thiserror::Error)]
#[error("traces cannot be sent to {endpoint} (traces.endpoint)")]
pub struct ExportError {
    endpoint: String,
    source: ExporterBuildError,
}

/// Sends what is collected until it is told to end.
#[derive(Debug)]
pub struct Export(SdkTracerProvider);

impl Export {
    /// Sends what is left, for a few seconds at most.
    pub fn end(self) {
        if let Err(error) = self.0.shutdown_with_timeout(PATIENCE) {
            tracing::debug!(%error, "the last traces did not reach their collector");
        }
    }
}

/// The layer that collects spans, and what sends them to `endpoint` (`http://HOST:PORT`). To be called within the
/// runtime; the collector need not be there.
pub fn export<S>(endpoint: &str) -> Result<(OpenTelemetryLayer<S, SdkTracer>, Export), ExportError>
where
    S: tracing::Subscriber + for<'span> tracing_subscriber::registry::LookupSpan<'span>,
{
    let exporter =
        SpanExporter::builder().with_tonic().with_endpoint(endpoint).with_timeout(PATIENCE).build();
    let exporter = exporter.map_err(|source| ExportError { endpoint: endpoint.into(), source })?;
    let version = KeyValue::new("service.version", env!("CARGO_PKG_VERSION"));
    let resource = Resource::builder().with_service_name("drayd").with_attribute(version).build();
    let provider = SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource).build();
    let tracer = provider.tracer("drayd");
    Ok((
        tracing_opentelemetry::layer().with_location(false).with_threads(false).with_tracer(tracer),
        Export(provider),
    ))
}
