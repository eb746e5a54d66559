//! The check of all that is configured for registries: reads every directory and tells what drayd makes of it.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::Environment;
use super::credential_helper;
use super::credentials_file::CredentialsFile;
use super::hosts::{self, DEFAULT_DIRECTORY as DEFAULT, Host, Scheme};
use super::hosts_toml::HostsError;
use crate::cause::chain;
use crate::oci::Reference;

/// What a check found.
#[derive(Debug, Default)]
pub struct Report {
    /// What applies: for each registry the hosts in the order they are asked.
    pub text: String,
    /// What has no effect.
    pub warnings: Vec<String>,
    /// What fails the pulls it concerns, with file and line.
    pub mistakes: Vec<String>,
}

/// Reads the hosts of all registries below `config_path`, and the node's credentials. Those directories that are
/// `optional` may be missing; `environment` is where credential helpers are looked for.
pub fn check(
    config_path: &[PathBuf],
    optional: &[PathBuf],
    credentials_file: Option<&Path>,
    environment: &Environment,
) -> Report {
    let mut report = Report::default();
    for root in config_path {
        match directories(root) {
            Ok(directories) => {
                for directory in directories {
                    report.add_directory(config_path, &directory);
                }
            }
            Err(source) if source.kind() == ErrorKind::NotFound => {
                if !optional.contains(root) {
                    report.add_missing(root);
                }
            }
            Err(source) => report.add_mistake(&HostsError::Read { path: root.clone(), source }),
        }
    }
    if let Some(path) = credentials_file {
        report.add_credentials(path, environment);
    }
    report
}

impl Report {
    fn add_missing(&mut self, root: &Path) {
        let list = if root.as_os_str().as_encoded_bytes().contains(&b':') {
            "; several directories are several elements of the list, not one with colons"
        } else {
            ""
        };
        self.warnings.push(format!("{} does not exist, and has no effect{list}", root.display()));
    }

    fn add_directory(&mut self, config_path: &[PathBuf], directory: &Path) {
        let name = directory.file_name().unwrap_or_default().to_string_lossy();
        let domain = hosts::domain_of(&name);
        if let Some(reason) = unnamed(&domain) {
            self.warnings.push(format!("{} has no effect: {reason}", directory.display()));
            return;
        }
        if let Ok(Some(first)) = hosts::directory(config_path, &domain)
            && first != directory
        {
            let (directory, first) = (directory.display(), first.display());
            self.warnings.push(format!("{directory} has no effect: {first} comes first"));
        }
        if domain.bytes().any(|byte| byte.is_ascii_uppercase()) {
            self.warnings.push(format!(
                "{} is only for images that spell the registry so: name it in lower case",
                directory.display()
            ));
        }
        let reading = hosts::read(directory, &domain);
        for (line, what) in reading.idle {
            let file = directory.join("hosts.toml");
            self.warnings.push(format!("{}:{line}: {what} has no effect", file.display()));
        }
        for fault in reading.hosts.iter().flat_map(|host| &host.tls.passed_over) {
            self.warnings.push(format!("{fault}; it has no effect"));
        }
        for mistake in &reading.mistakes {
            self.add_mistake(mistake);
        }
        if reading.mistakes.is_empty() {
            let whose = if domain == DEFAULT { "every other registry" } else { &domain };
            let _ = writeln!(self.text, "{}: {whose}", directory.display());
            for (number, host) in reading.hosts.iter().enumerate() {
                let _ = writeln!(self.text, "  {}. {}", number + 1, line(host, &domain));
            }
        }
    }

    fn add_credentials(&mut self, path: &Path, environment: &Environment) {
        match CredentialsFile::read(path) {
            Ok(file) => {
                let programs = environment.0.get("PATH").cloned().unwrap_or_default();
                for name in file.helpers() {
                    // The service may have another one.
                    if let Err(missing) = credential_helper::find(&programs, name) {
                        self.warnings.push(format!("{}: {missing} of this check", path.display()));
                    }
                }
                let _ = writeln!(self.text, "{}: credentials", path.display());
                for line in file.summary() {
                    let _ = writeln!(self.text, "  {line}");
                }
            }
            Err(error) => self.add_mistake(&error),
        }
    }

