//! The files of the history: the present hour's log, a file for each sealed hour and each day. A write that a kill cut
//! off costs at most the last 15 seconds. Calls block: they run on threads for that.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use measurements::segment::{self, HEAD_BYTES};
use measurements::{
    DayColumn, FileSpan, HOURS_PER_DAY, HistoryFile, HistoryQuery, HourBlock, HourColumn, Point,
    Sample, Series, add_to_day, log, of_day_column, of_hour, past_retention, resample,
};
use parking_lot::RwLock;

/// The present hour's log.
const LOG: &str = "present.log";

/// Why the history cannot be written or read.
#[derive(Debug, thiserror::Error)]
pub enum FilesError {
    /// A file cannot be used.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
    /// A file cannot be replaced.
    #[error(transparent)]
    Replace(#[from] durable::Error),
}

/// What was found wrong, in sentences for the log.
pub type Findings = Vec<String>;

/// The history on disk, and the present hour in memory.
pub struct HistoryFiles {
    directory: PathBuf,
    present: RwLock<Present>,
}

struct Present {
    block: HourBlock,
    /// None: the log has to be written anew.
    log: Option<File>,
}

impl HistoryFiles {
    /// Goes on with the files in a directory, and creates it if needed. Seconds are since 1970.
    ///
    /// # Errors
    /// The directory or the log in it cannot be used.
    pub fn open(directory: &Path, now: i64) -> Result<(HistoryFiles, Findings), FilesError> {
        let mut builder = fs::DirBuilder::new();
        let made = builder.recursive(true).mode(0o700).create(directory);
        made.map_err(io(directory))?;
        durable::sweep(directory)?;
        let path = directory.join(LOG);
        let mut findings = Vec::new();
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(io(&path)(error)),
        };
        let mut block = HourBlock::new(HourBlock::hour_of(now));
        match log::read(&bytes) {
            _ if bytes.is_empty() => {}
            Ok(read) => {
                block = HourBlock::new(read.hour);
                let mut names = BTreeMap::new();
                for frame in &read.frames {
                    block.replay(frame, &mut names);
                }
                if read.valid < bytes.len() {
                    let lost = bytes.len() - read.valid;
                    let path = path.display();
                    findings.push(format!("the last {lost} bytes of {path} were not written completely and are dropped"));
                }
            }
            Err(error) => findings.push(format!("{} is dropped: {error}", path.display())),
        }
        let present = Present { block, log: None };
        let files = HistoryFiles {
            directory: directory.to_owned(),
            present: RwLock::new(present),
        };
        Ok((files, findings))
    }

    /// Keeps values of one time. An hour that is over is sealed first.
    ///
    /// # Errors
    /// A file cannot be written. Values of the present hour stay in memory, and the next call writes them; those of a new
    /// hour are lost while the last one cannot be sealed.
    pub fn append(&self, at: i64, values: Vec<(Series, f64)>) -> Result<Findings, FilesError> {
        let mut findings = Vec::new();
        let mut present = self.present.write();
        let hour = HourBlock::hour_of(at);
        if present.block.hour() != hour {
            self.seal(&present.block, &mut findings)?;
            let refused = present.block.refused();
            if refused > 0 {
                let most = measurements::SERIES_MAX;
                findings.push(format!("{refused} measurements of the last hour were dropped: it had {most} series already"));
            }
            present.block = HourBlock::new(hour);
            present.log = None;
            // The hour's file may be the one that is too many.
            self.retain(at)?;
        }
        let Some(frame) = present.block.record(at, values) else {
            return Ok(findings);
        };
        let written = match present.log.take() {
            Some(mut file) => {
                let bytes = log::encode(&frame);
                let written = file.write_all(&bytes).and_then(|()| file.sync_data());
                written
                    .map(|()| file)
                    .map_err(io(&self.directory.join(LOG)))
            }
            None => self.begin_log(&mut present.block),
        };
        present.log = Some(written?);
        Ok(findings)
    }

