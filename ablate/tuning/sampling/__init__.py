"""Which configuration comes next."""
