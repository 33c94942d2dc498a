"""What every room may use: errors, text, files, randomness; nothing of ours below it."""
