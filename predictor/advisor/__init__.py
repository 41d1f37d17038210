"""The advisor: from a query to ranked hardware with reasons.

A query passes through these modules:

1. `advisor`: the entry. It holds the evidence and predictor in service (`serving_state`) and cached answers
   (`answer_cache`), and loads new ones beside them.
2. `queries`: the answer to a query from one state, by the steps that follow.
3. `resolved_query`: the model, its sizes and cost, and the hardware to answer for (`candidates`).
4. `estimation`: for each candidate the best supported figures. Measured or scaled ones are from `scaling`, predicted
   ones from `model_estimates` (learned predictor) or `operator_estimates` (operator predictor).
5. `answers`: ranking by an objective and constraints (`objectives`), exclusions with what to do (`suggestions`), the
   roofline bound (`bound`) and names of devices (`device_labels`).

`batch_tables` and `charts` show many predictions at once. `serving` answers for language models under load.
"""
