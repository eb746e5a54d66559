//! Compiles the `.proto` files with protox, so that this crate builds without a `protoc` on the machine.

use std::error::Error;

/// Fields of `dray.v1` that are enumerations: prost makes them numbers, and they are written in JSON as their names.
const ENUMERATIONS: [(&str, &str); 6] = [
    ("PullProgress.stage", "Stage"),
    ("PullProgress.priority", "Priority"),
    ("LayerProgress.state", "LayerState"),
    ("LayerProgress.engine", "Engine"),
    ("ExplainResponse.priority", "Priority"),
    ("Check.verdict", "Verdict"),
];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto");
    let files = protox::compile(["runtime/v1/cri.proto", "dray/v1/dray.proto"], ["proto"])?;
    let mut build = tonic_prost_build::configure()
        // AuthConfig carries passwords: its Debug is written by hand and shows none (src/lib.rs).
        .skip_debug([".runtime.v1.AuthConfig"])
        // In JSON, maps have the order of their keys.
        .btree_map(".dray.v1")
        .message_attribute(".dray.v1", "#[derive(serde::Serialize)]");
    for (field, of) in ENUMERATIONS {
        let attribute = format!("#[serde(serialize_with = \"word::<{of}, _>\")]");
        build = build.field_attribute(format!(".dray.v1.{field}"), attribute);
    }
    build.compile_fds(files)?;
    Ok(())
}
