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
