use std::os::unix::net::UnixListener as StdListener;

use tempfile::TempDir;

use super::*;

const MODE: Mode = Mode(0o660);

fn directory() -> TempDir {
    tempfile::tempdir().unwrap()
}

/// A socket file whose listener is gone, as a killed process leaves it.
fn stale(path: &Path) {
    drop(StdListener::bind(path).unwrap());
    assert!(path.exists());
}

#[tokio::test]
async fn a_client_reaches_the_socket_and_dropping_the_guard_removes_it() {
    let directory = directory();
    let path = directory.path().join("run/drayd.sock");
    let (listener, guard) = bind(&path, MODE, None).await.unwrap();

    assert_eq!(fs::metadata(path.parent().unwrap()).unwrap().mode() & 0o7777, 0o755);
    let client = UnixStream::connect(&path).await.unwrap();
    listener.accept().await.unwrap();
    drop(client);
    drop(guard);
    assert!(!path.exists());
}

#[tokio::test]
async fn mode_and_numeric_group_are_set() {
    let directory = directory();
    let path = directory.path().join("s");
    // Our own group: the only one that an unprivileged test may give a file to.
    let gid = nix::unistd::getegid().as_raw();
    let _bound = bind(&path, Mode(0o620), Some(&Group::Id(gid))).await.unwrap();
    let found = fs::metadata(&path).unwrap();
    assert_eq!((found.mode() & 0o7777, found.gid()), (0o620, gid));
}

#[tokio::test]
async fn a_group_is_found_by_name() {
    let directory = directory();
    let path = directory.path().join("s");
    let own = nix::unistd::Group::from_gid(nix::unistd::getegid()).unwrap().unwrap();
    let _bound = bind(&path, MODE, Some(&Group::Name(own.name))).await.unwrap();
    assert_eq!(fs::metadata(&path).unwrap().gid(), own.gid.as_raw());
}

#[tokio::test]
async fn an_unknown_group_is_refused_before_anything_is_made() {
    let directory = directory();
    let path = directory.path().join("new/s");
    let group = Group::Name("no-such-group".into());
    let error = bind(&path, MODE, Some(&group)).await.unwrap_err();
    assert!(matches!(&error, SocketError::UnknownGroup { name, .. } if name == "no-such-group"), "{error}");
    assert!(!path.parent().unwrap().exists());
}

#[tokio::test]
async fn a_stale_socket_is_replaced() {
    let directory = directory();
    let path = directory.path().join("s");
    stale(&path);
    let (_listener, _guard) = bind(&path, MODE, None).await.unwrap();
    UnixStream::connect(&path).await.unwrap();
}

#[tokio::test]
async fn a_living_socket_of_a_stranger_is_left_alone() {
    let directory = directory();
    let path = directory.path().join("s");
    let _stranger = StdListener::bind(&path).unwrap();
    let error = bind(&path, MODE, None).await.unwrap_err();
    assert_eq!(error.to_string(), format!("socket {} is in use by another process", path.display()));
    UnixStream::connect(&path).await.unwrap();
}

#[tokio::test]
async fn a_stranger_with_a_full_backlog_is_alive() {
    let directory = directory();
    let path = directory.path().join("s");
    let socket = UnixSocket::new_stream().unwrap();
    socket.bind(&path).unwrap();
    let _stranger = socket.listen(1).unwrap();
    let mut waiting = Vec::new();
    while let Ok(client) = UnixStream::connect(&path).await {
        waiting.push(client);
    }
    let error = bind(&path, MODE, None).await.unwrap_err();
    assert!(matches!(error, SocketError::InUse { .. }), "{error}");
}

#[tokio::test]
async fn of_two_starts_at_once_one_wins() {
    let directory = directory();
    let path = directory.path().join("s");
    stale(&path);
    let (first, second) = tokio::join!(bind(&path, MODE, None), bind(&path, MODE, None));
    let errors: Vec<_> = [first.as_ref().err(), second.as_ref().err()].into_iter().flatten().collect();
    assert!(matches!(errors[..], [SocketError::InUse { .. }]), "{errors:?}");
}

#[tokio::test]
async fn the_path_is_free_again_after_the_guard() {
    let directory = directory();
    let path = directory.path().join("s");
    drop(bind(&path, MODE, None).await.unwrap());
    drop(bind(&path, MODE, None).await.unwrap());
}

#[tokio::test]
async fn what_is_not_a_socket_is_not_removed() {
    let directory = directory();
    let path = directory.path().join("s");
    fs::write(&path, "precious").unwrap();
    let error = bind(&path, MODE, None).await.unwrap_err();
    assert!(matches!(error, SocketError::NotASocket { .. }), "{error}");
    assert_eq!(fs::read(&path).unwrap(), b"precious");
}

#[tokio::test]
async fn the_guard_spares_a_file_that_took_the_sockets_place() {
    let directory = directory();
    let path = directory.path().join("s");
    let (_listener, guard) = bind(&path, MODE, None).await.unwrap();
    fs::remove_file(&path).unwrap();
    fs::write(&path, "another's").unwrap();
    drop(guard);
    assert!(path.exists());
}

#[tokio::test]
async fn the_longest_path_binds_and_one_byte_more_is_refused() {
    let directory = directory();
    let fill = MAX_PATH - directory.path().as_os_str().len() - 1;
    let longest = directory.path().join("s".repeat(fill));
    bind(&longest, MODE, None).await.unwrap();

    let error = bind(&directory.path().join("s".repeat(fill + 1)), MODE, None).await.unwrap_err();
    assert!(matches!(error, SocketError::PathTooLong { .. }), "{error}");
    assert!(error.to_string().ends_with("is 108 bytes long, the kernel allows 107"), "{error}");
}
