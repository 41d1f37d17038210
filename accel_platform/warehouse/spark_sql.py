"""Translation of the tables' definitions from DuckDB's SQL to Spark's.

The files in `sql/` are the only definitions. sqlglot translates what both dialects have. This module maps what Spark
lacks, and a property test compares the tables of both engines. Ids are text in Spark: it sorts like them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import sqlglot
from sqlglot import exp

_JSON, _PARSED = "_json", "_parsed"
_TYPES = {"VARCHAR": "STRING", "UUID": "STRING", "JSON": "STRING", "TIMESTAMP": "STRING", "INTEGER": "INT",
          "VARCHAR[]": "ARRAY<STRING>", "UUID[]": "ARRAY<STRING>"}  # fmt: skip
"""Spark's type of a field while its JSON is read; others have the same name."""


def to_spark(sql: str, columns: Mapping[str, Iterable[str]]) -> str:
    """Return a SELECT in Spark's SQL for one in DuckDB's.

    `columns` are the columns of each table that a `* EXCLUDE` or `* REPLACE` stands for.
    """
    tree = sqlglot.parse_one(sql, read="duckdb")
    for select in list(tree.find_all(exp.Select)):
        _expand_star(select, columns)
    # Innermost first, because a rewritten SELECT is copied into its replacement.
    for select in reversed(list(tree.find_all(exp.Select))):
        rewritten = _unnest_json(select)
        if rewritten is not select and select is not tree:
            select.replace(rewritten)
        elif rewritten is not select:
            tree = rewritten
    for node in reversed(list(tree.walk())):  # arguments first, because what is mapped is a copy of them
        mapped = _map(node)
        if mapped is not node:
            node.replace(mapped)
    for size in list(tree.find_all(exp.ArraySize)):
        size.replace(exp.Anonymous(this="ARRAY_SIZE", expressions=[size.this]))  # SIZE of NULL may be -1
    return tree.sql(dialect="spark", comments=False)


def _expand_star(select: exp.Select, columns: Mapping[str, Iterable[str]]) -> None:
    """Replace `t.* EXCLUDE (...) REPLACE (...)` by the columns it stands for, because Spark has no REPLACE."""
    projections: list[exp.Expr] = []
    for projection in select.expressions:
        star = projection.this if isinstance(projection, exp.Column) else projection
        if not isinstance(star, exp.Star) or not (star.args.get("except_") or star.args.get("replace")):
            projections.append(projection)
            continue
        prefix = projection.table if isinstance(projection, exp.Column) else ""
        tables = {table.alias_or_name: table.name for table in select.find_all(exp.Table)}
        left_out = {column.name for column in star.args.get("except_") or ()}
        replaced = {alias.alias: alias for alias in star.args.get("replace") or ()}
        projections += [
            replaced.get(name) or exp.column(name, prefix or None)
            for name in columns[tables[prefix] if prefix else next(iter(tables.values()))]
            if name not in left_out
        ]
    select.set("expressions", projections)


def _unnest_json(select: exp.Select) -> exp.Select:
    """Return the SELECT with `unnest(json_transform(text, schema))` as one column for each field of the schema."""
    found = [number for number, item in enumerate(select.expressions) if _is_unnested_json(item)]
    if not found:
        return select
    [position] = found
    call = select.expressions[position].find(exp.Anonymous)
    assert call is not None, "it was recognized by this"
    text, schema = call.expressions
    fields: dict[str, Any] = json.loads(schema.this)
    others = [item for number, item in enumerate(select.expressions) if number != position]
    inner = select.copy()
    with_ = inner.args.pop("with_", None)
    inner.set("expressions", [*(other.copy() for other in others), exp.alias_(text.copy(), _JSON)])
    schema_ddl = ", ".join(f"`{name}` {_type(kind)}" for name, kind in fields.items())
    parsed = exp.func("FROM_JSON", exp.column(_JSON), exp.Literal.string(schema_ddl))
    middle = exp.select("*", exp.alias_(parsed, _PARSED)).from_(inner.subquery("_texts"))
    kept: list[exp.Expr] = [exp.column(other.alias_or_name) for other in others]
    kept[position:position] = [exp.alias_(_field((name,), kind), name) for name, kind in fields.items()]
    outer = exp.select(*kept).from_(middle.subquery("_objects"))
    outer.set("with_", with_)
    return outer


