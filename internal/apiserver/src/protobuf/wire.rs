//! Owns protobuf's wire format: numbered fields from bytes. Contains no messages.

/// Why bytes are not valid fields.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    /// The bytes end within a number.
    #[error("it ends within a number")]
    InNumber,
    /// A number is longer than ten bytes.
    #[error("a number is longer than ten bytes")]
    LongNumber,
    /// The bytes end within a field.
    #[error("it ends within a field")]
    InField,
    /// A field's length does not fit in memory.
    #[error("a field is too long")]
    LongField,
    /// Kubernetes uses no fields of this wire type.
    #[error("wire type {0} is not used by Kubernetes")]
    Type(u64),
}

/// A field's value on the wire.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Raw<'a> {
    /// Wire type 0.
    Varint(u64),
    /// Wire type 1.
    Fixed64(u64),
    /// Wire type 2: text, bytes, messages.
    Bytes(&'a [u8]),
    /// Wire type 5.
    Fixed32(u32),
}

/// The number in a varint of an int32 or int64 field: two's complement.
pub fn signed(number: u64) -> i64 {
    i64::from_le_bytes(number.to_le_bytes())
}

/// Reads the fields of a message in sequence; ends after an error.
pub struct MessageReader<'a> {
    rest: &'a [u8],
}

impl<'a> MessageReader<'a> {
    /// The fields in these bytes.
    pub fn new(bytes: &'a [u8]) -> Self {
        MessageReader { rest: bytes }
    }

    fn varint(&mut self) -> Result<u64, WireError> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let (byte, rest) = self.rest.split_first().ok_or(WireError::InNumber)?;
            self.rest = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(WireError::LongNumber)
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], WireError> {
        let (taken, rest) = self
            .rest
            .split_at_checked(length)
            .ok_or(WireError::InField)?;
        self.rest = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], WireError> {
        let bytes = self.take(N)?;
        bytes.try_into().map_err(|_| WireError::InField)
    }

    fn field(&mut self) -> Result<(u64, Raw<'a>), WireError> {
        let key = self.varint()?;
        let raw = match key & 7 {
            0 => Raw::Varint(self.varint()?),
            1 => Raw::Fixed64(u64::from_le_bytes(self.array()?)),
            2 => {
                let length = usize::try_from(self.varint()?).map_err(|_| WireError::LongField)?;
                Raw::Bytes(self.take(length)?)
            }
            5 => Raw::Fixed32(u32::from_le_bytes(self.array()?)),
            other => return Err(WireError::Type(other)),
        };
        Ok((key >> 3, raw))
    }
}

impl<'a> Iterator for MessageReader<'a> {
    type Item = Result<(u64, Raw<'a>), WireError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_err() {
            self.rest = &[];
        }
        Some(field)
    }
}
