"""Read HAMi's data on nodes and pods, and repeat its arithmetic. HAMi shares cards. Pure.

HAMi shares cards by memory and cores. The readers here read all its annotations and configuration. Because other
programs write these data, the readers return bounded, typed and printable values. `fit` is the arithmetic over them.
"""
