"""The gated MLP as functions on tensors."""
