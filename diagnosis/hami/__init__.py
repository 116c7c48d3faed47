"""Find HAMi's installations, read their settings, and repeat HAMi's arithmetic. Pure.

HAMi shares cards by memory and cores. The snapshot has its annotations on nodes and pods in typed form. `fit` is the
arithmetic over them.
"""
