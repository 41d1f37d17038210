"""Preparation of models before measuring: weights, graphs, inputs and reference outputs."""
