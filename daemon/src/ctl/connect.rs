//! The connection to drayd, and what is wrong where there is none.

use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use drayd_proto::dray::dray_client::DrayClient;
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint};
use tower::service_fn;

/// Lists of many images are long.
const MAX_MESSAGE: usize = 64 << 20;

/// Why drayd cannot be reached.
#[derive(Debug, thiserror::Error)]
pub(super) enum ConnectError {
    #[error(
        "there is no socket {}: start drayd (`systemctl start drayd`), or give the path of its API socket \
         ([api] socket of its configuration) with --address",
        .address.display()
    )]
    Absent { address: PathBuf },
    #[error(
        "no access to {}: run drayctl as root, or as a member of the group {group} that the socket belongs to ([api] \
         socket_group of drayd's configuration)",
        .address.display()
    )]
    Denied { address: PathBuf, group: String },
    #[error("nobody answers on {}: is drayd running? (`systemctl status drayd`)", .address.display())]
    Silent { address: PathBuf },
    #[error("{} is no socket: give the path of [api] socket of drayd's configuration", .address.display())]
    NoSocket { address: PathBuf },
    #[error("cannot connect to {}: {source}", .address.display())]
    Failed { address: PathBuf, source: io::Error },
    #[error("{} is no API socket of drayd: {source}", .address.display())]
    Foreign { address: PathBuf, source: tonic::transport::Error },
}

/// Connects to the API socket at `address`, which may be written as clients of CRI write theirs, `unix://PATH`.
pub(super) async fn connect(address: &Path) -> Result<DrayClient<Channel>, ConnectError> {
    let written = address.to_str().and_then(|text| text.strip_prefix("unix://"));
    let address = written.map_or(address, Path::new);
    if std::fs::metadata(address).is_ok_and(|file| !file.file_type().is_socket()) {
        return Err(ConnectError::NoSocket { address: address.into() });
    }
    // Tried first, for what the channel says of a socket tells less.
    if let Err(error) = UnixStream::connect(address).await {
        return Err(ConnectError::of(address, error));
    }
    let path = address.to_owned();
    let connector = service_fn(move |_| {
        let path = path.clone();
        async move { Ok::<_, io::Error>(TokioIo::new(UnixStream::connect(path).await?)) }
    });
    let channel = Endpoint::from_static("http://drayd").connect_with_connector(connector).await;
    let channel = channel.map_err(|source| ConnectError::Foreign { address: address.into(), source })?;
    Ok(DrayClient::new(channel).max_decoding_message_size(MAX_MESSAGE))
}

impl ConnectError {
    fn of(address: &Path, source: io::Error) -> Self {
        let address = address.to_owned();
        match source.kind() {
            io::ErrorKind::NotFound => Self::Absent { address },
            io::ErrorKind::ConnectionRefused => Self::Silent { address },
            io::ErrorKind::PermissionDenied => {
                let group = std::fs::metadata(&address).map(|file| group(file.gid()));
                Self::Denied { group: group.unwrap_or_else(|_| "of its directory".into()), address }
            }
            _ => Self::Failed { address, source },
        }
    }
}

fn group(number: u32) -> String {
    let found = nix::unistd::Group::from_gid(nix::unistd::Gid::from_raw(number));
    found.ok().flatten().map_or_else(|| number.to_string(), |group| group.name)
}