def _is_unnested_json(item: exp.Expr) -> bool:
    if not isinstance(item, exp.Unnest | exp.Explode):
        return False
    call = item.this if isinstance(item, exp.Explode) else item.expressions[0]
    return isinstance(call, exp.Anonymous) and call.name.lower() == "json_transform"


def _type(kind: Any) -> str:
    if isinstance(kind, Mapping):
        return f"STRUCT<{', '.join(f'`{name}`: {_type(inner)}' for name, inner in kind.items())}>"
    if isinstance(kind, list):
        return f"ARRAY<{_type(kind[0])}>"
    return str(_TYPES.get(kind, kind))


def _field(path: tuple[str, ...], kind: Any) -> exp.Expr:
    """Return the value at a path of the object that `_PARSED` holds and `_JSON` spells."""
    if isinstance(kind, Mapping):
        inner = [(exp.Literal.string(name), _field((*path, name), of)) for name, of in kind.items()]
        return exp.func("NAMED_STRUCT", *(part for pair in inner for part in pair))
    read: exp.Expr = exp.column(_PARSED)
    for name in path:
        read = exp.Dot(this=read, expression=exp.to_identifier(name))
    spelt = exp.func("GET_JSON_OBJECT", exp.column(_JSON), exp.Literal.string(".".join(("$", *path))))
    if kind == "JSON":
        return spelt
    if kind == "DOUBLE":
        # From its spelling, because Sail's FROM_JSON misses the last digit of one in eight. Only where there is one,
        # because each GET_JSON_OBJECT reads the whole text.
        return exp.case().when(_is_known(read), _try_cast(spelt, "DOUBLE"))
    if kind == "TIMESTAMP":
        return _try_cast(read, "TIMESTAMP_NTZ")
    return read


def _is_known(value: exp.Expr) -> exp.Expr:
    return exp.Not(this=exp.Is(this=value, expression=exp.Null()))


def _try_cast(text: exp.Expr, kind: str) -> exp.Expr:
    # `requires_string`, because sqlglot writes a plain CAST without it.
    return exp.TryCast(this=text, to=exp.DataType.build(kind, dialect="spark"), requires_string=True)


def _map(node: exp.Expr) -> exp.Expr:
    """Return Spark's counterpart of a node that sqlglot would write as Spark reads it not or slowly, or the node."""
    if isinstance(node, exp.NullSafeEQ):
        return _with_equality(node)
    if isinstance(node, exp.ArgMax | exp.ArgMin | exp.Median | exp.PercentileDisc | exp.Filter):
        return _map_aggregate(node)
    if isinstance(node, exp.Anonymous):
        name = node.name.lower()
        arguments = node.expressions
    else:
        name = next((name for kind, name in _KINDS.items() if isinstance(node, kind)), "")
        arguments = [part for part in (node.this, node.args.get("expression")) if isinstance(part, exp.Expr)]
    if name == "list_aggregate" and arguments[1].name == "quantile_cont":
        return _quantiles(arguments[0], arguments[2])
    if name == "from_json" and arguments[1].name.startswith("["):
        return exp.func("FROM_JSON", arguments[0], exp.Literal.string(_type(json.loads(arguments[1].name))))
    return _fill(_TEMPLATES[name], *arguments) if name in _TEMPLATES else node


def _with_equality(node: exp.NullSafeEQ) -> exp.Expr:
    """Return a comparison of what may be NULL with an equality of texts beside it, by which Sail can join at once."""
    sides = [
        exp.func("COALESCE", exp.cast(side.copy(), "STRING"), exp.Literal.string(""))
        for side in (node.this, node.expression)
    ]
    return exp.paren(exp.and_(exp.EQ(this=sides[0], expression=sides[1]), node.copy()))


