"""A study on Kubernetes: one manifest for KubeRay, and the checks of a cluster before it is applied."""
