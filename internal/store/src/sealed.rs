//! Owns the encryption of a backup by a passphrase: it turns a stream of bytes into sealed chunks,
//! and back. It does not interpret the bytes.
//!
//! The format, so that another program can read it:
//!
//! - a line `muster-backup-sealed 1`
//! - 16 bytes of salt, then argon2id's memory in KiB, passes and lanes (four bytes each, big-endian)
//! - chunks: 64 KiB of content each, the last one shorter or empty, each followed by its tag of 16
//!   bytes (ChaCha20-Poly1305). The nonce is the chunk's number (eleven bytes, big-endian) and a
//!   byte that is 1 for the last chunk: chunks cannot be dropped, repeated or put in another order.
//!   Line, salt and costs are the additional data of every chunk.
//!
//! The key is argon2id's output of 32 bytes for passphrase and salt. The salt is drawn for each
//! backup, so no key is used twice. The construction is STREAM (Hoang, Reyhanitabar, Rogaway and
//! Vizár, 2015); the costs are RFC 9106's second recommendation. The tests below damage, cut and
//! reorder it.

use std::io::{self, BufRead, Read, Write};

use argon2::{Algorithm, Argon2, Params, Version};
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};

/// The first line of a sealed backup.
pub(crate) const LINE: &str = "muster-backup-sealed 1";
const SALT: usize = 16;
const TAG: usize = 16;
/// The bytes of content in a chunk.
const CHUNK: usize = 64 << 10;
/// argon2id's memory in KiB.
const MEMORY_KIB: u32 = 64 << 10;
/// argon2id's passes.
const PASSES: u32 = 3;
/// argon2id's lanes.
const LANES: u32 = 4;
/// The maximum memory that a file may request, in KiB: a forged file must not exhaust the machine's
/// memory.
const MEMORY_KIB_MAX: u32 = 1 << 20;
/// The maximum number of passes that a file may request.
const PASSES_MAX: u32 = 16;
/// The maximum number of lanes that a file may request.
const LANES_MAX: u32 = 64;

/// Salt and costs, and the key derived from them and the passphrase.
#[derive(Clone)]
pub(crate) struct Seal {
    header: Vec<u8>,
    key: [u8; 32],
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

fn header(salt: &[u8; SALT], memory: u32, passes: u32, lanes: u32) -> Vec<u8> {
    let mut header = format!("{LINE}\n").into_bytes();
    header.extend_from_slice(salt);
    for cost in [memory, passes, lanes] {
        header.extend_from_slice(&cost.to_be_bytes());
    }
    header
}

fn derive(
    passphrase: &str,
    salt: &[u8; SALT],
    memory: u32,
    passes: u32,
    lanes: u32,
) -> io::Result<Seal> {
    let params = Params::new(memory, passes, lanes, Some(32))
        .map_err(|_| invalid("its key derivation's costs are out of range"))?;
    let mut key = [0; 32];
    Argon2::new(Algorithm::Argon2id, Version::V0x13, params)
        .hash_password_into(passphrase.as_bytes(), salt, &mut key)
        .map_err(|error| io::Error::other(format!("deriving the key: {error}")))?;
    Ok(Seal {
        header: header(salt, memory, passes, lanes),
        key,
    })
}

impl Seal {
    /// A seal for a new backup.
    pub(crate) fn new(passphrase: &str) -> io::Result<Seal> {
        let mut salt = [0; SALT];
        getrandom::fill(&mut salt)
            .map_err(|error| io::Error::other(format!("drawing a salt: {error}")))?;
        derive(passphrase, &salt, MEMORY_KIB, PASSES, LANES)
    }

