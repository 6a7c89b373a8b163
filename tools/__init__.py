"""Commands for those who change privfair; they are not installed with it."""
