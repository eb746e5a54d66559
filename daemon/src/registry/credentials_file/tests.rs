use super::*;

fn parsed(text: &str) -> CredentialsFile {
    CredentialsFile::parse(Path::new("/c.json"), text).unwrap()
}

fn user(name: &str) -> Login {
    Login::Password { username: name.into(), password: Secret::new("p") }
}

/// The user that the file has for a host, which is named after the key it was found under.
fn user_for(file: &CredentialsFile, host: &str, path: &str) -> String {
    match file.find(&server_of(host), path).login {
        Some(Login::Password { username, .. }) => String::from_utf8(username).unwrap(),
        other => format!("{other:?}"),
    }
}

#[test]
fn a_file_that_is_not_utf_8_is_refused_with_its_line() {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), b"{\n\"auths\": \"\xff\"}").unwrap();
    let error = CredentialsFile::read(file.path()).unwrap_err();
    assert_eq!(error.to_string(), format!("{}:2: not UTF-8", file.path().display()));
}

#[test]
fn every_form_of_an_entry_is_read() {
    for (entry, login) in [
        (r#"{"auth":"dTpw"}"#, Some(user("u"))),
        (r#"{"username":"u","password":"p"}"#, Some(user("u"))),
        (r#"{"username":"u","password":"p","auth":"dTpw","email":"e"}"#, Some(user("u"))),
        (r#"{"auth":"dTpw","identitytoken":"t"}"#, Some(Login::IdentityToken(Secret::new("t")))),
        (r#"{"registrytoken":"t"}"#, Some(Login::RegistryToken(Secret::new("t")))),
        (r#"{"auth":"","username":""}"#, None),
        (r#"{"auth":null}"#, None),
        ("{}", None),
        ("null", None),
    ] {
        let file = parsed(&format!(r#"{{"auths":{{"h":{entry}}}}}"#));
        assert_eq!(file.find("h", "a").login, login, "{entry}");
    }
    for text in ["{}", r#"{"auths":null,"credsStore":null,"credHelpers":null}"#, r#"{"HttpHeaders":{}}"#] {
        assert_eq!(parsed(text).find("h", "a"), Found { login: None, helper: None });
    }
}

#[test]
fn keys_match_in_every_spelling_and_the_longest_path_wins() {
    let file = parsed(
        r#"{"auths":{
            "https://reg.test:5000/v1/":{"username":"url"},
            "h.test/team":{"username":"team"},
            "h.test/team/app":{"username":"app"},
            "https://h.test":{"username":"h-url"},
            "h.test":{"username":"h"},
            "127.0.0.1:5000":{"username":"ip"},
            "[::1]:5000":{"username":"ip6"},
            "https://index.docker.io/v1/":{"username":"hub"},
            "empty.test":{}
        }}"#,
    );
    for (host, path, expected) in [
        ("reg.test:5000", "a", "url"),
        ("REG.test:5000", "a", "url"),
        ("reg.test", "a", "None"),
        ("h.test", "a", "h"),
        ("h.test:443", "a", "h"),
        ("h.test", "team", "team"),
        ("h.test", "team/other", "team"),
        ("h.test", "team/app/deep", "app"),
        ("h.test", "teammate/app", "h"),
        ("127.0.0.1:5000", "a", "ip"),
        ("[::1]:5000", "a", "ip6"),
        ("docker.io", "library/a", "hub"),
        ("registry-1.docker.io", "library/a", "hub"),
        ("empty.test", "a", "None"),
        ("h.test.evil.test", "a", "None"),
    ] {
        assert_eq!(user_for(&file, host, path), expected, "{host}/{path}");
    }
}

#[test]
fn a_helper_of_the_host_comes_before_the_one_for_all() {
    let file = parsed(
        r#"{"auths":{"https://filed.test/v2/":{}},"credsStore":"all",
            "credHelpers":{"own.test":"own","index.docker.io":"hub","off.test":""}}"#,
    );
    for (server, name, asked) in [
        ("own.test", "own", "own.test"),
        ("docker.io", "hub", "https://index.docker.io/v1/"),
        ("filed.test", "all", "https://filed.test/v2/"),
        ("other.test", "all", "other.test"),
        ("off.test", "all", "off.test"),
    ] {
        let query = HelperQuery { name: name.into(), server: asked.into() };
        assert_eq!(file.find(server, "a").helper, Some(query), "{server}");
    }
}

#[test]
fn a_broken_file_is_refused_with_its_line_and_without_its_contents() {
    for (text, expected) in [
        ("", "/c.json:1: not JSON: EOF while parsing a value"),
        ("{\"auths\":\n canary}", "/c.json:2: not JSON: expected value"),
        ("\"canary\"", "/c.json:1: expected an object"),
        ("{\n\"auths\": \"canary\"}", "/c.json:2: expected an object"),
        ("{\"auths\":{\n\"h\":\"canary\"}}", "/c.json:2: expected an object"),
        ("{\"auths\":{\"h\":{\n\"password\":[\"canary\"]}}}", "/c.json:2: expected a string"),
        ("{\"auths\":{\"h\":{\"password\":12345678}}}", "/c.json:1: expected a string"),
        (
            "{\"auths\":{\"h\":{\n\n\"auth\":\"canary!\"}}}",
            "/c.json:3: the auth field of the credentials is not base64",
        ),
        (
            "{\"auths\":{\"h\":{\"auth\":\"Y2FuYXJ5\"}}}",
            "/c.json:1: the auth field of the credentials holds no colon",
        ),
        ("{\"credsStore\":\"../canary\"}", "/c.json:1: a credential helper has a slash in its name"),
    ] {
        let error = CredentialsFile::parse(Path::new("/c.json"), text).unwrap_err();
        assert!(error.to_string().starts_with(expected), "{text}: {error}");
        for shown in [error.to_string(), format!("{error:?}")] {
            assert!(
                !shown.contains("canary") && !shown.contains("Y2FuYXJ5") && !shown.contains("1234"),
                "{shown}"
            );
        }
    }
}

#[test]
fn no_debug_and_no_summary_shows_a_secret() {
    let file = parsed(r#"{"auths":{"h":{"username":"u","password":"canary"}},"credHelpers":{"o":"x"}}"#);
    assert!(!format!("{file:?}").contains("canary"));
    assert_eq!(file.summary(), ["h: in the file", "o: helper x"]);
}
