//! The drayd program.
fn main() {}
