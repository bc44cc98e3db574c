//! The SHA-256 digest of a file, in hexadecimal.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

/// How many bytes are read at a time.
const READ: usize = 1 << 20;

/// The digest of a file. Blocks for as long as the file takes to read.
pub(super) fn digest(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let mut context = ring::digest::Context::new(&ring::digest::SHA256);
    let mut buffer = vec![0; READ];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(hexadecimal(context)),
            read => context.update(&buffer[..read]),
        }
    }
}

/// A finished digest.
pub(super) fn hexadecimal(context: ring::digest::Context) -> String {
    let digest = context.finish();
    digest.as_ref().iter().map(|b| format!("{b:02x}")).collect()
}
