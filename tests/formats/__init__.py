"""What earlier versions wrote, read by this one; and what this one writes, by the rule that they read with."""
