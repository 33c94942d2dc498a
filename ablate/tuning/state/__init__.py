"""What is known of the trials, from the ledger alone."""
