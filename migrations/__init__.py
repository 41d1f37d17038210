"""Other people's benchmark files, read into events: what they say, what they claim wrongly, and what became of each."""
