"""The data holders' side: a client answers requests, and nothing else leaves it."""
