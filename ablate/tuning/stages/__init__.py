"""What follows a search: confirmation, equally tuned rows, campaigns."""
