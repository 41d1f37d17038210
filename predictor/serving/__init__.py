"""Serving predictor: times of requests to a language model under load, and whether the model fits into memory.

The modules, in the order in which a prediction passes through them:

1. `loads`: what users ask (`Load`), and the devices, engine and quantization that serve it (`Deployment`). These need
   `models` (shapes of published models), `quantization` (sizes of weights and cache), `engines` (what each engine
   serves) and `stored_weights` (what hub ids and configs say of the weights).
2. `memory`: how many users fit beside the weights.
3. `work`: roofline times of a decoding step and of a prompt.
4. `step_times`: the formula for the times per output token and to the first token.
5. `fold_trees`, then `neighbors`: corrections of the formula's times, by boosted trees and by a Gaussian process over
   measured loads.
6. `disaggregated`: the same where separate workers compute the prompts.
7. `predictor`: the times with their intervals, and the fitted predictor that ships with the package.
8. `queueing`: a simulation of the queue, for the times of the slowest requests. `traces` reads requests for it.

`measured_loads` and `disaggregated_loads` are the data that `fit` learns from.
"""
