"""Latency models: from samples (a workload on a device) to the latency of a batch.

`latency_model` combines the parts, in this order:

1. `analytical`: an additive roofline with five fitted factors, which also holds for unmeasured devices.
2. `residual_trees`: boosted trees on what the roofline leaves. `tree_masks` and `tree_shap` evaluate trees fast.
3. Transfer of the trees' residuals from figures of the same workload on other devices.
4. `gaussian_process`: for models that were measured nowhere, over their architecture.
5. `few_shot`: a correction for devices with a few figures.

`explanations` puts a prediction into words; `baselines` are what the latency model must beat in an evaluation. All of
them predict natural logs of milliseconds; residuals and corrections are differences of such logs.
"""
