"""Coverage checks: every transformers architecture, built small and run."""
