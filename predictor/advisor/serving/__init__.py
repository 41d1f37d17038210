"""Answers about serving a language model under a load.

`ranking.recommend_serving` is the entry. `weights` finds out what a repository stores, `deployments` makes the plans to
choose among, and `capacity` leaves out those that do not keep up. `options` describes a plan with its times, cost and
goals, `similar_loads` finds measured loads as evidence, and `launch` writes the commands that start the engine. Times
are from `predictor.serving`.
"""
