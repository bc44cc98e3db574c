//! Kubernetes' quantities: exact numbers with a suffix (`100m`, `1.5Gi`, `12e6`). Parses the entire grammar, counts in
//! billionths without rounding, and prints the canonical form. Owns no unit: the caller defines the unit of a number.

use std::cmp::Ordering;
use std::fmt;
use std::iter::Sum;
use std::ops::{Add, Sub};
use std::str::FromStr;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity as K8sQuantity;

/// Billionths in one unit.
const NANO: i128 = 1_000_000_000;
/// The largest stored magnitude, in units; larger numbers are capped, as in Kubernetes.
const MAX_UNITS: i128 = 100_000_000_000_000_000_000_000_000_000;
const MAX: i128 = MAX_UNITS * NANO;
/// Binary quantities are capped at the largest 64-bit integer.
const MAX_BINARY: i128 = (i64::MAX as i128) * NANO;
/// The significant digits that are kept; the rest rounds up. More would not fit into 128 bits.
const DIGITS_DECIMAL: usize = 37;
/// The same for numbers that are multiplied by up to 2^60.
const DIGITS_BINARY: usize = 20;

/// Why a text is no quantity; worded like Kubernetes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuantityError {
    /// The text is not a number with a suffix.
    #[error(
        "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
    )]
    Format,
    /// The number has no digits or two points.
    #[error("unable to parse numeric part of quantity")]
    Numeric,
    /// The suffix is unknown.
    #[error("unable to parse quantity's suffix")]
    Suffix,
}

/// The family of suffixes for printing a quantity: that of its input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
enum SuffixFamily {
    #[default]
    DecimalSi,
    BinarySi,
    DecimalExponent,
}

/// An exact number. Equality and order compare the number only, not its notation.
#[derive(Clone, Copy, Debug, Default)]
pub struct Quantity {
    nanos: i128,
    format: SuffixFamily,
}

impl Quantity {
    /// Zero.
    pub const ZERO: Quantity = Quantity {
        nanos: 0,
        format: SuffixFamily::DecimalSi,
    };

    /// A number of whole units.
    pub fn from_value(units: i64) -> Self {
        Self {
            nanos: i128::from(units) * NANO,
            format: SuffixFamily::DecimalSi,
        }
    }

    /// A number of thousandths.
    pub fn from_milli(thousandths: i64) -> Self {
        Self {
            nanos: i128::from(thousandths) * (NANO / 1000),
            format: SuffixFamily::DecimalSi,
        }
    }

    /// A number of whole units, printed with binary suffixes (`Ki`, `Mi`): bytes.
    pub fn from_bytes(bytes: i64) -> Self {
        Self {
            nanos: i128::from(bytes) * NANO,
            format: SuffixFamily::BinarySi,
        }
    }

    /// Reads the quantity of a Kubernetes object.
    ///
    /// # Errors
    /// When the text is no quantity.
    pub fn parse_k8s(quantity: &K8sQuantity) -> Result<Self, QuantityError> {
        quantity.0.parse()
    }

    /// Converts to Kubernetes' type, in canonical form.
    pub fn to_k8s(self) -> K8sQuantity {
        K8sQuantity(self.to_string())
    }

    /// In whole units, rounded up (towards the larger request), saturating at 64 bits.
    pub fn value(&self) -> i64 {
        saturate(div_up(self.nanos, NANO))
    }

    /// In thousandths, rounded up, saturating at 64 bits.
    pub fn milli(&self) -> i64 {
        saturate(div_up(self.nanos, NANO / 1000))
    }

    /// True if it is zero.
    pub fn is_zero(&self) -> bool {
        self.nanos == 0
    }

    /// True if it is below zero.
    pub fn is_negative(&self) -> bool {
        self.nanos < 0
    }

    /// True if it is a whole number of units.
    pub fn is_whole(&self) -> bool {
        self.nanos % NANO == 0
    }

