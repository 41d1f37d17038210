"""Sources: files, archives, tables and databases as documents."""
