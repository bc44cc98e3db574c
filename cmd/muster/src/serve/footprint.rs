//! Returns the program's unused code pages to the kernel after the start. An agent runs for months in a small part of
//! its code: it parses arguments, takes the first inventory and joins only once, and the kernel maps sixteen pages
//! around each page that these touched.

use std::ffi::c_void;
use std::ops::Range;
use std::path::Path;
use std::ptr::{NonNull, with_exposed_provenance_mut};
use std::time::Duration;

use nix::sys::mman::{MmapAdvise, madvise};

/// By this time an agent has joined and taken its first inventory.
const STARTED: Duration = Duration::from_secs(20);

/// Releases the pages of the program's code once, when the start is over. Pages in use return from the page cache at
/// once.
pub fn shrink_once_started() {
    tokio::spawn(async {
        tokio::time::sleep(STARTED).await;
        give_back();
    });
}

fn give_back() {
    let maps = std::fs::read_to_string("/proc/self/maps");
    let (Ok(maps), Ok(program)) = (maps, std::fs::read_link("/proc/self/exe")) else {
        return;
    };
    for range in code(&maps, &program) {
        let Some(start) = NonNull::new(with_exposed_provenance_mut::<c_void>(range.start)) else {
            continue;
        };
        // SAFETY: the code is mapped from its file and never written, so that a later access to a released page reads
        // the same content again.
        let given = unsafe { madvise(start, range.len(), MmapAdvise::MADV_DONTNEED) };
        if let Err(error) = given {
            tracing::debug!(%error, "the program's code stays in memory");
        }
    }
}

/// The address ranges of a program's code in `/proc/PID/maps`: the executable mappings of its file.
fn code(maps: &str, program: &Path) -> Vec<Range<usize>> {
    let of_line = |line: &str| {
        // address, permissions, offset, device, inode, path
        let mut words = line.splitn(6, ' ');
        let (addresses, permissions) = (words.next()?, words.next()?);
        let path = words.nth(3)?.trim_start();
        if permissions != "r-xp" || Path::new(path) != program {
            return None;
        }
        let (start, end) = addresses.split_once('-')?;
        let number = |text| usize::from_str_radix(text, 16).ok();
        Some(number(start)?..number(end)?).filter(|range| !range.is_empty())
    };
    maps.lines().filter_map(of_line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_is_what_is_executed_of_the_programs_own_file() {
        let maps = "\
55d0c0000000-55d0c08a8000 r--p 00000000 fe:00 131 /usr/bin/muster
55d0c08a8000-55d0c398b000 r-xp 008a7000 fe:00 131                        /usr/bin/muster
55d0c398b000-55d0c3a4d000 r--p 0398a000 fe:00 131                        /usr/bin/muster
55d0c3a4d000-55d0c3a50000 rw-p 03a4c000 fe:00 131                        /usr/bin/muster
7f0000000000-7f0000100000 rw-p 00000000 00:00 0
7f0000200000-7f0000300000 r-xp 00028000 fe:00 77                         /usr/lib/libc.so.6
7f0000300000-7f0000400000 r-xp 00028000 fe:00 78                         /usr/bin/muster extra
7ffd00000000-7ffd00002000 r-xp 00000000 00:00 0                          [vdso]
";
        let program = Path::new("/usr/bin/muster");
        let own = 0x55d0_c08a_8000..0x55d0_c398_b000;
        assert_eq!(code(maps, program), std::slice::from_ref(&own));
        assert!(code(maps, Path::new("/usr/bin/mus")).is_empty());
    }

    /// Resident code in KiB, from `/proc/self/smaps`.
    fn resident() -> u64 {
        let program = std::fs::read_link("/proc/self/exe").unwrap();
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut own = false;
        let mut sum = 0;
        for line in smaps.lines() {
            if let Some(size) = line.strip_prefix("Rss:").filter(|_| own) {
                let size = size.trim().trim_end_matches(" kB");
                sum += size.parse::<u64>().unwrap();
            } else if line.contains(" r-xp ") || line.contains(" r--p ") || line.contains(" rw-p ")
            {
                own = !code(line, &program).is_empty();
            }
        }
        sum
    }

    #[test]
    fn a_program_that_gave_its_code_back_goes_on_in_less_memory() {
        // Parsing arguments is work that only the start needs.
        let parsed =
            <crate::arguments::Arguments as clap::Parser>::try_parse_from(["muster", "get"]);
        assert!(parsed.is_err());
        let before = resident();
        give_back();
        let after = resident();
        assert!(after < before, "{before} KiB before, {after} KiB after");
    }
}
