"""Serving of language models under load: memory, step times and the waiting of requests, with intervals."""
