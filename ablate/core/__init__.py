"""What every room speaks of: configurations, trials, trainables, objectives, and the registry of their kinds."""
