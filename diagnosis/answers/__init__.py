"""Answers to single questions about a cluster: allocation, would a pod fit, drift, the chain of a pod."""
