//! Compiles api/proto with protox, so that no protoc is needed on the machine that builds.

use std::path::PathBuf;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let root = PathBuf::from(std::env::var("CARGO_MANIFEST_DIR")?).join("../../api/proto");
    let files = [
        "muster/agent/v1/agent.proto",
        "kubelet/deviceplugin.proto",
        "kubelet/dra.proto",
        "kubelet/pluginregistration.proto",
        "kubelet/podresources.proto",
    ];
    for file in files {
        println!("cargo::rerun-if-changed={}", root.join(file).display());
    }
    let descriptors = protox::compile(files, [&root])?;
    tonic_prost_build::configure()
        .build_client(true)
        .build_server(true)
        .compile_fds(descriptors)?;
    Ok(())
}
