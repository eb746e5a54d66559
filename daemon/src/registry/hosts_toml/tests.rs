use super::*;

fn read(text: &str, domain: &str) -> Reading {
    parse(Path::new("/c/hosts.toml"), text, domain, |_| Err(io::ErrorKind::NotFound.into()))
}

fn parsed(text: &str) -> Vec<Host> {
    read(text, "reg.test:5000").hosts().unwrap()
}

fn refused(text: &str) -> String {
    read(text, "reg.test").hosts().unwrap_err().to_string()
}

/// Fault 33.
#[test]
fn mirrors_keep_the_order_of_the_file_and_the_registry_comes_last() {
    let hosts = parsed("[host.'https://z']\n[host.'http://a:1/p']\n[host.'m']\n");
    let authorities: Vec<_> = hosts.iter().map(|host| host.authority.as_str()).collect();
    assert_eq!(authorities, ["z", "a:1", "m", "reg.test:5000"]);
    assert_eq!(hosts[1].root, "/p/v2");
    assert_eq!(hosts[1].scheme, Scheme::Http);
    assert_eq!(hosts[2].scheme, Scheme::Https);
    assert_eq!(hosts[0].namespace.as_deref(), Some("reg.test:5000"));
    assert!(!hosts[0].own && hosts[3].own);
    assert_eq!(hosts[3].namespace, None);
}

/// Fault 38.
#[test]
fn keys_without_any_host_are_for_the_registry_itself() {
    for (text, authority) in [
        ("skip_verify = true", "reg.test:5000"),
        ("server = 'https://reg.test:5000'\nskip_verify = true", "reg.test:5000"),
        ("server = 'https://other.test'\nskip_verify = true", "other.test"),
    ] {
        let hosts = parsed(text);
        assert_eq!(hosts.len(), 1);
        assert_eq!(hosts[0].authority, authority);
        assert!(hosts[0].tls.skip_verify);
    }
    assert!(refused("ca = 'no.crt'").contains("a certificate cannot be used"));
}

/// Fault 34.
#[test]
fn server_replaces_the_registry_itself() {
    let hosts = parsed("server = 'https://mirror.test'");
    assert_eq!(hosts.len(), 1);
    assert_eq!(hosts[0].authority, "mirror.test");
    assert!(!hosts[0].own);
    assert!(parsed("server = 'http://reg.test:5000'")[0].own);
}

/// Fault 51.
#[test]
fn keys_cover_their_own_host_only() {
    let hosts = parsed(
        "skip_verify = true\ndial_timeout = '1m2.5s'\ncapabilities = ['push']\n[header]\nx-root = 'r'\n\
         [host.'https://m']\ncapabilities = ['Pull']\n[host.'https://m'.header]\nx-a = ['1', '2']\n",
    );
    assert!(!hosts[0].tls.skip_verify && hosts[1].tls.skip_verify);
    assert_eq!(hosts[0].capabilities, Capabilities { pull: true, resolve: false });
    assert_eq!(hosts[0].headers.get_all("x-a").iter().count(), 2);
    assert!(!hosts[0].headers.contains_key("x-root") && hosts[1].headers.contains_key("x-root"));
    assert_eq!(hosts[1].dial_timeout, Duration::from_millis(62_500));
    // Without `server`, the registry keeps all capabilities.
    assert_eq!(hosts[1].capabilities, Capabilities::ALL);
}

#[test]
fn the_path_becomes_the_root_of_the_api() {
    for (address, override_path, root) in [
        ("https://m", false, "/v2"),
        ("https://m/", false, "/v2"),
        ("https://m/v2/", false, "/v2"),
        ("https://m/p/", false, "/p/v2"),
        ("https://m/p/", true, "/p"),
        ("https://m", true, ""),
    ] {
        let hosts = parsed(&format!("[host.'{address}']\noverride_path = {override_path}"));
        assert_eq!(hosts[0].root, root, "{address}");
        assert_eq!(hosts[1].root, "/v2");
    }
}

#[test]
fn a_plain_address_with_tls_keys_is_tried_with_tls() {
    for (address, keys, scheme) in [
        ("http://m:5000", "", Scheme::Http),
        ("http://m:5000", "skip_verify = false", Scheme::Either),
        ("http://m", "skip_verify = true", Scheme::Either),
        ("http://m:80/p", "skip_verify = true", Scheme::Http),
        ("https://m", "skip_verify = true", Scheme::Https),
    ] {
        let hosts = parsed(&format!("[host.'{address}']\n{keys}"));
        assert_eq!(hosts[0].scheme, scheme, "{address} {keys}");
    }
}

