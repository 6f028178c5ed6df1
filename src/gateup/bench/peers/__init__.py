"""Other implementations of the gated MLP, each measured in a process of its own.

None of them is needed by anything else; a peer that is not installed is left out, and named.
"""
