# Training and features on a GPU: torch, XGBoost and cuDF, all for CUDA 13. Built by `make images`.
# CUDA's libraries come with the wheels; the driver (580 or later) is the node's.
ARG PYTHON_DIGEST

FROM docker.io/library/python:3.11-slim@${PYTHON_DIGEST} AS builder
RUN python -m venv /opt/shortlist
ENV PATH=/opt/shortlist/bin:$PATH
WORKDIR /app
COPY requirements/lock/run.txt requirements/lock/cluster.txt requirements/lock/gpu.txt requirements/lock/
# XGBoost's build for GPUs takes the place of that for CPUs: both are imported by the same name.
RUN sed --in-place '/^xgboost-cpu==/,/[^\\]$/d' requirements/lock/run.txt \
    && pip install --no-cache-dir --no-deps --require-hashes -r requirements/lock/run.txt \
        -r requirements/lock/cluster.txt -r requirements/lock/gpu.txt
COPY pyproject.toml README.md ./
COPY components components
COPY feature_repo feature_repo
COPY models models
COPY monitoring monitoring
COPY pipelines pipelines
COPY shortlist shortlist
# In place, so that the code's digest is the one of the checkout it was built from.
RUN pip install --no-cache-dir --no-deps --no-build-isolation --editable . \
    && python -m compileall -q components feature_repo models monitoring pipelines shortlist

FROM docker.io/library/python:3.11-slim@${PYTHON_DIGEST}
ARG CODE_VERSION
ARG REVISION
LABEL org.opencontainers.image.title="shortlist-gpu" \
      org.opencontainers.image.description="Shortlist: training and features on a GPU" \
      org.opencontainers.image.version="${CODE_VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.base.name="docker.io/library/python:3.11-slim"
# XGBoost needs OpenMP's runtime, which the slim image leaves out. Triton compiles its kernels' launchers, and torch.compile its
# machine code, where they run: that takes a compiler (Python's headers are there), a small part of an image with CUDA in it.
# No versions: Debian's mirrors keep the newest of a release only, and a pinned one fails with the next security update.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ libgomp1 \
    && rm -rf /var/lib/apt/lists/*
COPY --from=builder /opt/shortlist /opt/shortlist
COPY --from=builder /app /app
# The root may be read-only: everything is written below /tmp, which a pod mounts. The user has no name of its own, and
# torch would ask for one to name its folder of compiled code.
ENV PATH=/opt/shortlist/bin:$PATH \
    HOME=/tmp \
    PYTHONPATH=/app \
    SHORTLIST_ROOT=/app \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    OMP_WAIT_POLICY=PASSIVE \
    TORCHINDUCTOR_CACHE_DIR=/tmp/torchinductor \
    TRITON_CACHE_DIR=/tmp/triton \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
WORKDIR /tmp
USER 1000:1000
ENTRYPOINT ["shortlist"]
CMD ["--help"]
