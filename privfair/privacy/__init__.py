"""What leaves a client and what it costs: plan, price, ledger desk, statement."""
