"""HAMi, which shares cards by memory and cores: what it writes on nodes and pods, and its arithmetic done again. Pure.

Readers are the one door for its annotations and configuration: others write these, so what they hold is bounded, typed
and printable from there on. `fit` is the arithmetic over it.
"""
