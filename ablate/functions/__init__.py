"""Your own training function as a trainable: `train(config, run)`, called once for each seed (docs/functions.md)."""
