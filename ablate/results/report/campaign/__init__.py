"""The page of a campaign: its candidates in order, the champions, the error rate spent, and the closing."""
