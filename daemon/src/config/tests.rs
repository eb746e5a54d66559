use super::written::Written as _;
use super::*;

fn parse(text: &str) -> Result<Config, ConfigError> {
    Config::parse(Path::new("/etc/drayd/config.toml"), text)
}

/// The problems of `text`, one per line, without the file's name.
fn problems(text: &str) -> String {
    parse(text).unwrap_err().to_string().replace("/etc/drayd/config.toml:", "")
}

#[test]
fn an_empty_file_means_the_defaults() {
    assert_eq!(parse("").unwrap(), Config::default());
}

/// No key has its default.
const OTHERWISE: &str = r#"
        [containerd]
        address = "/run/k3s/containerd/containerd.sock"
        namespace = "moby"
        [cri]
        socket = "/run/d.sock"
        socket_mode = "0600"
        socket_group = "drayd"
        verify_unpacked = false
        kubelet_reasons = true
        [api]
        socket = "/run/a.sock"
        socket_mode = "0600"
        socket_group = "7"
        [snapshotter]
        default = "native"
        unknown_handler = "default"
        guest_pull = ["nydus"]
        [snapshotter.handlers]
        kata = "nydus"
        [registry]
        config_path = ["/etc/certs.d"]
        credentials_file = "/etc/drayd/registries.json"
        trusted_mirrors = ["m.test:5000"]
        anonymous_fallback = true
        response_timeout = "3s"
        parallel_ranges = 2
        range_size = "512KiB"
        download_rate = "50MiB"
        [pull]
        max_concurrent_downloads = 0
        max_concurrent_pulls = 2
        max_pulls_per_image = 1
        check_disk = false
        rules = [{ annotations = { a = "b*" }, namespace = "batch-*", priority = "low", snapshotter = "nydus" }]
        progress_timeout = "0"
        always_verify_credentials = true
        lease_lifetime = "12h"
        [unpack]
        engine = "differ"
        keep_layers = false
        sync = true
        [metrics]
        address = "127.0.0.1:9095"
        tag_keys = ["app"]
        tag_values = 7
        [traces]
        endpoint = "http://127.0.0.1:4317"
        [log]
        level = "trace"
        format = "json"
    "#;

#[test]
fn every_key_takes_another_value() {
    let identifier = |name: &'static str| Identifier::constant(name);
    let expected = Config {
        containerd: Containerd {
            address: "/run/k3s/containerd/containerd.sock".into(),
            namespace: identifier("moby"),
        },
        cri: Cri {
            socket: "/run/d.sock".into(),
            socket_mode: Mode::new(0o600).unwrap(),
            socket_group: Some(Group::Name("drayd".into())),
            verify_unpacked: false,
            kubelet_reasons: true,
        },
        api: Api {
            socket: "/run/a.sock".into(),
            socket_mode: Mode::new(0o600).unwrap(),
            socket_group: Some(Group::Id(7)),
        },
        snapshotter: Snapshotter {
            default: Some(identifier("native")),
            unknown_handler: UnknownHandler::Default,
            guest_pull: vec![identifier("nydus")],
            handlers: BTreeMap::from([("kata".into(), identifier("nydus"))]),
        },
        registry: Registry {
            config_path: vec!["/etc/certs.d".into()],
            credentials_file: Some("/etc/drayd/registries.json".into()),
            trusted_mirrors: vec![Authority::read("m.test:5000").unwrap()],
            anonymous_fallback: true,
            response_timeout: Duration::from_secs(3),
            parallel_ranges: NonZeroUsize::new(2).unwrap(),
            range_size: RangeSize(512 << 10),
            download_rate: Some(Size(50 << 20)),
        },
        pull: Pull {
            max_concurrent_downloads: None,
            max_concurrent_pulls: NonZeroUsize::new(2),
            max_pulls_per_image: NonZeroUsize::new(1),
            check_disk: false,
            rules: vec![Rule {
                annotations: BTreeMap::from([("a".into(), "b*".into())]),
                namespace: Some("batch-*".into()),
                priority: Some(Priority::Low),
                snapshotter: Some(identifier("nydus")),
                ..Rule::default()
            }],
            progress_timeout: None,
            always_verify_credentials: true,
            lease_lifetime: Lifetime(Duration::from_secs(12 * 3600)),
        },
        unpack: Unpack { engine: Engine::Differ, keep_layers: false, sync: true },
        metrics: Metrics {
            address: Some(SocketAddr::from(([127, 0, 0, 1], 9095))),
            tag_keys: TagKeys(vec!["app".into()]),
            tag_values: 7,
        },
        traces: Traces { endpoint: Some(Endpoint::read("http://127.0.0.1:4317").unwrap()) },
        log: Log { level: Level::Trace, format: Format::Json },
    };
    let config = parse(OTHERWISE).unwrap();
    assert_eq!(config, expected);
    // What is shown reads back as the same settings.
    assert_eq!(parse(&toml::to_string(&config).unwrap()).unwrap(), expected);
}