    /// As a floating-point number: for ratios and charts, never for accounting.
    pub fn as_f64(&self) -> f64 {
        self.nanos as f64 / NANO as f64
    }
}

fn div_up(n: i128, d: i128) -> i128 {
    n.div_euclid(d) + i128::from(n.rem_euclid(d) != 0)
}

fn saturate(n: i128) -> i64 {
    i64::try_from(n).unwrap_or(if n < 0 { i64::MIN } else { i64::MAX })
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        self.nanos == other.nanos
    }
}
impl Eq for Quantity {}
impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Quantity {
    fn cmp(&self, other: &Self) -> Ordering {
        self.nanos.cmp(&other.nanos)
    }
}

impl Add for Quantity {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        // As in Kubernetes: the sum of zero and a quantity is printed like that quantity.
        let format = if self.is_zero() {
            other.format
        } else {
            self.format
        };
        Self {
            nanos: self.nanos.saturating_add(other.nanos).clamp(-MAX, MAX),
            format,
        }
    }
}
impl Sub for Quantity {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        let format = if self.is_zero() {
            other.format
        } else {
            self.format
        };
        Self {
            nanos: self.nanos.saturating_sub(other.nanos).clamp(-MAX, MAX),
            format,
        }
    }
}
impl Sum for Quantity {
    fn sum<I: Iterator<Item = Self>>(iter: I) -> Self {
        iter.fold(Self::ZERO, Add::add)
    }
}

impl FromStr for Quantity {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Self, QuantityError> {
        if text.is_empty() {
            return Err(QuantityError::Format);
        }
        let (negative, rest) = match text.as_bytes()[0] {
            b'-' => (true, &text[1..]),
            b'+' => (false, &text[1..]),
            _ => (false, text),
        };
        let number_end = rest
            .find(|c: char| !(c.is_ascii_digit() || c == '.'))
            .unwrap_or(rest.len());
        let (number, suffix) = rest.split_at(number_end);
        if number.is_empty() || !suffix_is_formed(suffix) {
            return Err(QuantityError::Format);
        }
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if fraction.contains('.') {
            return Err(QuantityError::Format);
        }
        if whole.is_empty() && fraction.is_empty() {
            return Err(QuantityError::Numeric);
        }
        let (scale, format) = interpret(suffix)?;
        let mut nanos = count(whole.trim_start_matches('0'), fraction, scale);
        let mut format = format;
        if format == SuffixFamily::BinarySi {
            nanos = nanos.min(MAX_BINARY);
            if nanos > 0 && nanos < NANO {
                format = SuffixFamily::DecimalSi;
            }
        }
        Ok(Self {
            nanos: if negative { -nanos } else { nanos },
            format,
        })
    }
}

/// True if the suffix consists of letters of the known suffixes, then an optional signed number.
fn suffix_is_formed(suffix: &str) -> bool {
    let rest = suffix.trim_start_matches(|c: char| "eEinumkKMGTP".contains(c));
    let rest = rest.strip_prefix(['-', '+']).unwrap_or(rest);
    rest.bytes().all(|b| b.is_ascii_digit())
}

/// The factor of a suffix.
#[derive(Clone, Copy)]
enum Scale {
    Ten(i32),
    Two(u32),
}

fn interpret(suffix: &str) -> Result<(Scale, SuffixFamily), QuantityError> {
    let decimal = |e| Ok((Scale::Ten(e), SuffixFamily::DecimalSi));
    let binary = |e| Ok((Scale::Two(e), SuffixFamily::BinarySi));
    match suffix {
        "n" => decimal(-9),
        "u" => decimal(-6),
        "m" => decimal(-3),
        "" => decimal(0),
        "k" => decimal(3),
        "M" => decimal(6),
        "G" => decimal(9),
        "T" => decimal(12),
        "P" => decimal(15),
        "E" => decimal(18),
        "Ki" => binary(10),
        "Mi" => binary(20),
        "Gi" => binary(30),
        "Ti" => binary(40),
        "Pi" => binary(50),
        "Ei" => binary(60),
        _ => {
            let exponent = suffix
                .strip_prefix(['e', 'E'])
                .ok_or(QuantityError::Suffix)?;
            let exponent: i64 = exponent.parse().map_err(|_| QuantityError::Suffix)?;
            // Beyond this, every number is zero (rounded up to a billionth) or the cap.
            let exponent = exponent.clamp(-1000, 1000) as i32;
            Ok((Scale::Ten(exponent), SuffixFamily::DecimalExponent))
        }
    }
}

