"""Commands that predict: recommendations, serving, and the predictor behind them."""
