"""The compiled steps (numba) of the batched engine."""