def _map_aggregate(node: exp.Expr) -> exp.Expr:
    filtered = isinstance(node.parent, exp.Filter)
    found = node
    if isinstance(node, exp.ArgMax | exp.ArgMin):
        name = "MAX_BY" if isinstance(node, exp.ArgMax) else "MIN_BY"
        key = node.expression
        key = exp.Struct(expressions=key.expressions) if isinstance(key, exp.Tuple) else key
        found = exp.Anonymous(this=name, expressions=[node.this, key])
        if not filtered:  # as in DuckDB, a NULL is never the answer while there is a value
            found = exp.Filter(this=found, expression=exp.Where(this=_is_known(node.this.copy())))
    elif isinstance(node, exp.PercentileDisc):
        share = exp.Anonymous(this="PERCENTILE_DISC", expressions=[node.expression])  # sqlglot would approximate
        order = exp.Order(expressions=[exp.Ordered(this=node.this, nulls_first=True)])
        found = exp.WithinGroup(this=share, expression=order)
    elif isinstance(node, exp.Median) and not filtered:
        found = _median(exp.func("COLLECT_LIST", node.this))
    elif isinstance(node, exp.Filter) and isinstance(node.this, exp.Median):
        found = _median(exp.Filter(this=exp.func("COLLECT_LIST", node.this.this), expression=node.expression))
    return found


_KINDS: dict[type[exp.Expr], str] = {
    exp.Length: "len",
    exp.FromJson: "from_json",
    exp.TimeToUnix: "epoch",
}
"""DuckDB's names of functions that sqlglot has a class for."""
# Welford's recurrence in the order of the list, as DuckDB computes it: equal to the last digit.
_STDDEV = """
aggregate(a, named_struct('n', 0D, 'mean', 0D, 'squares', 0D), (s, x) -> named_struct(
    'n', s.n + 1, 'mean', s.mean + (x - s.mean) / (s.n + 1),
    'squares', s.squares + (x - (s.mean + (x - s.mean) / (s.n + 1))) * (x - s.mean)), s -> sqrt(s.squares / (s.n - 1)))
"""
_TEMPLATES = {
    "len": "array_size(a)",
    "epoch": "unix_micros(a) / 1e6",
    "timezone": "CAST(b AS TIMESTAMP)",  # of a time without a zone, in a session in UTC
    "list_avg": "aggregate(a, 0L, (s, x) -> s + x) / array_size(a)",
    "list_stddev_samp": _STDDEV,
}
"""Spark's SQL for DuckDB's functions of arguments `a` and `b`. `len` is of lists, `timezone` of UTC only."""


def _fill(template: str, *arguments: exp.Expr) -> exp.Expr:
    """Return the template in Spark's SQL with the arguments in the places of `a` and `b`."""
    given = dict(zip("ab", arguments, strict=False))
    return sqlglot.parse_one(template, read="spark").transform(
        lambda node: given[node.name].copy() if isinstance(node, exp.Column) and node.name in given else node
    )


def _median(values: exp.Expr) -> exp.Expr:
    """Return the median of an aggregated list: half the sum of its middle two. Sail's own errs in the last digit."""
    ordered = exp.func("ARRAY_SORT", values)
    low = _fill("get(a, CAST(floor((array_size(a) - 1) / 2) AS INT))", ordered)
    high = _fill("get(a, CAST(floor(array_size(a) / 2) AS INT))", ordered)
    return exp.paren(exp.paren(low + high) / 2)


def _quantiles(values: exp.Expr, shares: exp.Expr) -> exp.Expr:
    """Return the quantiles of a list by linear interpolation between its order statistics (type 7)."""
    ordered = exp.func("ARRAY_SORT", values)
    found = []
    for share in shares.expressions:
        place = exp.paren(_fill(f"(array_size(a) - 1) * {share.name}D", ordered))
        low = _fill("try_element_at(a, CAST(floor(b) AS INT) + 1)", ordered, place)
        high = _fill("try_element_at(a, CAST(ceil(b) AS INT) + 1)", ordered, place)
        found.append(low + exp.paren(high - low.copy()) * _fill("(a - floor(a))", place))
    return exp.func("ARRAY", *found)
