//! Tests of access rules.
