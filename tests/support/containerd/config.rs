//! The configuration files of containerd and nydus-snapshotter. Version 2 for 1.6 and 1.7, version 3 for 2.x, because
//! a migrated version 2 file loses the per-runtime snapshotters there
//! (<https://github.com/containerd/containerd/pull/12836>).

use std::fmt::Write as _;
use std::path::PathBuf;

use super::Setup;
use crate::peers::Release;
use crate::place::Place;

/// The default runtime handler, on the default snapshotter.
pub const RUNC_HANDLER: &str = "runc";
/// A handler for which containerd names no snapshotter.
pub const PLAIN_HANDLER: &str = "plain";
/// A handler on the nydus snapshotter.
pub const NYDUS_HANDLER: &str = "nydus-handler";
/// A handler on the native snapshotter.
pub const NATIVE_HANDLER: &str = "native-handler";

/// Handlers and the snapshotters that containerd is told for them.
const HANDLERS: [(&str, Option<&str>); 4] = [
    (RUNC_HANDLER, None),
    (PLAIN_HANDLER, None),
    (NYDUS_HANDLER, Some("nydus")),
    (NATIVE_HANDLER, Some("native")),
];

/// Lets containerd report its network as ready; the bed's pods use the host's.
pub(super) const CNI: &str = r#"{"cniVersion": "1.0.0", "name": "bed", "plugins": [{"type": "ptp",
  "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.213.0.0/16"}]]}}]}
"#;

pub(super) fn nydus_socket(place: &Place) -> PathBuf {
    place.run().join("nydus.sock")
}

/// Proxy driver: every layer of a pull is answered with "already exists", as for guest pull in confidential pods.
pub(super) fn nydus(place: &Place) -> String {
    format!(
        r#"version = 1
root = "{root}/nydus"
address = "{socket}"
daemon_mode = "none"

[daemon]
fs_driver = "proxy"

# Its own default is one socket for the whole machine.
[system]
enable = false

[cgroup]
enable = false

[log]
level = "debug"
log_to_stdout = true

[snapshot]
enable_kata_volume = true
"#,
        root = place.root().display(),
        socket = nydus_socket(place).display(),
    )
}

pub(super) fn containerd(release: Release, place: &Place, pause: &str, setup: &Setup) -> String {
    let (version, plugins) = match release {
        Release::V1_6 | Release::V1_7 => (2, version_2(place, pause)),
        Release::V2_1 => (3, version_3(place, pause, setup.transfer)),
    };
    format!(
        r#"version = {version}
root = "{root}/containerd"
state = "{run}/state"
imports = []

[grpc]
address = "{run}/containerd.sock"

[debug]
level = "{level}"

{decoders}
[proxy_plugins.nydus]
type = "snapshot"
address = "{nydus}"
{exports}
[plugins."io.containerd.internal.v1.opt"]
path = "{root}/opt"

{plugins}"#,
        run = place.run().display(),
        root = place.root().display(),
        nydus = nydus_socket(place).display(),
        level = setup.level,
        decoders = decoders(place),
        exports = match release {
            Release::V2_1 => format!(
                "exports = {{ root = \"{}/nydus\", enable_remote_snapshot_annotations = \"true\" }}\n",
                place.root().display()
            ),
            Release::V1_6 | Release::V1_7 => String::new(),
        },
    )
}

/// Stands for what decrypts layers: "encrypted" is base64 here. It leaves what containerd tells it in a directory that
/// [`decoder_records`] names.
pub(super) fn decoder(place: &Place) -> String {
    format!(
        "#!/bin/sh\nPATH=/usr/bin:/bin\nset -e\nmkdir -p {records}\ncat <&3 >{records}/payload\n\
         printf %s \"$STREAM_PROCESSOR_MEDIATYPE\" >{records}/media-type\n\
         base64 -d | case \"$STREAM_PROCESSOR_MEDIATYPE\" in\n  *+gzip+*) gzip -dc ;;\n  *+zstd+*) zstd -dc ;;\n  *) cat ;;\n\
         esac\n",
        records = decoder_records(place).display(),
    )
}

pub(super) fn decoder_path(place: &Place) -> PathBuf {
    place.run().join("decoder")
}

