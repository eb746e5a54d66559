//! drayd: the image service of a Kubernetes node.
