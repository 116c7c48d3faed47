"""A first hour: commands of README and the pages in `ways` on a real kubelet, and the traces at its end."""
