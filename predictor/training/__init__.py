"""Training, promotion and evaluation of the learned predictor.

`train` is the flow:

1. Read the training set (`predictor.data.dataset`).
2. Fit and cross-validate one group of samples after the other (`predictor.calibration`).
3. Compare the candidate with the predictor in service (`comparison`).
4. Store it (`artifact`, with `manifest` and `sample_io` for its files).
5. Put it into service (`promotion`).

`sharing` stores promoted artifacts beside a shared log, for the other machines of a team.

`evaluate` is no step of training: it tests the latency model on any samples, against baselines (`evaluation_report`).
`evaluation_pairs` gives predicted beside measured latencies of the predictor in service.
"""
