use std::collections::BTreeMap;

use super::super::digest::Digest;
use super::*;

/// `os/architecture[/variant]`.
fn platform(text: &str) -> Platform {
    let mut parts = text.split('/').map(str::to_owned);
    Platform {
        os: parts.next().unwrap(),
        architecture: parts.next().unwrap(),
        variant: parts.next(),
        os_version: None,
        os_features: Vec::new(),
    }
}

fn entry(platform: Option<Platform>) -> IndexEntry {
    let descriptor = Descriptor {
        media_type: media_type::OCI_MANIFEST.to_owned(),
        digest: Digest::of(format!("{platform:?}").as_bytes()),
        size: 1,
        annotations: BTreeMap::new(),
        urls: Vec::new(),
    };
    IndexEntry { descriptor: Ok(descriptor), platform, artifact_type: None }
}

/// One entry per text; `-` stands for an entry without a platform.
fn index(texts: &[&str]) -> Vec<IndexEntry> {
    texts.iter().map(|text| entry((*text != "-").then(|| platform(text)))).collect()
}

/// Fault 75.
#[test]
fn the_best_entry_for_a_platform_is_selected() {
    for (wanted, offered, expected) in [
        ("linux/amd64", &["linux/arm64", "linux/amd64"][..], Some(1)),
        ("linux/amd64", &["linux/amd64/v3", "linux/amd64/v2", "linux/amd64"], Some(2)),
        ("linux/amd64", &["linux/amd64/v1"], Some(0)),
        ("linux/amd64/v1", &["linux/amd64"], Some(0)),
        ("linux/amd64", &["linux/amd64/v2", "linux/amd64/v3"], None),
        ("linux/amd64/v3", &["linux/amd64", "linux/amd64/v2", "linux/amd64/v4"], Some(1)),
        ("linux/amd64/v3", &["linux/386", "linux/amd64/v1"], Some(1)),
        ("linux/amd64", &["linux/386", "linux/amd64"], Some(1)),
        ("linux/amd64", &["linux/386"], Some(0)),
        ("linux/amd64", &["linux/i386"], Some(0)),
        ("linux/amd64", &["linux/x86_64"], Some(0)),
        ("linux/amd64", &["Linux/AMD64"], Some(0)),
        ("linux/amd64", &["/amd64"], Some(0)),
        ("linux/amd64", &["windows/amd64", "linux/s390x"], None),
        // arm64
        ("linux/arm64/v8", &["linux/arm/v7", "linux/arm64/v8"], Some(1)),
        ("linux/arm64/v8", &["linux/arm/v7", "linux/arm64"], Some(1)),
        ("linux/arm64", &["linux/arm64/v8"], Some(0)),
        ("linux/arm64/v8", &["linux/arm64", "linux/arm64/v8"], Some(0)),
        ("linux/arm64/v8", &["linux/arm64/v8", "linux/arm64"], Some(0)),
        ("linux/arm64/v8", &["linux/aarch64"], Some(0)),
        ("linux/arm64/v8", &["linux/arm64/v9"], None),
        ("linux/arm64/v9", &["linux/arm64", "linux/arm64/v9"], Some(1)),
        ("linux/arm64/v9", &["linux/arm64"], Some(0)),
        ("linux/arm64/v8", &["linux/arm/v5", "linux/arm/v7", "linux/arm/v6"], Some(1)),
        // arm
        ("linux/arm/v7", &["linux/arm/v5", "linux/arm/v6", "linux/arm/v7"], Some(2)),
        ("linux/arm/v7", &["linux/arm/v5", "linux/arm/v6"], Some(1)),
        ("linux/arm/v7", &["linux/arm/v5"], Some(0)),
        ("linux/arm/v7", &["linux/arm/v6", "linux/arm"], Some(1)),
        ("linux/arm/v7", &["linux/armel", "linux/armhf"], Some(1)),
        ("linux/arm/v6", &["linux/arm/v7", "linux/arm/v5"], Some(1)),
        ("linux/arm/v6", &["linux/arm/v7"], None),
        ("linux/arm/v7", &["linux/arm64"], None),
        // the rest
        ("linux/riscv64", &["linux/amd64", "linux/riscv64"], Some(1)),
        ("linux/ppc64le", &["linux/ppc64"], None),
        // without a platform
        ("linux/amd64", &["-", "linux/amd64"], Some(1)),
        ("linux/amd64", &["-", "linux/386"], Some(1)),
        ("linux/amd64", &["linux/arm64", "-", "-"], Some(1)),
        ("linux/amd64", &["-"], Some(0)),
        // ties
        ("linux/amd64", &["linux/arm64", "linux/amd64", "linux/amd64/v1"], Some(1)),
        ("linux/amd64", &[], None),
    ] {
        let entries = index(offered);
        let selected = select(&entries, &platform(wanted)).ok();
        let place = selected.and_then(|selected| entries.iter().position(|e| std::ptr::eq(e, selected)));
        assert_eq!(place, expected, "{wanted} of {offered:?}");
    }
}

