"""The CronJob's program: which idle nodes are due for a deep test, one Job for each, and nothing left behind."""
