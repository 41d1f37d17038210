"""Import of other people's benchmark files: figures as events, suspicions of wrong ones, and a ledger of all files."""
