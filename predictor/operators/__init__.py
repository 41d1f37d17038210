"""Operator predictor: latency of a model on a GPU, as the sum of its operators' times.

The modules, in the order in which a prediction passes through them:

1. `device_rates`: rates of the GPU that limit operators (FLOPs per second, bandwidth, compute units, cache).
2. `tables`: the model's traced operators as one array per kind, for a batch or a training step.
3. `features`: the roofline time of each operator, and features of how the operator fits the device.
4. `utilization`: the share of the roofline that real kernels reach, by trees that `kernels` gives the training data.
5. `whole_models`: corrections from the sum of operators to the latency of a whole model.
6. `predictor`: the latency with its interval, and the fitted predictor that ships with the package.

`fit` makes that predictor and measures its errors on devices and models that were left out.

The roofline time of an operator is the longer of its FLOPs over the peak rate and its bytes over the bandwidth. Times
are in ms, sizes in numbers or bytes, and precisions are given by the width of a number: 32 or 16 bits.
"""
