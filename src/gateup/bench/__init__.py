"""What this machine reaches: its peaks, our kernels against them, and the peers installed."""
