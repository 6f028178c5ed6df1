"""Checks that read weights and run a text: what `gateup check --deep` measures."""
