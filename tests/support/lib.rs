//! Support for the suites: real servers, images and probes.
