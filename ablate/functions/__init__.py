"""Your own training code as a trainable: a function `train(config, run)`, or a command (docs/functions.md)."""
