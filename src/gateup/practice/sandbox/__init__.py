"""What runs in the learner's process, and the two processes above it.

These modules are also loaded without gateup, as a package `sandbox` of their own, by an isolated
Python that holds nothing worth stealing: no solution, no expected value, no environment. They
import one another relatively, and otherwise the standard library and numpy alone.
"""
