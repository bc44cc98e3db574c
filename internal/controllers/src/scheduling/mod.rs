//! scheduling