/// Fault 39.
#[test]
fn a_broken_file_is_refused_with_its_line() {
    for (text, expected) in [
        ("server = 'x'\n[host.'a']\n[host.'a']", "/c/hosts.toml:3: "),
        ("server = ", "/c/hosts.toml:1: "),
        ("\ncapabilities = ['fly']", "/c/hosts.toml:2: unknown capability `fly`"),
        ("[host.'a']\ndial_timeout = 'fast'", "/c/hosts.toml:2: not a duration"),
        ("server = 1", "/c/hosts.toml:1: expected a string, found integer"),
        ("skip_verify = 'yes'", "/c/hosts.toml:1: expected true or false"),
        ("override_path = 1", "/c/hosts.toml:1: expected true or false"),
        ("host = 1", "/c/hosts.toml:1: expected a table"),
        ("\n\n[host.'ftp://a']", "/c/hosts.toml:3: `ftp://a`: scheme"),
        ("[header]\n'a b' = 'x'", "/c/hosts.toml:2: not a header name"),
        ("client = [['a','b','c']]", "/c/hosts.toml:1: expected a certificate"),
    ] {
        let error = refused(text);
        assert!(error.starts_with(expected), "{text}: {error}");
    }
}

#[test]
fn an_address_that_is_refused_is_shown_without_its_password() {
    for (address, expected) in [
        ("ftp://bob:canary@m", "`ftp://[redacted]@m`: scheme"),
        ("http://bob:canary@m:99999", "`http://[redacted]@m:99999` is not a host"),
        ("http://bob:can/ary@m", "`http://[redacted]@m` is not a host"),
        ("ftp://m/p?key=canary", "`ftp://m/p`: scheme"),
        ("bob:canary@m:99999", "`[redacted]@m:99999` is not a host"),
    ] {
        for text in [format!("[host.'{address}']"), format!("server = '{address}'")] {
            let error = refused(&text);
            assert!(error.contains(expected) && !error.contains("canary"), "{error}");
        }
    }
}

/// Fault 49.
#[test]
fn certificates_lie_beside_the_file() {
    for (text, expected) in [
        ("server = 'x'\nca = ['reg.crt']", "/c/reg.crt"),
        ("server = 'x'\nca = '/d/reg.crt'", "/d/reg.crt"),
        ("server = 'x'\nclient = 'c.pem'", "/c/c.pem"),
        ("server = 'x'\nclient = [['c.pem', 'sub/c.key']]", "/c/sub/c.key"),
    ] {
        let error = read(text, "reg.test").hosts().unwrap_err();
        let HostsError::Certificate { line: 2, source: TlsError::Read { path, .. }, .. } = error else {
            panic!("{error}")
        };
        assert_eq!(path, Path::new(expected), "{text}");
    }
}

#[test]
fn every_mistake_is_told_in_the_order_of_the_file() {
    let text = "server = 1\nfoo = 1\nskip_verify = 'x'\n[host.'a']\ncapabilities = ['fly']\nca = 'no.crt'\nbar = 1\n\
                [host.'ftp://b']\n";
    let reading = read(text, "reg.test");
    assert_eq!(reading.mistakes.iter().map(HostsError::line).collect::<Vec<_>>(), [1, 3, 5, 6, 8]);
    let idle = [(2, "unknown key `foo`".to_owned()), (7, "unknown key `bar`".to_owned())];
    assert_eq!(reading.idle, idle);
    // What containerd passes over does not fail a pull.
    assert_eq!(parsed("foo = 1").len(), 1);
}

#[test]
fn an_empty_server_is_the_registry_itself() {
    assert_eq!(parsed("server = ''\nskip_verify = true"), parsed("skip_verify = true"));
}

#[test]
fn headers_of_the_message_and_of_the_connection_are_passed_over() {
    let names = [
        "Host",
        "content-length",
        "Transfer-Encoding",
        "Trailer",
        "Connection",
        "TE",
        "Upgrade",
        "Keep-Alive",
        "Proxy-Connection",
    ];
    let lines = names.map(|name| format!("{name} = '1'\n")).concat();
    let reading = read(&format!("[header]\n{lines}X-Own = '1'\n"), "reg.test");
    assert!(reading.mistakes.is_empty(), "{:?}", reading.mistakes);
    let expected: Vec<_> =
        names.iter().zip(2..).map(|(name, line)| (line, format!("header `{name}`"))).collect();
    assert_eq!(reading.idle, expected);
    assert_eq!(reading.hosts[0].headers.keys().collect::<Vec<_>>(), ["x-own"]);
}

#[test]
fn durations_are_read_as_go_writes_them() {
    for (text, expected) in [
        ("3s", Some(3000)),
        ("1m30s", Some(90_000)),
        ("500ms", Some(500)),
        ("1.5h", Some(5_400_000)),
        ("+5s", Some(5000)),
        (".5s", Some(500)),
        ("2000µs", Some(2)),
        ("2000μs", Some(2)),
        ("0", Some(0)),
        ("+0", Some(0)),
        ("+", None),
        ("++5s", None),
        (".s", None),
        ("", None),
        ("5", None),
        ("-1s", None),
        ("fast", None),
    ] {
        assert_eq!(duration(text), expected.map(Duration::from_millis), "{text}");
    }
}
