//! Entry points for fuzzing: each reads one kind of text from outside and panics only if a property is broken that
//! must hold for any input. The tests here run them on a fixed number of inputs; libFuzzer runs them for long.

pub use crate::cri::fuzz::connection;
use crate::oci::{Config, Document, Reference};
pub use crate::registry::fuzz::{challenge, content_range, credentials, hosts_toml, retry_after};
pub use crate::unpack::fuzz::archive;

/// An image's name: what is shown of it reads as the same.
pub fn reference(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    if let Ok(reference) = Reference::parse(text) {
        let shown = reference.to_string();
        assert_eq!(Reference::parse(&shown).as_ref(), Ok(&reference), "{text} is shown as {shown}");
    }
}

/// An index, a manifest or a config.
pub fn manifest(input: &[u8]) {
    for media_type in [
        None,
        Some("application/vnd.oci.image.index.v1+json"),
        Some("application/vnd.oci.image.manifest.v1+json"),
        Some("application/vnd.docker.distribution.manifest.v2+json"),
        Some("application/vnd.docker.distribution.manifest.v1+prettyjws"),
    ] {
        // An error becomes a pod's event, so it is bounded whatever the document says.
        if let Err(error) = Document::parse(media_type, input) {
            assert!(error.to_string().len() < 4096, "{error}");
        }
    }
    if let Err(error) = Config::parse(input) {
        assert!(error.to_string().len() < 4096, "{error}");
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;
    use proptest::test_runner::{Config as Runs, RngAlgorithm, TestRng, TestRunner};

    use super::*;

    /// Inputs for each target: enough to meet every branch, and below a second.
    const INPUTS: u32 = 2000;

    /// Runs a target on arbitrary bytes, and on valid inputs with bytes replaced, put in and taken out. The inputs are
    /// the same in each run.
    fn run<S: AsRef<[u8]>>(target: fn(&[u8]), seeds: &[S]) {
        for seed in seeds {
            target(seed.as_ref());
        }
        let seeds: Vec<Vec<u8>> = seeds.iter().map(|seed| seed.as_ref().to_vec()).collect();
        let edit = (any::<prop::sample::Index>(), prop_oneof![any::<u8>(), 0x20..0x7f_u8], 0..4_u8);
        let mutated = (prop::sample::select(seeds), vec(edit, 1..8)).prop_map(|(mut bytes, edits)| {
            for (at, byte, kind) in edits {
                let at = at.index(bytes.len() + 1);
                match kind {
                    0 if at < bytes.len() => bytes[at] = byte,
                    1 if at < bytes.len() => drop(bytes.remove(at)),
                    2 => bytes.truncate(at),
                    _ => bytes.insert(at, byte),
                }
            }
            bytes
        });
        let inputs = prop_oneof![1 => vec(any::<u8>(), 0..200), 1 => "\\PC{0,80}".prop_map(String::into_bytes), 3 => mutated];
        let runs = Runs { cases: INPUTS, failure_persistence: None, ..Runs::default() };
        let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
        let outcome = TestRunner::new_with_rng(runs, rng).run(&inputs, |input| {
            target(&input);
            Ok(())
        });
        if let Err(error) = outcome {
            panic!("{error}");
        }
    }

    #[test]
    fn no_reference_breaks_its_reader() {
        run(
            reference,
            &[
                "busybox",
                "reg.test:5000/a/b-c:v1",
                "[::1]:5000/a@sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
                "LOCALHOST/a:1@sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
            ],
        );
    }

    #[test]
    fn no_challenge_breaks_its_reader() {
        run(
            challenge,
            &[
                r#"Bearer realm="https://t.test/token?x=1",service="s",scope="repository:a/b:pull,push a""#,
                "Bearer realm=https://t.test/token,service=s\nBasic realm=\"r\"",
                r#"Digest nonce="n", Basic realm="x", Bearer realm="https:\//t.test" scope="a"#,
            ],
        );
    }

    #[test]
    fn no_hosts_toml_breaks_its_reader() {
        run(
            hosts_toml,
            &[
                "server = 'https://reg.test:5000'\nskip_verify = true\n[header]\nx-a = ['1']\n",
                "[host.'http://m.test:80/p/v2']\ncapabilities = ['pull', 'resolve']\ndial_timeout = '1m2.5s'\n\
                 override_path = true\nextra = 1\n[host.'m2']\n",
                "ca = ['a.crt']\nclient = [['c.pem', 'c.key'], ['d.pem', '']]\n",
            ],
        );
    }

    #[test]
    fn no_manifest_breaks_its_reader() {
        run(
            manifest,
            &[
                r#"{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json","manifests":[{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":"sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855","size":7,"platform":{"architecture":"arm","os":"linux","variant":"v7"}}]}"#,
                r#"{"schemaVersion":2,"config":{"mediaType":"application/vnd.oci.image.config.v1+json","digest":"sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855","size":2},"layers":[{"mediaType":"application/vnd.oci.image.layer.v1.tar+gzip","digest":"sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855","size":9,"urls":["http://x"]}]}"#,
                r#"{"architecture":"amd64","os":"linux","rootfs":{"type":"layers","diff_ids":["sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"]}}"#,
                "<html>",
            ],
        );
    }

    #[test]
    fn no_credentials_break_their_reader_or_are_shown_by_it() {
        run(
            credentials,
            &[
                r#"{"auths":{"https://reg.test/v1/":{"auth":"canary","identitytoken":"canary-token"},"h/a":{"username":"u","password":"canary"}},"credsStore":"x","credHelpers":{"h":"y"}}"#,
                "{\"auths\":{\n\"h\":{\"registrytoken\":[\"canary\"]}}}",
                "canary-user\ncanary-password\n\nhttps://reg.test:443/v1/",
                "\n\nY2FuYXJ5Om5v\nu@h\ncanary\ncanary",
            ],
        );
    }

    #[test]
    fn no_retry_after_breaks_its_reader() {
        run(
            retry_after,
            &[
                " 120 ",
                "99999999999999999999",
                "Sun, 06 Nov 1994 08:49:37 GMT",
                "Sunday, 06-Nov-94 08:49:37 GMT",
                "Fri Dec 31 23:59:59 9999",
            ],
        );
    }

    #[test]
    fn no_content_range_breaks_its_reader() {
        run(
            content_range,
            &["bytes 5-9/10", "Bytes 0-0/*", "bytes 18446744073709551615-18446744073709551615/*"],
        );
    }

    /// Two calls that grpc-go made each; the second is in HPACK's table, and its block is cut into two frames.
    #[test]
    fn no_connection_breaks_its_filter() {
        let seeds: [&[u8]; 3] = [
            include_bytes!("../../tests/fuzz/seeds/connection/encoded"),
            include_bytes!("../../tests/fuzz/seeds/connection/raw"),
            include_bytes!("../../tests/fuzz/seeds/connection/empty"),
        ];
        for seed in seeds {
            assert!(seed.starts_with(b"PRI "), "a filter that is off has nothing to break");
        }
        run(connection, &seeds);
    }
    /// Every kind of entry in each format that is written today, and every form of sparse files, by GNU tar.
    #[test]
    fn no_tar_breaks_its_reader() {
        let seeds: [&[u8]; 7] = [
            include_bytes!("../../tests/fuzz/seeds/archive/ustar"),
            include_bytes!("../../tests/fuzz/seeds/archive/pax"),
            include_bytes!("../../tests/fuzz/seeds/archive/gnu"),
            include_bytes!("../../tests/fuzz/seeds/archive/sparse-gnu"),
            include_bytes!("../../tests/fuzz/seeds/archive/sparse-pax-0.0"),
            include_bytes!("../../tests/fuzz/seeds/archive/sparse-pax-0.1"),
            include_bytes!("../../tests/fuzz/seeds/archive/sparse-pax-1.0"),
        ];
        run(archive, &seeds);
    }
}
