//! The CRI front door.

pub mod socket;
