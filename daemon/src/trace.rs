//! Spans of pulls, for whoever collects traces (OpenTelemetry): made where the stages are, joined to the caller's trace,
//! carried on to containerd. Without a collector they cost nothing, and the log never has them.

mod export;

use std::collections::HashMap;

use opentelemetry::propagation::TextMapPropagator as _;
use opentelemetry::trace::TraceContextExt as _;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt as _;

pub use export::{Export, ExportError, export};

/// The target of all spans that are collected, and of nothing else.
pub const TARGET: &str = "drayd::trace";

/// The header of W3C Trace Context, and its companion for other systems' parts.
const TRACEPARENT: &str = "traceparent";
const TRACESTATE: &str = "tracestate";

/// The span that a request was made in, elsewhere.
#[derive(Clone, Debug, Default)]
pub struct Caller(Option<opentelemetry::Context>);

impl Caller {
    /// Reads the headers of a request; what is no trace context is none.
    pub fn read<'a>(header: impl Fn(&str) -> Option<&'a str>) -> Self {
        let headers = [TRACEPARENT, TRACESTATE]
            .into_iter()
            .filter_map(|name| Some((name.to_owned(), header(name)?.to_owned())))
            .collect::<HashMap<_, _>>();
        if !headers.contains_key(TRACEPARENT) {
            return Self::default();
        }
        let context = TraceContextPropagator::new().extract(&headers);
        let valid = context.span().span_context().is_valid();
        Self(valid.then_some(context))
    }

    /// Makes `span` one of the caller's.
    pub fn adopt(&self, span: &Span) {
        if let Some(context) = &self.0 {
            // It fails only for a span that nobody collects.
            let _ = span.set_parent(context.clone());
        }
    }
}

/// The headers that say in which span a request is made; none outside of collected spans.
pub fn headers() -> impl Iterator<Item = (&'static str, String)> {
    let span = Span::current();
    let mut headers = HashMap::new();
    if !span.is_none() {
        TraceContextPropagator::new().inject_context(&span.context(), &mut headers);
    }
    let mut take = move |name| headers.remove(name).filter(|value: &String| !value.is_empty());
    [TRACEPARENT, TRACESTATE].into_iter().filter_map(move |name| Some((name, take(name)?)))
}

/// The span of one stage of a pull, below the one that is current.
pub fn stage(name: &'static str, reference: &str, snapshotter: &str) -> Span {
    tracing::info_span!(target: TARGET, "stage", otel.name = name, reference, snapshotter)
}

/// The span of a piece of work on one layer, below the one that is current.
pub fn layer(name: &'static str, digest: &str, size: u64) -> Span {
    tracing::info_span!(target: TARGET, "layer", otel.name = name, digest, size)
}

/// The span of a whole call, below the caller's.
pub fn call(caller: &Caller, reference: &str) -> Span {
    let span = tracing::info_span!(
        target: TARGET,
        parent: None,
        "PullImage",
        reference,
        snapshotter = tracing::field::Empty,
        tags = tracing::field::Empty,
        result = tracing::field::Empty,
        otel.status_code = tracing::field::Empty,
        otel.kind = "server"
    );
    caller.adopt(&span);
    span
}

#[cfg(test)]
pub(crate) mod tests {
    use opentelemetry::trace::TracerProvider as _;
    use opentelemetry_sdk::trace::SdkTracerProvider;
    use tracing_subscriber::layer::SubscriberExt as _;

    use super::*;

    const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn caller(header: &str) -> Caller {
        Caller::read(|name| (name == TRACEPARENT).then_some(header))
    }

    #[test]
    fn what_is_no_trace_context_is_none() {
        assert!(caller(PARENT).0.is_some());
        for header in ["", "x", "00-00000000000000000000000000000000-b7ad6b7169203331-01", "00-\u{1}"] {
            assert!(caller(header).0.is_none(), "{header:?}");
        }
        assert!(Caller::read(|_| None).0.is_none());
    }

    /// What `seen` sees within a span that is collected.
    pub(crate) fn collected<T>(seen: impl FnOnce() -> T) -> T {
        let provider = SdkTracerProvider::builder().build();
        let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("test"));
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), || {
            assert_eq!(headers().count(), 0);
            call(&caller(PARENT), "a/b:1").in_scope(seen)
        })
    }

    #[test]
    fn requests_carry_the_span_they_are_made_in_and_nothing_outside_of_one() {
        let sent: Vec<_> = collected(|| headers().collect());
        let [(TRACEPARENT, value)] = sent.as_slice() else { panic!("{sent:?}") };
        assert!(value.starts_with("00-0af7651916cd43dd8448eb211c80319c-"), "{value}");
        assert!(!value.contains("b7ad6b7169203331"), "it is the caller's own span: {value}");
        assert_eq!(headers().count(), 0);
    }
}
