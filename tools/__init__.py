"""Tools of the developers: meters of the architecture, frozen runs."""
