"""The batched engine: many runs and all their clients as one batched tensor program."""
