"""What stands from before: findings, where they came from, and what ends them."""