    /// Writes the log of the block anew, and opens it for more.
    fn begin_log(&self, block: &mut HourBlock) -> Result<File, FilesError> {
        let path = self.directory.join(LOG);
        let mut bytes = log::begin(block.hour());
        for frame in block.frames() {
            bytes.extend(log::encode(&frame));
        }
        durable::replace(&path, &bytes)?;
        let mut options = OpenOptions::new();
        let file = options.append(true).mode(0o600).open(&path);
        file.map_err(io(&path))
    }

    /// Writes an hour's file, and its 5 minutes to its day's. The log is replaced after both.
    fn seal(&self, block: &HourBlock, findings: &mut Findings) -> Result<(), FilesError> {
        if block.is_empty() {
            return Ok(());
        }
        let hour = block.hour();
        let (of_hour, of_day) = (
            FileSpan::Hour(hour),
            FileSpan::Day(hour.div_euclid(HOURS_PER_DAY)),
        );
        let existing = self.columns(of_hour, None, findings);
        let existing = decoded(existing, HourColumn::decode);
        let columns = block.sealed(&existing);
        self.write(
            of_hour,
            columns.iter().map(|(name, column)| (name, column.encode())),
        )?;
        let existing = self.columns(of_day, None, findings);
        let mut day = decoded(existing, DayColumn::decode);
        add_to_day(&mut day, hour, &columns);
        self.write(
            of_day,
            day.iter().map(|(name, column)| (name, column.encode())),
        )?;
        Ok(())
    }

    fn write<'a>(
        &self,
        span: FileSpan,
        columns: impl Iterator<Item = (&'a String, Vec<u8>)>,
    ) -> Result<(), FilesError> {
        let columns = columns.map(|(name, bytes)| (name.clone(), bytes)).collect();
        let path = self.directory.join(span.file_name());
        Ok(durable::replace(&path, &segment::encode(&columns))?)
    }

    /// The columns of a file, all or those wanted. What cannot be read is named and left out: a chart with a gap is
    /// better than none.
    fn columns(
        &self,
        span: FileSpan,
        wanted: Option<&BTreeSet<String>>,
        findings: &mut Findings,
    ) -> BTreeMap<String, Vec<u8>> {
        let path = self.directory.join(span.file_name());
        let mut file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return BTreeMap::new(),
            Err(error) => {
                findings.push(format!("{} cannot be read: {error}", path.display()));
                return BTreeMap::new();
            }
        };
        match read_columns(&mut file, wanted) {
            Ok((columns, damaged)) => {
                findings.extend(
                    damaged
                        .iter()
                        .map(|why| format!("{}: {why}", path.display())),
                );
                columns
            }
            Err(why) => {
                findings.push(format!("{} cannot be read: {why}", path.display()));
                BTreeMap::new()
            }
        }
    }

    /// The points of each series of a question.
    pub fn answer(&self, query: &HistoryQuery) -> (Vec<Vec<Point>>, Findings) {
        let mut findings = Vec::new();
        // No hour is sealed meanwhile.
        let present = self.present.read();
        let (from, to) = (query.from.as_second(), query.to.as_second());
        let names: BTreeSet<String> = query.series.iter().map(Series::to_string).collect();
        // By series and time, so that a value that is in a file and in the present hour is one.
        let mut samples: BTreeMap<String, BTreeMap<i64, Sample>> = BTreeMap::new();
        let mut add = |name: String, all: Vec<Sample>| {
            let of_series = samples.entry(name).or_default();
            of_series.extend(all.into_iter().map(|sample| (sample.at, sample)));
        };
        let day = |at: i64| HourBlock::hour_of(at).div_euclid(HOURS_PER_DAY);
        if query.fine {
            for hour in HourBlock::hour_of(from)..=HourBlock::hour_of(to.min(latest(&present))) {
                let columns = self.columns(FileSpan::Hour(hour), Some(&names), &mut findings);
                for (name, column) in decoded(columns, HourColumn::decode) {
                    add(name, of_hour(hour, &column));
                }
            }
        } else {
            for number in day(from)..=day(to.min(latest(&present))) {
                let columns = self.columns(FileSpan::Day(number), Some(&names), &mut findings);
                for (name, column) in decoded(columns, DayColumn::decode) {
                    add(name, of_day_column(number, &column));
                }
            }
        }
        for series in &query.series {
            let all = match query.fine {
                true => present.block.samples(series),
                false => present.block.coarse_samples(series),
            };
            add(series.to_string(), all);
        }
        drop(present);
        let points = |series: &Series| {
            let samples = samples.get(&series.to_string());
            let samples = samples.into_iter().flat_map(BTreeMap::values).copied();
            resample(samples, from, to, query.step)
        };
        (query.series.iter().map(points).collect(), findings)
    }

    /// Removes files past their time, and those above the bound of bytes.
    ///
    /// # Errors
    /// The directory cannot be read, or a file not removed.
    pub fn retain(&self, now: i64) -> Result<(), FilesError> {
        let mut files = Vec::new();
        let entries = fs::read_dir(&self.directory).map_err(io(&self.directory))?;
        for entry in entries.flatten() {
            let name = entry.file_name();
            let span = name.to_str().and_then(FileSpan::of_name);
            if let (Some(span), Ok(about)) = (span, entry.metadata()) {
                let bytes = about.len();
                files.push(HistoryFile { span, bytes });
            }
        }
        for span in past_retention(&files, now) {
            durable::remove(&self.directory.join(span.file_name()))?;
        }
        Ok(())
    }
}

