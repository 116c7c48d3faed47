"""Find HAMi's installations, read their settings, and compare requests with the cards of a node. Pure.

HAMi shares cards by memory and cores. The snapshot has its annotations on nodes and pods in typed form.
"""
