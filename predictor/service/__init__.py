"""The HTTP service: an API over the warehouse, the log and the advisor, and the dashboard.

A request passes through `server` (uvicorn with limits on connections), `middleware` (authentication, rate limits,
headers, telemetry) and a route of `api` or `dashboard`. `http` has what routes share: conditional responses, paging,
streaming and problem documents. Beside the requests run the threads of `background`: updates of the tables after
writes, and the feed of changes. `app.create_app` puts all of it together.
"""
