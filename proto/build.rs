//! Compiles the `.proto` files with protox, so that this crate builds without a `protoc` on the machine.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto");
    let files = protox::compile(["runtime/v1/cri.proto"], ["proto"])?;
    tonic_prost_build::configure()
        // AuthConfig carries passwords: its Debug is written by hand and shows none (src/lib.rs).
        .skip_debug([".runtime.v1.AuthConfig"])
        .compile_fds(files)?;
    Ok(())
}
