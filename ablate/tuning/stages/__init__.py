"""What follows a search: confirmation, racing, equally tuned rows, campaigns."""
