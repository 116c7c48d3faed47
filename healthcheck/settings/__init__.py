"""What a cluster can set, and what a program is told: declared once, read from files and variables, understood."""