/// The last second that the present hour, or a file, may have values of. A question may reach far into the future.
fn latest(present: &Present) -> i64 {
    let day = HOURS_PER_DAY * measurements::HOUR;
    (present.block.hour() + 1) * measurements::HOUR + 2 * day
}

fn io(path: &Path) -> impl Fn(std::io::Error) -> FilesError {
    let path = path.to_owned();
    move |source| FilesError::Io {
        path: path.clone(),
        source,
    }
}

/// Why a file's columns cannot be read.
#[derive(Debug, thiserror::Error)]
enum ReadError {
    #[error(transparent)]
    Io(#[from] std::io::Error),
    #[error(transparent)]
    Segment(#[from] segment::SegmentError),
}

type ColumnsRead = (BTreeMap<String, Vec<u8>>, Vec<segment::SegmentError>);

fn read_columns(
    file: &mut File,
    wanted: Option<&BTreeSet<String>>,
) -> Result<ColumnsRead, ReadError> {
    let mut head = [0; HEAD_BYTES];
    file.read_exact(&mut head)?;
    let head = segment::head(&head)?;
    let mut directory = vec![0; head.directory];
    file.read_exact(&mut directory)?;
    let is_wanted = |name: &str| wanted.is_none_or(|wanted| wanted.contains(name));
    let (mut columns, mut damaged) = (BTreeMap::new(), Vec::new());
    let end = file.metadata()?.len();
    for (name, place) in segment::places(head, &directory, is_wanted)? {
        let mut bytes = Vec::new();
        if place.offset.saturating_add(place.length as u64) <= end {
            file.seek(SeekFrom::Start(place.offset))?;
            bytes.resize(place.length, 0);
            file.read_exact(&mut bytes)?;
        }
        match place.check(&name, &bytes) {
            Ok(()) => drop(columns.insert(name, bytes)),
            Err(error) => damaged.push(error),
        }
    }
    Ok((columns, damaged))
}

/// The columns that are valid; a checksum has already been compared.
fn decoded<T, E>(
    columns: BTreeMap<String, Vec<u8>>,
    decode: impl Fn(&[u8]) -> Result<T, E>,
) -> BTreeMap<String, T> {
    let columns = columns.into_iter();
    let read = columns.filter_map(|(name, bytes)| Some((name, decode(&bytes).ok()?)));
    read.collect()
}

#[cfg(test)]
mod tests;