/// Fault 74.
#[test]
fn what_is_no_image_is_never_selected() {
    let amd64 = platform("linux/amd64");
    let mut attestation = entry(Some(amd64.clone()));
    let descriptor = attestation.descriptor.as_mut().unwrap();
    descriptor.annotations.insert(REFERENCE_TYPE.to_owned(), "attestation-manifest".to_owned());
    let mut bare_attestation = attestation.clone();
    bare_attestation.platform = None;
    let mut artifact = entry(Some(amd64.clone()));
    artifact.artifact_type = Some("application/vnd.example.sbom".to_owned());
    let mut bare_artifact = artifact.clone();
    bare_artifact.platform = None;
    let unknown = entry(Some(platform("unknown/unknown")));
    let mut statement = entry(Some(amd64.clone()));
    statement.descriptor.as_mut().unwrap().media_type = "application/vnd.in-toto+json".to_owned();
    let mut bare_statement = statement.clone();
    bare_statement.platform = None;
    let mut entries =
        vec![unknown, attestation, bare_attestation, artifact, bare_artifact, statement, bare_statement];

    let error = select(&entries, &amd64).unwrap_err();
    assert_eq!(error.offered, Vec::<String>::new());
    assert_eq!(error.to_string(), "no image for platform linux/amd64: the index offers no image at all");

    entries.push(entry(Some(amd64.clone())));
    let image = select(&entries, &amd64).unwrap();
    assert_eq!(image, &entries[7]);
    // But containerd takes what stands before it, other than the one of no platform that is known.
    for first in 0..7 {
        let expected = [1, 3, 5].into_iter().find(|&at| at >= first).map(|at| &entries[at]);
        assert_eq!(shadow(&entries[first..], &amd64, image), expected, "{first}");
    }
}

#[test]
fn an_entry_that_points_nowhere_matters_only_where_it_is_selected() {
    let mut entries = index(&["linux/arm64", "linux/amd64"]);
    let flaw = DocumentError::NoDigest { place: "manifests[0]".to_owned() };
    entries[0].descriptor = Err(flaw.clone());
    let amd64 = platform("linux/amd64");
    let selected = select(&entries, &amd64).unwrap();
    assert_eq!((selected, shadow(&entries, &amd64, selected)), (&entries[1], None));
    assert_eq!(select(&entries, &platform("linux/arm64")).unwrap().descriptor, Err(flaw));
}

#[test]
fn an_artifact_type_that_says_image_makes_no_artifact() {
    for artifact_type in ["", media_type::OCI_CONFIG, media_type::DOCKER_CONFIG] {
        let mut entries = index(&["linux/amd64"]);
        entries[0].artifact_type = Some(artifact_type.to_owned());
        assert_eq!(select(&entries, &platform("linux/amd64")), Ok(&entries[0]), "{artifact_type}");
    }
}

#[test]
fn an_entry_that_needs_a_feature_is_for_those_who_have_it() {
    let mut entries = index(&["linux/amd64", "linux/amd64", "linux/amd64"]);
    let os_features = |entry: &mut IndexEntry, feature: &str| {
        entry.platform.as_mut().unwrap().os_features.push(feature.to_owned());
    };
    os_features(&mut entries[0], "unheard.of");
    os_features(&mut entries[2], "nydus.remoteimage.v1");
    let plain = platform("linux/amd64");
    let nydus = Platform { os_features: vec!["nydus.remoteimage.v1".to_owned()], ..plain.clone() };
    assert_eq!(select(&entries, &plain), Ok(&entries[1]));
    assert_eq!(select(&entries, &nydus), Ok(&entries[2]));
    assert_eq!(
        select(&entries[..1], &plain).unwrap_err().to_string(),
        "no image for platform linux/amd64: the index offers linux/amd64 with unheard.of"
    );
}

#[test]
fn a_version_of_the_operating_system_does_not_decide() {
    let mut entries = index(&["linux/amd64"]);
    entries[0].platform.as_mut().unwrap().os_version = Some("5.10".to_owned());
    assert_eq!(select(&entries, &platform("linux/amd64")), Ok(&entries[0]));
}

/// Fault 76.
#[test]
fn the_error_lists_what_is_wanted_and_what_is_offered() {
    let entries = index(&["linux/s390x", "windows/amd64", "linux/s390x", "linux/arm64/v9"]);
    let error = select(&entries, &platform("linux/arm64/v8")).unwrap_err();
    assert_eq!(error.wanted, "linux/arm64/v8");
    assert_eq!(error.offered, ["linux/s390x", "windows/amd64", "linux/arm64/v9"]);
    assert_eq!(
        error.to_string(),
        "no image for platform linux/arm64/v8: the index offers linux/s390x, windows/amd64, linux/arm64/v9"
    );
}

#[test]
fn the_error_stays_short_and_clean_however_large_the_index() {
    let mut entries: Vec<IndexEntry> =
        (0..50_000).map(|number| entry(Some(platform(&format!("linux/cpu{number}"))))).collect();
    entries[0].platform = Some(platform(&format!("linux\n/{}", "x".repeat(1 << 20))));
    let text = select(&entries, &platform("linux/amd64")).unwrap_err().to_string();
    assert!(text.contains("linux\\n/xxx"), "{text}");
    assert!(text.ends_with("linux/cpu31 and 49968 more"), "{text}");
    assert!(text.len() < 1000, "{} bytes", text.len());
}

#[test]
fn the_host_selects_itself() {
    let host = Platform::host();
    let entries = vec![entry(Some(host.clone()))];
    assert_eq!(select(&entries, &host), Ok(&entries[0]));
    #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
    assert_eq!(host.to_string(), "linux/amd64");
    #[cfg(all(target_os = "linux", target_arch = "aarch64"))]
    assert_eq!(host.to_string(), "linux/arm64/v8");
}

#[test]
fn a_platform_without_names_is_shown_as_unknown() {
    assert_eq!(platform("/").to_string(), "unknown/unknown");
    assert_eq!(platform("linux/arm/").to_string(), "linux/arm");
}
