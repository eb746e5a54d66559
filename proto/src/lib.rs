//! Wire types of the gRPC interfaces that drayd serves and calls. Owns no behaviour beyond what keeps a secret out
//! of a `Debug` print.

/// Kubernetes Container Runtime Interface, version 1 (`runtime.v1`).
pub mod cri {
    #![allow(missing_docs, unused_qualifications, clippy::pedantic)]

    tonic::include_proto!("runtime.v1");

    impl std::fmt::Debug for AuthConfig {
        /// Shows which fields are set, never their values.
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            let shown = |value: &str| if value.is_empty() { "unset" } else { "redacted" };
            f.debug_struct("AuthConfig")
                .field("username", &shown(&self.username))
                .field("password", &shown(&self.password))
                .field("auth", &shown(&self.auth))
                .field("server_address", &self.server_address)
                .field("identity_token", &shown(&self.identity_token))
                .field("registry_token", &shown(&self.registry_token))
                .finish()
        }
    }
}

/// drayd's own interface, version 1 (`dray.v1`). Its messages are written as JSON with the names of the `.proto` file;
/// values of enumerations as the last words of theirs, in lower case.
pub mod dray {
    #![allow(missing_docs, unused_qualifications, clippy::pedantic)]

    use serde::{Serialize, Serializer};

    tonic::include_proto!("dray.v1");

    /// What is written of an enumeration: its value without the words that all values of it begin with.
    pub trait Word: TryFrom<i32> {
        /// `waiting`, for example; empty for the value that says nothing.
        fn word(self) -> String;
    }

    macro_rules! words {
        ($($of:ident $prefix:literal),*) => {
            $(impl Word for $of {
                fn word(self) -> String {
                    let word = self.as_str_name().strip_prefix($prefix).unwrap_or_default();
                    if word == "UNSPECIFIED" { String::new() } else { word.to_ascii_lowercase() }
                }
            })*
        };
    }

    words!(Stage "STAGE_", LayerState "LAYER_STATE_", Engine "ENGINE_", Priority "PRIORITY_", Verdict "VERDICT_");

    fn word<E: Word, S: Serializer>(value: &i32, serializer: S) -> Result<S::Ok, S::Error> {
        E::try_from(*value).map(E::word).unwrap_or_default().serialize(serializer)
    }
}

#[cfg(test)]
mod tests {
    use super::cri::{AuthConfig, PullImageRequest};

    #[test]
    fn debug_of_a_request_shows_no_credential() {
        let request = PullImageRequest {
            auth: Some(AuthConfig {
                username: "canary-user".into(),
                password: "canary-password".into(),
                auth: "canary-auth".into(),
                server_address: "registry.test".into(),
                identity_token: "canary-identity".into(),
                registry_token: "canary-registry".into(),
            }),
            ..PullImageRequest::default()
        };
        let printed = format!("{request:?}");
        assert!(!printed.contains("canary"), "{printed}");
        assert!(printed.contains("registry.test"), "{printed}");
    }
}
