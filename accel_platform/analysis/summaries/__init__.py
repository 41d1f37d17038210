"""Summaries of the tables, one module per view.

* `matrix`, `matrix_history`: compatibility of models and hardware, now and by day.
* `comparison`, `baselines`: ratios between cells; `baselines` chooses the cell to compare with, and has the speed-ups.
* `roofline`, `efficiency`, `best_configurations`: cells against the limits, power and price of their device.
* `scatter`: raw samples. `suspicions`, `missing_data`: what is doubted, and what is lacking.
"""
