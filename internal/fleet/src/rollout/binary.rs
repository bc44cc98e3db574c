//! A binary that the server offers to agents. It stays open, so a file that is replaced meanwhile
//! changes nothing.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use rpc::{BINARY_CHUNK_BYTES, BINARY_MAX_BYTES};

use crate::ca::hex;
use crate::error::RolloutError;

/// The server's own binary, also after its file was replaced.
const OWN: &str = "/proc/self/exe";
/// How an executable of Linux begins.
const ELF: [u8; 4] = *b"\x7fELF";
/// How many bytes are read at a time for the digest.
const READ: usize = 1 << 20;

/// An open binary with its digest.
pub struct Binary {
    file: File,
    /// Its SHA-256 digest, in hexadecimal.
    pub sha256: String,
    /// Its size.
    pub bytes: u64,
}

impl Binary {
    /// Opens a binary, or the server's own, and computes its digest. Blocks for as long as the file
    /// takes to read.
    pub fn open(path: Option<&Path>) -> Result<Binary, RolloutError> {
        let path = path.map_or_else(|| PathBuf::from(OWN), Path::to_owned);
        let refused = |reason: String| RolloutError::Binary {
            path: path.clone(),
            reason,
        };
        let failed = |error: io::Error| refused(error.to_string());
        let file = File::open(&path).map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        if !metadata.is_file() || metadata.permissions().mode() & 0o111 == 0 {
            return Err(refused("it is not an executable file".to_owned()));
        }
        let bytes = metadata.len();
        if bytes > BINARY_MAX_BYTES {
            return Err(refused(format!(
                "it has {bytes} bytes, more than {BINARY_MAX_BYTES}"
            )));
        }
        let mut begin = [0; ELF.len()];
        if file.read_exact_at(&mut begin, 0).is_err() || begin != ELF {
            return Err(refused("it is not an executable of Linux".to_owned()));
        }
        let sha256 = digest(&file, bytes).map_err(failed)?;
        Ok(Binary {
            file,
            sha256,
            bytes,
        })
    }

    /// The part that begins at an offset; empty at the end.
    pub fn part(&self, offset: u64) -> io::Result<Vec<u8>> {
        let left = self.bytes.saturating_sub(offset);
        let length =
            usize::try_from(left).map_or(BINARY_CHUNK_BYTES, |left| left.min(BINARY_CHUNK_BYTES));
        let mut part = vec![0; length];
        self.file.read_exact_at(&mut part, offset)?;
        Ok(part)
    }
}

fn digest(file: &File, bytes: u64) -> io::Result<String> {
    let mut context = ring::digest::Context::new(&ring::digest::SHA256);
    let (mut offset, mut buffer) = (0, vec![0; READ]);
    while offset < bytes {
        let read = file.read_at(&mut buffer, offset)?;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        context.update(&buffer[..read]);
        offset += read as u64;
    }
    Ok(hex(context.finish().as_ref()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_executable_is_read_in_parts_and_other_files_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("muster");
        let mut content = ELF.to_vec();
        content.resize(BINARY_CHUNK_BYTES + 5, 7);
        std::fs::write(&path, &content).unwrap();
        let refused = |path: &Path| {
            Binary::open(Some(path))
                .err()
                .map(|error| error.to_string())
        };
        assert!(refused(&path).is_some_and(|error| error.contains("not an executable file")));
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        let binary = Binary::open(Some(&path)).unwrap();
        let mut read = binary.part(0).unwrap();
        assert_eq!(read.len(), BINARY_CHUNK_BYTES);
        read.extend(binary.part(BINARY_CHUNK_BYTES as u64).unwrap());
        assert_eq!(read, content);
        assert_eq!(binary.part(binary.bytes).unwrap(), b"");
        assert_eq!(binary.part(u64::MAX).unwrap(), b"");
        std::fs::write(&path, "#!/bin/sh").unwrap();
        assert!(refused(&path).is_some_and(|error| error.contains("executable of Linux")));
        assert!(refused(dir.path()).is_some());
        assert!(refused(&dir.path().join("none")).is_some());
    }
}
