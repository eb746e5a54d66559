use std::error::Error as _;

use proptest::prelude::*;

use super::*;

const HEX: &str = "7cc4b5aefd1d0cadf8d97d4350462ba51c694ebca145b08d7d41b41acc8db5aa";

fn parse(text: &str) -> Reference {
    Reference::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

#[test]
fn names_are_normalised_as_cri_does() {
    let digest = format!("sha256:{HEX}");
    let sha512 = format!("sha512:{HEX}{HEX}");
    let longest_tag = "t".repeat(128);
    let longest_path = "p".repeat(255);
    for (text, expected) in [
        // Docker Hub
        ("busybox", "docker.io/library/busybox:latest"),
        ("busybox:1", "docker.io/library/busybox:1"),
        ("library/busybox", "docker.io/library/busybox:latest"),
        ("docker.io/busybox", "docker.io/library/busybox:latest"),
        ("docker.io/library/busybox", "docker.io/library/busybox:latest"),
        ("index.docker.io/busybox:1", "docker.io/library/busybox:1"),
        ("index.docker.io/org/app", "docker.io/org/app:latest"),
        ("DOCKER.IO/busybox", "docker.io/library/busybox:latest"),
        ("org/app", "docker.io/org/app:latest"),
        ("org/app:1", "docker.io/org/app:1"),
        ("org/team/app", "docker.io/org/team/app:latest"),
        // one part is never a host
        ("localhost", "docker.io/library/localhost:latest"),
        ("example.com", "docker.io/library/example.com:latest"),
        ("foo:5000", "docker.io/library/foo:5000"),
        ("docker.io", "docker.io/library/docker.io:latest"),
        // hosts
        ("localhost/app", "localhost/app:latest"),
        ("localhost:5000/app", "localhost:5000/app:latest"),
        ("a.b/app", "a.b/app:latest"),
        ("a:1/app", "a:1/app:latest"),
        ("MyReg/foo:v1", "MyReg/foo:v1"),
        ("Foo/bar", "Foo/bar:latest"),
        ("LOCALHOST/foo", "LOCALHOST/foo:latest"),
        ("LOCALHOST:5000/app:1", "LOCALHOST:5000/app:1"),
        ("docker.io:443/busybox", "docker.io:443/busybox:latest"),
        ("127.0.0.1:5000/a/b/c", "127.0.0.1:5000/a/b/c:latest"),
        ("xn--bcher-kva.example/a", "xn--bcher-kva.example/a:latest"),
        ("[::1]:5000/foo", "[::1]:5000/foo:latest"),
        ("[2001:db8::1]/a/b:v", "[2001:db8::1]/a/b:v"),
        ("[2001:DB8::1]/a", "[2001:DB8::1]/a:latest"),
        // separators
        ("a_b/c__d/e-f/g---h/i.j", "docker.io/a_b/c__d/e-f/g---h/i.j:latest"),
        // tags and digests
        (&format!("foo:{longest_tag}"), &format!("docker.io/library/foo:{longest_tag}")),
        ("foo:_A.b-C", "docker.io/library/foo:_A.b-C"),
        (&format!("foo@{digest}"), &format!("docker.io/library/foo@{digest}")),
        (&format!("foo:v1@{digest}"), &format!("docker.io/library/foo@{digest}")),
        (&format!("host:5/app:v1@{digest}"), &format!("host:5/app@{digest}")),
        (&format!("foo@{sha512}"), &format!("docker.io/library/foo@{sha512}")),
        // an image ID is refused only where nothing else stands
        (&format!("org/{HEX}"), &format!("docker.io/org/{HEX}:latest")),
        (&format!("library/sha256:{HEX}"), &format!("docker.io/library/sha256:{HEX}")),
        (&format!("{HEX}:v1"), &format!("docker.io/library/{HEX}:v1")),
        // the limit counts the repository alone
        (&format!("host.example/{longest_path}"), &format!("host.example/{longest_path}:latest")),
    ] {
        let reference = parse(text);
        assert_eq!(reference.to_string(), expected, "{text}");
        assert_eq!(parse(expected), reference, "{text}");
    }
}

#[test]
fn what_is_not_a_reference_is_refused_with_its_reason() {
    let id = format!("sha256:{HEX}");
    for (text, reason) in [
        ("", "image reference is empty"),
        (HEX, &format!("`{HEX}` is an image ID, not an image reference")),
        (&id, &format!("`{id}` is an image ID, not an image reference")),
        ("https://reg.example/app", "starts with a scheme"),
        ("docker://busybox", "starts with a scheme"),
        // upper case
        ("Busybox", "has upper-case letters"),
        ("127.0.0.1:5000/App:1", "repository `App` of image reference `127.0.0.1:5000/App:1` has upper-case"),
        ("foo/BAR", "has upper-case letters"),
        (&HEX.to_uppercase(), "has upper-case letters"),
        ("foo/É", "has upper-case letters"),
        // repositories
        (" busybox", "repository `library/ busybox`"),
        ("busybox ", "is not valid"),
        ("busybox\n", "repository `library/busybox\\n`"),
        ("/", "is not valid"),
        ("/busybox", "is not valid"),
        ("busybox/", "is not valid"),
        ("a//b", "is not valid"),
        ("host.example/", "repository ``"),
        ("docker.io/", "repository `library/`"),
        (":1", "is not valid"),
        (":", "is not valid"),
        ("@", "is not valid"),
        (&format!("@{id}"), "is not valid"),
        (".", "is not valid"),
        ("../../etc", "host `..`"),
        ("a/../b", "is not valid"),
        ("-a", "is not valid"),
        ("a-", "is not valid"),
        ("a..b", "is not valid"),
        ("a___b", "is not valid"),
        ("a._b", "is not valid"),
        ("a-_b", "is not valid"),
        ("é/a", "is not valid"),
        ("日本", "is not valid"),
        ("a\0b", "repository `library/a\\0b`"),
        ("a?b=c", "is not valid"),
        (&format!("host.example/{}", "p".repeat(256)), "has 256 characters: at most 255 are allowed"),
        // Docker Hub's own namespace counts too
        (&"p".repeat(248), "has 256 characters"),
        // hosts
        ("host:/app", "host `host:`"),
        ("host:port/app", "host `host:port`"),
        ("host:65536/app", "host `host:65536`"),
        ("host:+80/app", "host `host:+80`"),
        ("a:1:2/app", "host `a:1:2`"),
        ("foo:tag/app", "host `foo:tag`"),
        ("a..b/app", "host `a..b`"),
        (".a/app", "host `.a`"),
        ("-a.b/app", "host `-a.b`"),
        ("a-.b/app", "host `a-.b`"),
        ("a_b.c/app", "host `a_b.c`"),
        ("user@reg.example/app", "host `user@reg.example`"),
        ("ä.example/app", "host `ä.example`"),
        (":5000/app", "host `:5000`"),
        ("::1/app", "host `::1`"),
        ("[::1/app", "host `[::1`"),
        ("[]:1/app", "host `[]:1`"),
        ("[:::]/app", "host `[:::]`"),
        ("[fe80::1%eth0]/app", "host `[fe80::1%eth0]`"),
        ("[::ffff:1.2.3.4]/app", "host `[::ffff:1.2.3.4]`"),
        ("[::1]5000/app", "host `[::1]5000`"),
        ("[::1]]:5000/app", "host `[::1]]:5000`"),
        ("[a.b]/app", "host `[a.b]`"),
        // tags
        ("foo:", "tag `` of"),
        ("foo:.a", "tag `.a`"),
        ("foo:-a", "tag `-a`"),
        ("foo:a:b", "tag `a:b`"),
        ("foo:a b", "tag `a b`"),
        ("foo:é", "tag `é`"),
        ("foo:日本", "tag `日本`"),
        ("foo:v１", "tag `v１`"),
        (&format!("foo:{}", "t".repeat(129)), "is not valid: it needs 1 to 128"),
        (&format!("foo:é@{id}"), "tag `é`"),
        (&format!("foo:@{id}"), "tag ``"),
    ] {
        let error = Reference::parse(text).expect_err(text);
        assert!(error.to_string().contains(reason), "{text}: {error}");
    }
}

#[test]
fn a_digest_that_cannot_be_verified_is_refused_with_its_reason() {
    let short = format!("foo@sha256:{}", &HEX[1..]);
    let upper = format!("foo@sha256:{}", HEX.to_uppercase());
    let twice = format!("foo@sha256:{HEX}@sha256:{HEX}");
    for (text, reason) in [
        ("foo@", "`` is not a digest"),
        ("foo@bar", "`bar` is not a digest"),
        ("foo@md5:d41d8cd98f00b204e9800998ecf8427e", "digest algorithm `md5` is not supported"),
        ("foo@sha999:00", "digest algorithm `sha999` is not supported"),
        ("foo@\n:00", "digest algorithm `\\n` is not supported"),
        (&short, "expected 64 lower-case hex digits"),
        (&upper, "expected 64 lower-case hex digits"),
        (&twice, "expected 64 lower-case hex digits"),
    ] {
        let error = Reference::parse(text).expect_err(text);
        assert!(error.to_string().ends_with("has no usable digest"), "{text}: {error}");
        let source = error.source().expect(text).to_string();
        assert!(source.contains(reason), "{text}: {source}");
    }
}

#[test]
fn the_parts_of_a_tagged_reference() {
    let reference = parse("localhost:5000/org/app:v1");
    assert_eq!(reference.domain(), "localhost:5000");
    assert_eq!(reference.path(), "org/app");
    assert_eq!(reference.tag(), Some("v1"));
    assert_eq!(reference.digest(), None);
    assert_eq!(reference.object(), "v1");
    let digest = Digest::of(b"x");
    assert_eq!(reference.with_digest(&digest), format!("localhost:5000/org/app@{digest}"));
}

#[test]
fn the_parts_of_a_reference_with_tag_and_digest() {
    let digest = Digest::of(b"x");
    let reference = parse(&format!("busybox:fake@{digest}"));
    assert_eq!(reference.tag(), None);
    assert_eq!(reference.digest(), Some(&digest));
    assert_eq!(reference.object(), digest.as_str());
    assert_eq!(reference.with_digest(&digest), reference.to_string());
}

#[test]
fn the_case_of_a_host_stays_as_it_was_given() {
    let given = parse("LOCALHOST:5000/app:1");
    assert_eq!(given.to_string(), "LOCALHOST:5000/app:1");
    assert_ne!(given, parse("localhost:5000/app:1"));
}

#[test]
fn errors_stay_short_however_long_the_input() {
    for text in ["A".repeat(1 << 20), format!("foo:{}", "é".repeat(1 << 20)), "a/".repeat(1 << 19)] {
        let error = Reference::parse(&text).unwrap_err().to_string();
        assert!(error.chars().count() < 600, "{} characters", error.len());
    }
}

proptest! {
    #[test]
    fn no_text_makes_the_parser_panic_and_what_parses_reads_back(text in any::<String>()) {
        if let Ok(reference) = Reference::parse(&text) {
            prop_assert_eq!(Reference::parse(&reference.to_string()), Ok(reference));
        }
    }

    #[test]
    fn near_references_do_not_panic_and_what_parses_reads_back(
        text in r"[\[\]a-cA:0-9.]{0,8}/?[a-zA._/-]{0,12}[:@]?[a-z0-9:@.]{0,8}",
    ) {
        if let Ok(reference) = Reference::parse(&text) {
            prop_assert_eq!(Reference::parse(&reference.to_string()), Ok(reference));
        }
    }

    #[test]
    fn well_formed_references_parse_and_read_back(
        host in r"([a-z0-9]{1,4}\.[a-zA-Z]{2,3}|localhost|\[::[1-9a-f]\])(:[1-9][0-9]{0,3})?/",
        path in r"[a-z0-9]{1,5}((\.|_|__|-{1,3})[a-z0-9]{1,5})?(/[a-z0-9]{1,5}){0,3}",
        tag in r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,20}",
        bytes in any::<Option<[u8; 4]>>(),
    ) {
        let digest = bytes.map(|bytes| Digest::of(&bytes));
        let suffix = digest.as_ref().map(|digest| format!("@{digest}")).unwrap_or_default();
        let reference = Reference::parse(&format!("{host}{path}:{tag}{suffix}")).expect("well formed");
        prop_assert_eq!(reference.path(), &path);
        prop_assert_eq!(reference.tag(), digest.is_none().then_some(tag.as_str()));
        prop_assert_eq!(reference.digest(), digest.as_ref());
        prop_assert_eq!(Reference::parse(&reference.to_string()), Ok(reference));
    }
}
