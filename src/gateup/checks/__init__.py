"""Rules over a checkpoint's headers: what is wrong, why, and what to do about it."""
