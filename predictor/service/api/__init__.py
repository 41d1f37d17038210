"""One module per noun, each with a `router(advisor)`. What they answer is decided in the packages below."""
