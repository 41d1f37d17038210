"""Reading and writing of tables as text, HTML and files, shared by commands, routes and reports."""
