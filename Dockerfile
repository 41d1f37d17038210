# The service and the command line in one image; `--target dagster` makes one that runs what it is told, as Kubernetes
# and compose.yaml do. What is built here is installed, not copied into the final image's history; nothing in it runs as
# root, and everything that lasts lies in the volume /data.
FROM python:3.12-slim-trixie AS build
RUN python -m venv /opt/accel
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE workspace.yaml dagster.yaml ./
COPY samples samples
COPY accel_platform accel_platform
COPY assets assets
COPY migrations migrations
COPY predictor predictor
# The processor's build of torch: the usual one brings gigabytes of CUDA that this image cannot use.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN /opt/accel/bin/pip install --no-cache-dir --extra-index-url "$TORCH_INDEX" -c constraints.txt ".[kubernetes,postgres]"

FROM python:3.12-slim-trixie AS base
RUN useradd --system --uid 10001 --home-dir /data --shell /usr/sbin/nologin accel \
    && install -d -o accel -g accel -m 700 /data
COPY --from=build /opt/accel /opt/accel
ENV PATH=/opt/accel/bin:$PATH ACCEL_HOME=/data PYTHONUNBUFFERED=1
USER accel
WORKDIR /data
VOLUME /data
STOPSIGNAL SIGTERM

# Dagster's images have no entry point: its charts and launchers give whole commands.
FROM base AS dagster
CMD ["dagster", "--version"]

FROM base
EXPOSE 8000
# Any answer is a sign of life; whether there is something to answer from, /ready says.
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s --retries=3 \
    CMD ["python", "-c", "import http.client as h; c = h.HTTPConnection('127.0.0.1', 8000, timeout=4); c.request('GET', '/ready'); c.getresponse()"]
ENTRYPOINT ["accel"]
CMD ["serve", "--host", "0.0.0.0", "--port", "8000", "--log-format", "json"]