#[test]
fn unknown_names_are_told_with_what_may_have_been_meant() {
    for (text, expected) in [
        (
            "\n[containerd]\n  adress = \"/x\"",
            "3:3: unknown key `adress` in [containerd]: did you mean `address`?",
        ),
        ("[cri]\nnamespace = \"x\"", "2:1: unknown key `namespace` in [cri]: it belongs in [containerd]"),
        ("[log]\nsocket = \"x\"", "2:1: unknown key `socket` in [log]: it belongs in [cri] or [api]"),
        ("[log]\ncolour = true", "2:1: unknown key `colour` in [log]: known are `level`, `format`"),
        (
            "[snapshotter.handler]\nkata = \"x\"",
            "1:14: unknown key `handler` in [snapshotter]: did you mean `handlers`?",
        ),
        ("[containrd]\n", "1:2: unknown section [containrd]: did you mean [containerd]?"),
        ("level = \"info\"", "1:1: key `level` is outside of any section: it belongs in [log]"),
        ("log = \"info\"", "1:1: `log` is a section: write its keys below a line [log]"),
        ("[[log]]", "1:3: `log` is a section: write its keys below a line [log]"),
        ("log.levl = \"info\"", "1:5: unknown key `levl` in [log]: did you mean `level`?"),
    ] {
        assert_eq!(problems(text), expected, "{text}");
    }
    let nothing_near = problems("[tracing]");
    assert!(nothing_near.starts_with("1:2: unknown section [tracing]: known are [containerd], [cri],"));
}

#[test]
fn wrong_values_are_told_with_what_is_expected() {
    for (text, expected) in [
        (
            "[pull]\nprogress_timeout = \"5 minutes\"",
            r#"2:20: `progress_timeout` in [pull]: invalid value: string "5 minutes", expected a duration such as "5m", "1h30m" or "500ms", or "0" for none"#,
        ),
        (
            "[pull]\nprogress_timeout = 5",
            r#"2:20: `progress_timeout` in [pull]: invalid type: integer `5`, expected a duration such as "5m", "1h30m" or "500ms", or "0" for none"#,
        ),
        (
            "[pull]\nmax_concurrent_downloads = -1",
            "2:28: `max_concurrent_downloads` in [pull]: invalid value: integer `-1`, expected a whole number, or 0 for no limit",
        ),
        (
            "[cri]\nsocket_mode = 0o660",
            r#"2:15: `socket_mode` in [cri]: invalid type: integer `432`, expected permission bits in octal, such as "0660""#,
        ),
        (
            "[containerd]\naddress = \"containerd.sock\"",
            r#"2:11: `address` in [containerd]: invalid value: string "containerd.sock", expected an absolute path"#,
        ),
        (
            "[registry]\nconfig_path = [\"/a\", \"b\"]",
            r#"2:22: `config_path` in [registry]: invalid value: string "b", expected an absolute path"#,
        ),
        (
            "[registry]\nconfig_path = \"/a\"",
            r#"2:15: `config_path` in [registry]: invalid type: string "/a", expected a sequence"#,
        ),
        (
            "[registry]\nresponse_timeout = \"0\"",
            r#"2:20: `response_timeout` in [registry]: invalid value: string "0", expected a duration above zero such as "10s", "1m30s" or "500ms""#,
        ),
        (
            "[registry]\nparallel_ranges = 33",
            "2:19: `parallel_ranges` in [registry]: invalid value: integer `33`, expected a whole number from 1 to 32",
        ),
        (
            "[registry]\nparallel_ranges = 0",
            "2:19: `parallel_ranges` in [registry]: invalid value: integer `0`, expected a whole number from 1 to 32",
        ),
        (
            "[registry]\nrange_size = \"8GiB\"",
            r#"2:14: `range_size` in [registry]: invalid value: string "8GiB", expected a number of bytes above zero and up to 256MiB, such as "8MiB" or "512KiB""#,
        ),
        (
            "[snapshotter.handlers]\nkata = \"\"",
            r#"2:8: `handlers` in [snapshotter]: invalid value: string "", expected a name of letters and digits with single `-`, `_` or `.` between them"#,
        ),
        (
            "[unpack]\nkeep_layers = \"yes\"",
            r#"2:15: `keep_layers` in [unpack]: invalid type: string "yes", expected a boolean"#,
        ),
        (
            "[log]\nlevel = \"warning\"",
            "2:9: `level` in [log]: unknown variant `warning`, expected one of `error`, `warn`, `info`, `debug`, `trace`",
        ),
        (
            "[metrics]\naddress = \":9095\"",
            r#"2:11: `address` in [metrics]: invalid value: string ":9095", expected IP:PORT, such as "127.0.0.1:9095" or "[::1]:9095", or nothing"#,
        ),
    ] {
        assert_eq!(problems(text), expected, "{text}");
    }
    let long = format!("[cri]\nsocket = \"/{}\"", "s".repeat(107));
    assert!(problems(&long).ends_with("expected an absolute path of at most 107 bytes"));
}

