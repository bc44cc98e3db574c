//! Tests of quotas.
