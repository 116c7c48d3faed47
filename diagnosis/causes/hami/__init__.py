"""Where HAMi shares cards by memory and cores: what keeps a pod from its share."""
