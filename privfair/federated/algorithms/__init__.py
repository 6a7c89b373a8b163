"""What is shared for fairness, and what clients minimise: the tracked methods and the baselines."""
