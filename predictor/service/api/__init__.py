"""Routes of the HTTP API. Add a noun as a module with a `router`, and include it in `app.create_app`."""
