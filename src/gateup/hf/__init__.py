"""The gated MLP inside transformers' models."""
