"""Load generator for servers of language models that speak OpenAI's protocol."""
