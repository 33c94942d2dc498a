"""The process that owns a study: it checks, plans, runs, resumes and reports."""
