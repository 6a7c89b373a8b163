"""A run from its configuration to its folder: assembly, loop, files, summary."""
