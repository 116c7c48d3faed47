"""The CronJob's program: select the idle nodes that are due for a deep test, run a Job for each, and clean up."""
