//! XIDs in the kernel's log, a second source besides NVML's events: XIDs that NVML does not
//! report, and those of a GPU that NVML has lost. Owns reading `/dev/kmsg`, or a file in the same
//! format; earlier records are not reported.

use std::fs::File;
use std::io::{self, ErrorKind, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Where the kernel's log is.
pub const KMSG: &str = "/dev/kmsg";
/// Linux's flag for reads that do not wait for the next record, on the architectures that have
/// GPUs.
const O_NONBLOCK: i32 = 0o4000;
/// The largest record: the kernel's log returns whole records only.
const RECORD_MAX: usize = 16 * 1024;
/// Reads per call: the next call continues with a log that grows faster.
const READS_MAX: usize = 1024;
/// The longest incomplete line that is kept.
const LINE_MAX: usize = 64 * 1024;
/// The start of the driver's message.
const MARK: &str = "NVRM: Xid (";

/// An XID in the kernel's log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XidLine {
    /// The GPU's place: domain, bus and device, in lower case: `0000:3b:00`.
    pub place: String,
    /// Its number in NVIDIA's list of XIDs.
    pub number: u64,
}

/// A GPU's place in these lines: its PCI address without the function.
pub fn place(pci: &str) -> String {
    let small = pci.to_ascii_lowercase();
    let (place, _) = small.split_once('.').unwrap_or((&small, ""));
    place.to_owned()
}

/// The XID in a line, if it has one: `NVRM: Xid (PCI:0000:3b:00): 79, pid=...`. Old drivers omit
/// `PCI:`, and for a slice its number follows the address.
pub fn xid(line: &str) -> Option<XidLine> {
    let (_, rest) = line.split_once(MARK)?;
    let (inside, rest) = rest.split_once("): ")?;
    let address = inside.strip_prefix("PCI:").unwrap_or(inside);
    let address = address.split(' ').next()?;
    let number: String = rest.chars().take_while(char::is_ascii_digit).collect();
    Some(XidLine {
        place: place(address),
        number: number.parse().ok()?,
    })
}

/// The end of the log, as far as it was read.
pub struct Tail {
    file: File,
    /// An incomplete line.
    rest: Vec<u8>,
}

impl Tail {
    /// Opens the log at its end.
    ///
    /// # Errors
    ///
    /// The file cannot be opened: containers have none, and the kernel may reserve it for
    /// administrators (CAP_SYSLOG).
    pub fn open(path: &Path) -> io::Result<Tail> {
        let mut options = File::options();
        let mut file = options.read(true).custom_flags(O_NONBLOCK).open(path)?;
        file.seek(SeekFrom::End(0))?;
        Ok(Tail {
            file,
            rest: Vec::new(),
        })
    }

    /// The XIDs since the last call, without waiting.
    ///
    /// # Errors
    ///
    /// The file cannot be read any more: open it again.
    pub fn read(&mut self) -> io::Result<Vec<XidLine>> {
        let mut found = Vec::new();
        let mut record = [0; RECORD_MAX];
        for _ in 0..READS_MAX {
            match self.file.read(&mut record) {
                Ok(0) => break,
                Ok(count) => self.take(&record[..count], &mut found),
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock => break,
                    // Records were overwritten before they were read: the next read continues
                    // after them.
                    ErrorKind::BrokenPipe | ErrorKind::Interrupted => {}
                    _ => return Err(error),
                },
            }
        }
        Ok(found)
    }

    fn take(&mut self, bytes: &[u8], found: &mut Vec<XidLine>) {
        for byte in bytes {
            if *byte != b'\n' {
                self.rest.push(*byte);
                continue;
            }
            found.extend(xid(&String::from_utf8_lossy(&self.rest)));
            self.rest.clear();
        }
        if self.rest.len() > LINE_MAX {
            self.rest.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn lines_of_every_driver_are_understood_and_others_are_not() {
        let line = |place: &str, number| {
            Some(XidLine {
                place: place.to_owned(),
                number,
            })
        };
        for (text, expected) in [
            (
                "4,1204,98765,-;NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
                line("0000:3b:00", 79),
            ),
            (
                "[ 12.5] NVRM: Xid (PCI:0000:C1:00 GPU-I:05): 94, pid=7, Contained: SM (0x1)",
                line("0000:c1:00", 94),
            ),
            (
                "NVRM: Xid (0000:03:00): 13, Graphics Exception",
                line("0000:03:00", 13),
            ),
            ("NVRM: GPU at PCI:0000:3b:00: GPU-1234", None),
            ("NVRM: Xid (PCI:0000:3b:00): many", None),
            ("usb 1-1: new device", None),
        ] {
            assert_eq!(xid(text), expected, "{text}");
        }
        assert_eq!(place("0000:3B:00.0"), "0000:3b:00");
    }

    #[test]
    fn what_was_there_is_not_told_and_a_line_is_told_once_it_is_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kmsg");
        std::fs::write(&path, "NVRM: Xid (PCI:0000:01:00): 31, old\n").unwrap();
        let mut tail = Tail::open(&path).unwrap();
        let mut log = File::options().append(true).open(&path).unwrap();
        assert_eq!(tail.read().unwrap(), []);
        write!(log, "other\nNVRM: Xid (PCI:0000:01:00): 4").unwrap();
        assert_eq!(tail.read().unwrap(), []);
        writeln!(log, "8, twice\nNVRM: Xid (PCI:0000:02:00): 63").unwrap();
        let numbers: Vec<u64> = (tail.read().unwrap().iter())
            .map(|line| line.number)
            .collect();
        assert_eq!(numbers, [48, 63]);
        assert_eq!(tail.read().unwrap(), []);
        assert!(Tail::open(&dir.path().join("none")).is_err());
    }
}
