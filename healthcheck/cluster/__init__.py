"""All requests to the Kubernetes API."""
