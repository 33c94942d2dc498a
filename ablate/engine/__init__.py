"""The built-in training engine: models, tasks and training, which other rooms find through the registry."""
