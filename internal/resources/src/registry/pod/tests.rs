//! Tests of the Pod kind.
