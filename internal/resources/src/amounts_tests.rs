//! Tests of amounts.