pub(super) fn decoder_records(place: &Place) -> PathBuf {
    place.run().join("decoded")
}

/// Under the names that containerd's documentation gives them, which are those that a payload is for.
fn decoders(place: &Place) -> String {
    let layer = "application/vnd.oci.image.layer.v1.tar";
    let table = |name: &str, accepts: &str| {
        format!(
            "[stream_processors.\"io.containerd.ocicrypt.decoder.v1.{name}\"]\naccepts = [{accepts}]\n\
             returns = \"{layer}\"\npath = \"{}\"\n\n",
            decoder_path(place).display()
        )
    };
    let packed = format!("\"{layer}+gzip+encrypted\", \"{layer}+zstd+encrypted\"");
    table("tar", &format!("\"{layer}+encrypted\"")) + &table("tar.gzip", &packed)
}

fn version_2(place: &Place, pause: &str) -> String {
    let run = place.run().display();
    let cri = "io.containerd.grpc.v1.cri";
    format!(
        r#"[plugins."{cri}"]
sandbox_image = "{pause}"
# Lowering the score below containerd's own takes CAP_SYS_RESOURCE, which build machines lack.
restrict_oom_score_adj = true

[plugins."{cri}".cni]
bin_dir = "/usr/lib/cni"
conf_dir = "{run}/cni"

[plugins."{cri}".registry]
config_path = "{run}/certs.d"

[plugins."{cri}".containerd]
snapshotter = "overlayfs"
default_runtime_name = "{RUNC_HANDLER}"
disable_snapshot_annotations = false
{runtimes}"#,
        runtimes = runtimes(cri, place),
    )
}

fn version_3(place: &Place, pause: &str, transfer_keys: &str) -> String {
    let run = place.run().display();
    let (images, runtime) = ("io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime");
    let transfer = "io.containerd.transfer.v1.local";
    let mut text = format!(
        r#"[plugins."{images}"]
snapshotter = "overlayfs"

[plugins."{images}".pinned_images]
sandbox = "{pause}"

[plugins."{images}".registry]
config_path = "{run}/certs.d"

[plugins."{runtime}"]
# Lowering the score below containerd's own takes CAP_SYS_RESOURCE, which build machines lack.
restrict_oom_score_adj = true

[plugins."{runtime}".cni]
bin_dirs = ["/usr/lib/cni"]
conf_dir = "{run}/cni"

# One socket for the whole machine otherwise.
[plugins."io.containerd.nri.v1.nri"]
disable = true

[plugins."{runtime}".containerd]
default_runtime_name = "{RUNC_HANDLER}"
{runtimes}
[plugins."{transfer}"]
config_path = "{run}/certs.d"
{transfer_keys}"#,
        runtimes = runtimes(runtime, place),
    );
    for snapshotter in ["overlayfs", "native", "nydus"] {
        let platform = if std::env::consts::ARCH == "aarch64" { "linux/arm64" } else { "linux/amd64" };
        let _ = write!(
            text,
            "\n[[plugins.\"{transfer}\".unpack_config]]\nplatform = \"{platform}\"\nsnapshotter = \"{snapshotter}\"\n\
             differ = \"walking\"\n"
        );
    }
    for (handler, snapshotter) in HANDLERS {
        if let Some(snapshotter) = snapshotter {
            let _ = write!(
                text,
                "\n[plugins.\"{images}\".runtime_platforms.{handler}]\nsnapshotter = \"{snapshotter}\"\n"
            );
        }
    }
    text
}

fn runtimes(plugin: &str, place: &Place) -> String {
    HANDLERS.iter().fold(String::new(), |mut text, (handler, snapshotter)| {
        let table = format!("plugins.\"{plugin}\".containerd.runtimes.{handler}");
        let snapshotter = snapshotter.map(|name| format!("snapshotter = \"{name}\"\n")).unwrap_or_default();
        // A private runc root, so that clearing the bed finds its containers and no others.
        let _ = write!(
            text,
            "\n[{table}]\nruntime_type = \"io.containerd.runc.v2\"\n{snapshotter}\n[{table}.options]\nRoot = \"{}/runc\"\n",
            place.run().display()
        );
        text
    })
}