/// The magnitude in billionths, rounded up to one if it is not zero, capped.
fn count(whole: &str, fraction: &str, scale: Scale) -> i128 {
    let (power, digits_kept, unit) = match scale {
        Scale::Ten(e) => (e, DIGITS_DECIMAL, 1),
        Scale::Two(bits) => (0, DIGITS_BINARY, 1_i128 << bits),
    };
    let digits = || {
        whole
            .bytes()
            .chain(fraction.bytes())
            .map(|b| i128::from(b - b'0'))
    };
    let leading = digits().take_while(|d| *d == 0).count();
    let total = whole.len() + fraction.len();
    if leading == total {
        return 0;
    }
    let kept = (total - leading).min(digits_kept);
    let mantissa = digits()
        .skip(leading)
        .take(kept)
        .fold(0_i128, |n, d| n * 10 + d);
    let lost = digits().skip(leading + kept).any(|d| d != 0);
    // In billionths the value is mantissa * unit * 10^exponent, plus the value of any dropped digits.
    let point = i64::try_from(whole.len()).unwrap_or(i64::MAX / 4);
    let before = i64::try_from(leading + kept).unwrap_or(i64::MAX / 4);
    shift_ten(mantissa * unit, lost, point - before + i64::from(power) + 9)
}

fn shift_ten(mantissa: i128, lost: bool, exponent: i64) -> i128 {
    if exponent >= 0 {
        let Some(factor) = u32::try_from(exponent)
            .ok()
            .and_then(|e| 10_i128.checked_pow(e))
        else {
            return MAX;
        };
        mantissa
            .checked_mul(factor)
            .map_or(MAX, |n| (n + i128::from(lost)).min(MAX))
    } else {
        let Some(divisor) = u32::try_from(-exponent)
            .ok()
            .and_then(|e| 10_i128.checked_pow(e))
        else {
            return 1;
        };
        let rounded = mantissa / divisor + i128::from(mantissa % divisor != 0 || lost);
        rounded.min(MAX)
    }
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.nanos == 0 {
            return f.write_str("0");
        }
        let small = self.nanos.abs() < 1024 * NANO;
        let format = match self.format {
            SuffixFamily::BinarySi if small || !self.is_whole() => SuffixFamily::DecimalSi,
            format => format,
        };
        if format == SuffixFamily::BinarySi {
            let mut n = self.nanos / NANO;
            let mut step = 0;
            while n % 1024 == 0 && step < BINARY.len() - 1 {
                n /= 1024;
                step += 1;
            }
            return write!(f, "{n}{}", BINARY[step]);
        }
        let mut n = self.nanos;
        let mut exponent = -9;
        while n % 1000 == 0 && (exponent < 18 || format == SuffixFamily::DecimalExponent) {
            n /= 1000;
            exponent += 3;
        }
        if format == SuffixFamily::DecimalExponent {
            if exponent == 0 {
                write!(f, "{n}")
            } else {
                write!(f, "{n}e{exponent}")
            }
        } else {
            let suffix = DECIMAL[usize::try_from((exponent + 9) / 3)
                .unwrap_or(3)
                .min(DECIMAL.len() - 1)];
            write!(f, "{n}{suffix}")
        }
    }
}

const BINARY: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
const DECIMAL: [&str; 10] = ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"];

#[cfg(test)]
#[path = "quantity_tests.rs"]
mod tests;
