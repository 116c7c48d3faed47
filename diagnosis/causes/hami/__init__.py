"""Find problems that keep a pod from its share of a card, where HAMi shares cards by memory and cores."""
