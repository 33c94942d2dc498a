"""Inspects studies and their trials in the ledger, without writing to it."""
