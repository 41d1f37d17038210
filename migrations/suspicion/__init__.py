"""Suspicion rules: reasons to doubt imported figures."""
