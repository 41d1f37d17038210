"""Inputs of predictions: evidence from the tables, and samples with their cost and features.

* `evidence` summarizes the usable results of a snapshot per cell; the advisor answers from it directly.
* `model_resolution` finds out which model a query means. `traced_models` traces a model's cost and operators on the
  meta device; `config_cost` does so for an unknown config, in the child process of `config_worker`.
* `samples` makes a `Sample` of a measured result or of a query: the cost of its work, and the device it runs on.
  `dataset` makes those of all results, which is the training set.
* `roofline`, `operator_mix`, `number_widths` and `features` compute what the models see of a sample.
* `fast_path` keeps slow work, such as tracing, off callers that must not block.
"""