#[test]
fn the_largest_ranges_are_taken() {
    let registry = parse("[registry]\nparallel_ranges = 32\nrange_size = \"256MiB\"").unwrap().registry;
    assert_eq!((registry.parallel_ranges.get(), registry.range_size.0), (32, 256 << 20));
}

#[test]
fn all_problems_of_a_file_are_told_in_its_order() {
    let text =
        "[log]\nlevl = \"info\"\nformat = \"xml\"\n[cri]\nsocket = \"a\"\nsocket_mode = \"9\"\n[lag]\n";
    let lines: Vec<_> =
        problems(text).lines().map(|line| line.split(": ").next().unwrap().to_owned()).collect();
    assert_eq!(lines, ["2:1", "3:10", "5:10", "6:15", "7:2"]);
}

#[test]
fn what_is_not_toml_is_told_with_its_place() {
    assert!(problems("[log]\nlevel = info").starts_with("2:9: "), "{}", problems("[log]\nlevel = info"));
    assert_eq!(problems("[log]\nlevel = \"info\"\nlevel = \"warn\""), "3:1: duplicate key");
    // Columns count characters, not bytes.
    assert!(problems("\"ä\" = x").starts_with("1:7: "));
}

#[test]
fn a_named_file_that_is_missing_is_an_error() {
    let error = Config::load(Some(Path::new("/nonexistent/config.toml"))).unwrap_err();
    assert_eq!(error.to_string(), "cannot read /nonexistent/config.toml");
}

#[test]
fn what_has_no_effect_is_warned_of() {
    assert_eq!(warnings(&Config::default()), Vec::<String>::new());
    let short = warnings(&parse("[pull]\nlease_lifetime = \"4h3m59s\"").unwrap());
    assert!(short.len() == 1 && short[0].contains("below 4h4m:"), "{short:?}");
    assert!(reference::tables().contains("below `4h4m` it may expire"), "the reference tells another time");
    assert!(warnings(&parse("[pull]\nlease_lifetime = \"4h4m\"").unwrap()).is_empty());
    let rules = "[pull]\nrules = [{ priority = \"low\" }, { namespace = \"a\" }]";
    let idle = warnings(&parse(rules).unwrap());
    assert!(idle.len() == 1 && idle[0].starts_with("rule 2 of `rules`"), "{idle:?}");
    let same = warnings(&parse("[api]\nsocket = \"/run/drayd/drayd.sock\"").unwrap());
    assert!(same.len() == 1 && same[0].contains("are the same"), "{same:?}");
}
