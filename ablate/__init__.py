"""`ablate`: distributed hyperparameter search and ablation for small networks."""

__version__ = "0.1.0"