    fn add_mistake(&mut self, mistake: &(dyn std::error::Error + 'static)) {
        self.mistakes.push(chain(mistake));
    }
}

/// Why no image can be of a registry of this name.
fn unnamed(domain: &str) -> Option<&'static str> {
    if domain == DEFAULT {
        return None;
    }
    match Reference::parse(&format!("{domain}/a/b")) {
        Ok(reference) if reference.domain() == domain => None,
        // In another spelling.
        Ok(reference) if reference.path() == "a/b" => Some("to images, Docker Hub is docker.io"),
        _ => Some("no registry can have this name: a host has a dot, a port or upper case, or is localhost"),
    }
}

fn directories(root: &Path) -> std::io::Result<BTreeSet<PathBuf>> {
    let entries = fs::read_dir(root)?.map(|entry| Ok(entry?.path()));
    let paths: std::io::Result<BTreeSet<PathBuf>> = entries.collect();
    let hidden =
        |path: &PathBuf| path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
    Ok(paths?.into_iter().filter(|path| path.is_dir() && !hidden(path)).collect())
}

/// One host: how it is reached, what it is asked for, and what is special.
fn line(host: &Host, domain: &str) -> String {
    let scheme = match host.scheme {
        Scheme::Http => "http",
        Scheme::Https => "https",
        Scheme::Either => "https or http",
    };
    let mut text = if domain == DEFAULT && host.own {
        "the registry itself".to_owned()
    } else {
        format!("{scheme}://{}{}", host.authority, host.root)
    };
    let capabilities = [(host.capabilities.pull, "pull"), (host.capabilities.resolve, "resolve")];
    let capabilities: Vec<_> = capabilities.iter().filter(|(has, _)| *has).map(|(_, name)| *name).collect();
    let _ = write!(text, " [{}]", capabilities.join(", "));
    let mut notes = host.tls.notes();
    if !host.headers.is_empty() {
        notes.push("headers");
    }
    if host.own && domain != DEFAULT {
        notes.push("the registry itself");
    }
    if !notes.is_empty() {
        let _ = write!(text, " ({})", notes.join(", "));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(root: &Path, name: &str, text: &str) {
        fs::create_dir_all(root.join(name)).unwrap();
        fs::write(root.join(name).join("hosts.toml"), text).unwrap();
    }

    #[test]
    fn every_registry_is_told_with_its_hosts_in_order() {
        let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (first, second) = (one.path(), two.path());
        write(
            first,
            "docker.io",
            "[host.'http://m.test/p']\ncapabilities = ['pull']\nextra = 1\n[host.'a.test']\nskip_verify = true\n",
        );
        write(first, "h_5000_", "server = 'http://h:5000'\nskip_verify = true\nheader = { a = 'canary' }");
        write(second, "h:5000", "");
        write(second, "_default", "[host.'https://d.test']");
        fs::write(second.join("file"), "").unwrap();
        let roots = [first.to_path_buf(), second.to_path_buf(), "/nonexistent".into()];
        let report = check(&roots, &roots[2..], None, &Environment::default());
        let (one, two) = (first.display(), second.display());
        assert_eq!(
            report.text,
            format!(
                "{one}/docker.io: docker.io\n  \
                   1. http://m.test/p/v2 [pull]\n  \
                   2. https://a.test/v2 [pull, resolve] (certificate not verified)\n  \
                   3. https://registry-1.docker.io/v2 [pull, resolve] (the registry itself)\n\
                 {one}/h_5000_: h:5000\n  \
                   1. https or http://h:5000/v2 [pull, resolve] (certificate not verified, headers, the registry itself)\n\
                 {two}/_default: every other registry\n  \
                   1. https://d.test/v2 [pull, resolve]\n  \
                   2. the registry itself [pull, resolve]\n\
                 {two}/h:5000: h:5000\n  \
                   1. https://h:5000/v2 [pull, resolve] (the registry itself)\n"
            )
        );
        assert_eq!(
            report.warnings,
            [
                format!("{one}/docker.io/hosts.toml:3: unknown key `extra` has no effect"),
                format!("{two}/h:5000 has no effect: {one}/h_5000_ comes first"),
            ]
        );
        assert!(report.mistakes.is_empty(), "{:?}", report.mistakes);
    }

    fn tell(root: &Path, credentials: Option<&Path>) -> Report {
        check(&[root.into()], &[], credentials, &Environment::default())
    }

    #[test]
    fn what_no_pull_reads_is_warned_of_and_not_told_as_if_it_applied() {
        let root = tempfile::tempdir().unwrap();
        let at = root.path().display();
        for name in ["index.docker.io", "Docker.io", "h", "a b"] {
            write(root.path(), name, "[broken");
        }
        let colons: PathBuf = format!("{at}/x:{at}/y").into();
        let report =
            check(&[root.path().into(), colons, root.path().join("z")], &[], None, &Environment::default());
        assert_eq!((report.text.as_str(), report.mistakes), ("", Vec::new()));
        let name = "no registry can have this name: a host has a dot, a port or upper case, or is localhost";
        assert_eq!(
            report.warnings,
            [
                format!("{at}/Docker.io has no effect: to images, Docker Hub is docker.io"),
                format!("{at}/a b has no effect: {name}"),
                format!("{at}/h has no effect: {name}"),
                format!("{at}/index.docker.io has no effect: to images, Docker Hub is docker.io"),
                format!(
                    "{at}/x:{at}/y does not exist, and has no effect; several directories are several elements of the \
                     list, not one with colons"
                ),
                format!("{at}/z does not exist, and has no effect"),
            ]
        );
    }

    #[test]
    fn a_directory_that_is_none_is_a_mistake_to_the_check_as_it_is_to_a_pull() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("file");
        fs::write(&file, "").unwrap();
        let report = tell(&file, None);
        let of_pull = chain(&hosts::load(&[file], "reg.test").unwrap_err());
        assert_eq!(report.mistakes, [of_pull]);
    }

    #[test]
    fn a_helper_that_is_not_there_is_warned_of() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("c.json");
        let text = r#"{"credsStore":"test","credHelpers":{"h.test":"none","i.test":"none"}}"#;
        fs::write(&file, text).unwrap();
        credential_helper::tests::install(root.path(), "exit 1");
        let environment = Environment([("PATH".to_owned(), root.path().into())].into());
        let report = check(&[], &[], Some(&file), &environment);
        let expected = format!("{}: docker-credential-none is not in PATH of this check", file.display());
        assert_eq!((report.warnings, report.mistakes), (vec![expected], Vec::new()));
    }

    #[test]
    fn a_directory_in_upper_case_is_warned_of() {
        let root = tempfile::tempdir().unwrap();
        write(root.path(), "Reg.test", "");
        let report = tell(root.path(), None);
        let at = root.path().display();
        let expected =
            format!("{at}/Reg.test is only for images that spell the registry so: name it in lower case");
        assert_eq!(report.warnings, [expected]);
    }

    #[test]
    fn every_mistake_of_every_file_is_told_with_its_place() {
        let root = tempfile::tempdir().unwrap();
        write(root.path(), "a.test", "server = 1\n\nca = 'no.crt'\n");
        write(root.path(), "b.test", "[host");
        let credentials = root.path().join("c.json");
        fs::write(&credentials, "{\n\"auths\": \"canary\"}").unwrap();
        let report = tell(root.path(), Some(&credentials));
        let at = root.path().display();
        assert_eq!(report.mistakes.len(), 4, "{:?}", report.mistakes);
        for (mistake, expected) in report.mistakes.iter().zip([
            format!("{at}/a.test/hosts.toml:1: expected a string, found integer"),
            format!("{at}/a.test/hosts.toml:3: a certificate cannot be used: certificate file {at}/a.test/no.crt cannot be read"),
            format!("{at}/b.test/hosts.toml:1: "),
            format!("{at}/c.json:2: expected an object"),
        ]) {
            assert!(mistake.starts_with(&expected), "{mistake}");
        }
        assert_eq!(report.text, "");
    }
}
