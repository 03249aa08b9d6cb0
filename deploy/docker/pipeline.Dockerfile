# Steps on the CPU, the server in front of Triton, the trigger service. Built by `make images`.
ARG PYTHON_DIGEST

# Only builds: uv, and the packages of a run in three lists of like size, each a layer that stays while its list does.
FROM docker.io/library/python:3.11-slim@${PYTHON_DIGEST} AS installer
COPY requirements/lock/uv.txt /
RUN pip install --no-cache-dir --no-deps --require-hashes --target /opt/uv -r /uv.txt
COPY requirements/lock/run.txt /
RUN awk '/^[a-z]/ { list = $0 < "g" ? "a-f" : $0 < "p" ? "g-o" : "p-z" } { print > ("/run-" list ".txt") }' /run.txt

FROM docker.io/library/python:3.11-slim@${PYTHON_DIGEST}
# A layer for each group of packages, those that change least first: a new version of the code moves only the last one.
# XGBoost needs OpenMP's runtime, which the slim image leaves out. No version: Debian's mirrors keep the newest of a release
# only, and a pinned one fails with the next security update.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends libgomp1 \
    && rm -rf /var/lib/apt/lists/*
RUN python -m venv /opt/shortlist \
    && python -m venv --without-pip /opt/triton
ENV PATH=/opt/shortlist/bin:$PATH
WORKDIR /app
# uv's settings while the image is built; a busy machine may take longer for a file than uv waits by itself.
ARG UV_PYTHON=/opt/shortlist/bin/python
ARG UV_COMPILE_BYTECODE=1
ARG UV_COMPILE_BYTECODE_TIMEOUT=600
ARG UV_LINK_MODE=copy
# torch first and alone: asked for through another package, an index gives a build with gigabytes of CUDA. No step runs
# torch's own tests (130 MB).
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
COPY requirements/lock/torch-cpu.txt requirements/lock/
RUN --mount=type=bind,from=installer,source=/opt/uv,target=/opt/uv --mount=type=cache,target=/root/.cache/uv \
    /opt/uv/bin/uv pip install --no-deps --index-url "$TORCH_INDEX" --require-hashes -r requirements/lock/torch-cpu.txt \
    && rm -rf /opt/shortlist/lib/python3.*/site-packages/torch/test /opt/shortlist/lib/python3.*/site-packages/torch/bin/*[Tt]est*
# What validates a model before it is served: Triton with its Python backend, which needs numpy 1 and so its own place. The
# folder of its backends, which is made below, is named after a file's time, which a layer keeps to the second only.
COPY requirements/lock/triton.txt requirements/lock/
RUN --mount=type=bind,from=installer,source=/opt/uv,target=/opt/uv --mount=type=cache,target=/root/.cache/uv \
    /opt/uv/bin/uv pip install --python /opt/triton/bin/python --no-deps --require-hashes -r requirements/lock/triton.txt \
    && find /opt/triton -name libtriton_python.so -exec touch --date='2026-01-01 00:00:00 UTC' {} +
COPY requirements/lock/cluster.txt requirements/lock/
RUN --mount=type=bind,from=installer,source=/opt/uv,target=/opt/uv --mount=type=cache,target=/root/.cache/uv \
    /opt/uv/bin/uv pip install --no-deps --require-hashes -r requirements/lock/cluster.txt
COPY --from=installer /run-a-f.txt requirements/lock/
RUN --mount=type=bind,from=installer,source=/opt/uv,target=/opt/uv --mount=type=cache,target=/root/.cache/uv \
    /opt/uv/bin/uv pip install --no-deps --require-hashes -r requirements/lock/run-a-f.txt
COPY --from=installer /run-g-o.txt requirements/lock/
RUN --mount=type=bind,from=installer,source=/opt/uv,target=/opt/uv --mount=type=cache,target=/root/.cache/uv \
    /opt/uv/bin/uv pip install --no-deps --require-hashes -r requirements/lock/run-g-o.txt
COPY --from=installer /run-p-z.txt requirements/lock/
RUN --mount=type=bind,from=installer,source=/opt/uv,target=/opt/uv --mount=type=cache,target=/root/.cache/uv \
    /opt/uv/bin/uv pip install --no-deps --require-hashes -r requirements/lock/run-p-z.txt
COPY pyproject.toml README.md ./
COPY components components
COPY feature_repo feature_repo
COPY models models
COPY monitoring monitoring
COPY pipelines pipelines
COPY shortlist shortlist
# In place, so that the code's digest is the one of the checkout it was built from. The folder of Triton's backends is made
# here, since nobody may write there later.
RUN --mount=type=bind,from=installer,source=/opt/uv,target=/opt/uv --mount=type=cache,target=/root/.cache/uv \
    /opt/uv/bin/uv pip install --no-deps --no-build-isolation --editable . \
    && python -m compileall -q components feature_repo models monitoring pipelines shortlist \
    && SHORTLIST_TRITON_VENV=/opt/triton python -c 'from shortlist.serving.triton.triton_home import find_triton; find_triton()'
ARG CODE_VERSION
ARG REVISION
LABEL org.opencontainers.image.title="shortlist-pipeline" \
      org.opencontainers.image.description="Shortlist: steps on the CPU, server, trigger service" \
      org.opencontainers.image.version="${CODE_VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.base.name="docker.io/library/python:3.11-slim"
# The root may be read-only: everything is written below /tmp, which a pod mounts. With no compiler in the image, torch
# runs its networks as written.
ENV HOME=/tmp \
    PYTHONPATH=/app \
    SHORTLIST_ROOT=/app \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    OMP_WAIT_POLICY=PASSIVE \
    TORCHDYNAMO_DISABLE=1 \
    SHORTLIST_TRITON_VENV=/opt/triton
WORKDIR /tmp
USER 1000:1000
ENTRYPOINT ["shortlist"]
CMD ["--help"]
