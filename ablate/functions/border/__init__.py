"""The border to a user's code: it runs in processes of its own, and all calls into it go through here."""
