"""Privacy accounting: events, their composition, calibration, a ledger and budgets. No torch behind it."""
