"""Published datasets, one module each."""