    /// Reads salt and costs, which follow the first line, and derives the key.
    pub(crate) fn read(file: &mut impl Read, passphrase: &str) -> io::Result<Seal> {
        let mut salt = [0; SALT];
        file.read_exact(&mut salt)?;
        let mut costs = [0; 3];
        for cost in &mut costs {
            let mut bytes = [0; 4];
            file.read_exact(&mut bytes)?;
            *cost = u32::from_be_bytes(bytes);
        }
        let [memory, passes, lanes] = costs;
        if memory > MEMORY_KIB_MAX || passes > PASSES_MAX || lanes > LANES_MAX {
            return Err(invalid("its key derivation's costs are out of range"));
        }
        derive(passphrase, &salt, memory, passes, lanes)
    }

    /// The number of bytes before the chunks.
    pub(crate) fn header_len(&self) -> u64 {
        self.header.len() as u64
    }

    fn aead(&self) -> LessSafeKey {
        let key = UnboundKey::new(&CHACHA20_POLY1305, &self.key).expect("a key has 32 bytes");
        LessSafeKey::new(key)
    }
}

fn nonce(number: u64, last: bool) -> Nonce {
    let mut bytes = [0; 12];
    bytes[3..11].copy_from_slice(&number.to_be_bytes());
    bytes[11] = u8::from(last);
    Nonce::assume_unique_for_key(bytes)
}

/// Seals what is written to it. [`Sealer::finish`] writes the last chunk; without it the result
/// cannot be opened.
pub(crate) struct Sealer<W> {
    file: W,
    seal: Seal,
    key: LessSafeKey,
    chunk: Vec<u8>,
    number: u64,
}

impl<W: Write> Sealer<W> {
    pub(crate) fn new(mut file: W, seal: Seal) -> io::Result<Sealer<W>> {
        file.write_all(&seal.header)?;
        let key = seal.aead();
        Ok(Sealer {
            file,
            seal,
            key,
            chunk: Vec::with_capacity(CHUNK + TAG),
            number: 0,
        })
    }

    fn put_chunk(&mut self, last: bool) -> io::Result<()> {
        self.key
            .seal_in_place_append_tag(
                nonce(self.number, last),
                Aad::from(&self.seal.header),
                &mut self.chunk,
            )
            .map_err(|_| io::Error::other("a chunk cannot be sealed"))?;
        self.number += 1;
        self.file.write_all(&self.chunk)?;
        self.chunk.clear();
        Ok(())
    }

    pub(crate) fn finish(mut self) -> io::Result<W> {
        self.put_chunk(true)?;
        Ok(self.file)
    }
}

impl<W: Write> Write for Sealer<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // A full chunk is held back until the next byte arrives: it may be the last chunk.
        if self.chunk.len() == CHUNK && !bytes.is_empty() {
            self.put_chunk(false)?;
        }
        let taken = bytes.len().min(CHUNK - self.chunk.len());
        self.chunk.extend_from_slice(&bytes[..taken]);
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Opens the output of a [`Sealer`]. All returned bytes have been authenticated.
pub(crate) struct Opener<R> {
    file: R,
    seal: Seal,
    key: LessSafeKey,
    chunk: Vec<u8>,
    taken: usize,
    number: u64,
    ended: bool,
}

impl<R: BufRead> Opener<R> {
    /// `file` is positioned after the header.
    pub(crate) fn new(file: R, seal: Seal) -> Opener<R> {
        let key = seal.aead();
        Opener {
            file,
            seal,
            key,
            chunk: Vec::new(),
            taken: 0,
            number: 0,
            ended: false,
        }
    }

