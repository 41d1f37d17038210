"""Answers about serving a language model under a load.

`ranking.recommend_serving` is the entry. `deployments` makes the plans to choose among, `options` describes a plan with
its times, cost and goals, `similar_loads` finds measured loads as evidence, and `launch` writes the command that starts
the engine. Times are from `predictor.serving`.
"""
