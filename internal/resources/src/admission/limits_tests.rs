//! Tests of limit ranges.