    fn take_chunk(&mut self) -> io::Result<()> {
        let mut sealed = Vec::with_capacity(CHUNK + TAG);
        let most = (CHUNK + TAG) as u64;
        self.file.by_ref().take(most).read_to_end(&mut sealed)?;
        let last = self.file.fill_buf()?.is_empty();
        let content = self
            .key
            .open_in_place(
                nonce(self.number, last),
                Aad::from(&self.seal.header),
                &mut sealed,
            )
            .map_err(|_| invalid("the passphrase is wrong, or the file is damaged or cut short"))?;
        let length = content.len();
        sealed.truncate(length);
        self.chunk = sealed;
        self.taken = 0;
        self.number += 1;
        self.ended = last;
        Ok(())
    }
}

impl<R: BufRead> Read for Opener<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while self.taken == self.chunk.len() && !self.ended {
            self.take_chunk()?;
        }
        let rest = &self.chunk[self.taken..];
        let given = rest.len().min(into.len());
        into[..given].copy_from_slice(&rest[..given]);
        self.taken += given;
        Ok(given)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A seal with a cheap key derivation: the test is about the stream.
    fn cheap(passphrase: &str) -> Seal {
        derive(passphrase, &[7; SALT], 8, 1, 1).unwrap()
    }

    fn sealed(content: &[u8]) -> Vec<u8> {
        let mut sealer = Sealer::new(Vec::new(), cheap("right")).unwrap();
        sealer.write_all(content).unwrap();
        sealer.finish().unwrap()
    }

    fn opened(file: &[u8], passphrase: &str) -> io::Result<Vec<u8>> {
        let mut rest = file
            .strip_prefix(format!("{LINE}\n").as_bytes())
            .ok_or(invalid("not sealed"))?;
        let seal = Seal::read(&mut rest, passphrase)?;
        let mut content = Vec::new();
        Opener::new(rest, seal).read_to_end(&mut content)?;
        Ok(content)
    }

    #[test]
    fn what_was_sealed_opens_with_its_passphrase_only_at_every_length_around_a_chunk() {
        for length in [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, 3 * CHUNK + 5] {
            let content: Vec<u8> = (0..length).map(|n| (n % 251) as u8).collect();
            let file = sealed(&content);
            assert!(opened(&file, "right").unwrap() == content, "{length}");
            assert!(opened(&file, "wrong").is_err(), "{length}");
            assert!(
                !file
                    .windows(16)
                    .any(|part| length > CHUNK && part == &content[..16])
            );
        }
    }

    #[test]
    fn a_damaged_cut_or_reordered_file_does_not_open() {
        let content = vec![42; 2 * CHUNK + 100];
        let file = sealed(&content);
        let begin = cheap("right").header.len();
        for at in (0..file.len()).step_by(997).chain(0..begin + 40) {
            let mut bad = file.clone();
            bad[at] ^= 1;
            // A changed cost may be expensive: another test covers the bounds.
            let cost = (begin - 12..begin).contains(&at);
            assert!(cost || opened(&bad, "right").is_err(), "byte {at}");
            assert!(opened(&file[..at], "right").is_err(), "cut at {at}");
        }
        let sealed_chunk = CHUNK + TAG;
        let (first, second) = (begin..begin + sealed_chunk, begin + sealed_chunk);
        let swapped = [
            &file[..begin],
            &file[second..second + sealed_chunk],
            &file[first.clone()],
            &file[second + sealed_chunk..],
        ]
        .concat();
        assert!(opened(&swapped, "right").is_err());
        let dropped = [&file[..begin], &file[second..]].concat();
        assert!(opened(&dropped, "right").is_err());
        let longer = [&file[..], &[0]].concat();
        assert!(opened(&longer, "right").is_err());
    }

    #[test]
    fn costs_out_of_bounds_are_refused_before_they_are_paid() {
        let salt = [1; SALT];
        for (memory, passes, lanes) in [
            (MEMORY_KIB_MAX + 1, 1, 1),
            (8, PASSES_MAX + 1, 1),
            (8, 1, LANES_MAX + 1),
            (u32::MAX, u32::MAX, u32::MAX),
            (0, 1, 1),
            (8, 0, 1),
            (8, 1, 0),
        ] {
            let bytes = header(&salt, memory, passes, lanes);
            let read = Seal::read(&mut &bytes[LINE.len() + 1..], "x");
            assert!(read.is_err(), "{memory} {passes} {lanes}");
        }
    }
}
