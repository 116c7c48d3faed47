"""All access to Kubernetes."""
