"""Commands on stored data: the event log, its tables, imports, packs of public figures and caches."""
