//! The listener of this interface.

use std::time::Duration;

use drayd_proto::dray::dray_server::DrayServer;
use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;

use super::service::Api;

/// How long connections may take to end once nothing is left to be told on them.
const FAREWELL: Duration = Duration::from_secs(1);

/// Serves until `stop` resolves, then lets pulls that callers of this interface wait for end while `patience` lasts.
/// Whoever only looks on is told at once that it is over.
pub async fn serve(
    listener: UnixListener,
    api: Api,
    stop: impl Future<Output = ()>,
    patience: impl Future<Output = ()>,
) {
    let (closing, pulls) = (api.closing.clone(), api.pulls.clone());
    let server = Server::builder()
        .add_service(DrayServer::new(api))
        .serve_with_incoming_shutdown(UnixListenerStream::new(listener), closing.clone().cancelled_owned());
    let end = async {
        stop.await;
        closing.cancel();
        pulls.close();
        tokio::select! {
            () = pulls.wait() => {}
            () = patience => {}
        }
        tokio::time::sleep(FAREWELL).await;
    };
    tokio::select! {
        ended = server => {
            if let Err(error) = ended {
                tracing::error!(%error, "the API is not served any more");
            }
        }
        () = end => {}
    }
}
