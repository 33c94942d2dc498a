"""The border to a user's code: separate processes run it, and every call into it passes here."""
