"""Reports: what each kind says of a snapshot, and the document it becomes. Figures come from `analysis`."""
