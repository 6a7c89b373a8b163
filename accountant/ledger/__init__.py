"""The ledger: tables, hash chain, totals, stored messages, and what this machine remembers."""
