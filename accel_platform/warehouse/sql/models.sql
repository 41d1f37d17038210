-- Every model that was described or has results; what only results name has no config and no cost.
WITH described AS (
    SELECT unnest(json_transform(arg_max(payload, (recorded_at, event_id)), '{
        "model_id": "VARCHAR", "architecture": "VARCHAR", "family": "VARCHAR", "modality": "VARCHAR",
        "aliases": "JSON", "config": "JSON", "size": "VARCHAR", "parameters": "BIGINT", "layers": "INTEGER",
        "flops_per_item": "BIGINT", "activation_bytes_per_item": "BIGINT",
        "layer_output_bytes_per_item": "BIGINT", "image_size": "INTEGER",
        "sequence_length": "INTEGER", "operators": "VARCHAR"}'))
    FROM other_events
    WHERE type = 'ModelDescribed'
    GROUP BY payload->>'$.model_id'
),
counted AS (
    SELECT model_id, min(model_family) AS family, sum(results)::BIGINT AS results
    FROM results_by_model
    WHERE source NOT IN (SELECT source FROM unused_packs)
    GROUP BY model_id
)
SELECT coalesce(d.model_id, c.model_id) AS model_id, d.architecture, coalesce(d.family, c.family) AS family, d.modality, d.aliases, d.config, d.size,
    d.parameters, d.layers, d.flops_per_item, d.activation_bytes_per_item, d.layer_output_bytes_per_item,
    d.image_size, d.sequence_length, d.operators, coalesce(c.results, 0) AS results
FROM described AS d
FULL JOIN counted AS c ON c.model_id = d.model_id
