"""Studies and their trials as the ledger has them: everything here only reads."""
