"""Exercises from formula to kernel, and the judge that runs what a learner writes."""
