"""Training, promotion and evaluation of the learned predictor.

`train` is the flow: read the training set (`predictor.data.dataset`), fit and cross-validate one group of samples after
the other (`predictor.calibration`), compare the candidate with the predictor in service (`comparison`), store it
(`artifact`, with `manifest` and `sample_io` for its files), and put it into service (`promotion`). `sharing` stores
promoted artifacts beside a shared log, for the other machines of a team.

`evaluate` is apart from that: it tests the latency model on any samples, against baselines (`evaluation_report`).
`evaluation_pairs` gives predicted beside measured latencies of the predictor in service.
"""
