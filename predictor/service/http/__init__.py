"""HTTP building blocks: problems, paging, conditional responses, streaming."""
