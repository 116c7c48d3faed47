"""The console script: one file per command, without judgement logic."""
